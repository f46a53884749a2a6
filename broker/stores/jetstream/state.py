"""Clients, channels and subscriptions: records in a stream of their own, of which the last one of each subject counts.

Facts: high-availability.md sections C.1 and C.4. `stantools.nats.channel_streams` lists the records. This module
adds:

    start                       the server that has read the records last
    lease.<epoch>               the server that leads, see `lease`

An empty record says that its thing is gone, and is deleted once it is stored. The server waits for the records of
registrations and new subscriptions. Progress (sent and pending messages) is written a few times a second: if it is
lost, those messages are delivered again. A queue group has one record, because a message may move between its
members and must not get lost on the way.

A record from a server that was killed may be stored later, while the next server runs. So the running server
rewrites any record that appears between its own. If records of another writer keep appearing, a second server uses
the streams, and the store fails; if another server has taken the lease, that server continues alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from broker.log import STREAMING
from broker.stores.interface import Flush, FlushOutcome, StorageError
from broker.stores.jetstream.exact_publisher import ExactPublisher, PublishRange
from broker.stores.jetstream.lease import LEASE, Lease, LeaseTerm
from stantools.format.message_batch import MessageBatch
from stantools.nats.errors import NatsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from stantools.nats.channel_streams import StreamNames

START: Final = b"start"
#: seconds between two writes of progress, records per write, and records in flight at which progress waits
_INTERVAL: Final = 0.1
_MOST: Final = 25
_BACKLOG: Final = 256
#: foreign records that are tolerated, and the seconds within which they count
_STRANGERS: Final = 8, 60.0
#: bytes of the frame and the header of a record at most
_AROUND: Final = 1024


class ProgressRecord(Protocol):
    """A thing whose record is written periodically."""

    @property
    def subject(self) -> bytes:
        """The subject of its record, without the common prefix."""

    @property
    def gone(self) -> bool:
        """Whether the thing no longer exists."""

    def encode(self, largest: int) -> bytes:
        """Returns the current record; empty if the thing is gone."""


class BrokerState:
    """Writes the records.

    Args:
        completed: Called with each flush whose outcome is known.
        lost: Called with the reason if another server writes to the state, or the lease cannot be kept.
        seconds: Duration of a lease.
    """

    def __init__(
        self,
        streams: JetStreamPort,
        names: StreamNames,
        writer: bytes,
        completed: Callable[[Flush], None],
        lost: Callable[[str], None],
        seconds: float,
    ) -> None:
        self._streams = streams
        self._names = names
        self._completed = completed
        self._lost = lost
        self._seconds = seconds
        self._tenure: LeaseTerm | None = None
        self._publisher = ExactPublisher(streams, names.state, writer, self, origin=False)
        self._own = b": %b." % writer
        self._last = 0
        self._records: dict[
            bytes, bytes | ProgressRecord
        ] = {}  # current records: content, or the thing that encodes it
        self._under_way: dict[PublishRange, tuple[bytes, bytes | ProgressRecord, Flush, float]] = {}
        self._strangers: deque[float] = deque(maxlen=_STRANGERS[0])
        self._reading: asyncio.Task[None] | None = None
        self._opening: asyncio.Future[bool] | None = None
        self._dirty: dict[ProgressRecord, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._gone: list[int] = []
        self._removing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether everything is written."""
        return self._publisher.idle and not self._dirty

    @property
    def leads(self) -> bool:
        """Whether messages may be sent: no other server can have the lease."""
        return self._tenure is None or self._tenure.certain

    async def open(
        self, last: int, records: Mapping[bytes, bytes], gone: Iterable[int], lease: Lease | None = None
    ) -> bool:
        """Starts to write after `last`, the last sequence of the stream. Returns False if it has more records.

        In that case the caller reads it again.

        A server that has lost its leadership without knowing reports too few messages. So this writes a record that
        must get the next sequence.

        Args:
            records: The records by subject; `add` adds those of subscriptions.
            gone: Sequences of records that are no longer needed; they are removed.
            lease: The lease to take, if there are several servers.
        """
        self._last = last
        self._records |= records
        self._publisher.restart(last)
        self._opening = asyncio.get_running_loop().create_future()
        if lease is None:
            self.put(START, self._own)
        else:
            self._tenure = LeaseTerm(lease, self._seconds, partial(self.put, lease.subject), self._lost)
            self.put(lease.subject, lease.encode())
        whole = await self._opening
        self._opening = None
        if whole:
            self._remove(gone)
            if self._tenure is not None:
                self._tenure.begin()
        else:
            self._publisher.forget()
            self._records.clear()
            self._under_way.clear()
        return whole

    def add(self, thing: ProgressRecord) -> None:
        """Adds a thing that already has a record."""
        self._records[thing.subject] = thing

    def put(self, subject: bytes, content: bytes) -> Flush:
        """Writes a record under a subject without the common prefix. Empty content says that the thing is gone."""
        if content:
            self._records[subject] = content
        else:
            self._records.pop(subject, None)
        flush = Flush()
        self._submit(subject, content, flush)
        return flush

    def _submit(self, subject: bytes, thing: bytes | ProgressRecord, flush: Flush) -> None:
        content = thing if isinstance(thing, bytes) else thing.encode(self._streams.max_payload - _AROUND)
        self._last += 1
        sequence = self._last
        batch = MessageBatch.of_payload(sequence, 0, content, self._names.records.encode() + subject)
        piece = PublishRange(batch, sequence, sequence, lambda: self._stored(piece, sequence, gone=not content))
        self._under_way[piece] = subject, thing, flush, asyncio.get_running_loop().time()
        self._publisher.submit(piece)

    def write(self, thing: ProgressRecord) -> Flush:
        """Writes the current record of a thing. Raises StorageError if the record would be too large."""
        self._dirty.pop(thing, None)
        flush = Flush()
        self._submit(thing.subject, thing, flush)
        if thing.gone:
            self._records.pop(thing.subject, None)
        else:
            self._records[thing.subject] = thing
        return flush

    def note(self, thing: ProgressRecord) -> None:
        """Writes the record of a thing with the next progress."""
        self._dirty[thing] = None
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._write_some)

    def finish(self) -> None:
        """Writes all progress."""
        for thing in tuple(self._dirty):
            self._write(thing)

    def release_lease(self) -> None:
        if self._tenure is not None:
            self._tenure.release_lease()

    def close(self) -> None:
        self._closed = True
        self._publisher.close()
        if self._tenure is not None:
            self._tenure.stop()
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._removing, self._reading):
            if task is not None:
                task.cancel()

    def _write_some(self) -> None:
        self._timer = None
        if len(self._under_way) < _BACKLOG:
            for thing in tuple(self._dirty)[:_MOST]:
                self._write(thing)
        if self._dirty and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._write_some)

    def _write(self, thing: ProgressRecord) -> None:
        try:
            self.write(thing)
        except StorageError as problem:
            STREAMING.error("Unable to store subscriptions: %s", problem)

    def _stored(self, piece: PublishRange, sequence: int, *, gone: bool) -> None:
        if gone:
            self._gone.append(sequence)
        _, _, flush, sent = self._under_way.pop(piece)
        if self._tenure is not None:
            self._tenure.extend(sent)
        self._completed(flush)
        self._opened(whole=True)

    def _opened(self, *, whole: bool) -> bool:
        """Ends a waiting `open` with its result. Returns whether one was waiting."""
        if self._opening is None or self._opening.done():
            return False
        self._opening.set_result(whole)
        return True

    def answered(self) -> None:
        if self._gone:
            gone, self._gone = self._gone, []
            self._remove(gone)

    def refused(self, error: str, *, certain: bool) -> None:
        """Called by the publisher: no record is confirmed. Clients try again, and progress is written again."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(StorageError(f"stream {self._names.state} refuses records: {error}"))
            return
        STREAMING.error("Unable to store clients and subscriptions: %s", error)
        refused, self._under_way = self._under_way, {}
        self._publisher.forget()
        self._last = self._publisher.confirmed
        self._publisher.restart(self._last)
        for _, thing, flush, _ in refused.values():
            flush.outcome, flush.error = FlushOutcome.REFUSED if certain else FlushOutcome.UNKNOWN, error
            self._completed(flush)
            if not isinstance(thing, bytes):
                self.note(thing)

    def diverged(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        if self._opened(whole=False):
            return
        STREAMING.warning("Stream %s: %s; its records are written again", self._names.state, reason)
        self._reading = asyncio.get_running_loop().create_task(self._write_again(self._publisher.confirmed, lost=lost))

    async def _write_again(self, after: int, *, lost: bool) -> None:
        """Rewrites the records that others have written after a sequence, or all records; then those in progress."""
        while True:
            try:
                found, last, stranger, rival = await self._read(after)
                break
            except NatsError as problem:
                STREAMING.debug("Stream %s cannot be read yet: %s", self._names.state, problem)
                await asyncio.sleep(_INTERVAL)
        if rival is not None:
            self._lost(f'node "{rival.node}" has taken the lease')
            return
        if stranger:
            now = asyncio.get_running_loop().time()
            most, seconds = _STRANGERS
            if len(self._strangers) == most and now - self._strangers[0] < seconds:
                self._lost(f"another server writes to stream {self._names.state}, which holds this server's state")
                return
            self._strangers.append(now)
        if lost:
            found |= set(self._records)
        else:
            last = max(last, after)
        waiting, self._under_way = self._under_way, {}
        self._publisher.forget()
        self._last = last
        self._publisher.restart(last)
        for subject in found:
            self._submit(subject, self._records.get(subject, b""), Flush())
        for subject, thing, flush, _ in waiting.values():
            self._submit(subject, thing, flush)

    async def _read(self, after: int) -> tuple[set[bytes], int, bool, Lease | None]:
        """Reads the records after a sequence.

        Returns their subjects, the last sequence, whether another server wrote any, and a lease that another server
        took.
        """
        info = await self._streams.stream_info(self._names.state)
        if info is None:
            raise NatsError("the stream is gone")
        found, stranger, rival = set(), False, None
        epoch = 0 if self._tenure is None else self._tenure.lease.epoch
        if int(info["state"]["last_seq"]) > after:
            async for received in self._streams.read(self._names.state, info["state"], after):
                for row in range(len(received)):
                    subject = received.subject(row).removeprefix(self._names.records.encode())
                    found.add(subject)
                    if self._own not in received.header(row):
                        stranger = True
                        if subject.startswith(LEASE):
                            with contextlib.suppress(ValueError):
                                lease = Lease.decode(received.data(row))
                                if lease.epoch >= max(epoch, 1):
                                    rival = lease
        return found, int(info["state"]["last_seq"]), stranger, rival

    def _remove(self, gone: Iterable[int]) -> None:
        """Deletes records that are no longer needed. The next start deletes the rest."""
        sequences = list(gone)
        if not sequences or self._closed:
            return
        before = self._removing

        async def remove() -> None:
            if before is not None:
                await asyncio.wait([before])
            for sequence in sequences:
                try:
                    await self._streams.delete_message(self._names.state, sequence)
                except NatsError as problem:
                    STREAMING.debug("Record %d of stream %s stays: %s", sequence, self._names.state, problem)

        self._removing = asyncio.get_running_loop().create_task(remove())
