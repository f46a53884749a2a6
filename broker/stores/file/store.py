"""The file store: a server's state in the files of a directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from broker.log import STREAMING
from broker.stores.file.compaction import RETRY, Compaction
from broker.stores.file.directories import ChannelDirectory, truncate_log
from broker.stores.file.file_messages import FileMessages
from broker.stores.file.file_subscriptions import FileSubscriptions
from broker.stores.file.locks import lock_directory, make_directory, unlock_directory
from broker.stores.file.recovery import RecoveredDirectory, RecoveredFiles, recover_directory
from broker.stores.file.services import Archiver, CacheBudget, OpenFileCount, Services
from broker.stores.interface import ANY_SIZE, ChannelStore, Flush, Recovered, RecoveredSubscription, StorageError
from broker.stores.store_options import FileOptions
from stantools.errors import StantoolsError
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.format.quoting import quote
from stantools.store.clientlog import read_clients
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE
from stantools.store.durable import replace_file
from stantools.store.limits import StoreLimits
from stantools.store.logwriter import ClientsLog
from stantools.store.mapping import mapped
from stantools.store.serverinfo import encode_server_file

#: seconds for which the shutdown waits for the disk, before it gives up unfinished writes
PATIENCE = 10.0
#: nanoseconds that one call of `maintain` takes (roughly, at most), and after which it checks a slow disk again
_MAX_TIME = 8_000_000
_RETRY_INTERVAL = 1_000_000_000


class FileStore:
    """A store in the files of a directory. Without a `cluster_id` the stored one is used."""

    kind = "FILE"
    largest = ANY_SIZE

    def __init__(
        self,
        options: FileOptions,
        limits: StoreLimits | None = None,
        *,
        wall: Callable[[], int] = time.time_ns,
        cluster_id: bytes | None = None,
    ) -> None:
        self.limits = limits or StoreLimits()
        self.crc: Crc | None = Crc(options.polynomial, options.crc)
        self._options = options
        self._root = options.directory
        self._cluster_id = cluster_id
        self._wall = wall
        self._services = Services(
            options,
            self.crc,
            wall,
            OpenFileCount(options.fds_limit),
            CacheBudget(),
            Archiver(options.slice_archive_script),
        )
        self._clients: dict[bytes, pb.ClientInfo] = {}
        self._clients_log: ClientsLog | None = None
        self._deletes, self._clients_end = 0, FILE_HEADER_SIZE
        self._compaction: Compaction | None = None
        self._no_compaction_before = float("-inf")
        self._open = False
        self._lock: Path | None = None
        self._channels: dict[bytes, tuple[FileMessages, FileSubscriptions]] = {}
        self._removals: dict[bytes, ChannelDirectory] = {}  # removed channels whose files are still being deleted
        self._synced = time.monotonic_ns()
        self._syncing = self._gave_up = False

    # The server and its clients.

    def recover(self, *, at_once: bool = False) -> Recovered | None:
        """Opens the directory, after the repairs that the original makes at its start.

        With `at_once`, channels and slices are made when they are needed, however slow the disk is: each flush that
        need not be durable is complete when it returns.
        """
        self._services.at_once = at_once
        make_directory(self._root)
        self._lock = lock_directory(self._root)
        if self._options.sync:
            self._services.disk.may_sync_all(self._root)
        found = recover_directory(self._options, self._services.crc, self._cluster_id)
        try:
            self._load_clients(found)
            if found.server is None:
                return None
            channels = {each.name: self._recover_channel(each) for each in found.channels}
        except (StantoolsError, OSError) as error:
            raise _storage_error(error) from error
        return Recovered(found.server, list(self._clients.values()), channels)

    def _load_clients(self, found: RecoveredDirectory) -> None:
        self._clients = dict(found.clients.clients)
        with mapped(self._root / CLIENTS_FILE) as buffer:
            if found.server is None:
                self._clients_end = len(buffer)
            elif len(buffer) > FILE_HEADER_SIZE:
                state = read_clients(buffer, self._services.crc)
                self._deletes, self._clients_end = state.deletes, FILE_HEADER_SIZE + state.record_bytes
        self._open = True

    def _recover_channel(self, found: RecoveredFiles) -> tuple[ChannelStore, list[RecoveredSubscription]]:
        directory = ChannelDirectory(self._root / os.fsdecode(found.name), self._services)
        limits = self.limits.limits_for(os.fsdecode(found.name))
        messages = FileMessages(directory, found.name, limits, self._services, found.slices)
        messages.apply_limits(self._wall())
        subscriptions = FileSubscriptions(directory, limits, self._services, found.subs)
        self._channels[found.name] = messages, subscriptions
        return self._stores(messages, subscriptions), subscriptions.recovered()

    def init(self, server: pb.ServerInfo) -> None:
        content = encode_server_file(server, self._services.crc)
        try:
            replace_file(self._root / SERVER_FILE, content)
        except StantoolsError as error:
            raise _storage_error(error) from error

    def add_client(self, client: pb.ClientInfo) -> None:
        try:
            self._log().add(client)
        except StantoolsError as error:
            raise _storage_error(error) from error
        self._clients[client.id] = client

    def delete_client(self, client_id: bytes) -> None:
        known = self._clients.pop(client_id, None)
        try:
            log = self._log()
            log.delete(client_id)
        except StantoolsError as error:
            if known is not None:
                self._clients[client_id] = known
            raise _storage_error(error) from error
        if self._compaction is None and time.monotonic() >= self._no_compaction_before and log.due(len(self._clients)):
            self._compact(log)

    def _compact(self, log: ClientsLog) -> None:
        disk = self._services.disk

        def take_new_file() -> None:
            self._compaction = None
            try:
                disk.run(log.replace(), renamed)
            except StantoolsError as error:
                not_compacted(error)

        def renamed(problem: Exception | None) -> None:
            if problem is not None:
                not_compacted(problem)

        def not_compacted(problem: Exception) -> None:
            # The log is unchanged.
            self._compaction = None
            self._no_compaction_before = time.monotonic() + RETRY
            STREAMING.error("Unable to compact %s: %s", log.path, problem)

        try:
            new = log.begin_compaction(self._clients.values())
        except StantoolsError as error:
            not_compacted(error)
            return
        self._compaction = Compaction(log, new, disk, take_new_file, not_compacted)
        self._compaction.begin()

    def _log(self) -> ClientsLog:
        if self._clients_log is None:
            if not self._open:
                raise StorageError("the store is not open")
            truncate_log(self._root / CLIENTS_FILE, self._clients_end)
            # As in the original, a client record is not synced; the periodic sync and the shutdown make it durable.
            self._clients_log = ClientsLog(
                self._root, self._services.crc, self._options.compaction, deletes=self._deletes
            )
        return self._clients_log

    # Channels.

    def create_channel(self, name: bytes) -> ChannelStore:
        if name in self._channels:
            raise StorageError("already exists")
        if 0 < self.limits.max_channels <= len(self._channels):
            raise StorageError("too many channels")
        if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
            raise StorageError(f"mkdir {self._root}/{os.fsdecode(name)}: invalid argument")
        path = self._root / os.fsdecode(name)
        directory = ChannelDirectory(
            path, self._services, partial(self._forget_channel, name), self._removals.get(name)
        )
        if self._services.at_once:
            directory.make()
            directory.name_files(sync=self._options.sync)
            directory.making = None
        limits = self.limits.limits_for(os.fsdecode(name))
        messages = FileMessages(directory, name, limits, self._services)
        subscriptions = FileSubscriptions(directory, limits, self._services)
        self._channels[name] = messages, subscriptions
        return self._stores(messages, subscriptions, directory.making)

    def _stores(
        self, messages: FileMessages, subscriptions: FileSubscriptions, making: Flush | None = None
    ) -> ChannelStore:
        return ChannelStore(messages, subscriptions, making, None if self._options.sync else messages)

    def _forget_channel(self, name: bytes) -> None:
        """Forgets a removed channel, or one that could not be made."""
        for each in self._channels.pop(name, ()):
            each.abandon()

    def delete_channel(self, name: bytes) -> None:
        channel = self._channels.get(name)
        if channel is None:
            raise StorageError("not found")
        if any(each.busy for each in channel):
            self.settle()
            if name not in self._channels:
                return  # it could not be made
            if any(each.busy for each in channel):
                raise StorageError(f"{self._root / os.fsdecode(name)}: the disk has not completed the last write")
        directory = channel[0].place
        self._forget_channel(name)
        self._removals[name] = directory
        self._services.disk.queue_job(lambda: (directory.remove, partial(self._files_removed, name, directory)))

    def _files_removed(self, name: bytes, directory: ChannelDirectory, problem: Exception | None) -> None:
        if problem is not None:
            # The next channel of that name tries again.
            STREAMING.error("Unable to remove the files of channel %s: %s", quote(name), problem)
        elif self._removals.get(name) is directory:
            del self._removals[name]

    @property
    def wake(self) -> Callable[[], None] | None:
        return self._services.disk.wake

    @wake.setter
    def wake(self, wake: Callable[[], None] | None) -> None:
        self._services.disk.wake = wake

    def completed(self) -> Sequence[Flush]:
        services = self._services
        services.disk.conclude()
        done, services.completed = services.completed, []
        return done

    def settle(self) -> None:
        """Waits up to 10 seconds for pending jobs; after a failure it does not wait again."""
        self._gave_up = not self._services.disk.conclude(0 if self._gave_up else PATIENCE)

    def unwritten(self) -> list[str]:
        return [
            str(messages.place.path)
            for messages, subscriptions in list(self._channels.values())
            if messages.unwritten or subscriptions.busy
        ]

    def sync(self, channels: Iterable[bytes] | None, done: Callable[[Exception | None], None]) -> None:
        """Syncs flushed messages of known channels, or of all, for a store whose flushes are not durable.

        `completed` calls `done` with the exception or None, after a wake.
        """
        services = self._services
        files: list[Path] = []
        for name in self._channels if channels is None else channels:
            if (pair := self._channels.get(name)) is None:
                continue
            if channels is not None or self._syncing or pair[0] in services.unsynced:
                services.unsynced.discard(pair[0])
                files += pair[0].write_out()
        services.disk.sync_files(files, done)

    # From time to time, and at the end.

    def postpone(self, sooner: Callable[[int], None] | None) -> None:
        """Delays records of deliveries and acknowledgements a little, if flushes need not be durable.

        `sooner` schedules the next `maintain` (monotonic nanoseconds), maybe before the time that it returned; None
        ends the delay.
        """
        self._services.later.sooner = None if self._options.sync else sooner

    def maintain(self) -> int | None:
        """Writes delayed records and runs the periodic sync. Returns the time of the next call, None for none."""
        times = self._services.later.write(), self._sync_all()
        return min((each for each in times if each is not None), default=None)

    def _sync_all(self) -> int | None:
        """Writes and syncs everything at intervals of `auto_sync`. Returns the time of the next call."""
        interval = self._options.auto_sync
        if interval <= 0:
            return None
        begin = time.monotonic_ns()
        services = self._services
        services.disk.conclude(0)
        if services.completed and self.wake is not None:
            self.wake()
        if begin < self._synced + interval:
            return self._synced + interval
        if self._syncing:
            return begin + min(interval, _RETRY_INTERVAL)
        files = [] if self._clients_log is None else [self._clients_log.path]
        for waiting in (services.unsynced, services.unsynced_logs):
            while waiting and time.monotonic_ns() - begin <= _MAX_TIME:
                try:
                    files += waiting.pop().write_out()
                except StantoolsError as error:
                    STREAMING.error("Unable to sync: %s", error)
        if files:
            self._syncing = True
            services.disk.sync_files(files, self._all_synced)
        if services.unsynced or services.unsynced_logs:
            # Clients are waiting: the next call writes the rest.
            return time.monotonic_ns()
        self._synced = begin
        return begin + interval

    def _all_synced(self, problem: Exception | None) -> None:
        self._syncing = False
        if problem is not None:
            STREAMING.error("Unable to sync: %s", problem)

    def close(self) -> None:
        self.postpone(None)
        problems: list[Exception] = []
        for pair in self._channels.values():
            for each in pair:
                try:
                    each.flush()
                except StantoolsError as error:
                    problems.append(error)
        self.settle()
        problems += [StorageError(each.error) for each in self.completed() if each.error]
        for pair in self._channels.values():
            for each in pair:
                try:
                    each.close()
                except StantoolsError as error:
                    problems.append(error)
        self._channels.clear()
        log, self._clients_log, self._open = self._clients_log, None, False
        if self._compaction is not None:
            self._compaction.drop()
        if log is not None:
            try:
                log.close()
            except StantoolsError as error:
                problems.append(error)
        self._services.archiver.wait()
        self._services.disk.stop()
        lock, self._lock = self._lock, None
        if lock is not None:
            unlock_directory(lock)
        if problems:
            raise _storage_error(problems[0])


def _storage_error(error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    if isinstance(error, StantoolsError):
        return StorageError(error.message)
    if isinstance(error, OSError) and error.filename:
        return StorageError(f"{os.fsdecode(error.filename)}: {error.strerror}")
    return StorageError(str(error))
