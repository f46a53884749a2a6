"""Clients, channels and subscriptions: records in a stream of their own, the last one of each subject.

Facts: high-availability.md sections C.1 and C.4. `stantools.nats.channel_streams` lists the records. Besides those:

    start                       who has read the records last
    lease.<epoch>               who of several servers leads, see `lease`

The record of what is gone is deleted after it was written. Registrations and new subscriptions are
waited for. Progress, what was sent and what is pending, is written a few times a second: what is lost comes again.
A queue group is one record, because a message may go from one member to another, and must not get lost between two.

What a server sent that was killed then may be stored later, when the next one is at work. So a record that turns up
between others is written again as it should be. Whoever goes on writing is another server, and that is too much; and
whoever has taken the lease is the one who goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from broker.log import STREAMING
from broker.stores.interface import Flush, FlushOutcome, StorageError
from broker.stores.jetstream.exact_publisher import Chain, ChainLink
from broker.stores.jetstream.lease import LEASE, Lease, LeaseTerm
from stantools.format.columns import MessageColumns
from stantools.nats.errors import NatsError
from stantools.streamfiles.batch import MessageBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from stantools.nats.channel_streams import StreamNames

START: Final = b"start"
#: Seconds between two writings of progress, how many records they have at most, and how many may be under way then.
_INTERVAL: Final = 0.1
_MOST: Final = 25
_BACKLOG: Final = 256
#: How often others may have written, and within how many seconds.
_STRANGERS: Final = 8, 60.0
#: Bytes that the frame and the header of a record take at most.
_AROUND: Final = 1024


class ProgressRecord(Protocol):
    """Something whose record is written from time to time."""

    @property
    def subject(self) -> bytes:
        """The subject of its record, without what all begin with."""

    @property
    def gone(self) -> bool:
        """Whether its record says that there is none any more."""

    def encode(self, largest: int) -> bytes:
        """Returns its record as it is now; nothing if it is gone."""


class BrokerState:
    """Writes records.

    Args:
        streams: JetStream.
        names: Of the cluster id.
        writer: Who writes.
        completed: Called with each flush whose outcome is known.
        lost: Called with the reason when somebody else writes, too, or the lease cannot be kept.
        seconds: How long a lease is good for.
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
        self._chain = Chain(streams, names.state, writer, self, origin=False)
        self._own = b": %b." % writer
        self._last = 0
        self._records: dict[bytes, bytes | ProgressRecord] = {}  # what there is: content, or what knows it
        self._under_way: dict[ChainLink, tuple[bytes, bytes | ProgressRecord, Flush, float]] = {}
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
        return self._chain.idle and not self._dirty

    @property
    def leads(self) -> bool:
        """Whether messages may be sent: nobody else does, as far as that is known."""
        return self._tenure is None or self._tenure.certain

    async def open(
        self, last: int, records: Mapping[bytes, bytes], gone: Iterable[int], lease: Lease | None = None
    ) -> bool:
        """Begins behind the last sequence of the stream, if that is where it ends.

        A server that no longer leads, and does not know it, reports less than there is. So a record is written
        that has to be the next one.

        Args:
            last: That sequence.
            records: The records that there are, by subject; subscriptions follow by `add`.
            gone: Sequences of records that are not needed any more; they are removed.
            lease: What is to be taken with it, where there are several servers.

        Returns:
            Whether that is all there is; if not, it has to be read again.
        """
        self._last = last
        self._records |= records
        self._chain.restart(last)
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
            self._chain.forget()
            self._records.clear()
            self._under_way.clear()
        return whole

    def add(self, thing: ProgressRecord) -> None:
        """Takes note of something that has a record."""
        self._records[thing.subject] = thing

    def put(self, subject: bytes, content: bytes) -> Flush:
        """Writes a record; without content it says that there is none any more. Returns the flush.

        Args:
            subject: Its subject, without what all begin with.
            content: What it says.
        """
        if content:
            self._records[subject] = content
        else:
            self._records.pop(subject, None)
        flush = Flush()
        self._submit(subject, content, flush)
        return flush

    def _submit(self, subject: bytes, thing: bytes | ProgressRecord, flush: Flush) -> None:
        content = thing if isinstance(thing, bytes) else thing.encode(self._streams.max_payload - _AROUND)
        columns = MessageColumns(1)
        self._last += 1
        columns.sequence[0], columns.data_size[0] = self._last, len(content)
        full = self._names.records.encode() + subject
        batch = MessageBatch(b"", full, memoryview(content), columns, columns.sequence)
        sequence = self._last
        piece = ChainLink(batch, sequence, sequence, lambda: self._stored(piece, sequence, gone=not content))
        self._under_way[piece] = subject, thing, flush, asyncio.get_running_loop().time()
        self._chain.submit(piece)

    def write(self, thing: ProgressRecord) -> Flush:
        """Writes a record as it is now. Raises StorageError if it cannot be one."""
        self._dirty.pop(thing, None)
        flush = Flush()
        self._submit(thing.subject, thing, flush)
        if thing.gone:
            self._records.pop(thing.subject, None)
        else:
            self._records[thing.subject] = thing
        return flush

    def note(self, thing: ProgressRecord) -> None:
        """Has a record written soon."""
        self._dirty[thing] = None
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._write_some)

    def finish(self) -> None:
        """Writes what has not been written."""
        for thing in tuple(self._dirty):
            self._write(thing)

    def give_back(self) -> None:
        """Gives the lease back, if there is one."""
        if self._tenure is not None:
            self._tenure.give_back()

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self._chain.close()
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

    def _stored(self, piece: ChainLink, sequence: int, *, gone: bool) -> None:
        if gone:
            self._gone.append(sequence)
        _, _, flush, sent = self._under_way.pop(piece)
        if self._tenure is not None:
            self._tenure.prove(sent)
        self._completed(flush)
        self._opened(whole=True)

    def _opened(self, *, whole: bool) -> bool:
        """Tells who waits for the first record what came of it. Returns whether somebody does."""
        if self._opening is None or self._opening.done():
            return False
        self._opening.set_result(whole)
        return True

    def answered(self) -> None:
        """Is called by the chain."""
        if self._gone:
            gone, self._gone = self._gone, []
            self._remove(gone)

    def refused(self, error: str, *, certain: bool) -> None:
        """Is called by the chain: nothing is confirmed, and whoever asks tries again to store what there is."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(StorageError(f"stream {self._names.state} takes nothing: {error}"))
            return
        STREAMING.error("Unable to store clients and subscriptions: %s", error)
        refused, self._under_way = self._under_way, {}
        self._chain.forget()
        self._last = self._chain.proven
        self._chain.restart(self._last)
        for _, thing, flush, _ in refused.values():
            flush.outcome, flush.error = FlushOutcome.REFUSED if certain else FlushOutcome.UNKNOWN, error
            self._completed(flush)
            if not isinstance(thing, bytes):
                self.note(thing)

    def astray(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        """Is called by the chain."""
        if self._opened(whole=False):
            return
        STREAMING.warning("Stream %s: %s; its records are written again", self._names.state, reason)
        self._reading = asyncio.get_running_loop().create_task(self._write_again(self._chain.proven, lost=lost))

    async def _write_again(self, after: int, *, lost: bool) -> None:
        """Writes again what somebody else has written since a sequence, or everything, and what is under way."""
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
                self._lost(f"somebody else writes to stream {self._names.state}, the state of the server")
                return
            self._strangers.append(now)
        if lost:
            found |= set(self._records)
        else:
            last = max(last, after)
        waiting, self._under_way = self._under_way, {}
        self._chain.forget()
        self._last = last
        self._chain.restart(last)
        for subject in found:
            self._submit(subject, self._records.get(subject, b""), Flush())
        for subject, thing, flush, _ in waiting.values():
            self._submit(subject, thing, flush)

    async def _read(self, after: int) -> tuple[set[bytes], int, bool, Lease | None]:
        """Returns what is behind a sequence.

        The subjects of the records, the last sequence, whether others wrote any, and the lease that somebody has taken.
        """
        info = await self._streams.stream_info(self._names.state)
        if info is None:
            raise NatsError("it is gone")
        found, stranger, rival = set(), False, None
        epoch = 0 if self._tenure is None else self._tenure.lease.epoch
        if int(info["state"]["last_seq"]) > after:
            async for received in self._streams.read(self._names.state, info["state"], after):
                for row in range(len(received)):
                    subject = received.subject(row).removeprefix(self._names.records.encode())
                    found.add(subject)
                    if self._own not in received.header(row):
                        stranger = True
                        if subject.startswith(LEASE) and (lease := _lease(received.data(row))).epoch >= max(epoch, 1):
                            rival = lease
        return found, int(info["state"]["last_seq"]), stranger, rival

    def _remove(self, gone: Iterable[int]) -> None:
        """Deletes records of what is gone; those that stay are deleted by the next start."""
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


def _lease(record: bytes) -> Lease:
    try:
        return Lease.decode(record)
    except ValueError:
        return Lease()
