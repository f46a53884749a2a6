"""Snapshots and restores of whole streams.

Facts: jetstream-server.md section 17, jetstream-migration.md section 4.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.log import NATS
from broker.reserved import RESERVED
from broker.stores.interface import StorageError
from broker.streams.api_errors import RequestError, bad_request, name_mismatch
from broker.streams.configuration import StreamConfig
from broker.streams.header_state import HeaderState, read_header_state
from broker.streams.headers import status
from broker.streams.requests import dumps, failed, members, parse, response_type
from broker.streams.streaminfo import stream_info, stream_state
from stantools.errors import StantoolsError
from stantools.nats.frames import rows
from stantools.nats.subjects import is_literal, valid_pattern
from stantools.streamfiles.stream_config import BOOL, INT, OBJECT, STRING

if TYPE_CHECKING:
    from broker.ports import Clock, RuleDriver
    from broker.stores.streams.interface import StreamStore
    from broker.streams.account import Account
    from broker.streams.ports import Incoming, Outgoing, StreamsPort, StreamStorage
    from broker.streams.stream import Stream
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

_SNAPSHOT: Final[Mapping[str, str]] = {
    "deliver_subject": STRING,
    "no_consumers": BOOL,
    "chunk_size": INT,
    "window_size": INT,
    "jsck": BOOL,
}
_RESTORE: Final[Mapping[str, str]] = {"config": OBJECT, "state": OBJECT}
#: Bytes of a piece, their permitted range, and bytes in transit.
_PIECE: Final = 128 << 10
_PIECES: Final = range(1 << 10, (1 << 20) + 1)
_WINDOW: Final = 1 << 20
#: nanoseconds without a message from the client that end a transfer
_TIMEOUT: Final = 5_000_000_000
#: transfers at a time
_MOST: Final = 32


class Transfers:
    """The snapshots and restores in progress.

    `driver` runs slow work in a thread. `adopt` is called with a restored stream and returns work in steps. `queue`
    is called with the name of a stream and the work that changes it.
    """

    def __init__(
        self,
        bus: StreamsPort,
        place: StreamStorage,
        clock: Clock,
        driver: RuleDriver,
        account: Account,
        adopt: Callable[[Stream], Iterator[None]],
        queue: Callable[[str, Iterator[None]], None],
    ) -> None:
        self._bus, self._place, self._clock, self._driver, self._account = bus, place, clock, driver, account
        self._adopt, self._queue = adopt, queue
        self._open: dict[_OutgoingSnapshot | _IncomingRestore, None] = {}

    def snapshot(self, stream: Stream, body: bytes) -> dict[str, Any]:
        """Starts a snapshot. Returns the answer's members, which precede the first piece. Raises `RequestError`."""
        wanted = members(parse(body), _SNAPSHOT, "JSApiStreamSnapshotRequest", strict=True)
        if not wanted.get("deliver_subject"):
            raise bad_request()
        to = wanted["deliver_subject"].encode()
        if not valid_pattern(to) or not is_literal(to) or to in RESERVED:
            raise RequestError(400, 10015, "deliver subject not valid")
        if stream.borrowed or stream.config.storage != "file":
            raise RequestError(500, 10064, "snapshot failed: no impl")
        self._check_many(10064, "snapshot")
        stream.flush()
        try:
            taken = self._place.take(
                stream.name, consumers=not wanted.get("no_consumers", False), time=self._clock.wall()
            )
        except StorageError as error:
            raise RequestError(500, 10064, f"snapshot failed: {error.message}") from error
        size = wanted.get("chunk_size", 0)
        sending = _OutgoingSnapshot(self._bus, stream.name, taken, to, size if size in _PIECES else _PIECE)
        sending.last_message_at = self._clock.monotonic()
        self._open[sending] = None
        sending.listening = self._bus.listen(sending.prefix + b">", partial(self._acknowledged, sending))
        return {"config": stream.config.as_json(), "state": stream_state(stream)}

    def restore(self, name: str, body: bytes) -> Generator[None, None, dict[str, Any]]:
        """Starts a restore, in steps. Returns the answer's members; raises `RequestError`."""
        if not body:
            raise bad_request()
        wanted = members(parse(body), _RESTORE, "JSApiStreamRestoreRequest", strict=True)
        config = StreamConfig.read(wanted.get("config", {}))
        if config.name != name:
            raise name_mismatch()
        config.check()
        yield from config.check_overlaps()
        if config.storage != "file":
            raise RequestError(500, 10062, "restore failed: a stream in memory has no archive")
        yield from self._account.check_new(config)
        self._check_many(10062, "restore")
        try:
            coming = self._place.expect(name)
        except StorageError as error:
            raise RequestError(500, 10062, f"restore failed: {error.message}") from error
        receiving = _IncomingRestore(config, coming)
        receiving.last_message_at = self._clock.monotonic()
        to = f"$JS.SNAPSHOT.RESTORE.{name}.{secrets.token_hex(6)}"
        receiving.listening = self._bus.listen(to.encode(), partial(self._receive, receiving))
        self._open[receiving] = None
        return {"deliver_subject": to}

    def _check_many(self, number: int, what: str) -> None:
        if len(self._open) >= _MOST:
            raise RequestError(500, number, f"{what} failed: too many at a time")

    def run(self) -> None:
        """Sends the next pieces."""
        for each in [each for each in self._open if isinstance(each, _OutgoingSnapshot)]:
            if not each.send():
                self._close(each)

    def run_checks(self) -> None:
        """Ends the transfers whose client has been silent for too long."""
        now = self._clock.monotonic()
        for each in [each for each in self._open if not each.busy and now - each.last_message_at > _TIMEOUT]:
            NATS.warning("Stream %r: transfer ended, because the client sent nothing", each.name)
            if isinstance(each, _OutgoingSnapshot):
                self._bus.publish(each.to, b"", header=status("408 No Flow Response"))
            self._close(each)

    def close(self) -> None:
        for each in list(self._open):
            if not each.busy:
                self._close(each)

    def _close(self, transfer: _OutgoingSnapshot | _IncomingRestore) -> None:
        if transfer in self._open:
            del self._open[transfer]
            self._bus.unlisten(transfer.listening)
            transfer.archive.close()

    def _acknowledged(self, sending: _OutgoingSnapshot, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        for subject, _, _, _ in rows(buffer, frames, begin, end):
            size = subject[len(sending.prefix) :].partition(b".")[0]
            sending.in_transit -= int(size) if size.isdigit() and len(size) < 10 else 0
        sending.last_message_at = self._clock.monotonic()
        self._driver.commit_soon()

    def _receive(self, receiving: _IncomingRestore, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        receiving.last_message_at = self._clock.monotonic()
        for _, reply, _, payload in rows(buffer, frames, begin, end):
            if receiving.busy or receiving not in self._open:
                return
            if not reply:
                self._close(receiving)
            elif payload:
                receiving.size += len(payload)
                try:
                    self._account.quota.check("file", self._received_bytes)
                    receiving.archive.add(payload)
                except (RequestError, StorageError) as error:
                    self._end(receiving, reply, str(error))
                else:
                    self._bus.publish(reply, b"")
            else:
                receiving.busy = True
                limit = self._account.quota.left("file") - self._received_bytes + receiving.size
                self._driver.aside(partial(receiving.archive.unpack, limit), partial(self._end, receiving, reply))

    @property
    def _received_bytes(self) -> int:
        """Bytes received by all restores together."""
        return sum(each.size for each in self._open if isinstance(each, _IncomingRestore))

    def _end(self, receiving: _IncomingRestore, reply: bytes, problem: str) -> None:
        """Opens the unpacked archive in a thread, unless `problem` says that it is invalid."""
        try:
            if problem:
                raise RequestError(500, 10062, f"restore failed: {problem}")
            self._account.check_free(receiving.name)
            receiving.archive.place()
        except (RequestError, StorageError) as error:
            self._fail(receiving, reply, error)
            return
        job = partial(_open, self._place, receiving.config, self._clock.wall())
        self._driver.aside(job, partial(self._opened, receiving, reply))

    def _opened(self, receiving: _IncomingRestore, reply: bytes, found: _Opened | StorageError) -> None:
        """Makes a stream of the opened store, as queued work."""
        if isinstance(found, StorageError):
            self._fail(receiving, reply, found)
        else:
            self._queue(receiving.name, self._take(receiving, reply, found))

    def _take(self, receiving: _IncomingRestore, reply: bytes, found: _Opened) -> Iterator[None]:
        store, remembered = found
        try:
            yield from self._account.check_new(receiving.config)
            created = receiving.archive.created
            stream = yield from self._account.restore(receiving.config, created, store, remembered)
            self._place.share(receiving.name, store)
        except (RequestError, StorageError) as error:
            store.abandon()
            self._fail(receiving, reply, error)
            return
        receiving.archive.keep()
        yield from self._adopt(stream)
        answer = {"type": response_type("stream_create"), **stream_info(stream, self._clock.wall())}
        self._finish(receiving, reply, answer)

    def _fail(self, receiving: _IncomingRestore, reply: bytes, error: RequestError | StorageError) -> None:
        if isinstance(error, StorageError):
            error = RequestError(500, 10062, f"restore failed: {error.message}")
        self._finish(receiving, reply, failed("stream_create", error))

    def _finish(self, receiving: _IncomingRestore, reply: bytes, answer: dict[str, Any]) -> None:
        receiving.busy = False
        self._bus.publish(reply, dumps(answer))
        self._close(receiving)
        self._driver.commit_soon()


#: A store, and the state that its messages' headers contain.
_Opened = tuple["StreamStore", HeaderState]


def _open(place: StreamStorage, config: StreamConfig, now: int) -> _Opened | StorageError:
    """Opens a store without other users, possibly in a thread. Returns the error, if there is one."""
    try:
        store = place.open_apart(config.name)
        return store, read_header_state(store, config, now)
    except StorageError as error:
        return error
    except StantoolsError as error:
        return StorageError(error.message)


class _IncomingRestore:
    def __init__(self, config: StreamConfig, archive: Incoming) -> None:
        self.config, self.name, self.archive = config, config.name, archive
        self.busy = False  #: whether a thread uses it
        self.size = 0  #: bytes received
        self.last_message_at = 0  #: time (monotonic ns) of the client's last message
        self.listening: object = None


class _OutgoingSnapshot:
    busy = False

    def __init__(self, bus: StreamsPort, name: str, archive: Outgoing, to: bytes, size: int) -> None:
        self._bus, self.name, self.archive, self.to = bus, name, archive, to
        self.prefix = f"$JS.SNAPSHOT.ACK.{name}.{secrets.token_hex(4)}.".encode()
        self.in_transit = self._sent = 0
        self.last_message_at = 0  #: time (monotonic ns) of the client's last message
        self.listening: object = None
        self._pieces: Iterator[bytes] = archive.pieces(size)

    def send(self) -> bool:
        """Sends pieces up to the window. Returns whether more are left."""
        if not self._bus.interested(self.to):
            return False
        while self.in_transit < _WINDOW:
            try:
                piece = next(self._pieces, b"")
            except StorageError as error:
                self._bus.publish(self.to, b"", header=status(f"500 {error.message}"))
                return False
            if not piece:
                self._bus.publish(self.to, b"", header=status("204"))
                return False
            self._sent += 1
            self.in_transit += len(piece)
            self._bus.publish(self.to, piece, self.prefix + b"%d.%d" % (len(piece), self._sent))
        return True
