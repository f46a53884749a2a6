"""Consumers with an exact state, reached by delivering and acknowledging, as the server does not accept a state.

A consumer starts after its floor, receives headers only, exactly the messages that were delivered; all are
acknowledged except the pending ones. Then it gets its own configuration. Until that last step its description says
that it is unfinished, so that it is recreated after an interruption; from then on it belongs to its users and is not
touched. A pause comes before the last step: servers write a consumer's state a tenth of a second late, and must not
lose it once the consumer is finished.

A pull consumer delivers on request. A push consumer delivers by itself and has to be stopped at the right message:
`max_ack_pending` bounds its unacknowledged messages, and acknowledgements are held back so that acknowledged and
unacknowledged messages together make up the wanted number. When all have arrived, the client unsubscribes and
acknowledges the rest.

Servers before 2.14 show an ack floor of 0 until the first acknowledgement. There the message before the first
pending one is delivered and acknowledged as well, which sets the floor.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from stantools.errors import StantoolsError
from stantools.migration.tasks import SetBackError
from stantools.nats import encoding
from stantools.nats.errors import ApiError, NoAnswerError
from stantools.store.directory import subject_matches

if TYPE_CHECKING:
    from stantools.nats.inbox import Received
    from stantools.nats.jetstream import JetStream
    from stantools.store.ranges import U64
    from stantools.streamfiles.messages import Messages

#: description of an unfinished consumer
UNFINISHED: Final = "stantools: not finished yet"

#: first version that shows the ack floor of a new consumer
_FLOOR_FROM: Final = (2, 14, 0)
#: nanoseconds; no redelivery while the consumer is made
_NO_REDELIVERY: Final = 24 * 3600 * 1_000_000_000
#: fields that limit or delay delivery, left out while the consumer is made
_REMOVED: Final = ("backoff", "rate_limit_bps", "max_batch", "max_expires", "max_bytes", "sample_freq", "pause_until")
_IN_USE: Final = 10013
#: distances, in sequences, at which the message before the first pending one is searched
_LOOK_BACK: Final = (1, 1 << 16)
#: messages in one pull request, and unacknowledged messages of a push consumer besides the pending ones
_BATCH: Final = 4096


class ConsumerPosition(Protocol):
    """A consumer's position, in sequences of the stream."""

    @property
    def delivered(self) -> int: ...

    @property
    def ack_floor(self) -> int:
        """All messages up to here are acknowledged."""

    @property
    def pending(self) -> Sequence[int]:
        """Delivered but unacknowledged sequences, rising."""


class WantedConsumer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


@dataclass
class StreamConsumers:
    js: JetStream
    stream: str
    source: Messages  #: messages of the stream
    wanted: Sequence[tuple[WantedConsumer, ConsumerPosition]]  #: consumers with their positions
    made: list[str] = field(default_factory=list)  #: names of the consumers made by this call

    def __post_init__(self) -> None:
        self._prepared: dict[str, tuple[dict[str, Any], _PendingDelivery]] = {}

    async def bring(self) -> bool:
        """Makes missing and unfinished consumers; returns whether some have to be finished.

        A failed call may be repeated. Raises SetBackError if a consumer got a wrong state.
        """
        for consumer, position in self.wanted:
            there = await self.js.consumer_info(self.stream, consumer.name)
            if there is not None:
                if there["config"].get("description") != UNFINISHED or self._is_right(consumer.name, there):
                    continue
                await self.js.consumer_delete(self.stream, consumer.name)
            await self._make(consumer, position)
            self.made += [consumer.name] if consumer.name not in self.made else []
        return bool(self._prepared)

    async def finish(self) -> None:
        """Configures the new consumers. A failed call may be repeated, but not after SetBackError.

        SetBackError: the server has lost the state of a consumer; all work has to be repeated.
        """
        for name in self._prepared:
            if not self._is_right(name, info := await _consumer_info(self.js, self.stream, name)):
                raise self._set_back_error(name, info)
        for name in list(self._prepared):
            await self._configure(self._prepared[name][0])
            del self._prepared[name]

    async def _make(self, consumer: WantedConsumer, position: ConsumerPosition) -> None:
        self._prepared.pop(consumer.name, None)
        config = {key: value for key, value in consumer.config.items() if not key.startswith("opt_start_")}
        if position.delivered:
            what = f"consumer {consumer.name} of stream {self.stream}"
            lead = self.js.connection.version < _FLOOR_FROM
            delivery = _plan_delivery(self.source, what, position, config.get("filter_subject"), lead=lead)
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": delivery.start}
            if delivery.count:
                await self._deliver(consumer.name, config, delivery)
                return
        await self._configure(config)

    async def _deliver(self, name: str, config: dict[str, Any], delivery: _PendingDelivery) -> None:
        """Makes a consumer and brings it to its state."""
        setup = {key: value for key, value in config.items() if key not in _REMOVED}
        setup |= {"ack_wait": _NO_REDELIVERY, "max_ack_pending": -1, "max_deliver": -1, "headers_only": True}
        setup["description"] = UNFINISHED
        deliver = _push if config.get("deliver_subject") else _pull
        await deliver(self.js, self.stream, name, setup, delivery)
        self._prepared[name] = config, delivery
        if not self._is_right(name, info := await _consumer_info(self.js, self.stream, name)):
            raise self._set_back_error(name, info)

    async def _configure(self, config: Mapping[str, Any]) -> None:
        for pause in (0.05, 0.2, 1.0, None):
            try:
                await self.js.consumer_create(self.stream, config)
                return
            except ApiError as problem:
                # Another server of a cluster may still assume our subscription.
                if pause is None or problem.err_code != _IN_USE:
                    raise
                await asyncio.sleep(pause)

    def _is_right(self, name: str, info: Mapping[str, Any]) -> bool:
        """Whether an unfinished consumer has the right state."""
        if name not in self._prepared:
            return False
        _, delivery = self._prepared[name]
        reached = int(info["delivered"]["stream_seq"]), int(info["num_ack_pending"])
        return reached == (delivery.last, len(delivery.pending))

    def _set_back_error(self, name: str, info: Mapping[str, Any]) -> SetBackError:
        _, delivery = self._prepared[name]
        return SetBackError(
            f"consumer {name} of stream {self.stream} is at sequence {info['delivered']['stream_seq']} with "
            f"{info['num_ack_pending']} pending messages, expected {delivery.last} with {len(delivery.pending)}",
            "stop other users of the consumer, then run the command again",
        )


