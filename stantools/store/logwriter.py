"""Writing clients.dat and subs.dat as the server writes them, and compacting them.

Facts: filestore.md sections 2.2, 4.2, 6.1 and 8. The logs keep no state of clients and subscriptions, only
the counters that decide when a compaction is worth it; what is alive comes from the caller.

A compaction writes the live state to a temporary file in the store's root, syncs it, renames it over the log and syncs
the directory. The server leaves out the syncs for clients.dat (weakness W17) and always changes the mode to 0600; here
the log keeps its mode. Between compactions a kill leaves whole records (see `appending`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Sized
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from stantools.errors import StoreUnwritableError
from stantools.format.envelope import FILE_HEADER_BYTES, check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, SubRecord
from stantools.format.logencode import (
    Column,
    encode_client,
    encode_client_delete,
    encode_flow,
    encode_subscription,
    encode_subscription_delete,
)
from stantools.format.proto import store_pb2 as pb
from stantools.store.appending import append_records
from stantools.store.compactionrules import CompactionRules
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE
from stantools.store.durable import (
    create_temporary,
    create_whole,
    fsync_directory,
    fsync_file,
    unwritable,
    write_all,
    writing,
)

if TYPE_CHECKING:
    from stantools.format.crc import Crc

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_CHUNK = 1 << 20


#: A subscription for a compaction: its full state, and the sequences that are pending.
Live = tuple[pb.SubState, Collection[int]]
_NOT_DURABLE = "what was written may not be durable"
_AS_IT_WAS = "it is as it was"


class _Log:
    """An open log file.

    Attributes:
        size: Bytes of all records, without the version header: what the server tracks.
    """

    def __init__(
        self,
        path: Path,
        root: Path,
        crc: Crc,
        rules: CompactionRules | None,
        *,
        sync: bool,
        buffer_size: int,
    ) -> None:
        self.path = path  #: the file
        self._root = root
        self._crc = crc
        self._rules = rules or CompactionRules()
        self._sync = sync
        self._buffer_size = buffer_size
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._replacement: Replacement | None = None  # while a compaction is under way
        #: There may be something behind the last record that could not be cut off yet.
        self._ragged = False
        #: When it was compacted last, in seconds of the clock that compactions go by.
        self.compacted = float("-inf")
        with writing(path, "nothing was changed"):
            created = create_whole(path, FILE_HEADER_BYTES)
            self._descriptor = os.open(path, _FLAGS, 0o666)
            try:
                self._begin()
                if created and self._sync:
                    os.fsync(self._descriptor)
                    fsync_directory(path.parent)
            except BaseException:
                os.close(self._descriptor)
                raise

    def _begin(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size == 0:
            try:
                write_all(self._descriptor, FILE_HEADER_BYTES)
                if self._sync:
                    os.fsync(self._descriptor)
                    fsync_directory(self.path.parent)
            except BaseException:
                self.path.unlink()  # without its header it would keep a server from starting (weakness W15)
                raise
            size = FILE_HEADER_SIZE
        elif (text := check_file_version(memoryview(os.pread(self._descriptor, FILE_HEADER_SIZE, 0)))) is not None:
            raise StoreUnwritableError(f"{self.path}: cannot be appended to: {text}", "use `stantools salvage`")
        self.size = size - FILE_HEADER_SIZE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._forget()
        self.close()

    def flush(self, *, sync: bool | None = None) -> None:
        """Writes what is gathered.

        Args:
            sync: Also make it durable; by default as the log was opened.

        Raises:
            StoreUnwritableError: It cannot be written. The file ends with the last record that was written before.
        """
        self._write_out()
        if self._sync if sync is None else sync:
            with writing(self.path, _NOT_DURABLE):
                os.fsync(self._descriptor)

    def syncing(self) -> Callable[[], None]:
        """Returns what makes durable what is written now: to be called once, by any thread, also if the log is closed.

        Raises:
            StoreUnwritableError: There are no more file descriptors; the function that is returned raises it as well.
        """
        with writing(self.path, _NOT_DURABLE):
            descriptor = os.dup(self._descriptor)

        def sync() -> None:
            try:
                with writing(self.path, _NOT_DURABLE):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

        return sync

    def close(self) -> None:
        """Flushes and closes.

        Raises:
            StoreUnwritableError: As from `flush`.
        """
        try:
            self.flush()
        finally:
            os.close(self._descriptor)

    def abandon(self) -> None:
        """Closes without writing what is gathered."""
        self._forget()
        os.close(self._descriptor)

    def _add(self, records: bytes) -> None:
        """Takes whole records; they are written when the buffer is full."""
        if self._replacement is not None:
            self._replacement.add(records)
        self._buffer.append(records)
        self._buffered += len(records)
        self.size += len(records)
        if self._buffered >= self._buffer_size:
            self._write_out()

    def _write_out(self) -> None:
        if not self._buffered:
            return
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        written = self.size - self._buffered
        self._buffer, self._buffered = [], 0
        end = FILE_HEADER_SIZE + written
        try:
            if self._ragged:
                os.ftruncate(self._descriptor, end)
                self._ragged = False
            append_records(self._descriptor, data, end)
        except OSError as error:
            self.size = written
            kept = "it ends with the last whole record before that"
            try:
                os.ftruncate(self._descriptor, end)
                self._ragged = False
            except OSError as second:
                self._ragged = True
                kept = f"its end could not be cut back to the last whole record: {second}"
            raise unwritable(error, self.path, kept) from error

    def _forget(self) -> None:
        self.size -= self._buffered
        self._buffer, self._buffered = [], 0

    def _due(self, fragmentation: int, now: float | None) -> bool:
        rules = self._rules
        now = time.monotonic() if now is None else now
        return (
            rules.enabled
            and (rules.min_size == 0 or self.size >= rules.min_size)
            and fragmentation >= rules.fragmentation
            and now - self.compacted >= rules.interval
        )

    def _begin_replacement(self, prefix: str, records: Iterable[bytes]) -> Replacement:
        """Begins to replace the content of the log.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        # Should it fail, the gathered records are still needed.
        self._write_out()
        with writing(self.path, _AS_IT_WAS):
            status = os.fstat(self._descriptor)
        self._replacement = Replacement(self._root, self.path, prefix, records, status)
        return self._replacement

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        """Puts the replacement that was begun, and is filled, in the place of the log.

        Returns:
            What makes that durable: to be called once, by any thread, also if the log is closed.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was, and the replacement is gone. The function
                that is returned raises it as well.
        """
        replacement = self._replacement
        assert replacement is not None
        try:
            # The old file has everything, should the rename not happen.
            self._write_out()
            descriptor = replacement.take_place()
        except BaseException:
            replacement.discard()
            raise
        finally:
            self._replacement = None
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._ragged = False
        self.size = replacement.size
        self.compacted = time.monotonic() if now is None else now

        def sync() -> None:
            with writing(self.path, _NOT_DURABLE):
                fsync_file(self.path)
            with writing(self.path, "the new file is complete but its name may not be durable"):
                fsync_directory(self.path.parent)
                if self._root != self.path.parent:
                    fsync_directory(self._root)

        return sync

    def _finish(self, now: float | None) -> None:
        """Does all that is left of a compaction."""
        replacement = self._replacement
        assert replacement is not None
        try:
            replacement.fill()
        except BaseException:
            self.give_up()
            replacement.discard()
            raise
        self.replace(now=now)()

    def give_up(self) -> None:
        """Adds nothing more to the replacement that was begun, which is the caller's to discard."""
        self._replacement = None


