"""A stream gets every message of a store that is written exactly once, and hears of what vanished before."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import time

import pytest

from stantools.errors import StoreUnreadableError
from stantools.pipeline.tables.follow import Limit
from stantools.pipeline.tables.positions import NOT_FOLLOWED, Offsets
from stantools.store import growing_channel
from stantools.store.growing_channel import REMOVED, REPLACED
from stantools.store.growing_slice import ChannelPosition
from stantools.store.limits import SliceLimits

from .followed import Reader, Server, cut_to_index


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "store")
    yield server
    if server.writer:
        server.writer.abandon()


@pytest.fixture
def reader(server):
    return Reader(server.root)


def ends_well(server, reader):
    """Everything that is in the files was read exactly once, in order, and nothing else."""
    reader.all()
    assert reader.got == sorted(server.stored)
    assert not reader.look()


def test_growing_and_new_slices(server, reader):
    for count in (1, 3, 20, 1, 7):
        server.publish(count)
        assert reader.look()
    ends_well(server, reader)
    assert reader.lost == []
    assert len(server.slices()) == 4


def test_nothing_new_is_the_same_offset(server, reader):
    server.publish(3)
    reader.all()
    before = reader.at.to_json()
    assert reader.follower.latest(reader.at).to_json() == before


def test_what_is_not_flushed_is_not_there(server, reader):
    server.publish(2)
    server.publish(2, flush=False)
    reader.all()
    assert reader.got == [1, 2]
    server.writer.flush()
    ends_well(server, reader)


@pytest.mark.parametrize("orphans", [0, 1, 3])
@pytest.mark.parametrize("torn", [0, 3, 8, 9, 30])
@pytest.mark.parametrize("after", ["cut", "behind", "new slice"])
def test_killed_while_writing(server, reader, orphans, torn, after):
    server.publish(5)
    reader.look()
    server.kill()
    numbers, end = server.leave(orphans, torn)
    assert not reader.look(), "it waits"
    assert reader.got == [1, 2, 3, 4, 5]
    if after == "cut":
        assert cut_to_index(server.data_file()) == end
        server.start()
        server.publish(2)
    elif after == "behind":
        server.append_raw(2)
    else:
        server.begin_slice()
        server.publish(2)
    # Messages without index records that stay in the file are messages; those that are cut off never were.
    if after != "cut":
        server.stored.update(dict.fromkeys(numbers, 0))
    ends_well(server, reader)
    assert len(reader.damaged) == (after != "cut" and torn > 0)
    assert reader.lost == []


def test_first_message_of_a_slice_before_its_index(server, reader):
    server.publish(8)
    reader.all()
    server.publish(1)
    index = server.data_file().with_suffix(".idx")
    content = index.read_bytes()
    index.write_bytes(content[:4])
    reader.all()
    index.write_bytes(content)
    server.publish(1)
    ends_well(server, reader)


def test_without_index_a_torn_record_is_waited_for(server, reader):
    server.publish(3)
    server.kill()
    server.data_file().with_suffix(".idx").unlink()
    server.leave(0, 20)
    reader.all()
    assert reader.got == [1, 2, 3]
    assert reader.damaged == []


def test_whole_messages_behind_the_index_are_taken_when_nobody_writes(server, reader):
    server.publish(3)
    server.kill()
    server.leave(2, 20)
    reader.all()
    assert reader.got == [1, 2, 3]
    path = server.data_file()
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1000))
    reader.all()
    assert reader.got == [1, 2, 3, 4, 5]
    server.sequence += 2
    server.begin_slice()
    server.publish(2)
    reader.all()
    assert reader.got == [1, 2, 3, 4, 5, 7, 8]
    assert reader.lost == []


def test_time_alone_lets_messages_be_taken(server, reader, monkeypatch):
    server.publish(3)
    server.kill()
    server.leave(1, 0)
    reader.all()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    reader.all()
    assert reader.got == [1, 2, 3, 4]


def test_an_idle_store_is_not_listed(tmp_path, monkeypatch):
    servers = [Server(tmp_path / "store", f"c{number}") for number in range(20)]
    reader = Reader(tmp_path / "store")
    for each in servers:
        each.publish(3)
    reader.all()
    reader.look()
    listed = []
    real = growing_channel.list_channel
    monkeypatch.setattr(growing_channel, "list_channel", lambda path: (listed.append(path.name), real(path))[1])
    assert not reader.look()
    assert listed == []
    servers[7].publish(1)
    servers[9].publish(10)
    assert reader.look()
    assert set(listed) == {"c7", "c9"}


def test_slices_removed_by_limits_are_reported(server, reader):
    server.publish(4)
    reader.all()
    server.publish(24)
    server.remove_oldest()
    server.remove_oldest()
    reader.all()
    [lost] = reader.lost
    assert (lost.status, lost.sequence, lost.file) == (REMOVED, 5, "orders/msgs.1.dat")
    assert "messages 5 to 16 were removed before they were read" in lost.message
    assert reader.got == [1, 2, 3, 4, *range(17, 29)]


def test_slices_removed_after_they_were_read_are_not_reported(server, reader):
    for _ in range(5):
        server.publish(9)
        reader.all()
        while server.remove_oldest():
            pass
    ends_well(server, reader)
    assert reader.lost == []


def test_slices_removed_between_planning_and_reading(server, reader):
    server.publish(4)
    reader.all()
    server.publish(24)
    end = reader.follower.latest(reader.at)
    server.remove_oldest()
    server.remove_oldest()
    reader.take(reader.follower.work(reader.at, end))
    reader.at = end
    assert [lost.sequence for lost in reader.lost] == [5]
    server.publish(1)
    reader.all()
    assert reader.got == [1, 2, 3, 4, *range(17, 30)]
    assert len(reader.lost) == 1


def test_all_that_was_planned_is_gone(server, reader):
    server.publish(4)
    reader.all()
    server.publish(10)
    end = reader.follower.latest(reader.at)
    server.publish(20)
    for _ in range(3):
        server.remove_oldest()
    reader.take(reader.follower.work(reader.at, end))
    assert "messages 5 to 14 were" in reader.lost[0].message
    reader.at = end
    reader.all()
    assert "messages 15 to 24 were" in reader.lost[1].message
    assert reader.got == [1, 2, 3, 4, *range(25, 35)]


def test_archived_before_they_were_read(server, reader):
    server.publish(4)
    reader.all()
    server.publish(24)
    server.remove_oldest(archive=True)
    server.remove_oldest(archive=True)
    ends_well(server, reader)
    assert reader.lost == []


def test_archived_slices_at_the_beginning(server):
    server.publish(20)
    server.remove_oldest(archive=True)
    without, including = Reader(server.root), Reader(server.root, archived=True)
    without.all()
    including.all()
    assert without.got == list(range(9, 21))
    assert including.got == list(range(1, 21))
    assert without.lost == including.lost == []


def test_beginning_with_what_is_there(server):
    server.publish(30)
    server.remove_oldest()
    reader = Reader(server.root)
    reader.all()
    assert reader.got == list(range(9, 31))
    assert reader.lost == []


def test_beginning_with_what_comes(server):
    server.publish(13)
    reader = Reader(server.root)
    reader.at = reader.follower.newest()
    assert not reader.look()
    server.publish(6)
    other = Server(server.root, "later")
    other.publish(1)
    reader.all()
    assert sorted(reader.rows)[0][1:3] == ("later", 1)
    assert [row[2] for row in reader.rows if row[1] == "orders"] == [14, 15, 16, 17, 18, 19]


def test_a_new_channel_that_lost_its_beginning(server, reader):
    server.publish(1)
    reader.all()
    other = Server(server.root, "later")
    other.publish(20)
    other.remove_oldest()
    reader.all()
    assert [(lost.channel, lost.sequence) for lost in reader.lost] == [("later", 1)]


def test_channel_that_goes_and_comes_back(server, reader):
    server.publish(5)
    reader.all()
    shutil.rmtree(server.directory)
    assert reader.look()
    assert [(lost.status, lost.channel, lost.file) for lost in reader.lost] == [(REMOVED, "orders", "")]
    again = Server(server.root)
    again.publish(3)
    reader.all()
    assert reader.got == [1, 2, 3, 4, 5, 1, 2, 3]
    assert len(reader.lost) == 1


def test_channel_that_is_made_anew_between_two_looks(server, reader):
    server.publish(5)
    reader.all()
    shutil.rmtree(server.directory)
    again = Server(server.root)
    again.clock, again.number = server.clock + 1, 100
    again.publish(30)
    reader.all()
    assert reader.got == [1, 2, 3, 4, 5, *range(101, 131)]
    assert [lost.status for lost in reader.lost] == [REPLACED]


@pytest.mark.parametrize("limits", [SliceLimits(8, 0), SliceLimits(1000, 0)])
def test_rewritten_into_other_slices(tmp_path, limits):
    server = Server(tmp_path / "store", limits=limits, seed=5)
    reader = Reader(server.root)
    server.publish(13)
    reader.all()
    server.publish(6)
    server.rewrite(tmp_path / "scratch")
    server.publish(4)
    ends_well(server, reader)
    assert {lost.status for lost in reader.lost} <= {REPLACED}


def test_cut_back_below_what_was_read(server, reader):
    """A power failure took messages that were read; the sequences are used again."""
    server.publish(7)
    reader.all()
    server.kill()
    path = server.data_file()
    os.truncate(path.with_suffix(".idx"), 4 + 32 * 2)
    cut_to_index(path)
    assert not reader.look()
    server.sequence = 2
    server.start()
    server.publish(9)
    reader.all()
    assert reader.got == list(range(1, 17))
    assert [lost.status for lost in reader.lost] == [REPLACED]


@pytest.mark.parametrize("limit", [Limit(bytes=1), Limit(bytes=7000), Limit(rows=1), Limit(rows=5), Limit(files=1)])
def test_limits_of_a_batch(tmp_path, limit):
    server = Server(tmp_path / "store", seed=3)
    servers = [server, Server(server.root, "b", SliceLimits(100, 0), 1), Server(server.root, "c")]
    reader = Reader(server.root)
    for each, count in zip(servers, (30, 50, 3), strict=True):
        each.publish(count)
    before = 0
    while reader.look(limit):
        taken = len(reader.rows) - before
        before = len(reader.rows)
        if limit.rows:
            assert taken <= limit.rows
        if limit.bytes == 1:
            assert taken == 1
    for each, count in zip(servers, (30, 50, 3), strict=True):
        assert [row[2] for row in reader.rows if row[1] == each.channel] == list(range(1, count + 1))
    assert reader.batches > 3


def test_a_limit_starves_no_channel(tmp_path):
    root = tmp_path / "store"
    servers = [Server(root, f"c{number}") for number in range(5)]
    reader = Reader(root)
    for each in servers:
        each.publish(20)
    for _ in range(5):
        for each in servers[:4]:
            each.publish(1)
        reader.look(Limit(rows=1))
    assert {row[1] for row in reader.rows} == {each.channel for each in servers}


def test_frozen(server, reader):
    server.publish(13)
    reader.follower.freeze()
    server.publish(13)
    Server(server.root, "later").publish(1)
    reader.all(Limit(rows=4))
    assert reader.got == list(range(1, 14))
    reader.restart()
    reader.all()
    assert len(reader.got) == 27


def test_frozen_and_the_last_slice_was_left(server, reader):
    server.publish(5)
    reader.follower.freeze()
    server.publish(20)
    for _ in range(2):
        server.remove_oldest()
    reader.all()
    assert reader.got == []
    reader.restart()
    reader.all()
    assert reader.got == list(range(17, 26))
    assert sum(1 for lost in reader.lost if lost.sequence is not None) >= 1


def test_unreadable_is_reported_once(server, reader, monkeypatch):
    server.publish(12)
    real = os.open

    def refuse(path, *rest, **more):
        if str(path).endswith("msgs.1.dat"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **more)

    with monkeypatch.context() as closed:
        closed.setattr(os, "open", refuse)
        reader.all()
        assert not reader.look()
    path = server.directory / "msgs.1.dat"
    me, owner = pwd.getpwuid(os.geteuid()).pw_name, path.owner()
    assert [(each.channel, each.message) for each in reader.unreadable] == [
        ("orders", f"{path}: user {me} may not read it; owner: {owner}")
    ]
    assert reader.got == []
    server.publish(1)
    ends_well(server, reader)
    assert len(reader.unreadable) == 1


def test_unreadable_from_the_beginning_is_reported(server, monkeypatch):
    server.publish(12)
    monkeypatch.setattr(
        growing_channel, "list_channel", lambda path: (_ for _ in ()).throw(StoreUnreadableError("no", ""))
    )
    reader = Reader(server.root)
    assert reader.look()
    assert [(each.channel, each.message) for each in reader.unreadable] == [("orders", "no")]
    assert not reader.look()
    monkeypatch.undo()
    ends_well(server, reader)


def copied(server, number, name):
    """Puts a copy of a slice beside it, under a name of the same number."""
    path = server.directory / f"msgs.{number}.dat"
    shutil.copy(path, path.with_name(name))


def told(reader):
    return [(each.status, each.file) for each in reader.lost]


def test_other_files_of_the_same_slice_number_are_reported_once(server):
    server.publish(20)
    copied(server, 2, "msgs.002.dat")
    copied(server, 2, "msgs.+2.dat")
    reader = Reader(server.root)
    ends_well(server, reader)
    assert told(reader) == [(NOT_FOLLOWED, "orders/msgs.+2.dat"), (NOT_FOLLOWED, "orders/msgs.002.dat")]
    assert "because msgs.2.dat has" in reader.lost[0].message
    assert "archived" not in reader.lost[0].message
    server.publish(20)
    reader.restart()
    ends_well(server, reader)
    assert len(reader.lost) == 2
    copied(server, 3, "msgs.03.dat")  # where nothing else happens
    assert reader.look()
    assert told(reader)[2:] == [(NOT_FOLLOWED, "orders/msgs.03.dat")]
    assert not reader.look()


def test_without_the_plain_name_the_first_by_name_is_followed(server):
    server.publish(10)
    path = server.directory / "msgs.2.dat"
    copied(server, 2, "msgs.02.dat")
    path.rename(path.with_name("msgs.002.dat"))
    reader = Reader(server.root)
    reader.all()
    assert reader.got == list(range(1, 11))
    assert told(reader) == [(NOT_FOLLOWED, "orders/msgs.02.dat")]


@pytest.mark.parametrize("archived", [True, False])
def test_archived_slices_of_a_number_that_is_used_again(server, archived):
    server.publish(20)
    copied(server, 1, "msgs.1.dat.bak")
    reader = Reader(server.root, archived=archived)
    ends_well(server, reader)
    assert told(reader) == ([(NOT_FOLLOWED, "orders/msgs.1.dat.bak")] if archived else [])
    assert all("with the option archived" in each.message for each in reader.lost)


def test_a_slice_that_was_archived_while_it_was_read_and_its_number_used_again(server, reader):
    server.publish(20)
    reader.look(Limit(rows=12))
    assert reader.got == list(range(1, 13))
    server.writer.close()
    for path in server.directory.glob("msgs.*"):
        path.rename(path.with_name(path.name + ".bak"))
    server.sequence = 0
    server.start()
    server.publish(14)
    reader.all()
    assert reader.got == [*range(1, 13), *range(21, 35)]
    assert sorted(told(reader)) == [(NOT_FOLLOWED, "orders/msgs.2.dat.bak"), (REPLACED, "orders/msgs.1.dat")]


def test_beginning_with_what_comes_passes_over_all_files(server):
    server.publish(10)
    copied(server, 1, "msgs.01.dat")
    reader = Reader(server.root)
    reader.at = reader.follower.newest()
    reader.restart()
    assert not reader.look()
    copied(server, 1, "msgs.001.dat")
    assert reader.look()
    assert told(reader) == [(NOT_FOLLOWED, "orders/msgs.001.dat")]


def test_many_channels_make_small_offsets(tmp_path):
    offsets = Offsets(
        {
            "/data/stan": {
                f"orders.{number:05}": ChannelPosition(
                    3,
                    1000 + number * 977 % 65536,
                    900 + number,
                    1795219649260503021 + number * 7919,
                    100 + number % 900,
                )
                for number in range(10_000)
            }
        }
    )
    text = json.dumps(offsets.to_json())
    assert len(text) < 250_000
    assert Offsets.from_json(json.loads(text)) == offsets


def test_offsets_of_something_else():
    rows = [{}, {"v": 2}, {"v": 1}, {"v": 1, "zlib": "?"}, {"v": 1, "stores": {"a": {"b": "1:2:3:4"}}}]
    for value in rows:
        with pytest.raises(StoreUnreadableError, match="offset in the checkpoint"):
            Offsets.from_json(value)
            pytest.fail(f"accepted: {value!r}")
