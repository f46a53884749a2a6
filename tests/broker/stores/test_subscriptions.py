"""Subscriptions in files: what is reopened is what was stored, through compactions and failing writes."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.stores import open_store
from broker.stores.file import FileStore, deferred_log_writes
from broker.stores.interface import FlushOutcome, StorageError
from broker.stores.store_options import FileOptions
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store import logwriter
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import UNLIMITED, ChannelLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from stantools.store.sublog import read_subs
from tests.broker.stores.faults import faults
from tests.broker.stores.making import made
from tests.waiting import until

NAME = b"foo.bar"
SMALL = CompactionRules(min_size=0, interval=1e-9, fragmentation=50)


def subscription(**more: Any) -> pb.SubState:
    values = {"client_id": b"me", "inbox": b"_I", "ack_inbox": b"_A", "max_in_flight": 5, "ack_wait_in_secs": 30} | more
    return pb.SubState(**values)


def with_sent(store, count):
    """The subscriptions of a new channel, and one to which so many messages were sent."""
    subscriptions = store.create_channel(NAME).subscriptions
    state = subscription()
    subscriptions.create(state)
    subscriptions.sent(state.id, range(1, count + 1))
    return subscriptions, state


def new_store(directory: Path, limits: ChannelLimits = UNLIMITED, *, sync: bool = False, **more: Any) -> FileStore:
    store = FileStore(FileOptions(directory, sync=sync, **more), StoreLimits(0, limits))
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    return store


def found(directory: Path) -> dict[int, tuple[pb.SubState, list[int]]]:
    store = FileStore(FileOptions(directory))
    recovered = store.recover()
    assert recovered is not None
    result = {each.state.id: (each.state, each.pending) for each in recovered.channels[NAME][1]}
    store.close()
    return result


operations = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 5)),
        st.tuples(st.just("update"), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 5)),
        st.tuples(
            st.just("sent"), st.integers(0, 5), st.lists(st.integers(1, 50), min_size=1, max_size=20, unique=True)
        ),
        st.tuples(st.just("acked"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("conclude"), st.just(0)),
        st.tuples(st.just("settle"), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 5)),
        st.tuples(st.just("release"), st.just(0)),
        st.tuples(st.just("maintain"), st.just(0)),
    ),
    max_size=50,
)


@given(
    operations,
    st.sampled_from([0, 60, 1 << 20]),
    st.sampled_from([SMALL, CompactionRules()]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_against_a_model(steps, buffer_size, rules, sync, waits):
    directory = Path(tempfile.mkdtemp())
    try:
        store = new_store(directory, sync=sync, buffer_size=buffer_size, compaction=rules)
        if waits:
            store.postpone(lambda _at: None)
        subscriptions = made(store, NAME).subscriptions
        model: dict[int, tuple[pb.SubState, set[int]]] = {}
        with faults() as broken, patch.object(deferred_log_writes, "DELAY", 0):
            for kind, which, *rest in steps:
                ids = sorted(model)
                chosen = ids[which % len(ids)] if ids else None
                if kind == "fail":
                    broken.after = which
                elif kind == "create":
                    state = subscription(inbox=b"%d" % which)
                    try:
                        subscriptions.create(state)
                    except StorageError:
                        assert state.id == 0
                    else:
                        copy = pb.SubState()
                        copy.CopyFrom(state)
                        model[state.id] = copy, set()
                elif kind == "release":
                    subscriptions.release()
                elif kind == "maintain":
                    store.maintain()
                elif kind == "conclude":
                    store.completed()
                elif kind == "settle":
                    store.settle()
                elif kind == "flush":
                    try:
                        subscriptions.flush()
                    except StorageError:
                        subscriptions.flush()
                elif chosen is not None:
                    state, pending = model[chosen]
                    try:
                        if kind == "update":
                            state.max_in_flight = which + 10
                            subscriptions.update(state)
                        elif kind == "delete":
                            del model[chosen]
                            subscriptions.delete(chosen)
                        elif kind == "sent":
                            pending.update(rest[0])
                            state.last_sent = max(state.last_sent, *rest[0])
                            subscriptions.sent(chosen, rest[0])
                        else:
                            gone = sorted(pending)[: rest[0]]
                            pending.difference_update(gone)
                            subscriptions.acked(chosen, gone)
                    except StorageError:
                        # It is kept for the next flush.
                        pass
            store.settle()
            store.completed()
            broken.after = None
        store.close()
        assert found(directory) == {number: (state, sorted(pending)) for number, (state, pending) in model.items()}
    finally:
        shutil.rmtree(directory)


def test_ids_are_not_used_again(tmp_path):
    store = new_store(tmp_path)
    subscriptions = store.create_channel(NAME).subscriptions
    one, two = subscription(), subscription()
    subscriptions.create(one)
    subscriptions.create(two)
    assert (one.id, two.id) == (1, 2)
    subscriptions.delete(2)
    store.close()
    store = FileStore(FileOptions(tmp_path))
    recovered = store.recover()
    assert recovered is not None
    subscriptions = recovered.channels[NAME][0].subscriptions
    three = subscription()
    subscriptions.create(three)
    assert three.id == 3
    store.close()


@pytest.mark.parametrize("kind", ["MEMORY", "FILE"])
def test_too_many(tmp_path, kind):
    store = open_store(kind, FileOptions(tmp_path), StoreLimits(0, ChannelLimits(max_subs=2)))
    store.recover()
    subscriptions = store.create_channel(NAME).subscriptions
    subscriptions.create(subscription())
    subscriptions.create(subscription())
    refused = subscription()
    with pytest.raises(StorageError, match=r"^too many subscriptions per channel$"):
        subscriptions.create(refused)
    assert refused.id == 0
    subscriptions.delete(1)
    subscriptions.create(subscription())
    store.close()


def test_what_comes_during_a_flush_waits_for_the_next_one(tmp_path):
    store = new_store(tmp_path, sync=True)
    subscriptions = store.create_channel(NAME).subscriptions
    state = subscription()
    subscriptions.create(state)
    subscriptions.flush()
    store.settle()
    goes_on, fsync = threading.Event(), os.fsync

    def hang(descriptor: int) -> None:
        assert goes_on.wait(60)
        fsync(descriptor)

    with patch.object(os, "fsync", hang), patch.object(store._services.disk, "sync_aside", lambda *_: False):
        flushes = []
        for sequence in (1, 2, 3):
            subscriptions.sent(state.id, [sequence])
            flushes += [subscriptions.flush(), subscriptions.flush()]
        first, *others = dict.fromkeys(flushes)
        assert flushes[:2] == [first, first] and flushes[2:] == others * 4 and len(others) == 1
        assert {first, *others}.isdisjoint(store.completed())
        goes_on.set()
        store.settle()
    assert {first, *others} <= set(store.completed())
    store.close()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("step", ["filling", "catching up", "renamed"])
def test_a_compaction_whose_disk_hangs(tmp_path, step, sync):
    """The others go on, and so does the log itself; a kill at that moment loses nothing."""
    store = new_store(tmp_path / "store", sync=sync, compaction=SMALL)
    subscriptions, other = (store.create_channel(name).subscriptions for name in (NAME, b"other"))
    state = subscription()
    for each in (subscriptions, other):
        each.create(state)
        each.sent(state.id, range(1, 101))
        each.flush()
    store.settle()
    hung, goes_on, fsync, seen = threading.Event(), threading.Event(), os.fsync, []

    def hang(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name.startswith("subs") and path.parent.name != "other":
            seen.append("renamed" if path.name == "subs.dat" else "catching up" if "filling" in seen else "filling")
            if seen[-1] == step:
                hung.set()
                assert goes_on.wait(60)
        fsync(descriptor)

    with patch.object(os, "fsync", hang):
        subscriptions.acked(state.id, range(1, 91))
        while not hung.wait(0.01):
            store.completed()
        subscriptions.sent(state.id, range(101, 104))
        under_way = subscriptions.flush()
        other.sent(state.id, [101])
        ours = other.flush()
        while ours is not None and ours not in store.completed():
            pass
        assert under_way is None or under_way not in store.completed() or step != "renamed"
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
        subscriptions.acked(state.id, [103])
        goes_on.set()
        store.settle()
    assert (tmp_path / "store/foo.bar/subs.dat").stat().st_size < 1000
    assert not list((tmp_path / "store").glob("subs*"))
    store.close()
    assert found(tmp_path / "store")[1][1] == [*range(91, 103)]
    assert found(tmp_path / "killed")[1][1] == [*range(91, 104)]


@pytest.mark.parametrize("step", ["filling", "catching up"])
def test_a_compacted_log_gets_its_name_when_what_was_durable_is_durable_in_it(tmp_path, step):
    """Power may fail right behind the renaming, which a file system may keep without what was not synced."""
    store = new_store(tmp_path / "store", sync=True, compaction=SMALL)
    subscriptions, state = with_sent(store, 100)
    subscriptions.flush()
    store.settle()
    steps, hung, goes_on = ["filling", "catching up"], threading.Event(), threading.Event()
    fsync, replace = os.fsync, Path.replace
    synced: dict[int, int] = {}  # bytes of each file, by inode
    taken: list[bytes] = []

    def sync(descriptor: int) -> None:
        status, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name.startswith("subs") and path.name != "subs.dat" and steps and steps.pop(0) == step:
            hung.set()
            assert goes_on.wait(60)
        fsync(descriptor)
        synced[status.st_ino] = status.st_size

    def rename(path: Path, target: Path) -> Path:
        if target.name == "subs.dat":
            taken.append(path.read_bytes()[: synced.get(path.stat().st_ino, 0)])
        return replace(path, target)

    with patch.object(os, "fsync", sync), patch.object(Path, "replace", rename):
        subscriptions.acked(state.id, range(1, 91))
        until(lambda: store.completed() is not None and hung.is_set())
        # The old file is in use meanwhile: what is flushed there is durable, and acknowledged.
        durable = []
        for sequence in (101, 102, 103):
            subscriptions.sent(state.id, [sequence])
            flush = subscriptions.flush()
            until(lambda flush=flush: flush is None or flush in store.completed())
            durable.append(sequence)
        assert not taken
        goes_on.set()
        store.settle()
    (content,) = taken
    kept = read_subs(memoryview(content), Crc()).subscriptions[state.id]
    assert sorted(kept.pending) == [*range(91, 101), *durable]
    store.close()
    assert found(tmp_path / "store")[1][1] == [*range(91, 104)]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("after", range(8))
def test_a_compaction_that_fails(tmp_path, after, sync, caplog):
    store = new_store(tmp_path, sync=sync, compaction=SMALL)
    with faults() as broken:
        subscriptions, state = with_sent(store, 100)
        subscriptions.flush()
        store.settle()
        broken.after = after
        subscriptions.acked(state.id, range(1, 91))
        store.settle()
        broken.after = None
        subscriptions.sent(state.id, [101])
        subscriptions.flush()
        store.settle()
        errors = [each.error for each in store.completed() if each.error]
    # Where what is gathered cannot be written, the next flush writes everything anew.
    assert not broken.happened or "Unable to" in caplog.text or errors or after == 0
    assert not list(tmp_path.glob("subs*"))
    store.close()
    assert found(tmp_path)[1][1] == [*range(91, 102)]


def store_with_lost_record(tmp_path, *, sync):
    """A store that could not write the last of 101 deliveries of a subscription."""
    store = new_store(tmp_path, sync=sync, buffer_size=0)
    subscriptions, state = with_sent(store, 100)
    subscriptions.flush()
    store.settle()
    store.completed()
    with faults() as broken:
        broken.after = 0
        with pytest.raises(StorageError, match="No space left"):
            subscriptions.sent(state.id, [101])
    return store, subscriptions, state


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_what_was_lost_is_written_anew_by_a_thread(tmp_path, tmp_path_factory, sync, fails):
    """Nobody waits for a disk that hangs, what comes meanwhile goes along, and the old file gets nothing more."""
    store, subscriptions, state = store_with_lost_record(tmp_path, sync=sync)
    path = tmp_path / "foo.bar/subs.dat"
    before = path.read_bytes()
    hung, goes_on, fsync = threading.Event(), threading.Event(), os.fsync

    def hang(descriptor: int) -> None:
        hung.set()
        assert goes_on.wait(60)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with patch.object(os, "fsync", hang):
        under_way = subscriptions.flush()
        assert hung.wait(60)
        subscriptions.sent(state.id, [102])
        subscriptions.acked(state.id, range(1, 91))
        assert subscriptions.flush() is under_way
        assert under_way not in store.completed()
        assert not subscriptions.release()
        assert path.read_bytes() == before
        goes_on.set()
        store.settle()
    assert under_way is not None and under_way in store.completed()
    assert not list(tmp_path.glob("subs*"))
    if fails:
        assert under_way.outcome is FlushOutcome.REFUSED
        assert "Input/output error" in under_way.error
        assert path.read_bytes() == before
        under_way = subscriptions.flush()
        store.settle()
        assert under_way in store.completed()
    assert under_way.outcome is FlushOutcome.STORED
    killed = shutil.copytree(tmp_path, tmp_path_factory.mktemp("killed") / "store")
    store.close()
    for directory in (tmp_path, killed):
        assert found(directory)[1][1] == [*range(91, 103)]


@pytest.mark.parametrize("step", ["catching up", "renaming"])
def test_a_flush_is_refused_if_the_file_that_has_its_records_does_not_get_its_name(tmp_path, step):
    """A sync of the old file, in which records are missing, would not make them durable."""
    store, subscriptions, state = store_with_lost_record(tmp_path, sync=True)
    hung, goes_on, fsync, replace = threading.Event(), threading.Event(), os.fsync, Path.replace
    steps = ["filling", "catching up", "catching up again"]

    def sync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        now = steps.pop(0) if name.startswith("subs") and name != "subs.dat" and steps else ""
        if now == "catching up":
            hung.set()
            assert goes_on.wait(60)
        if now == "catching up again" and step == "catching up":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        if target.name == "subs.dat" and step == "renaming":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(path, target)

    with patch.object(os, "fsync", sync), patch.object(Path, "replace", rename):
        flush = subscriptions.flush()
        until(lambda: store.completed() is not None and hung.is_set())
        # The new file needs another sync, because of this record.
        subscriptions.sent(state.id, [102])
        goes_on.set()
        store.settle()
    assert flush is not None and flush in store.completed()
    assert not steps
    assert flush.outcome is FlushOutcome.REFUSED
    assert "Input/output error" in flush.error
    assert not list(tmp_path.glob("subs*"))
    flush = subscriptions.flush()
    store.settle()
    assert flush in store.completed()
    assert flush.outcome is FlushOutcome.STORED
    store.close()
    assert found(tmp_path)[1][1] == [*range(1, 103)]


def test_a_compaction_leaves_what_is_alive(tmp_path):
    store = new_store(tmp_path, compaction=SMALL)
    subscriptions, state = with_sent(store, 1000)
    subscriptions.flush()
    before = (tmp_path / "foo.bar/subs.dat").stat().st_size
    subscriptions.acked(state.id, range(1, 991))
    store.settle()
    after = (tmp_path / "foo.bar/subs.dat").stat().st_size
    assert after < before / 20
    store.close()
    ((last, pending),) = found(tmp_path).values()
    assert (last.last_sent, pending) == (1000, [*range(991, 1001)])


def test_a_thread_encodes_what_a_compaction_keeps(tmp_path):
    store = new_store(tmp_path, compaction=SMALL)
    subscriptions, state = with_sent(store, 1000)
    threads, encode = [], logwriter.encode_live

    def seen(*arguments):
        threads.append(threading.current_thread())
        # What happens before it is encoded comes behind it, once.
        subscriptions.acked(state.id, [991])
        subscriptions.sent(state.id, [1001])
        return encode(*arguments)

    with patch.object(logwriter, "encode_live", seen):
        subscriptions.acked(state.id, range(1, 991))
        subscriptions.flush()
        store.settle()
    assert [each.name for each in threads] == ["disk"]
    store.close()
    assert (tmp_path / "foo.bar/subs.dat").stat().st_size < 1000
    ((last, pending),) = found(tmp_path).values()
    assert (last.last_sent, pending) == (1001, [*range(992, 1002)])


def test_the_same_is_deleted_twice(tmp_path):
    store = new_store(tmp_path)
    subscriptions = store.create_channel(NAME).subscriptions
    subscriptions.create(subscription())
    subscriptions.delete(1)
    subscriptions.delete(1)
    store.close()
    assert found(tmp_path) == {}