class Replacement:
    """The file that is going to be a log, which goes on meanwhile: what the log gets is added here.

    In steps, so that threads can do those which wait for a disk: `fill`, and what `catching_up` returns. Then the log
    takes it (`_Log.replace`), and what that returns makes it durable. A kill finds the old file, or the new one whole.

    Args:
        root: Where it is written.
        path: The log.
        prefix: Of its name until it has the log's.
        records: What it begins with.
        status: Of the log's file.
    """

    def __init__(self, root: Path, path: Path, prefix: str, records: Iterable[bytes], status: os.stat_result) -> None:
        self.size = 0  #: bytes of the records in it
        self.waiting = 0  #: bytes of those that are not written yet
        self._root = root
        self._path = path
        self._prefix = prefix
        self._records = records
        self._status = status
        self._since: list[bytes] = []
        self._descriptor: int | None = None
        self._temporary: Path | None = None

    def add(self, records: bytes) -> None:
        """Takes what the log gets."""
        self._since.append(records)
        self.waiting += len(records)

    def fill(self) -> None:
        """Writes and syncs what it begins with.

        Raises:
            StoreUnwritableError: It cannot be written.
        """
        with writing(self._path, _AS_IT_WAS):
            self._descriptor, self._temporary = create_temporary(self._root, self._prefix)
            self.size, self._records = _fill(self._descriptor, self._records), ()
            os.fchmod(self._descriptor, stat.S_IMODE(self._status.st_mode))
            if os.geteuid() == 0:
                os.fchown(self._descriptor, self._status.st_uid, self._status.st_gid)
            os.fsync(self._descriptor)

    def catching_up(self) -> Callable[[], None]:
        """Returns what writes and syncs what the log got until now; raises StoreUnwritableError when it is called."""
        since = self._take()

        def catch_up() -> None:
            assert self._descriptor is not None
            with writing(self._path, _AS_IT_WAS):
                write_all(self._descriptor, since)
                os.fsync(self._descriptor)

        return catch_up

    def take_place(self) -> int:
        """Writes what the log got since then, and renames the file.

        Returns:
            The file's descriptor.

        Raises:
            StoreUnwritableError: It did not happen.
        """
        assert self._descriptor is not None and self._temporary is not None
        with writing(self._path, _AS_IT_WAS):
            write_all(self._descriptor, self._take())
            self._temporary.replace(self._path)
        return self._descriptor

    def discard(self) -> None:
        """Removes the file."""
        if self._descriptor is not None and self._temporary is not None:
            os.close(self._descriptor)
            self._temporary.unlink(missing_ok=True)

    def _take(self) -> bytes:
        since, self._since, self.waiting = b"".join(self._since), [], 0
        self.size += len(since)
        return since


