"""Channels are made and removed by threads: nobody else waits for it, what fails is refused, a kill leaves a store."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from broker.stores.file import FileStore
from broker.stores.file.disk import Disk
from broker.stores.interface import Flush, FlushOutcome, StorageError
from broker.stores.store_options import FileOptions
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.store.directory import open_datastore
from stantools.store.limits import UNLIMITED, ChannelLimits, SliceLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from stantools.store.slice_output import SliceOutput
from tests.broker.stores.faults import faults
from tests.broker.stores.making import block, everything, flush
from tests.broker.stores.test_torn import VERSIONS, moments
from tests.broker.streaming.world import World


class Brake:
    """Calls of the system that concern a channel's directory hang, or fail, as long as the test wants it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hung = threading.Event()
        self.released = threading.Event()
        self.problem: OSError | None = None
        self._real: dict[str, Any] = {call: getattr(os, call) for call in ("mkdir", "open", "link", "unlink")}

    def call(self, call: str, path: Any, *arguments: Any, **more: Any) -> Any:
        concerned = isinstance(path, str | os.PathLike) and f"/{self.name}" in f"{os.fspath(path)} {arguments}"
        if concerned and not self.released.is_set():
            assert threading.current_thread() is not threading.main_thread(), f"the loop calls {call}"
            self.hung.set()
            assert self.released.wait(60)
            if self.problem is not None:
                raise self.problem
        return self._real[call](path, *arguments, **more)


@contextmanager
def brake(name: str, *calls: str) -> Iterator[Brake]:
    """Has calls hang, which then must not be the main thread's."""
    found = Brake(name)
    with patch.multiple(os, **{each: (lambda *a, _call=each, **k: found.call(_call, *a, **k)) for each in calls}):
        try:
            yield found
        finally:
            found.released.set()


class Served:
    """A streaming server on files; it is woken by their threads."""

    def __init__(self, directory: Path, *, sync: bool, limits: StoreLimits | None = None) -> None:
        self.store = FileStore(FileOptions(directory, sync=sync), limits or StoreLimits(0, UNLIMITED))
        self.world = World(store=self.store)
        self.woken = threading.Event()
        self.store.wake = self.wake
        self.world.connect()
        self.replies: list[bytes] = []

    def wake(self) -> None:
        self.world.driver.wake()
        self.woken.set()

    def until(self, done: Callable[[], object]) -> None:
        """Goes on until something is so, whenever a thread says that there is something to do."""
        self.world.settle()
        while not done():
            assert self.woken.wait(60)
            self.woken.clear()
            self.world.settle()

    def until_hung(self, braked: Brake) -> None:
        """Goes on until a call hangs, which may be one that comes after a sync."""
        while not braked.hung.wait(0.01):
            self.world.settle()

    def publish(self, channel: bytes, data: bytes = b"x") -> bytes:
        """Sends a message; returns where its acknowledgement goes."""
        reply = self.world.inbox()
        subject = self.world.subjects.publish + b"." + channel
        self.world.bus.feed([(subject, self.world.message(channel, data), reply)])
        self.world.settle()
        return reply

    def subscribe(self, channel: bytes, **more: Any) -> bytes:
        reply = self.world.inbox()
        request = self.world.request(channel, **more).SerializeToString()
        self.world.bus.feed([(self.world.subjects.subscribe, request, reply)])
        self.world.settle()
        return reply

    def answer(self, reply: bytes) -> bytes | None:
        return next((sent.payload for sent in self.world.bus.sent if sent.subject == reply), None)

    def error(self, reply: bytes) -> str:
        """Waits for an acknowledgement and returns what it complains of."""
        self.until(lambda: self.answer(reply) is not None)
        answer = self.answer(reply)
        assert answer is not None
        return protocol.PubAck.FromString(answer).error.decode()


