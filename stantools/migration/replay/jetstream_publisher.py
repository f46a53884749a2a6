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
from collections import Counter, deque
from typing import Any

from stantools.format.message_batch import MessageBatch
from stantools.migration.replay.publisher import ReplayPublisher, header_text, origin_fields
from stantools.migration.replay.replay_options import ReplayOptions
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import ReplayState
from stantools.migration.replay.subjects import shown
from stantools.nats import encoding
from stantools.nats.client import NatsMessage
from stantools.nats.connection import NatsConnection
from stantools.nats.errors import ApiError, NatsError, NoResponderError, PermissionDeniedError
from stantools.nats.jetstream import MESSAGE_NOT_FOUND, JetStream, read_answer
from stantools.streamfiles import headers

#: concurrent API requests
AT_ONCE = 16
#: sequences; a longer range of a stream is read in parts, concurrently
_STRETCH = 512


class ReplayReadback:
    """Reads the messages of one run from streams."""

    def __init__(self, jetstream: JetStream, run: str) -> None:
        self._jetstream = jetstream
        self._begin = f"{run}:"
        self._limit = asyncio.Semaphore(AT_ONCE)

    def name(self, channel: str, sequence: int) -> str:
        return f"{self._begin}{channel}:{sequence}"

    async def ids(self, stream: str, subject: str, after: int, last: int) -> set[str]:
        """Returns the ids of this run on a subject, of messages with stream sequences in (after, last]."""
        step = max(_STRETCH, -(-(last - after) // AT_ONCE))
        parts = [(low, min(low + step, last)) for low in range(after, last, step)]
        found = await asyncio.gather(*(self._ids(stream, subject, low, high) for low, high in parts))
        return set().union(*found)

    async def _ids(self, stream: str, subject: str, after: int, last: int) -> set[str]:
        found: set[str] = set()
        async with self._limit:
            while after < last:
                message = await self._message(stream, {"seq": after + 1, "next_by_subj": subject})
                sequence = int(message.get("seq", 0))
                if not after < sequence <= last:
                    break
                after = sequence
                name = message_id(message)
                if name.startswith(self._begin):
                    found.add(name)
        return found

    async def last(self, stream: str, subject: str, channel: str) -> int | None:
        """Returns the channel sequence of the last message on a subject used by this channel only.

        0 without a message; None if the last one is not of this run.
        """
        message = await self._message(stream, {"last_by_subj": subject})
        if not message:
            return 0
        begin, _, sequence = message_id(message).rpartition(":")
        return int(sequence) if f"{begin}:" == f"{self._begin}{channel}:" and sequence.isdigit() else None

    async def _message(self, stream: str, query: dict[str, Any]) -> dict[str, Any]:
        """Returns one message, {} if it does not exist."""
        try:
            answer = await self._jetstream.api(f"STREAM.MSG.GET.{stream}", query, asks=True)
        except ApiError as problem:
            if problem.err_code == MESSAGE_NOT_FOUND:
                return {}
            raise
        message = answer.get("message")
        return message if isinstance(message, dict) else {}


def message_id(message: dict[str, Any]) -> str:
    """Returns the id of a message from the API, "" without one."""
    return headers.message_id(base64.b64decode(message.get("hdrs") or b"")).decode("utf-8", "replace")


#: the texts of the server are sufficient for these errors
_REMEDIES = {
    10054: "raise max_msg_size of the stream and continue, or exclude the message with --seq",
    10077: "free space in the stream, or raise its limits, and continue",
    10047: "free storage on the server, or raise its limits, and continue",
}


class JetStreamPublisher(ReplayPublisher):
    def __init__(
        self, connection: NatsConnection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions
    ) -> None:
        super().__init__(connection, plan, state, options)
        self._jetstream = JetStream(connection)
        self._queries = ReplayReadback(self._jetstream, state.run)
        self._position = plan.position
        self._confirmed = dict(state.streams)
        self._acked: dict[str, deque[tuple[int, int]]] = {}
        self._queried = False
        self._stream_of: dict[str, str] = {}
        self._stored_ids: dict[str, set[str]] = {}  # subject -> ids of messages in its stream
        self._inbox = b""

    async def _begin(self, *, resumed: bool) -> None:
        if not self._queried:
            try:
                await self._find_streams()
            except PermissionDeniedError as problem:
                self.note(
                    f"the streams could not be listed ({problem.message}): if this replay is interrupted, repeated "
                    "messages are recognised only within the duplicate window"
                )
            self._queried = True
        if not self._inbox:
            self._inbox = self.connection.new_inbox() + b"."
            self.connection.listen(self._inbox + b"*", self._on_ack)
        self._acked.clear()
        self._stored_ids.clear()
        if resumed:
            await self._find_stored_messages()

    async def _find_streams(self) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def find(subject: str) -> tuple[str, list[str]]:
            async with limit:
                return subject, await self._jetstream.stream_names(subject)

        takes = {}
        for subject, names in await asyncio.gather(*(find(shown(each)) for each in sorted(self.subjects))):
            if len(names) != 1:
                raise NatsError(
                    f"no stream at {self.connection.url} listens on the subject {subject}",
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
            # the stream has no message of this run after its present end
            self._confirmed.setdefault(name, int(((info or {}).get("state") or {}).get("last_seq", 0)))
        self._stream_of = takes

    async def _find_stored_messages(self) -> None:
        """Reads messages of this run after the confirmed ones, and checks that none was lost."""
        try:
            lasts = {name: await self._last_sequence(name) for name in sorted(set(self._stream_of.values()))}
            lost = {name for name, last in lasts.items() if last < self._confirmed.get(name, 0)}
            for name in sorted(lost):
                await self._go_back(name, lasts[name])
            subjects = [(subject, stream) for subject, stream in self._stream_of.items() if stream not in lost]
            found = await asyncio.gather(
                *(self._queries.ids(name, each, self._confirmed.get(name, 0), lasts[name]) for each, name in subjects)
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

    async def _go_back(self, stream: str, last: int) -> None:
        """Goes back to the last message of a stream that has lost acknowledged messages."""
        subjects = Counter(self.routes.values())
        for channel, subject in self.routes.items():
            if self._stream_of[shown(subject)] != stream:
                continue
            sequence = await self._queries.last(stream, shown(subject), header_text(channel))
            if subjects[subject] > 1 or sequence is None:
                raise NatsError(
                    f"the stream {stream} has lost messages that it had acknowledged (its last one is {last}), and "
                    f"{shown(subject)} has messages of other channels than {shown(channel)}: the lost ones are unknown",
                    "purge the stream and start over, or replay each channel to a subject of its own",
                )
            self.ledger.set_position(channel, self._position(channel, sequence))
        self._confirmed[stream] = last
        self.note(f"the stream {stream} had lost messages that it had acknowledged; they are sent again")

    async def _send(self, batch: MessageBatch) -> None:
        channel = self._texts[batch.channel]
        there = self._stored_ids.get(shown(batch.subject))
        publish, most, origin = self.connection.publish, self.connection.max_payload, self._options.origin_headers
        for sequence, timestamp, reply, data in batch.messages():
            self.check()
            name = self._queries.name(channel, sequence)
            if there and name in there:
                there.discard(name)
                self.again += 1
                self.confirmed(self.published)
            else:
                fields = {headers.MESSAGE_ID.decode(): name}
                if origin:
                    fields |= origin_fields(channel, sequence, timestamp)
                if reply:
                    fields[headers.REPLY] = header_text(reply)
                header = encoding.header_block(fields)
                if (size := len(header) + len(data)) > most:
                    raise self.too_large(batch, sequence, size)
                publish(batch.subject, data, self._inbox + b"%d" % self.published, header)
            self.published += 1
        await self.connection.drain()

    def _on_ack(self, message: NatsMessage) -> None:
        number = int(message.subject[len(self._inbox) :])
        if not self.ledger.low <= number < self.ledger.next:
            return  # of an earlier leg
        if not message.data:
            self.fail(NoResponderError("no stream has accepted a message", "check the streams, then continue"))
            return
        try:
            answer = read_answer("a message", message.data)
            stream, sequence = str(answer["stream"]), int(answer["seq"])
        except ApiError as problem:
            remedy = _REMEDIES.get(problem.err_code, "see the stream's configuration, then continue")
            self.fail(self.refused_message(number, problem.description, remedy))
            return
        except NatsError as problem:
            self.fail(problem)
            return
        except (KeyError, TypeError, ValueError):
            self.fail(NatsError(f"a message was answered with {message.data[:80]!r}", "is that a stream?"))
            return
        if self.confirmed(number):
            self.again += bool(answer.get("duplicate"))
            self._acked.setdefault(stream, deque()).append((number, sequence))

    def confirmed_streams(self) -> dict[str, int]:
        """Returns, for each stream, the sequence of its last message before any unconfirmed one."""
        for stream, acked in self._acked.items():
            # Acknowledgements of a stream come in the order of its sequences.
            while acked and acked[0][0] < self.ledger.low:
                self._confirmed[stream] = acked.popleft()[1]
        return dict(self._confirmed)