class ClientsLog(_Log):
    """The clients.dat of a store; every record is written at once.

    Args:
        root: The store's root directory.
        crc: The store's CRC.
        rules: When to compact.
        sync: Make every record durable (the server does not).
        deletes: Delete records in the file, as counted when it was read.

    Raises:
        StoreUnwritableError: It cannot be opened or created, or has a bad version header.
    """

    def __init__(
        self, root: Path, crc: Crc, rules: CompactionRules | None = None, *, sync: bool = True, deletes: int = 0
    ) -> None:
        super().__init__(root / CLIENTS_FILE, root, crc, rules, sync=sync, buffer_size=0)
        self.deletes = deletes

    def add(self, client: pb.ClientInfo) -> None:
        """Writes that a client has connected.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self._add(encode_client(client, self._crc))
        self.flush()

    def delete(self, client_id: bytes) -> None:
        """Writes that a client is gone.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self._add(encode_client_delete(client_id, self._crc))
        self.deletes += 1
        self.flush()

    def due(self, live: int, *, now: float | None = None) -> bool:
        """Tells, after a delete, whether a compaction is due.

        Args:
            live: Clients that are connected.
            now: Seconds of a monotonic clock; by default the system's.
        """
        total = self.deletes + live
        return self._due(self.deletes * 100 // total if total else 0, now)

    def compact(self, clients: Iterable[pb.ClientInfo], *, now: float | None = None) -> None:
        """Replaces the file by one that has nothing but the live clients.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self.begin_compaction(clients)
        self._finish(now)

    def begin_compaction(self, clients: Iterable[pb.ClientInfo]) -> Replacement:
        """Begins a compaction; see `Replacement`.

        Raises:
            StoreUnwritableError: It cannot be begun.
        """
        records = [encode_client(client, self._crc) for client in clients]
        self._deletes_before = self.deletes
        return self._begin_replacement(CLIENTS_FILE, records)

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        """See `_Log.replace`."""
        sync = super().replace(now=now)
        self.deletes -= self._deletes_before
        return sync


class SubsLog(_Log):
    """The subs.dat of a channel; records are gathered and written at a flush.

    Args:
        directory: The channel's directory.
        root: The store's root directory, for temporary files.
        crc: The store's CRC.
        rules: When to compact.
        sync: Make every flush durable.
        buffer_size: Bytes that are gathered before they are written.
        records: Live records in the file, as counted when it was read (`sublog.SubsState`).
        dead: Dead records in the file.

    Raises:
        StoreUnwritableError: It cannot be opened or created, or has a bad version header.
    """

    def __init__(
        self,
        directory: Path,
        root: Path,
        crc: Crc,
        rules: CompactionRules | None = None,
        *,
        sync: bool = True,
        buffer_size: int = 2 * 1024 * 1024,
        records: int = 0,
        dead: int = 0,
    ) -> None:
        path = directory / SUBS_FILE
        super().__init__(path, root, crc, rules, sync=sync, buffer_size=buffer_size)
        self.records = records
        self.dead = dead

    def new(self, state: pb.SubState) -> None:
        """Writes a new subscription.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.records += 1
        self._add(encode_subscription(state, self._crc))

    def update(self, state: pb.SubState) -> None:
        """Writes the new state of a known subscription.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.records += 1
        self.dead += 1
        self._add(encode_subscription(state, self._crc, update=True))

    def delete(self, subscription: int, pending: int) -> None:
        """Writes that a subscription is gone.

        Args:
            subscription: Its id.
            pending: How many messages it had pending.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.dead += 1 + pending
        self._add(encode_subscription_delete(subscription, self._crc))

    def sent(self, ids: Column, sequences: Column) -> None:
        """Writes that messages were sent for the first time to subscriptions: one each, or many of one.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.flow(SubRecord.MSG, ids, sequences)

    def acked(self, ids: Column, sequences: Column) -> None:
        """Writes that pending messages were acknowledged.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.flow(SubRecord.ACK, ids, sequences)

    def flow(self, types: Column, ids: Column, sequences: Column) -> None:
        """Writes Msg and Ack records of known subscriptions in a given order.

        Args:
            types: `SubRecord.MSG` or `SubRecord.ACK` of each, or one for all.
            ids: Subscription ids, or one for all.
            sequences: Message sequences, or one for all.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        records = encode_flow(types, ids, sequences, self._crc)
        if isinstance(types, int):
            counts = [len(column) for column in (ids, sequences) if isinstance(column, Sized)]
            total = max(counts, default=1)
            sent = total if types == SubRecord.MSG else 0
        else:
            total, sent = len(types), int(np.count_nonzero(np.asarray(types) == SubRecord.MSG))
        self.records += sent
        self.dead += total - sent
        self._add(records)

    def flow_encoded(self, records: bytes, *, sent: int = 0, acked: int = 0) -> None:
        """Writes Msg and Ack records that are encoded already (`logencode.encode_flow`).

        Args:
            records: The records.
            sent: How many are Msg records.
            acked: How many are Ack records.

        Raises:
            StoreUnwritableError: What was gathered cannot be written.
        """
        self.records += sent
        self.dead += acked
        self._add(records)

    def due(self, *, now: float | None = None) -> bool:
        """Tells, after a delete or an acknowledgement, whether a compaction is due.

        Args:
            now: Seconds of a monotonic clock; by default the system's.
        """
        return self._due(self.dead * 100 // self.records if self.records else 100, now)

    def compact(self, subscriptions: Iterable[Live], *, now: float | None = None) -> None:
        """Replaces the file by one that has nothing but the live subscriptions and what they have pending.

        Raises:
            StoreUnwritableError: It cannot be written; the file is as it was.
        """
        self.begin_compaction(subscriptions)
        self._finish(now)

    def begin_compaction(self, subscriptions: Iterable[Live]) -> Replacement:
        """Begins a compaction; see `Replacement`.

        Raises:
            StoreUnwritableError: It cannot be begun.
        """
        alive, records = 0, []
        for state, pending in subscriptions:
            alive += 1 + len(pending)
            records.append(encode_live(state, pending, self._crc))
        # What is dead by then goes, and what is counted twice of what is alive.
        self._gone = self.records - alive, self.dead
        return self._begin_replacement("subs", records)

    def replace(self, *, now: float | None = None) -> Callable[[], None]:
        """See `_Log.replace`."""
        sync = super().replace(now=now)
        records, dead = self._gone
        self.records, self.dead = self.records - records, self.dead - dead
        return sync


def encode_live(state: pb.SubState, pending: Collection[int], crc: Crc) -> bytes:
    """Encodes a subscription as a compaction writes it: New, then Msg for each pending sequence.

    Facts: filestore.md section 8.
    """
    record = encode_subscription(state, crc)
    return record + encode_flow(SubRecord.MSG, state.id, sorted(pending), crc) if pending else record


def _fill(descriptor: int, records: Iterable[bytes]) -> int:
    """Writes a whole log in big pieces, and returns the bytes of its records."""
    size = 0
    gathered = bytearray(FILE_HEADER_BYTES)
    for each in records:
        size += len(each)
        gathered += each
        if len(gathered) >= _CHUNK:
            write_all(descriptor, gathered)
            gathered.clear()
    write_all(descriptor, gathered)
    return size