@dataclass(frozen=True)
class _PendingDelivery:
    """Deliveries that bring a consumer to its position."""

    start: int  #: first sequence
    count: int  #: number of messages up to the last delivered one
    last: int  #: last delivered sequence, 0 without messages
    pending: frozenset[int]  #: sequences to leave unacknowledged


def _plan_delivery(
    source: Messages, name: str, position: ConsumerPosition, subject: str | None, *, lead: bool
) -> _PendingDelivery:
    """Plans the deliveries for a position.

    `name` names the consumer in messages; `subject` is its filter, None for any. With `lead` the deliveries begin
    with the message before the first pending one.
    """
    start = position.ack_floor + 1
    before = _message_before(source, start, subject) if lead else 0
    if not before and not position.pending:
        return _PendingDelivery(start, 0, 0, frozenset())
    left = set(position.pending)
    count = last = 0
    for part in _existing(source, before or start, position.delivered, subject):
        count += len(part)
        last = int(part[-1])
        left.difference_update(part.tolist())
    if left:
        raise StantoolsError(
            f"{name}: {len(left)} pending messages are not in the stream, the first is {min(left)}",
            "make the plan again: the store has changed",
        )
    return _PendingDelivery(before or start, count, last, frozenset(position.pending))


def _existing(source: Messages, start: int, end: int, subject: str | None) -> Iterator[U64]:
    """Yields the sequences from `start` to `end` that have a message on the subject."""
    for batch in source.read(after=start - 1, until=end):
        if subject is None or subject_matches(subject, os.fsdecode(batch.subject)):
            yield batch.stream_sequence


def _message_before(source: Messages, sequence: int, subject: str | None) -> int:
    """Returns the last message before a sequence, 0 if there is none nearby."""
    for distance in _LOOK_BACK:
        found = 0
        for part in _existing(source, max(sequence - distance, 1), sequence - 1, subject):
            found = int(part[-1])
        if found:
            return found
    return 0


async def _pull(js: JetStream, stream: str, name: str, setup: Mapping[str, Any], delivery: _PendingDelivery) -> None:
    """Makes a pull consumer and brings it to its state."""
    await js.consumer_create(stream, setup)
    connection, timeout = js.connection, js.connection.options.timeout
    subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"
    inbox = connection.open_inbox(connection.new_inbox())
    got = 0
    # answered when all have arrived; earlier answers would cause redelivery before the end
    kept: list[bytes] = []
    try:
        with connection.watch(subject) as failed:
            while got < delivery.count:
                wanted = min(_BATCH, delivery.count - got)
                body = json.dumps({"batch": wanted, "no_wait": True}).encode()
                await connection.write(encoding.publish(subject.encode(), body, inbox.subject))
                answers: list[bytes] = []
                ended = False
                before = got
                while got - before < wanted and not ended:
                    received = await connection.receive(inbox, failed, timeout, subject)
                    columns = received.columns
                    ended = _ended(name, stream, received)
                    for sequence, start, size in zip(
                        *(part.tolist() for part in (columns.sequence, columns.reply_start, columns.reply_size)),
                        strict=True,
                    ):
                        if not size:
                            continue
                        reply = bytes(received.buffer[start : start + size])
                        (kept if sequence in delivery.pending else answers).append(reply)
                        got += 1
                if got == before:
                    raise SetBackError(
                        f"consumer {name} of stream {stream}: {got} messages were delivered, expected {delivery.count}",
                        "stop other users of the consumer, then run the command again",
                    )
                await _acknowledge(js, stream, name, answers, len(kept))
            await _keep_pending(js, kept)
    finally:
        connection.close_inbox(inbox)


