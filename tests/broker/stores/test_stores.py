"""Whole stores: clients, channels, limits, options, errors."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from broker.stores import open_store
from broker.stores.blocklist import joined
from broker.stores.encrypted import EncryptedStore
from broker.stores.file import FileStore
from broker.stores.file.services import OpenFileCount
from broker.stores.interface import FlushOutcome, StorageError
from broker.stores.limits import friendly_bytes
from broker.stores.memory import MemoryStore
from broker.stores.store_options import EncryptionOptions, FileOptions
from stantools.errors import UsageError
from stantools.format import gogo
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.store.compactionrules import CompactionRules
from stantools.store.directory import open_datastore
from stantools.store.limits import UNLIMITED, ChannelLimits, SliceLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from tests.broker.stores.faults import faults
from tests.broker.stores.making import SECOND, START, block, everything, flush, made, message

NAME = b"foo"


def new_store(directory: Path, limits: StoreLimits | None = None, *, wall=time.time_ns, **more: Any) -> FileStore:
    store = FileStore(
        FileOptions(directory, **({"sync": False} | more)), limits or StoreLimits(0, UNLIMITED), wall=wall
    )
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    return store


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def reopened(directory: Path, **more: Any) -> Any:
    recovered = FileStore(FileOptions(directory, **more), StoreLimits(0, UNLIMITED)).recover()
    assert recovered is not None
    return recovered


def test_kinds():
    with pytest.raises(UsageError, match=r"^unsupported store type: FOO$"):
        open_store("foo")
    with pytest.raises(UsageError, match=r"^for FILE stores, root directory must be specified$"):
        open_store("FILE")
    with pytest.raises(UsageError, match=r"^encryption key required$"):
        open_store("MEMORY", encryption=EncryptionOptions(b""))
    with pytest.raises(UsageError, match=r"^encryption cipher not supported$"):
        open_store("MEMORY", encryption=EncryptionOptions(b"x", "DES"))
    assert open_store("memory").kind == "MEMORY"


def test_clients_come_back(tmp_path):
    store = new_store(tmp_path)
    for name in (b"one", b"two", b"three"):
        store.add_client(pb.ClientInfo(id=name, hb_inbox=b"_HB." + name, conn_id=b"c"))
    store.delete_client(b"two")
    store.delete_client(b"unknown")
    store.close()
    recovered = reopened(tmp_path)
    assert [each.id for each in recovered.clients] == [b"one", b"three"]
    assert recovered.server == new_server_info("test-cluster")


def test_clients_are_compacted(tmp_path):
    store = new_store(tmp_path, compaction=CompactionRules(min_size=0, interval=1e-9))
    for number in range(20):
        store.add_client(pb.ClientInfo(id=b"c%d" % number))
    size = (tmp_path / "clients.dat").stat().st_size
    for number in range(15):
        store.delete_client(b"c%d" % number)
    store.settle()
    assert (tmp_path / "clients.dat").stat().st_size < size
    store.close()
    assert {each.id for each in reopened(tmp_path).clients} == {b"c%d" % number for number in range(15, 20)}


def test_a_client_that_cannot_be_stored(tmp_path):
    store = new_store(tmp_path)
    store.add_client(pb.ClientInfo(id=b"one"))
    with faults() as broken:
        broken.after = 0
        with pytest.raises(StorageError):
            store.add_client(pb.ClientInfo(id=b"two"))
        broken.after = 0
        with pytest.raises(StorageError):
            store.delete_client(b"one")
    store.add_client(pb.ClientInfo(id=b"three"))
    store.close()
    assert [each.id for each in reopened(tmp_path).clients] == [b"one", b"three"]


@pytest.mark.parametrize("sync", [False, True])
def test_a_sequence_that_was_refused_has_the_next_message(tmp_path, sync):
    store = new_store(tmp_path, sync=sync)
    messages = made(store, NAME).messages
    for stored in ([], [b"1"], [b"1", b"2"]):
        messages.append(block(NAME, messages.last + 1, [b"refused", b"refused"]))
        with faults() as broken, pytest.raises(StorageError):
            broken.after, broken.lasting = 0, True
            flush(store, messages)
        assert [each.data for each in everything(messages)] == stored
        messages.append(block(NAME, messages.last + 1, [b"%d" % (messages.last + 1)]))
        assert [each.data for each in everything(messages)][: len(stored)] == stored
        flush(store, messages)
        assert [each.data for each in everything(messages)] == [*stored, b"%d" % messages.last]
    store.close()


def test_new_files_that_get_no_name_leave_nothing(tmp_path, monkeypatch):
    """They are synced under no name first; then the link fails."""
    with faults():
        store = new_store(tmp_path, sync=True, slices=SliceLimits(2))
        messages, link = made(store, NAME).messages, os.link

        def full(*_arguments, **_more):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        for number in range(4):
            messages.append(block(NAME, messages.last + 1, [b"refused", b"refused"]))
            monkeypatch.setattr(os, "link", full)
            with pytest.raises(StorageError):
                flush(store, messages)
            monkeypatch.setattr(os, "link", link)
            assert messages.last == messages.count == 2 * number
            messages.append(block(NAME, messages.last + 1, [b"a", b"b"]))
            flush(store, messages)
        store.close()
    found = reopened(tmp_path).channels[NAME][0].messages
    assert [each.data for each in everything(found)] == [b"a", b"b"] * 4


def test_channels_that_are_flushed_together(tmp_path):
    for after in (*range(0, 60, 3), 1000):
        with faults() as broken:
            _flush_together(tmp_path / str(after), after, broken)


def _flush_together(directory, after, broken):
    store = new_store(directory, sync=True)
    names = [b"c%d" % number for number in range(6)]
    channels = [store.create_channel(name).messages for name in names]

    def add(channels=channels, names=names):
        for name, messages in zip(names, channels, strict=True):
            messages.append(block(name, messages.last + 1, [b"x"] * 3))

    add()
    flush(store, *channels)
    add()
    broken.after = after
    flushes = [messages.flush() for messages in channels]
    store.settle()
    broken.after = None
    assert set(store.completed()) == set(flushes)
    for messages, found in zip(channels, flushes, strict=True):
        assert messages.last == messages.count == (6 if found.outcome is FlushOutcome.STORED else 3)
    refused = [found.outcome for found in flushes].count(FlushOutcome.REFUSED)
    assert broken.happened == refused == (after < 24)
    lasts = [messages.last + 6 for messages in channels]
    # What is appended while a flush is under way belongs to another one.
    add()
    first = [messages.flush() for messages in channels]
    add()
    assert all(messages.flush() is not found for messages, found in zip(channels, first, strict=True))
    store.settle()
    assert len(store.completed()) == 2 * len(channels)
    assert [messages.last for messages in channels] == lasts
    store.close()
    found = reopened(directory).channels
    assert [found[name][0].messages.last for name in names] == lasts


def test_a_slow_disk_waits_for_as_many_as_before(tmp_path, monkeypatch):
    store = new_store(tmp_path, sync=True)
    messages = made(store, NAME).messages
    over = threading.Event()
    monkeypatch.setattr(time, "sleep", lambda _seconds: over.wait(60))

    def add(count):
        messages.append(block(NAME, messages.last + 1, [b"x"] * count))
        return messages.flush()

    add(4)
    store.settle()
    assert len(store.completed()) == 1
    store._services.disk.pause = 0.001
    first = add(1)
    # Nothing is written yet, and what was stored before can be read.
    assert [each.sequence for each in everything(messages, count=4)][:4] == [1, 2, 3, 4]
    assert add(2) is first
    assert add(1) is first
    # Now there are as many: it is under way, and is not begun again when the time is up.
    second = add(1)
    assert second is not first
    over.set()
    store.settle()
    assert store.completed() == [first, second]
    assert messages.last == messages.count == 9
    store.close()
    assert reopened(tmp_path).channels[NAME][0].messages.last == 9


@pytest.mark.parametrize("kind", ["MEMORY", "FILE"])
def test_channels(tmp_path, kind):
    store = open_store(kind, FileOptions(tmp_path), StoreLimits(2))
    store.recover()
    store.create_channel(b"foo")
    store.create_channel(b"bar")
    with pytest.raises(StorageError, match=r"^already exists$"):
        store.create_channel(b"foo")
    with pytest.raises(StorageError, match=r"^too many channels$"):
        store.create_channel(b"baz")
    store.delete_channel(b"foo")
    with pytest.raises(StorageError, match=r"^not found$"):
        store.delete_channel(b"foo")
    messages = store.create_channel(b"foo").messages
    assert (messages.first, messages.last, messages.count, messages.bytes) == (0, 0, 0, 0)
    store.close()


def test_names_that_cannot_be_directories(tmp_path):
    store = new_store(tmp_path)
    for name, reason in ((b"server.dat", "not a directory"), (b"x" * 300, "file name too long")):
        messages = store.create_channel(name).messages
        messages.append(block(name, 1, [b"x"]))
        with pytest.raises(StorageError, match=rf"^mkdir .*: {reason}$"):
            flush(store, messages)
    for name, reason in (
        (b"a\0b", "invalid argument"),
        (b"..", "invalid argument"),
        (b"a/b", "invalid argument"),
        (b"", "invalid argument"),
    ):
        with pytest.raises(StorageError, match=rf"^mkdir .*: {reason}$"):
            store.create_channel(name)
    for name in (b"a:b", b"$x!", "zoë".encode(), b"\xff\xfe", b"Foo", b"foo", b"msgs.1.dat"):
        store.create_channel(name).messages.append(block(name, 1, [name]))
    store.close()
    recovered = reopened(tmp_path)
    assert {name: everything(store.messages)[0].data for name, (store, _) in recovered.channels.items()} == {
        name: name for name in recovered.channels
    }
    assert len(recovered.channels) == 7


def test_a_removed_channel_is_gone(tmp_path):
    store = new_store(tmp_path)
    messages = store.create_channel(NAME).messages
    messages.append(block(NAME, 1, [b"x"] * 10))
    messages.flush()
    store.delete_channel(NAME)
    store.settle()
    assert not (tmp_path / "foo").exists()
    messages = store.create_channel(NAME).messages
    messages.append(block(NAME, 1, [b"y"]))
    store.close()
    assert [each.data for each in everything(reopened(tmp_path).channels[NAME][0].messages)] == [b"y"]


def test_few_files_for_many_channels(tmp_path):
    store = new_store(tmp_path, fds_limit=12)
    names = [b"c%d" % number for number in range(40)]
    channels = {name: store.create_channel(name) for name in names}
    before = open_files()
    for number in range(3):
        for name, channel in channels.items():
            channel.messages.append(block(name, channel.messages.last + 1, [b"%d" % number]))
            flush(store, channel.messages)
            channel.subscriptions.create(pb.SubState(client_id=b"c"))
            channel.subscriptions.flush()
            channel.messages.reader.forget()  # type: ignore[attr-defined]
            assert len(everything(channel.messages)) == number + 1
        assert open_files() <= before + 12
    store.close()
    assert open_files() <= before
    recovered = reopened(tmp_path)
    assert all(store.messages.count == 3 and len(subs) == 3 for store, subs in recovered.channels.values())


def test_open_files_are_counted():
    class Owner:
        def __init__(self, files: int) -> None:
            self.files, self.closed, self.busy = files, 0, False

        def release(self) -> bool:
            self.closed += not self.busy
            return not self.busy

    files = OpenFileCount(5)
    one, two, three = Owner(2), Owner(2), Owner(2)
    one.busy = True
    for each in (one, two, three):
        files.touch(each)
    assert (one.closed, two.closed, three.closed, files.count) == (0, 1, 0, 4)
    assert OpenFileCount(5).few and not files.few
    files.leave(one)
    assert files.count == 2
    files.touch(three)
    assert files.few


def test_whoever_cannot_close_files_is_asked_again_after_the_others():
    class Owner:
        def __init__(self, busy: bool) -> None:
            self.files, self.busy, self.asked = 2, busy, 0

        def release(self) -> bool:
            self.asked += 1
            return not self.busy

    files = OpenFileCount(100)
    owners = [Owner(number < 500) for number in range(1000)]
    for each in owners:
        files.touch(each)
    assert sum(each.asked for each in owners) < 20 * len(owners), "not all of them for each file"
    assert 1000 <= files.count < 1200
    for each in owners:
        each.busy = False
    for each in owners[:100]:
        files.touch(each)
    assert files.count <= 100


def test_removed_slices_go_to_a_script(tmp_path, caplog):
    script = tmp_path / "archive.sh"
    script.write_text('#!/bin/sh\nmv "$2" "$3" ' + str(tmp_path) + '\necho "took $1"\n')
    script.chmod(0o755)
    caplog.set_level(logging.INFO)
    limits = StoreLimits(0, ChannelLimits(max_msgs=2, max_bytes=0))
    store = new_store(tmp_path / "store", limits, slices=SliceLimits(2, 0), slice_archive_script=str(script))
    messages = store.create_channel(NAME).messages
    for number in range(1, 7):
        messages.append(block(NAME, number, [b"x"]))
        messages.flush()
    store.close()
    assert sorted(path.name for path in tmp_path.glob("*.bak")) == [
        f"msgs.{number}.{kind}.bak" for number in (1, 2) for kind in ("dat", "idx")
    ]
    data, index = (f"{tmp_path}/store/foo/msgs.1.{kind}.bak" for kind in ("dat", "idx"))
    assert f"Output of archive script for foo ({data} and {index}): took foo\n" in caplog.messages


@pytest.mark.parametrize(
    ("text", "error"),
    [("#!/bin/sh\necho no; exit 3\n", "exit status 3 (output=no\n)"), (None, "no such file or directory (output=)")],
)
def test_an_archive_script_that_fails(tmp_path, caplog, text, error):
    script = tmp_path / "archive.sh"
    if text:
        script.write_text(text)
        script.chmod(0o755)
    caplog.set_level(logging.INFO)
    limits = StoreLimits(0, ChannelLimits(max_msgs=1, max_bytes=0))
    store = new_store(tmp_path / "store", limits, slices=SliceLimits(1, 0), slice_archive_script=str(script))
    messages = store.create_channel(NAME).messages
    messages.append(block(NAME, 1, [b"x", b"y"]))
    messages.flush()
    store.close()
    (line,) = [each for each in caplog.messages if "archive" in each]
    assert line.startswith(f'Error invoking archive script "{script}": ')
    assert line.endswith(error)
    assert (tmp_path / "store/foo/msgs.1.dat.bak").exists()


def test_reached_limits_are_told_once(tmp_path, caplog):
    limits = StoreLimits(0, ChannelLimits(max_msgs=0, max_bytes=200))
    for store in (new_store(tmp_path, limits), MemoryStore(limits)):
        caplog.clear()
        messages = store.create_channel(NAME).messages
        for number in range(1, 10):
            messages.append(block(NAME, number, [b"x" * 60]))
            flush(store, messages)
        (line,) = caplog.messages
        assert line.startswith('Reached limits for store "foo" (msgs=')
        assert line.endswith("/200 B), dropping old messages to make room for new ones")
        store.close()


def test_numbers_of_bytes():
    assert [friendly_bytes(size) for size in (0, 1000, 1024, 5181, 5 << 20, 3 << 40)] == [
        "0 B",
        "1000 B",
        "1.00 KB",
        "5.06 KB",
        "5.00 MB",
        "3.00 TB",
    ]


def test_limits_at_start(tmp_path):
    store = new_store(tmp_path, slices=SliceLimits(5, 0))
    messages = store.create_channel(NAME).messages
    messages.append(block(NAME, 1, [b"x"] * 23))
    store.close()

    def start(limits: ChannelLimits, now: int = START) -> Any:
        store = FileStore(FileOptions(tmp_path), StoreLimits(0, limits), wall=lambda: now)
        recovered = store.recover()
        assert recovered is not None
        return store, recovered.channels[NAME][0].messages

    store, messages = start(ChannelLimits(max_msgs=12, max_bytes=0))
    assert (messages.first, messages.last, messages.count) == (12, 23, 12)
    assert not (tmp_path / "foo/msgs.2.dat").exists()
    store.close()
    store, messages = start(UNLIMITED)
    assert messages.first == 11
    store.close()
    store, messages = start(ChannelLimits(0, 0, 10 * SECOND), START + 30 * SECOND)
    assert (messages.first, messages.last) == (21, 23)
    assert messages.expire(START + 32 * SECOND) == START + 33 * SECOND
    assert messages.expire(START + 60 * SECOND) is None
    assert (messages.first, messages.last, messages.count, messages.bytes) == (24, 23, 0, 0)
    store.close()
    store, messages = start(UNLIMITED)
    assert (messages.first, messages.last) == (21, 23)
    store.close()


def test_a_lost_identity_is_made_anew(tmp_path, caplog):
    store = new_store(tmp_path)
    store.create_channel(NAME).messages.append(block(NAME, 1, [b"x"]))
    store.close()
    (tmp_path / "server.dat").unlink()
    store = FileStore(FileOptions(tmp_path), cluster_id=b"mine")
    recovered = store.recover()
    assert recovered is not None
    assert recovered.server.cluster_id == b"mine"
    assert recovered.channels[NAME][0].messages.last == 1
    assert "Server information was not recovered" in caplog.text
    store.close()
    with pytest.raises(StorageError, match=r'^cluster ID "other" does not match recovered value of "mine"$'):
        FileStore(FileOptions(tmp_path), cluster_id=b"other").recover()


def test_two_starts_with_truncation(tmp_path):
    new_store(tmp_path).close()
    options = FileOptions(tmp_path, truncate_bad_eof=True)
    store = FileStore(options)
    store.recover()
    store.close()
    with pytest.raises(StorageError, match="should not be opened consecutively"):
        FileStore(options).recover()
    FileStore(FileOptions(tmp_path)).recover()
    assert not (tmp_path / ".truncate.lck").exists()


def test_a_directory_that_is_in_use(tmp_path):
    new_store(tmp_path).close()
    code = (
        "import sys; from broker.stores.file import FileStore; from broker.stores.store_options import FileOptions;"
        "from pathlib import Path; store = FileStore(FileOptions(Path(sys.argv[1]))); store.recover();"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StorageError, match="another broker is using this store"):
            FileStore(FileOptions(tmp_path)).recover()
        other.kill()
    store = FileStore(FileOptions(tmp_path))
    store.recover()
    store.close()


def test_no_directory_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StorageError, match=r"^unable to create the root directory \[(.*/file/store)\]: mkdir \1: not a directory$"
    ):
        FileStore(FileOptions(tmp_path / "file/store")).recover()
    with pytest.raises(
        StorageError, match=r"^unable to create the root directory \[(.*/file)\]: mkdir \1: not a directory$"
    ):
        FileStore(FileOptions(tmp_path / "file")).recover()


def test_records_behind_the_index_are_not_built_upon(tmp_path):
    store = new_store(tmp_path)
    store.create_channel(NAME).messages.append(block(NAME, 1, [b"x"] * 10))
    store.close()
    index = tmp_path / "foo/msgs.1.idx"
    os.truncate(index, index.stat().st_size - 64)
    data = (tmp_path / "foo/msgs.1.dat").read_bytes()
    store = FileStore(FileOptions(tmp_path, sync=False), StoreLimits(0, UNLIMITED))
    found = store.recover()
    assert found is not None
    messages = found.channels[NAME][0].messages
    assert messages.last == 8
    messages.append(block(NAME, 9, [b"new"]))
    flush(store, messages)
    assert (tmp_path / "foo/msgs.1.dat").read_bytes() == data
    assert [each.data for each in everything(messages, first=8)] == [b"x", b"new"]
    again = reopened(tmp_path).channels[NAME][0].messages
    assert [each.data for each in everything(again, first=8)] == [b"x", b"new"]


def test_a_header_without_record_is_not_built_upon(tmp_path):
    store = new_store(tmp_path)
    channel = store.create_channel(NAME)
    channel.subscriptions.create(pb.SubState(client_id=b"c"))
    store.add_client(pb.ClientInfo(id=b"c"))
    store.close()
    for name in ("clients.dat", "foo/subs.dat"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"\x05\x00\x00\x01\x01\x02\x03\x04")
    store = FileStore(FileOptions(tmp_path))
    recovered = store.recover()
    assert recovered is not None
    store.add_client(pb.ClientInfo(id=b"d"))
    recovered.channels[NAME][0].subscriptions.create(pb.SubState(client_id=b"d"))
    store.close()
    again = reopened(tmp_path)
    assert len(again.clients) == len(again.channels[NAME][1]) == 2


def test_automatic_sync(tmp_path):
    store = new_store(tmp_path, auto_sync=1)
    channel = store.create_channel(NAME)
    channel.subscriptions.create(pb.SubState(client_id=b"c"))
    channel.messages.append(block(NAME, 1, [b"x"]))
    channel.messages.flush()
    assert (tmp_path / "foo/subs.dat").stat().st_size == 4
    while (again := store.maintain()) is not None and again <= time.monotonic_ns():
        if (tmp_path / "foo/subs.dat").stat().st_size > 4:
            break
    assert again is not None
    assert (tmp_path / "foo/subs.dat").stat().st_size > 4
    store.close()
    assert new_store(tmp_path / "other", auto_sync=0).maintain() is None


@pytest.mark.parametrize("cipher", ["AES", "CHACHA", ""])
@pytest.mark.parametrize("kind", ["MEMORY", "FILE"])
def test_encryption(tmp_path, caplog, kind, cipher):
    def start(key: bytes) -> Any:
        return open_store(kind, FileOptions(tmp_path), StoreLimits(0, UNLIMITED), EncryptionOptions(key, cipher))

    store = start(b"secret")
    assert store.recover() is None
    store.init(new_server_info("test-cluster"))
    messages = store.create_channel(NAME).messages
    payloads = [b"hello", b"", b"\x01 plain", b"x" * 2000]
    messages.append(block(NAME, 1, payloads, replies=[b"r", b"", b"", b""]))
    messages.flush()
    found = everything(messages)
    assert [each.data for each in found] == payloads
    assert [each.reply for each in found] == [b"r", b"", b"", b""]
    # The original encrypts 29 bytes more per message that has data.
    plain = MemoryStore(StoreLimits(0, UNLIMITED)).create_channel(NAME).messages
    plain.append(block(NAME, 1, payloads, replies=[b"r", b"", b"", b""]))
    assert messages.bytes >= plain.bytes + 3 * 29
    store.close()
    if kind == "FILE":
        raw = (tmp_path / "foo/msgs.1.dat").read_bytes()
        assert b"hello" not in raw
        predicted = forecast(open_datastore(tmp_path), ServerOptions(encryption_key=b"secret", version="0.25.6"))
        assert predicted.channels["foo"].stalls_at is None
        recovered = start(b"wrong").recover()
        assert len(recovered.channels[NAME][0].messages.read(1, 10)) == 0
        assert "Error looking up message foo:1 (" in caplog.text
        assert "message authentication failed)" in caplog.text


def test_a_message_in_the_middle_is_damaged(tmp_path, caplog):
    store = new_store(tmp_path)
    store.create_channel(NAME).messages.append(block(NAME, 1, [b"x" * 20] * 10))
    store.close()
    path = tmp_path / "foo/msgs.1.dat"
    data = bytearray(path.read_bytes())
    data[data.index(b"\x08\x06\x12") + 10] ^= 1
    path.write_bytes(data)
    messages = reopened(tmp_path).channels[NAME][0].messages
    assert [each.sequence for each in everything(messages)] == [1, 2, 3, 4, 5]
    assert "Error looking up message foo:6 (corrupted data, expected crc to be" in caplog.text
    assert len(messages.read(7, 10)) == 4
    unchecked = reopened(tmp_path, crc=False).channels[NAME][0].messages
    assert len(everything(unchecked)) == 10


def test_blocks_that_do_not_fit(tmp_path):
    for store in (new_store(tmp_path), MemoryStore()):
        messages = store.create_channel(NAME).messages
        messages.append(block(NAME, 1, [b"x"]))
        with pytest.raises(StorageError, match="does not follow"):
            messages.append(block(NAME, 3, [b"x"]))
        with pytest.raises(StorageError, match="sequences are missing after 2"):
            messages.append(joined([block(NAME, 2, [b"y"]), block(NAME, 4, [b"z"])]))
        messages.append(block(NAME, 2, [b"y"]))
        messages.append(block(NAME, 3, []))
        messages.flush()
        assert [each.data for each in everything(messages)] == [b"x", b"y"]
        assert gogo.decode(pb.MsgProto, messages.read(2, 1).payload(0)) == message(messages.read(2, 1), 0)
        store.close()


def test_what_is_kept_in_memory_is_bounded(tmp_path):
    store = new_store(tmp_path)
    total = 0
    for number in range(12):
        name = b"c%d" % number
        messages = store.create_channel(name).messages
        for first in range(1, 25, 8):
            messages.append(block(name, first, [b"x" * (1 << 19)] * 8))
            flush(store, messages)
            total += 4 << 20
    held = sum(each.reader.recent.size for each, _ in store._channels.values())
    assert total > held
    assert held <= 48 << 20
    store.close()


def test_an_encrypted_store_shows_the_one_inside(tmp_path):
    inner = new_store(tmp_path, auto_sync=0)
    store = EncryptedStore(inner, EncryptionOptions(b"x"))
    assert (store.kind, store.limits, store.crc) == ("FILE", inner.limits, None)
    assert store.maintain() is None
    store.add_client(pb.ClientInfo(id=b"c"))
    store.delete_client(b"c")
    store.create_channel(b"foo")
    store.delete_channel(b"foo")
    store.close()
