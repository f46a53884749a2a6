"""Histories of subscriptions and clients: complete, in order, and read from the file a part at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.browse import log_history
from stantools.browse.log_history import read_history, subscription_history
from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.layout import SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.records import FileKind, read_records
from stantools.inspection.subscribers import load_clients, load_subs
from stantools.store.logwriter import SubsLog
from stantools.store.mapping import mapped
from stantools.store.read_options import open_store
from tests.conftest import golden_cases

CRC = Crc()


def _subs_files(golden: Path) -> list[tuple[Path, Crc]]:
    found = []
    for case in golden_cases():
        store = open_store(golden / case / "datastore")
        crc = store.crc
        found += [(path, crc) for path in sorted((golden / case / "datastore").glob("*/subs.dat"))]
    return found


def test_golden_stores_give_every_record_once(golden: Path) -> None:
    for path, crc in _subs_files(golden):
        with mapped(path) as buffer:
            everything = list(subscription_history(buffer, crc))
        ids = {each.id for each in everything if each.id is not None}
        good = 0
        for number in ids:
            history = read_history(path, crc, number)
            ours = history.records(0, len(history))
            theirs = [each for each in everything if each.id == number and each.record.type in _NAMES]
            good += history.good
            assert [each for each in ours if each.record.ok] == [each for each in theirs if each.record.ok], path
            # What belongs to nobody in particular is in every history.
            bad = [each.record for each in everything if not each.record.ok and each.id in (number, None)]
            assert [each.record for each in ours if not each.record.ok] == bad, path
        assert good == sum(each.record.ok for each in everything)


_NAMES = {each.name.lower() for each in SubRecord}


def test_what_is_pending_at_the_end_is_what_the_server_recovers(golden: Path) -> None:
    for path, crc in _subs_files(golden):
        subs = load_subs(path, crc)
        if subs.problems:
            continue
        for number, subscription in subs.state.subscriptions.items():
            history = read_history(path, crc, number)
            (last,) = history.records(len(history) - 1, len(history))
            assert last.pending == len(subscription.pending)


def test_clients(golden: Path) -> None:
    for case in golden_cases():
        path = golden / case / "datastore" / "clients.dat"
        if not path.exists():
            continue
        store = open_store(path.parent)
        crc = store.crc
        with mapped(path) as buffer:
            everything = [each for each in read_records(buffer, FileKind.CLIENTS, crc) if each.ok]
        for name in load_clients(path, crc).state.clients:
            history = read_history(path, crc, name)
            ours = [each.record for each in history.records(0, len(history)) if each.record.ok]
            assert ours == [each for each in everything if each.fields.get("id") == name.decode()]


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["new", "update", "delete"]), st.integers(1, 3), st.just(0)),
            st.tuples(st.sampled_from(["sent", "acked"]), st.integers(1, 3), st.integers(1, 6)),
        ),
        max_size=60,
    ),
    seed=st.integers(0, 2**32),
    damaged=st.booleans(),
)
def test_any_log_and_any_damage(
    steps: list[tuple[str, int, int]], seed: int, damaged: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "subs.dat"
    _write(path, steps)
    if damaged:
        content = bytearray(path.read_bytes())
        choose = random.Random(seed)
        for _ in range(3):
            if len(content) > 4:
                content[choose.randrange(4, len(content))] ^= 1 << choose.randrange(8)
        path.write_bytes(content)
    with mapped(path) as buffer:
        everything = list(subscription_history(buffer, CRC))
    for number in (1, 2, 3):
        history = read_history(path, CRC, number)
        ours = history.records(0, len(history))
        assert [each.record.offset for each in ours] == sorted(each.record.offset for each in ours)
        good = [each for each in ours if each.record.ok]
        assert len(good) == history.good
        assert good == [each for each in everything if each.record.ok and each.id == number]
        # Windows give what the whole gives.
        assert [each for at in range(0, len(history), 7) for each in history.records(at, at + 7)] == ours


def _write(path: Path, steps: list[tuple[str, int, int]]) -> None:
    path.unlink(missing_ok=True)
    with SubsLog(path.parent, path.parent, CRC) as log:
        for what, number, sequence in steps:
            if what in ("new", "update"):
                state = pb.SubState(id=number, client_id=b"c", inbox=b"i", ack_inbox=b"a", last_sent=sequence)
                log.new(state) if what == "new" else log.update(state)
            elif what == "delete":
                log.delete(number, 0)
            elif what == "sent":
                log.sent([number], [sequence])
            else:
                log.acked([number], [sequence])


def test_many_records_are_taken_from_columns(tmp_path: Path) -> None:
    path = tmp_path / "subs.dat"
    with SubsLog(path.parent, path.parent, CRC) as log:
        for number in (1, 2):
            log.new(pb.SubState(id=number, client_id=b"c", inbox=b"i", ack_inbox=b"a"))
        for begin in range(1, 60_001, 10_000):
            log.sent([1, 2] * 5_000, list(range(begin, begin + 10_000)))
    told = 0

    def tell(count: int) -> None:
        nonlocal told
        told += count

    history = read_history(path, CRC, 2, progress=tell)
    assert len(history) == 30_001
    assert told == path.stat().st_size
    (one,) = history.records(20_000, 20_001)
    assert (one.record.type, one.sequence, one.pending) == ("msg", 40_000, 20_000)
    assert history.records(40_000, 40_010) == []


def test_a_file_that_has_changed_or_gone(tmp_path: Path) -> None:
    path = tmp_path / "subs.dat"
    _write(path, [("new", 1, 0), ("sent", 1, 1), ("sent", 1, 2)])
    history = read_history(path, CRC, 1)
    content = path.read_bytes()
    path.write_bytes(content[:-6])
    assert [each.record.type for each in history.records(0, 3)] == ["new", "msg", "changed"]
    path.write_bytes(content[:4] + bytes(len(content) - 4))
    assert {each.record.type for each in history.records(0, 3)} == {"changed"}
    path.unlink()
    with pytest.raises(StoreUnreadableError):
        history.records(0, 3)
    with pytest.raises(StoreUnreadableError):
        read_history(path, CRC, 1)


def test_more_damage_than_anybody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_history, "MAX_DAMAGES", 3)
    path = tmp_path / "subs.dat"
    _write(path, [("new", 1, 0), *(("sent", 1, at) for at in range(1, 21))])
    content = bytearray(path.read_bytes())
    for at in range(10):
        content[-1 - 24 * at] ^= 0xFF
    path.write_bytes(content)
    history = read_history(path, CRC, 1)
    assert history.damages == 10
    assert len(history) == history.good + 3
    assert len(history.records(0, len(history))) == len(history)


def test_cancelled_by_its_progress(tmp_path: Path) -> None:
    path = tmp_path / "subs.dat"
    _write(path, [("new", 1, 0), ("sent", 1, 1)])

    def stop(_count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_history(path, CRC, 1, progress=stop)


def test_copies_are_not_touched(golden_copy: Callable[[str], Path]) -> None:
    store = golden_copy("durables")
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    history = read_history(store / "events" / "subs.dat", CRC, 1)
    history.records(0, 5)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
