"""A broker that is killed in the middle of any write leaves a store that every server starts with, as promised.

The system may end the write of a killed process early: see `stantools.store.atomic_append`. Here a store works, and at
each moment at which it could be killed its directory is copied; each copy is then opened, by the rules of several
servers.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from broker.stores.file import FileStore, deferred_log_writes
from broker.stores.interface import StorageError
from broker.stores.store_options import FileOptions
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.store.atomic_append import PAGE
from stantools.store.compactionrules import CompactionRules
from stantools.store.directory import open_datastore
from stantools.store.limits import UNLIMITED, SliceLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from tests.broker.stores.making import block, everything, flush

NAME = b"foo"
CHANGING = ("open", "ftruncate", "truncate", "link", "unlink", "replace", "rename", "mkdir")
VERSIONS = ("0.25.6", "0.23.2")


def payload(sequence: int) -> bytes:
    # The first message of a slice is bigger than a page, now and then, and so is what comes in one flush.
    return b"%d;" % sequence * (3000 if sequence % 12 == 1 else 20)


@dataclass
class Promised:
    """What may not be lost: what the store has said is there."""

    last: int = 0
    clients: set[bytes] = field(default_factory=set)
    subscriptions: int = 0
    sent: int = 0


class Moments:
    """Looks at the directory at every moment at which the process could be killed."""

    def __init__(self, directory: Path, look: Callable[[], None], bytes_too: bool) -> None:
        self.directory = directory
        self.look = look
        self.bytes_too = bytes_too
        self.looking = False
        self.seen = self.torn = 0
        self.state: object = None
        self.real: dict[str, Any] = {name: getattr(os, name) for name in (*CHANGING, "write", "pwrite", "writev")}

    def moment(self) -> bool:
        if self.looking:
            return False
        self.looking = True
        try:
            state = {path: path.read_bytes() if path.is_file() else None for path in self.directory.rglob("*")}
            if state != self.state:
                self.state = state
                self.seen += 1
                self.look()
        finally:
            self.looking = False
        return True

    def change(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.moment()
        return self.real[name](*arguments, **named)

    def write(self, descriptor: int, data: Any) -> int:
        status = os.fstat(descriptor)
        appends = os.get_blocking(descriptor) and _appends(descriptor)
        at = status.st_size if appends else os.lseek(descriptor, 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else 0
        return self.pieces(descriptor, bytes(data), at, lambda piece, _at: self.real["write"](descriptor, piece))

    def pwrite(self, descriptor: int, data: Any, at: int) -> int:
        return self.pieces(descriptor, bytes(data), at, lambda piece, at: self.real["pwrite"](descriptor, piece, at))

    def pieces(self, descriptor: int, content: bytes, at: int, write: Callable[[bytes, int], int]) -> int:
        if not self.moment() or not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(self.directory):
            return write(content, at)
        ends = {end - at for end in range(at - at % PAGE + PAGE, at + len(content), PAGE)}
        if ends and self.bytes_too:
            ends |= {1, 7, 8, 9, 31, 32, 33, len(content) // 2, len(content) - 1}
        done = 0
        for end in sorted(end for end in {*ends, len(content)} if 0 < end <= len(content)):
            write(content[done:end], at + done)
            done = end
            if done < len(content):
                self.torn += 1
                self.moment()
        return len(content)

    def writev(self, descriptor: int, parts: Any) -> int:
        return self.write(descriptor, b"".join(parts))


def _appends(descriptor: int) -> bool:
    flags = next(
        line for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines() if line.startswith("flags")
    )
    return bool(int(flags.split()[1], 8) & os.O_APPEND)


@contextmanager
def moments(directory: Path, look: Callable[[], None], bytes_too: bool) -> Iterator[Moments]:
    found = Moments(directory, look, bytes_too)
    calls = {name: (lambda *a, _name=name, **k: found.change(_name, *a, **k)) for name in CHANGING}
    with patch.multiple(os, write=found.write, pwrite=found.pwrite, writev=found.writev, **calls):
        yield found


def options(directory: Path) -> FileOptions:
    return FileOptions(
        directory,
        sync=False,
        buffer_size=10_000,
        slices=SliceLimits(12, 0),
        compaction=CompactionRules(min_size=0, interval=0.001, fragmentation=50),
    )


def checked(copy: Path, promised: Promised) -> None:
    """Opens what a kill left, by the rules of the original and with the broker, and compares it with what was said."""
    for version in VERSIONS if any(copy.glob("*.dat")) else ():
        rules = ServerOptions(version=version, limits=StoreLimits(0, UNLIMITED))
        predicted = forecast(open_datastore(copy), rules, lookups=False)
        assert predicted.starts, predicted.error
    store = FileStore(options(copy), StoreLimits(0, UNLIMITED))
    found = store.recover()
    if found is None:
        assert promised == Promised()
    else:
        assert {client.id for client in found.clients} >= promised.clients
        if promised.subscriptions or promised.last:
            channel, subscriptions = found.channels[NAME]
            messages = everything(channel.messages)
            assert [each.sequence for each in messages] == list(range(1, len(messages) + 1))
            assert all(each.data == payload(each.sequence) for each in messages)
            assert len(messages) >= promised.last
            assert len(subscriptions) >= promised.subscriptions
            assert all(each.state.last_sent >= promised.sent for each in subscriptions[: promised.subscriptions])
            # It goes on from here.
            channel.messages.append(block(NAME, len(messages) + 1, [payload(len(messages) + 1)]))
            flush(store, channel.messages)
            assert channel.messages.last == len(messages) + 1
        store.add_client(pb.ClientInfo(id=b"after", hb_inbox=b"_HB"))
    store.close()
    again = FileStore(options(copy), StoreLimits(0, UNLIMITED)).recover()
    assert found is None or (again and b"after" in {client.id for client in again.clients})


def work(directory: Path, promised: Promised, rounds: int, *, waits: bool) -> None:
    store = FileStore(options(directory), StoreLimits(0, UNLIMITED))
    if waits:
        store.postpone(lambda _at: None)
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    channel = store.create_channel(NAME)
    numbers: list[int] = []
    for turn in range(rounds):
        for each in range(3):
            client = b"client-%d-%d" % (turn, each) + b"x" * (900 * each)
            store.add_client(pb.ClientInfo(id=client, hb_inbox=b"_HB"))
            promised.clients.add(client)
        if len(numbers) < 3:
            state = pb.SubState(
                client_id=client, inbox=b"_I" * 300, ack_inbox=b"_A", durable_name=b"d", is_durable=True
            )
            channel.subscriptions.create(state)
            channel.subscriptions.flush()
            numbers.append(state.id)
            promised.subscriptions += 1
            promised.sent = 0
        first = channel.messages.last + 1
        count = 5 + turn
        channel.messages.append(block(NAME, first, [payload(each) for each in range(first, first + count)]))
        flush(store, channel.messages)
        promised.last = first + count - 1
        for number in numbers:
            channel.subscriptions.sent(number, range(1, first + count))
        channel.subscriptions.flush()
        store.maintain()
        promised.sent = promised.last
        channel.subscriptions.acked(numbers[0], range(1, first + count))
        # Threads write logs anew; what we write at the same time would be no moment of its own.
        store.settle()
        channel.subscriptions.flush()
        for gone in sorted(promised.clients)[:2]:
            promised.clients.discard(gone)
            store.delete_client(gone)
            store.settle()
    store.close()


@pytest.mark.parametrize(
    ("rounds", "bytes_too"), [(4, False), pytest.param(12, True, marks=pytest.mark.slow)], ids=["pages", "bytes"]
)
@pytest.mark.parametrize(
    ("named", "waits"),
    [
        pytest.param(
            named,
            waits,
            id=f"{'no ' * named}unnamed files, {'deferred_log_writes' if waits else 'at each flush'}",
            marks=() if named == waits else pytest.mark.slow,
        )
        for named in (False, True)
        for waits in (False, True)
    ],
)
def test_killed_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, bytes_too: bool, named: bool, waits: bool
) -> None:
    monkeypatch.setattr(deferred_log_writes, "DELAY", 0)
    if named:
        monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    directory, copy, promised = tmp_path / "store", tmp_path / "copy", Promised()
    directory.mkdir()

    def look() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        checked(copy, promised)

    with moments(directory, look, bytes_too) as seen:
        work(directory, promised, rounds, waits=waits)
    assert seen.seen > 15 * rounds and seen.torn > 2 * rounds


def filled(root: Path, count: int) -> None:
    """Makes a store whose channel has that many slices of three messages each."""
    store = FileStore(FileOptions(root, sync=False, slices=SliceLimits(3, 0)), StoreLimits(0, UNLIMITED))
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    messages = store.create_channel(NAME).messages
    for first in range(1, 3 * count, 3):
        messages.append(block(NAME, first, [payload(first + each) for each in range(3)]))
        flush(store, messages)
    store.close()


@pytest.mark.parametrize("there", [0, 1, 2])
def test_a_slice_that_a_killed_server_had_begun(tmp_path: Path, caplog: pytest.LogCaptureFixture, there: int) -> None:
    filled(tmp_path, there)
    begun = tmp_path / NAME.decode() / f"msgs.{there + 1}.dat"
    begun.touch()
    # The original does not start, and forecast says so.
    rules = ServerOptions(limits=StoreLimits(0, UNLIMITED))
    found = forecast(open_datastore(tmp_path), rules)
    assert not found.starts
    assert "unable to verify file version: EOF" in (found.error or "")
    store = FileStore(FileOptions(tmp_path, sync=False), StoreLimits(0, UNLIMITED))
    recovered = store.recover()
    assert recovered is not None
    messages = recovered.channels[NAME][0].messages
    assert [each.sequence for each in everything(messages)] == list(range(1, 3 * there + 1))
    (said,) = [each for each in caplog.records if "msgs." in each.getMessage()]
    assert said.levelname == "WARNING"
    assert f'"{begun}" is empty and has no index' in said.getMessage()
    messages.append(block(NAME, 3 * there + 1, [payload(3 * there + 1)]))
    messages.flush()
    store.close()
    again = FileStore(FileOptions(tmp_path, sync=False), StoreLimits(0, UNLIMITED))
    recovered = again.recover()
    assert recovered is not None
    assert recovered.channels[NAME][0].messages.last == 3 * there + 1
    again.close()
    assert forecast(open_datastore(tmp_path), rules).starts


@pytest.mark.parametrize("damage", ["not the last", "a byte", "an index"])
def test_other_slices_without_bytes_are_not_forgiven(tmp_path: Path, damage: str) -> None:
    filled(tmp_path, 3)
    channel = tmp_path / NAME.decode()
    begun = channel / ("msgs.2.dat" if damage == "not the last" else "msgs.4.dat")
    begun.write_bytes(b"\1" if damage == "a byte" else b"")
    if damage == "not the last":
        (channel / "msgs.2.idx").unlink()
    if damage == "an index":
        shutil.copy(channel / "msgs.3.idx", channel / "msgs.4.idx")
    store = FileStore(FileOptions(tmp_path, sync=False), StoreLimits(0, UNLIMITED))
    with pytest.raises(StorageError, match="unable to verify file version"):
        store.recover()
    store.close()
    assert begun.exists()