def _ended(name: str, stream: str, received: Received) -> bool:
    """Returns whether the request has ended for lack of messages; other ends raise."""
    for row in np.flatnonzero(received.columns.status).tolist():
        line = received.header(row).split(b"\r\n")[0]
        if not line.startswith((b"NATS/1.0 404", b"NATS/1.0 408", b"NATS/1.0 409 Exceeded")):
            raise NoAnswerError(
                f"consumer {name} of stream {stream} ended a request: {line[9:].decode(errors='replace')}",
                "run the command again",
            )
    return bool(received.columns.status.any())


async def _push(js: JetStream, stream: str, name: str, setup: Mapping[str, Any], delivery: _PendingDelivery) -> None:
    """Makes a push consumer and brings it to its state."""
    connection, timeout = js.connection, js.connection.options.timeout
    open_limit = min(delivery.count, len(delivery.pending) + _BATCH)
    early = delivery.count - open_limit
    subject = connection.new_inbox()
    came = acknowledged = 0
    # answered when all have arrived
    waiting: list[bytes] = []
    kept: list[bytes] = []
    with connection.watch(subject) as failed:
        inbox = connection.open_inbox(subject, str(setup.get("deliver_group") or "").encode())
        try:
            config = {**setup, "deliver_subject": subject.decode(), "max_ack_pending": open_limit}
            await js.consumer_create(stream, config)
            while came < delivery.count:
                what = f"the creation of consumer {name} with message {came + 1} of {delivery.count}"
                received = await connection.receive(inbox, failed, timeout, what)
                answers = []
                for row, sequence in enumerate(received.columns.sequence.tolist()):
                    reply = received.reply(row)
                    if received.columns.status[row]:
                        # Flow control: the consumer waits for an answer.
                        if answer := reply or _stalled(received.header(row)):
                            answers.append(encoding.publish(answer, b""))
                        continue
                    came += 1
                    if sequence in delivery.pending:
                        kept.append(reply)
                    elif acknowledged < early:
                        acknowledged += 1
                        answers.append(encoding.publish(reply, b"+ACK"))
                    else:
                        waiting.append(reply)
                await connection.write(b"".join(answers))
        finally:
            connection.close_inbox(inbox)
    await _acknowledge(js, stream, name, waiting, len(kept))
    await _keep_pending(js, kept)


def _stalled(header: bytes) -> bytes:
    """Returns the reply subject that a stalled consumer waits for, from a header block; empty if there is none."""
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"nats-consumer-stalled":
            return value.strip()
    return b""


async def _acknowledge(js: JetStream, stream: str, name: str, replies: Sequence[bytes], pending: int) -> None:
    """Acknowledges messages and waits until the consumer has processed that."""
    connection = js.connection
    with connection.watch(*replies[:1]) as failed:
        await connection.write(b"".join(encoding.publish(reply, b"+ACK") for reply in replies))
        deadline = asyncio.get_running_loop().time() + connection.options.timeout
        pause = 0.001
        while int((info := await _consumer_info(js, stream, name))["num_ack_pending"]) != pending:
            if failed.done():
                raise failed.result()
            if asyncio.get_running_loop().time() > deadline:
                raise NoAnswerError(
                    f"consumer {name} of stream {stream} has {info['num_ack_pending']} pending messages, not {pending}",
                    f"permit the user to publish to $JS.ACK.{stream}.{name}.>, the subjects of acknowledgements",
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)


async def _keep_pending(js: JetStream, replies: Sequence[bytes]) -> None:
    """Leaves messages pending for redelivery to the next subscriber, as STAN does when a durable resumes."""
    await js.connection.write(b"".join(encoding.publish(reply, b"-NAK") for reply in replies))


async def _consumer_info(js: JetStream, stream: str, name: str) -> dict[str, Any]:
    return await js.api(f"CONSUMER.INFO.{stream}.{name}", asks=True)
