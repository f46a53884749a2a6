"""What is new in a channel that a server writes, and safe to read: the same answer for its three users.

A stream of tables reads the pieces between two positions, `messages --follow` the messages of these pieces, and a
migration the surveys of a growing store. Every case is a history of the files; each user looks where it yields.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stantools.inspection.growing_store import GrowingStore
from stantools.inspection.stored_messages import MessageReader, ReadProblem, Selection, follow
from stantools.store.directory import list_channel
from stantools.store.growing_channel import ANYWHERE, REMOVED, REPLACED, ChannelFollower, LostRange
from stantools.store.mapping import mapped
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile
from tests.pipeline.tables.followed import CRC, Server, cut_to_index

History = Iterator[None]


def grows_and_rolls(server: Server) -> History:
    server.publish(3)
    yield
    server.publish(30)
    yield
    server.publish()
    yield


def expires_unread(server: Server) -> History:
    """Slices are removed before they were read, one of them the slice in which the reader stopped."""
    server.publish(10)
    yield
    server.publish(30)
    for _ in range(3):
        server.remove_oldest()
    yield


def expires_read(server: Server) -> History:
    server.publish(20)
    yield
    server.remove_oldest()
    server.remove_oldest()
    yield
    server.publish()
    yield


def is_archived_unread(server: Server) -> History:
    server.publish(10)
    yield
    server.publish(30)
    for _ in range(3):
        server.remove_oldest(archive=True)
    yield


def is_made_again(server: Server) -> History:
    """The channel is deleted and created again between two looks; its sequences begin again."""
    server.publish(10)
    yield
    shutil.rmtree(server.directory)
    server.directory.mkdir()
    server.sequence = 0
    server.stored.clear()
    server.start()
    server.publish(2)
    yield
    server.publish()
    yield


def index_is_late(server: Server) -> History:
    """A killed server leaves messages that no index names; the next one cuts them off and assigns their sequences."""
    server.publish(3)
    yield
    server.kill()
    server.leave(2, 0)
    yield
    cut_to_index(server.data_file())
    server.start()
    server.publish(3)
    yield


def record_is_half_written(server: Server) -> History:
    server.publish(3)
    server.kill()
    server.leave(0, 40)
    yield
    cut_to_index(server.data_file())
    server.start()
    server.publish()
    yield


def a_slice_begins_after_a_half_written_record(server: Server) -> History:
    server.publish(3)
    yield
    server.kill()
    server.leave(0, 40)
    yield
    server.begin_slice()
    server.publish(2)
    yield


def is_cut_back(server: Server) -> History:
    """The files lose messages that were read, and grow again in the same place."""
    server.publish(6)
    yield
    assert server.writer is not None
    server.writer.close()
    index = server.data_file().with_suffix(".idx")
    os.truncate(index, index.stat().st_size - 3 * (index.stat().st_size - 4) // 6)
    cut_to_index(server.data_file())
    for number in (4, 5, 6):
        del server.stored[number]
    server.sequence = 3
    server.start()
    server.publish(5)
    yield


def is_compacted(server: Server) -> History:
    """The directory is replaced by a copy with other slices."""
    server.publish(20)
    yield
    server.rewrite(server.root.with_name("scratch"))
    server.publish(2)
    yield


#: the histories, with the status of the losses that a reader gets
CASES: list[tuple[Callable[[Server], History], set[str]]] = [
    (grows_and_rolls, set()),
    (expires_unread, {REMOVED}),
    (expires_read, set()),
    (is_archived_unread, set()),
    (is_made_again, {REPLACED}),
    (index_is_late, set()),
    (record_is_half_written, set()),
    (a_slice_begins_after_a_half_written_record, set()),
    (is_cut_back, {REPLACED}),
    (is_compacted, {REPLACED}),
]


def number_of(data: bytes) -> int:
    return int(data.split(b" ")[0])


@pytest.fixture(params=CASES, ids=lambda case: case[0].__name__)
def case(request: pytest.FixtureRequest) -> tuple[Callable[[Server], History], set[str]]:
    return request.param


def missed(server: Server, got: list[int]) -> set[int]:
    assert got == sorted(set(got)), "each message once, in order"
    return set(server.stored) - set(got)


def test_pieces(case: tuple[Callable[[Server], History], set[str]], tmp_path: Path) -> None:
    history, losses = case
    server = Server(tmp_path / "store")
    follower, at = ChannelFollower(str(server.root), server.channel, CRC), ANYWHERE
    got: list[int] = []
    lost: list[LostRange] = []
    for _ in history(server):
        news = follower.look(at)
        for part in news.parts():
            if isinstance(part, LostRange):
                lost.append(part)
                continue
            assert part.files.data
            with mapped(part.files.data) as data:
                for rows in SliceFile(data[: part.end], server.name, CRC).records(part.start):
                    if not isinstance(rows, DamagedRange):
                        got += [number_of(bytes(data[at : at + 20])) for at in rows.data_start.tolist()]
        at = news.end
        assert follower.unchanged(at)
    assert {each.status for each in lost} == losses
    gone = missed(server, got)
    if REMOVED in losses:
        assert gone == {*range(11, 25)}
        assert [each.message.partition(": ")[2] for each in lost] == [
            "messages 11 to 24 were removed before they were read"
        ]
    else:
        assert not gone


def test_messages(case: tuple[Callable[[Server], History], set[str]], tmp_path: Path) -> None:
    history, losses = case
    server = Server(tmp_path / "store")
    steps = history(server)
    reader = MessageReader(list_channel(server.directory), CRC)
    follower = ChannelFollower(str(server.root), server.channel, CRC)
    items = list(follow(reader, follower, ANYWHERE, (0, 0), lambda: next(steps, steps) is not steps, Selection()))
    problems = [each.detail for each in items if isinstance(each, ReadProblem) and "last one read" in each.detail]
    assert len(problems) == (REPLACED in losses)
    got = [number_of(each.data) for each in items if not isinstance(each, ReadProblem)]
    assert missed(server, got) == ({*range(11, 25)} if REMOVED in losses else set())


def test_surveys(case: tuple[Callable[[Server], History], set[str]], tmp_path: Path) -> None:
    history, _ = case
    server = Server(tmp_path / "store")
    store = GrowingStore(server.root, CRC)
    for _ in history(server):
        store.look()
        assert not store.look()
    present = MessageReader(list_channel(server.directory), CRC).read(Selection())
    sequences = [each.sequence for each in present if not isinstance(each, ReadProblem)]
    survey = store.channels[server.channel]
    assert [each for first, last in survey.intact for each in range(first, last + 1)] == sequences
    store.look(stopped=True)
    assert store.channels[server.channel].intact == survey.intact
