"""Publishing to streams: a message is confirmed when its stream has acknowledged it.

Promise: every message is stored exactly once, in order, even if the process is killed and the replay resumed, or the
connection breaks. Each message has an id (`Nats-Msg-Id`) made of the run, the channel and the sequence. Before
anything is sent again, the streams are asked for the messages after the last confirmed one, and for the loss of
acknowledged ones (which a killed server may cause). Without permission for that, or if messages leave the stream
when consumed, a repeated message is recognised only within the stream's duplicate window.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.format.message_batch import MessageBatch
from stantools.migration.replay.publisher import ReplayPublisher
from stantools.migration.replay.replay_options import ReplayOptions
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import Ledger, ReplayState
from stantools.migration.replay.subjects import shown
from stantools.nats.columns import FrameColumns
from stantools.nats.connection import NatsConnection
from stantools.nats.errors import ApiError, NatsError, NoResponderError, PermissionDeniedError
from stantools.nats.jetstream import JetStream
from stantools.nats.kernels import read_deliveries
from stantools.nats.publishing.publish_run import PublishRun, PublishWindow
from stantools.streamfiles import headers

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

#: concurrent API requests
AT_ONCE = 16
#: sequences; a longer range of a stream is read in parts, concurrently
_STRETCH = 512
_WINDOW: Final = PublishWindow()


class ReplayReadback:
    """Reads the messages of one run from streams."""

    def __init__(self, jetstream: JetStream, run: str) -> None:
        self._jetstream = jetstream
        self._begin = b"%b:" % run.encode()
        self._limit = asyncio.Semaphore(AT_ONCE)

    def identity(self, channel: bytes) -> bytes:
        """Returns the prefix of the ids of a channel's messages, before the sequence."""
        return b"%b%b:" % (self._begin, channel)

    async def ids(self, stream: str, subject: str, after: int, last: int) -> set[bytes]:
        """Returns the ids of this run on a subject, of messages with stream sequences in (after, last]."""
        step = max(_STRETCH, -(-(last - after) // AT_ONCE))
        parts = [(low, min(low + step, last)) for low in range(after, last, step)]
        found = await asyncio.gather(*(self._ids(stream, subject, low, high) for low, high in parts))
        return set().union(*found)

    async def _ids(self, stream: str, subject: str, after: int, last: int) -> set[bytes]:
        found: set[bytes] = set()
        async with self._limit:
            while after < last:
                message = await self._jetstream.message(stream, {"seq": after + 1, "next_by_subj": subject})
                if message is None or not after < (sequence := int(message.get("seq", 0))) <= last:
                    break
                after, name = sequence, _message_id(message)
                if name.startswith(self._begin):
                    found.add(name)
        return found

    async def last(self, stream: str, subject: str, channel: bytes) -> int | None:
        """Returns the channel sequence of the last message on a subject used by this channel only.

        0 without a message; None if the last one is not of this run.
        """
        message = await self._jetstream.message(stream, {"last_by_subj": subject})
        if message is None:
            return 0
        name, identity = _message_id(message), self.identity(channel)
        sequence = name.removeprefix(identity)
        return int(sequence) if name.startswith(identity) and sequence.isdigit() else None


def _message_id(message: dict[str, Any]) -> bytes:
    """Returns the id of a message from the API, empty without one."""
    return headers.message_id(base64.b64decode(message.get("hdrs") or b""))


class ReplayStream:
    """One stream, or one subject if the streams are not known: messages in flight to it, and the confirmed ones."""

    def __init__(self, name: str, inbox: bytes) -> None:
        self.name = name
        self.inbox = inbox
        self.ledger = Ledger()
        self.run = PublishRun(name, _WINDOW, exact=False)
        self._runs = 0
        self.begin()

    def begin(self) -> None:
        """Begins a run; its numbers are those of the ledger plus one."""
        self._runs += 1
        self.run.begin(b"%b.%d." % (self.inbox, self._runs), self.ledger.next)

    def add(self, channel: bytes, batch: MessageBatch, size: int) -> None:
        """Records messages of a channel as sent; `size` in bytes."""
        self.ledger.add(channel, batch.sequence.tolist(), batch.timestamp.tolist())
        self.run.add(len(batch), size)


class JetStreamPublisher(ReplayPublisher):
    def __init__(
        self, connection: NatsConnection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions
    ) -> None:
        super().__init__(connection, plan, state, options)
        self._jetstream = JetStream(connection)
        self._queries = ReplayReadback(self._jetstream, state.run)
        self._position = plan.position
        self._confirmed = dict(state.streams)
        self._streams: dict[bytes, ReplayStream] = {}  # by subject
        self._listed = False  # whether their names are known
        self._stored_ids: dict[bytes, set[bytes]] = {}  # subject -> ids of messages in its stream

    async def _begin(self, *, resumed: bool) -> None:
        if not self._streams:
            await self._open_streams(resumed=resumed)
        self._stored_ids.clear()
        if resumed and self._listed:
            await self._find_stored_messages()

    async def _open_streams(self, *, resumed: bool) -> None:
        names = {subject: shown(subject) for subject in self.subjects}
        try:
            names = await self._find_streams(resumed=resumed)
            self._listed = True
        except PermissionDeniedError as problem:
            self.note(
                f"the streams could not be listed ({problem.message}): if this replay is interrupted, repeated "
                "messages are recognised only within the duplicate window"
            )
        for name in sorted(set(names.values())):
            stream = ReplayStream(name, self.connection.new_inbox())
            self.connection.subscribe(stream.inbox + b".>", partial(self._take, stream))
            self.ledgers.append(stream.ledger)
            self._streams |= {subject: stream for subject in names if names[subject] == name}

    async def _find_streams(self, *, resumed: bool) -> dict[bytes, str]:
        """Returns the stream of each subject."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def find(subject: bytes) -> tuple[bytes, list[str]]:
            async with limit:
                return subject, await self._jetstream.stream_names(shown(subject))

        takes = {}
        for subject, names in await asyncio.gather(*map(find, sorted(self.subjects))):
            if len(names) != 1:
                raise NatsError(
                    f"no stream at {self.connection.url} listens on the subject {shown(subject)}",
                    "create one first, or use subjects of a stream with --subject or --prefix",
                )
            takes[subject] = names[0]
        for name in sorted(set(takes.values())):
            info = await self._jetstream.stream_info(name)
            config: dict[str, Any] = (info or {}).get("config") or {}
            if config.get("no_ack"):
                raise NatsError(
                    f"the stream {name} sends no acknowledgements (no_ack), so that stored messages would be unknown",
                    "disable no_ack, or use --as core",
                )
            if config.get("sealed"):
                raise NatsError(f"the stream {name} is sealed: it accepts no messages", "choose another one")
            if config.get("retention", "limits") != "limits":
                self.note(
                    f"the stream {name} drops messages that were consumed: if this replay is interrupted, repeated "
                    "ones are recognised only within its duplicate window"
                )
            # A new replay has no message before the stream's present end; where an earlier run was not permitted to
            # list the streams, its messages may be anywhere.
            last = 0 if resumed else int(((info or {}).get("state") or {}).get("last_seq", 0))
            self._confirmed.setdefault(name, last)
        return takes

    async def _find_stored_messages(self) -> None:
        """Reads messages of this run after the confirmed ones, and checks that none was lost."""
        streams = {stream.name: stream for stream in self._streams.values()}
        try:
            lasts = {name: await self._last_sequence(name) for name in sorted(streams)}
            lost = {name for name, last in lasts.items() if last < self._confirmed[name]}
            for name in sorted(lost):
                await self._go_back(streams[name], lasts[name])
            subjects = [(subject, each.name) for subject, each in self._streams.items() if each.name not in lost]
            found = await asyncio.gather(
                *(self._queries.ids(name, shown(each), self._confirmed[name], lasts[name]) for each, name in subjects)
            )
        except PermissionDeniedError as problem:
            self.note(
                f"the messages of the streams could not be read ({problem.message}): repeated messages are "
                "recognised only within the duplicate window"
            )
            return
        self._stored_ids = {subject: ids for (subject, _), ids in zip(subjects, found, strict=True) if ids}

    async def _last_sequence(self, stream: str) -> int:
        info = await self._jetstream.stream_info(stream)
        if info is None:
            raise NatsError(f"the stream {stream} is gone", "create it again, then continue")
        return int((info.get("state") or {}).get("last_seq", 0))

    async def _go_back(self, stream: ReplayStream, last: int) -> None:
        """Goes back to the last message of a stream that has lost acknowledged messages."""
        subjects = Counter(self.routes.values())
        for channel, subject in self.routes.items():
            if self._streams[subject] is not stream:
                continue
            sequence = await self._queries.last(stream.name, shown(subject), self._names[channel])
            if subjects[subject] > 1 or sequence is None:
                raise NatsError(
                    f"the stream {stream.name} has lost messages that it had acknowledged (its last one is {last}), "
                    f"and {shown(subject)} has messages of other channels than {shown(channel)}: the lost ones are "
                    "unknown",
                    "purge the stream and start over, or replay each channel to a subject of its own",
                )
            for ledger in (self.ledgers[0], stream.ledger):
                ledger.set_position(channel, self._position(channel, sequence))
        self._confirmed[stream.name] = last
        self.note(f"the stream {stream.name} had lost messages that it had acknowledged; they are sent again")

    async def _send(self, batch: MessageBatch) -> None:
        stream, stored = self._streams[batch.subject], self._stored_ids.get(batch.subject)
        channel, batch.channel = batch.channel, self._names[batch.channel]
        if stored:
            identity = self._queries.identity(batch.channel)
            known = [b"%b%d" % (identity, sequence) in stored for sequence in batch.sequence.tolist()]
            for is_stored, rows in groupby(range(len(batch)), known.__getitem__):
                first, *others = rows
                part = batch.part(first, first + 1 + len(others))
                await (self._skip if is_stored else self._publish)(stream, channel, part)
        else:
            await self._publish(stream, channel, batch)

    async def _skip(self, stream: ReplayStream, channel: bytes, batch: MessageBatch) -> None:
        """Counts messages that an earlier leg has stored as confirmed."""
        await self._wait_until(lambda: not stream.run.in_flight)
        stream.add(channel, batch, 0)
        stream.run.confirm(stream.run.sent)
        stream.ledger.confirm_below(stream.run.sent)
        self.again += len(batch)

    async def _publish(self, stream: ReplayStream, channel: bytes, batch: MessageBatch) -> None:
        run, origin, largest = stream.run, self._options.origin_headers, self.connection.max_payload
        identity = self._queries.identity(batch.channel)
        batch.stream_sequence = np.arange(run.sent + 1, run.sent + 1 + len(batch), dtype=np.uint64)
        row = 0
        while row < len(batch):
            frames, rows = run.encode(batch, row, len(batch) - row, identity, origin=origin, largest=largest)
            if not rows:
                raise self.too_large(channel, int(batch.sequence[row]), run.size(batch, row, identity, origin=origin))
            if not run.fits(rows, size := len(frames)):
                # Half of the window at a time: a turn of the loop per answer would take longer.
                half = max(rows, _WINDOW.messages // 2), max(size, _WINDOW.bytes // 2)
                await self._wait_until(partial(run.fits, *half))
            stream.add(channel, batch.part(row, row + rows), size)
            await self.connection.write(frames)
            row += rows

    def _take(self, stream: ReplayStream, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        columns = FrameColumns(end - begin)
        read_deliveries(buffer, frames, begin, end, columns, 0, 0)
        run, repeated = stream.run, stream.run.repeated
        row = run.take(buffer, columns)
        self.again += run.repeated - repeated
        stream.ledger.confirm_below(run.confirmed)
        self._progress.set()
        for sequence, problem in run.unexpected(buffer, columns, row):
            if isinstance(problem, ApiError) and problem.retriable and not problem.err_code:
                self.fail(NoResponderError("no stream has accepted a message", "check the streams, then continue"))
            elif isinstance(problem, ApiError) and sequence > run.confirmed:
                remedy = (problem.remedy or "see the stream's configuration") + ", then continue"
                self.fail(self.refused_message(stream.ledger, sequence - 1, problem.description, remedy))
            else:
                self.fail(problem)

    def forget_outstanding(self) -> int:
        self.confirmed_streams()
        dropped = super().forget_outstanding()
        for stream in self._streams.values():
            stream.begin()
        return dropped

    def confirmed_streams(self) -> dict[str, int]:
        """Returns, for each stream, the sequence of its last message before any unconfirmed one."""
        if self._listed:
            self._confirmed |= {each.name: each.run.stored for each in self._streams.values() if each.run.stored}
        return dict(self._confirmed)