@pytest.fixture(params=[True, False], ids=["sync", "no sync"])
def sync(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("calls", [("mkdir",), ("open",), ("link",)], ids="".join)
def test_nobody_waits_for_a_channel_that_is_made(tmp_path: Path, sync: bool, calls: tuple[str, ...]) -> None:
    served = Served(tmp_path, sync=sync)
    assert served.error(served.publish(b"innocent")) == ""
    with brake("slow", *calls) as braked:
        ours = [served.publish(b"slow", b"%d" % number) for number in range(3)]
        subscribed = served.subscribe(b"slow")
        served.until_hung(braked)
        # Others are served, more than one flush; those who want the channel wait.
        for number in range(3):
            assert served.error(served.publish(b"innocent", b"%d" % number)) == ""
        assert served.error(served.publish(b"new")) == ""
        assert [served.answer(each) for each in (*ours, subscribed)] == [None] * 4
        braked.released.set()
        assert [served.error(each) for each in ours] == [""] * 3
    served.until(lambda: served.answer(subscribed) is not None)
    response = protocol.SubscriptionResponse.FromString(served.answer(subscribed) or b"")
    assert response.ack_inbox and not response.error
    assert served.world.channel(b"slow").visible == 3
    served.world.server.stop()
    assert sorted(each.name for each in (tmp_path / "slow").iterdir()) == ["msgs.1.dat", "msgs.1.idx", "subs.dat"]
    found = FileStore(FileOptions(tmp_path), StoreLimits(0, UNLIMITED)).recover()
    assert found is not None
    assert {name: store.messages.last for name, (store, _) in found.channels.items()} == {
        b"innocent": 4,
        b"new": 1,
        b"slow": 3,
    }


def test_a_channel_that_cannot_be_made_is_refused(tmp_path: Path, sync: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    served = Served(tmp_path, sync=sync, limits=StoreLimits(2, UNLIMITED))
    assert served.error(served.publish(b"innocent")) == ""
    with brake("slow", "mkdir") as braked:
        braked.problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        ours = [served.publish(b"slow"), served.publish(b"slow")]
        subscribed = served.subscribe(b"slow")
        assert braked.hung.wait(60)
        # It counts from the first message on.
        assert served.error(served.publish(b"another")) == "too many channels"
        assert 'Channel "slow" has been created' not in caplog.text
        braked.released.set()
        refused = f"mkdir {tmp_path}/slow: no space left on device"
        assert [served.error(each) for each in ours] == [refused] * 2
    served.until(lambda: served.answer(subscribed) is not None)
    response = protocol.SubscriptionResponse.FromString(served.answer(subscribed) or b"")
    assert response.error.decode() == refused
    assert f'Creating channel "slow" failed: {refused}' in caplog.text
    assert served.world.channel(b"slow") is None
    assert not (tmp_path / "slow").exists()
    # There is room again, also for one of this name.
    assert served.error(served.publish(b"slow")) == ""
    assert 'Channel "slow" has been created' in caplog.text
    assert served.world.channel(b"slow").messages.last == 1
    served.world.server.stop()


def test_a_channel_is_made_for_a_subscription(tmp_path: Path, sync: bool) -> None:
    served = Served(tmp_path, sync=sync)
    with brake("slow", "mkdir", "link") as braked:
        subscribed = served.subscribe(b"slow", start_position=pb.NEW_ONLY)
        assert braked.hung.wait(60)
        assert served.error(served.publish(b"innocent")) == ""
        assert served.answer(subscribed) is None
        braked.released.set()
        served.until(lambda: served.answer(subscribed) is not None)
    assert [each.name for each in (tmp_path / "slow").iterdir()] == ["subs.dat"]
    served.world.server.stop()
    found = FileStore(FileOptions(tmp_path), StoreLimits(0, UNLIMITED)).recover()
    assert found is not None


def test_what_is_wrong_with_a_name_is_known_by_the_system(tmp_path: Path, sync: bool) -> None:
    """The client hears of it as before."""
    served = Served(tmp_path, sync=sync)
    long = b"x" * 300
    assert served.error(served.publish(long)).endswith(": file name too long")
    assert served.error(served.publish(b"server.dat")) == f"mkdir {tmp_path}/server.dat: not a directory"
    assert not len(served.world.server.channels)
    served.world.server.stop()


def new_store(directory: Path, *, sync: bool, limits: StoreLimits | None = None) -> FileStore:
    store = FileStore(FileOptions(directory, sync=sync), limits or StoreLimits(0, UNLIMITED))
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    return store


def test_a_channel_is_deleted_while_it_is_made(tmp_path: Path, sync: bool) -> None:
    store = new_store(tmp_path, sync=sync)
    with brake("foo", "mkdir") as braked:
        messages = store.create_channel(b"foo").messages
        messages.append(block(b"foo", 1, [b"x"]))
        messages.flush()
        # As soon as somebody waits for it.
        threading.Thread(target=lambda: braked.hung.wait(60) and braked.released.set()).start()
        store.delete_channel(b"foo")
    store.settle()
    assert not (tmp_path / "foo").exists()
    messages = store.create_channel(b"foo").messages
    messages.append(block(b"foo", 1, [b"y"]))
    flush(store, messages)
    store.close()
    found = FileStore(FileOptions(tmp_path), StoreLimits(0, UNLIMITED)).recover()
    assert found is not None
    assert [each.data for each in everything(found.channels[b"foo"][0].messages)] == [b"y"]


def test_a_channel_that_was_not_made_is_deleted(tmp_path: Path, sync: bool) -> None:
    """It never was there, or could not be, as somebody learns while it is deleted."""
    store = new_store(tmp_path, sync=sync)
    (tmp_path / "bad").touch()
    making = store.create_channel(b"foo").making
    store.delete_channel(b"foo")
    bad = store.create_channel(b"bad")
    bad.messages.flush()
    store.delete_channel(b"bad")
    for name in (b"foo", b"bad"):
        with pytest.raises(StorageError, match=r"^not found$"):
            store.delete_channel(name)
    store.settle()
    done = store.completed()
    assert making is not None and making not in done, "nobody waits for it any more"
    assert bad.making is not None and bad.making in done
    assert (bad.making.outcome, bad.making.error) == (FlushOutcome.REFUSED, f"mkdir {tmp_path}/bad: not a directory")
    store.close()
    assert (tmp_path / "bad").exists() and not (tmp_path / "foo").exists()


def test_a_subscription_does_not_wait_for_the_first_flush(tmp_path: Path, sync: bool) -> None:
    """Who uses the store alone has the channel made at once."""
    store = new_store(tmp_path, sync=sync)
    made = store.create_channel(b"foo")
    assert made.making is not None
    made.subscriptions.create(pb.SubState(client_id=b"me"))
    assert made.making in store.completed()
    assert (tmp_path / "foo" / "subs.dat").exists()
    (tmp_path / "bar").touch()
    bad = store.create_channel(b"bar")
    state = pb.SubState(client_id=b"me")
    with pytest.raises(StorageError, match="not a directory"):
        bad.subscriptions.create(state)
    assert state.id == 0
    assert bad.making is not None and bad.making in store.completed()
    assert bad.making.outcome is FlushOutcome.REFUSED
    (tmp_path / "bar").unlink()
    store.create_channel(b"bar")
    store.close()


def test_a_subscription_does_not_wait_for_the_turn_of_its_channel(tmp_path: Path, sync: bool) -> None:
    """Many channels are made at a time; the last one is made by a subscription, and its messages are flushed once."""
    store = new_store(tmp_path, sync=sync)
    channels = {name: store.create_channel(name) for name in (b"c%d" % number for number in range(60))}
    for name, each in channels.items():
        each.messages.append(block(name, 1, [b"x"]))
        each.messages.flush()
    last = channels[b"c59"]
    last.subscriptions.create(pb.SubState(client_id=b"me"))
    flush(store, last.messages)
    last.messages.append(block(b"c59", 2, [b"y"]))
    flush(store, last.messages)
    assert [each.data for each in everything(last.messages)] == [b"x", b"y"]
    store.close()


@pytest.mark.parametrize("named", [False, True], ids=["unnamed files", "no unnamed files"])
def test_killed_at_every_moment_of_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool, named: bool
) -> None:
    if named:
        monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    directory, copy = tmp_path / "store", tmp_path / "copy"
    directory.mkdir()
    promised: dict[bytes, int] = {}
    stages = set()

    def look() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        stages.update(
            frozenset(file.name for file in each.iterdir() if not file.name.startswith("."))
            for each in copy.iterdir()
            if each.is_dir()
        )
        for version in VERSIONS if any(copy.glob("*.dat")) else ():
            rules = ServerOptions(version=version, limits=StoreLimits(0, UNLIMITED))
            predicted = forecast(open_datastore(copy), rules, lookups=False)
            assert predicted.starts, predicted.error
        store = FileStore(FileOptions(copy, sync=False), StoreLimits(0, UNLIMITED))
        found = store.recover()
        assert found is not None or not promised
        there = {} if found is None else {name: stores.messages for name, (stores, _) in found.channels.items()}
        for name, count in promised.items():
            assert len(everything(there[name])) == count
        for name, messages in there.items():
            # It goes on, whatever is there.
            messages.append(block(name, messages.last + 1, [b"more"]))
            flush(store, messages)
        store.close()

    with moments(directory, look, bytes_too=False) as seen:
        store = new_store(directory, sync=sync)
        for name in (b"one", b"two"):
            messages = store.create_channel(name).messages
            for _ in range(2):
                count = messages.last + 1
                messages.append(block(name, count, [b"z" * 5000]))
                flush(store, messages)
                promised[name] = count
        store.close()
    assert seen.seen > 10
    subs, data = "subs.dat", "msgs.1.dat"
    assert {frozenset(), frozenset({subs}), frozenset({subs, data}), frozenset({subs, data, "msgs.1.idx"})} <= stages


@pytest.mark.parametrize("before", [0, 2], ids=["first", "next"])
def test_nobody_waits_for_a_slice_that_is_begun(tmp_path: Path, sync: bool, before: int) -> None:
    limits = StoreLimits(0, UNLIMITED)
    store = FileStore(FileOptions(tmp_path, sync=sync, slices=SliceLimits(2, 0)), limits)
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    messages = {name: store.create_channel(name).messages for name in (b"innocent", b"slow")}
    for name, each in messages.items():
        if before:
            each.append(block(name, 1, [b"x"] * before))
    flush(store, *messages.values())
    slow, innocent = messages[b"slow"], messages[b"innocent"]
    with brake("slow", "open", "link") as braked:
        slow.append(block(b"slow", before + 1, [b"a"]))
        under_way = slow.flush()
        assert braked.hung.wait(60)
        # What comes meanwhile is gathered, others go on, and what is stored is read.
        slow.append(block(b"slow", before + 2, [b"b"]))
        following = slow.flush()
        innocent.append(block(b"innocent", before + 1, [b"c"]))
        assert stored(store, innocent.flush())
        assert under_way is not None and following is not None
        done = list(store.completed())
        assert under_way not in done and following not in done
        found = slow.read(1, 100)
        assert len(found.sizes) >= before
        braked.released.set()
        store.settle()
        done += store.completed()
        assert done.index(under_way) < done.index(following)
    assert {under_way.outcome, following.outcome} == {FlushOutcome.STORED}
    # From now on the loop writes again, where it need not be durable.
    slow.append(block(b"slow", before + 3, [b"d"]))
    flush(store, slow)
    store.close()
    again = FileStore(FileOptions(tmp_path), limits).recover()
    assert again is not None
    wanted = [b"x"] * before + [b"a", b"b", b"d"]
    assert [each.data for each in everything(again.channels[b"slow"][0].messages)] == wanted


@pytest.mark.parametrize("before", [0, 2], ids=["first", "next"])
def test_a_slice_that_cannot_be_begun_refuses_what_waits(tmp_path: Path, before: int) -> None:
    store = FileStore(FileOptions(tmp_path, sync=False, slices=SliceLimits(2, 0)), StoreLimits(0, UNLIMITED))
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    slow = store.create_channel(b"slow").messages
    if before:
        slow.append(block(b"slow", 1, [b"x"] * before))
    flush(store, slow)
    with patch.object(SliceOutput, "create", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        slow.append(block(b"slow", before + 1, [b"a"]))
        under_way = slow.flush()
        store.settle()
        assert under_way in store.completed()
    assert under_way is not None and under_way.outcome is FlushOutcome.REFUSED and "No space" in under_way.error
    assert (slow.last, slow.count) == (before, before)
    slow.append(block(b"slow", before + 1, [b"again"]))
    flush(store, slow)
    assert [each.data for each in everything(slow)] == [b"x"] * before + [b"again"]
    store.close()


@contextmanager
def first_removal_hangs() -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first removal of a channel's directory tells that it has begun, and waits until it is released."""
    hung, released, rmtree = threading.Event(), threading.Event(), shutil.rmtree

    def hang(path: Path) -> None:
        if not hung.is_set():
            hung.set()
            assert released.wait(60)
        rmtree(path)

    with patch.object(shutil, "rmtree", hang):
        yield hung, released


def stored(store: FileStore, flush: Flush | None) -> bool:
    """Whether a flush is complete within a minute, whatever else hangs, and its messages are stored."""
    end = time.monotonic() + 60
    while flush is not None and flush not in store.completed():
        assert time.monotonic() < end
        time.sleep(0.001)
    return flush is None or flush.outcome is FlushOutcome.STORED


def test_nobody_waits_for_files_that_are_removed(tmp_path: Path) -> None:
    limits = StoreLimits(0, ChannelLimits(max_msgs=4))
    store = FileStore(FileOptions(tmp_path, sync=False, slices=SliceLimits(2, 0)), limits)
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    made = {name: store.create_channel(name).messages for name in (b"slow", b"gone-slow")}
    for name, messages in made.items():
        messages.append(block(name, 1, [b"x"] * 4))
    flush(store, *made.values())
    slow = made[b"slow"]
    with brake("slow/msgs.1.dat", "unlink") as braked:
        for number in (5, 7, 9):
            slow.append(block(b"slow", number, [b"x"] * 2))
            assert stored(store, slow.flush())
        assert (slow.first, slow.last) == (7, 10)
        assert braked.hung.wait(60)
        assert [each.sequence for each in everything(slow)] == [7, 8, 9, 10]
        assert (tmp_path / "slow/msgs.1.dat").exists()
        braked.released.set()
        store.settle()
    assert sorted(each.name for each in (tmp_path / "slow").glob("*.dat")) == ["msgs.4.dat", "msgs.5.dat", "subs.dat"]
    with first_removal_hangs() as (hung, released):
        store.delete_channel(b"gone-slow")
        assert hung.wait(60)
        assert (tmp_path / "gone-slow").exists()
        # One of the same name is made when it is gone.
        again = store.create_channel(b"gone-slow").messages
        again.append(block(b"gone-slow", 1, [b"new"]))
        under_way = again.flush()
        assert under_way not in store.completed()
        released.set()
        store.settle()
        assert under_way in store.completed()
    assert (again.first, again.last) == (1, 1)
    store.close()
    found = FileStore(FileOptions(tmp_path), StoreLimits(0, UNLIMITED)).recover()
    assert found is not None
    assert [each.data for each in everything(found.channels[b"gone-slow"][0].messages)] == [b"new"]
    assert [each.sequence for each in everything(found.channels[b"slow"][0].messages)] == [7, 8, 9, 10]


def test_channels_of_one_name_are_removed_one_after_the_other(tmp_path: Path) -> None:
    """The first one is still being removed while the next one, never made, is removed, and a third one is made."""
    store = new_store(tmp_path, sync=False)
    first = store.create_channel(b"foo").messages
    first.append(block(b"foo", 1, [b"first"]))
    flush(store, first)
    with first_removal_hangs() as (hung, released):
        store.delete_channel(b"foo")
        assert hung.wait(60)
        store.create_channel(b"foo")
        store.delete_channel(b"foo")
        third = store.create_channel(b"foo").messages
        third.append(block(b"foo", 1, [b"third"]))
        under_way = third.flush()
        end = time.monotonic() + 0.3  # a thread that does not wait needs less
        while time.monotonic() < end and under_way not in store.completed():
            time.sleep(0.01)
        released.set()
        store.settle()
        store.completed()
    store.close()
    assert under_way is not None and under_way.outcome is FlushOutcome.STORED
    found = FileStore(FileOptions(tmp_path), StoreLimits(0, UNLIMITED)).recover()
    assert found is not None
    assert [each.data for each in everything(found.channels[b"foo"][0].messages)] == [b"third"]


def test_after_a_failed_first_flush_subscriptions_and_messages_are_kept(tmp_path: Path) -> None:
    """Each call of the first flush fails in turn; the channel was made in spite of that."""
    for after in range(40):
        directory = tmp_path / str(after)
        directory.mkdir()
        with faults() as broken:
            store = new_store(directory, sync=True)
            channel = store.create_channel(b"foo")
            channel.messages.append(block(b"foo", 1, [b"x"]))
            broken.after = after
            first = channel.messages.flush()
            store.settle()
            store.completed()
            broken.after = None
            state = pb.SubState(client_id=b"me", ack_inbox=b"a")
            channel.subscriptions.create(state)
            channel.subscriptions.flush()
            last = channel.messages.last
            channel.messages.append(block(b"foo", last + 1, [b"y"]))
            flush(store, channel.messages)
            store.close()
        again = FileStore(FileOptions(directory), StoreLimits(0, UNLIMITED))
        found = again.recover()
        assert found is not None
        stores, subscriptions = found.channels[b"foo"]
        assert [each.data for each in everything(stores.messages)] == [b"x"] * last + [b"y"], after
        assert [each.state.ack_inbox for each in subscriptions] == [b"a"], after
        again.close()
        if not broken.happened:
            assert first is not None and first.outcome is FlushOutcome.STORED
            break
    assert 5 < after < 39


def test_files_that_cannot_be_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = StoreLimits(0, ChannelLimits(max_msgs=2))
    store = FileStore(FileOptions(tmp_path, sync=False, slices=SliceLimits(2, 0)), limits)
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    messages = store.create_channel(b"foo").messages
    messages.append(block(b"foo", 1, [b"x"] * 2))
    flush(store, messages)

    def said() -> list[str]:
        return [each for each in caplog.messages if each.startswith("Unable")]

    def fail(path: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    def fail_first(path: Path, unlink: Callable[[Path], None] = os.unlink) -> None:
        (fail if path.name == "msgs.1.dat" else unlink)(path)

    with patch.object(os, "unlink", fail_first):
        for number in (3, 5):
            messages.append(block(b"foo", number, [b"x"] * 2))
            flush(store, messages)
        assert (messages.first, messages.count) == (5, 2)
        (line,) = said()
        assert line.startswith('Unable to remove old messages of "foo": ')
    assert (tmp_path / "foo/msgs.1.dat").exists()
    messages.append(block(b"foo", 7, [b"x"] * 2))
    flush(store, messages)
    assert sorted(each.name for each in (tmp_path / "foo").glob("msgs*.dat")) == ["msgs.4.dat"]
    caplog.clear()
    with patch.object(shutil, "rmtree", fail):
        store.delete_channel(b"foo")
        store.settle()
        (line,) = said()
        assert line.startswith('Unable to remove the files of channel "foo": ')
        # Nor can there be another one while they are there.
        making = store.create_channel(b"foo")
        making.messages.flush()
        store.settle()
        assert making.making in store.completed()
        assert making.making is not None and making.making.outcome is FlushOutcome.REFUSED
    messages = store.create_channel(b"foo").messages
    messages.append(block(b"foo", 1, [b"y"]))
    flush(store, messages)
    assert sorted(each.name for each in (tmp_path / "foo").iterdir()) == ["msgs.1.dat", "msgs.1.idx", "subs.dat"]
    store.close()


def test_a_turn_that_hangs_holds_up_nobody_else() -> None:
    """Whoever is done goes on with the next one."""
    disk, hung, woken, turns = Disk(), threading.Event(), threading.Event(), list[int]()
    disk.wake = woken.set

    def begin(number: int) -> tuple[Callable[[], None], Callable[[Exception | None], None]]:
        return lambda: (number < 3 and hung.wait(60)) and None, lambda _: turns.append(number)

    for number in range(200):
        disk.queue_job(partial(begin, number))
    while len(turns) < 197:
        assert woken.wait(60)
        woken.clear()
        assert not disk.conclude()
    assert sorted(turns) == [*range(3, 200)]
    hung.set()
    assert disk.conclude(60)
    assert sorted(turns) == [*range(200)]
    disk.stop()


def test_others_do_not_wait_behind_channels() -> None:
    """There are threads left for syncs, however many jobs take turns."""
    disk, hung, turns, done = Disk(), threading.Event(), [], []
    for _ in range(100):
        disk.queue_job(lambda: (lambda: hung.wait(60) and None, turns.append))
    disk.run(lambda: None, done.append, awaited=True)
    while not done:
        disk.conclude()
    assert done == [None]
    assert not disk.conclude(0)
    assert not turns
    hung.set()
    assert disk.conclude(60)
    assert turns == [None] * 100
    disk.stop()
