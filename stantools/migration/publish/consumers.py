"""Consumers with an exact state, where none can be given to the server: they get there by receiving and acknowledging.

A consumer is made so that it begins behind what is done with, is given headers only, and as many of them as were
delivered; all are acknowledged but those that should be pending. Only then it gets its own configuration. Until that
last step its description says that it is not finished, so that after an interruption it is recreated; behind it, it
belongs to its users and is left alone. Between the two there is a pause, as servers write a consumer's state a tenth of
a second late, and must not be able to forget it once it is finished.

A pull consumer sends what it is asked for. A push consumer is sent messages without being asked, and must be stopped at
the right one: it may have `max_ack_pending` messages open, and gets no more acknowledgements than that they and what is
open make up what it should be sent. When all that has come, it is left without a listener; then the rest is
acknowledged.

Servers before 2.14 show an ack floor of 0 until there was an acknowledgement. There the message before the first
pending one is delivered and acknowledged too, which sets the floor right.
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
    from stantools.streamfiles.batch import Messages

#: Description of a consumer that is being made.
UNFINISHED: Final = "stantools: not finished yet"

#: From this version on servers show the ack floor of a consumer from its beginning.
_FLOOR_FROM: Final = (2, 14, 0)
#: Nothing is redelivered while the consumer is made.
_LONG: Final = 24 * 3600 * 1_000_000_000
#: Left out meanwhile: they limit or slow down what is delivered.
_REMOVED: Final = ("backoff", "rate_limit_bps", "max_batch", "max_expires", "max_bytes", "sample_freq", "pause_until")
_IN_USE: Final = 10013
#: How far back the message before the first pending one is looked for.
_LOOK_BACK: Final = (1, 1 << 16)
#: Messages that a pull consumer is asked for at once, and that a push consumer may have open besides pending ones.
_BATCH: Final = 4096


class Standing(Protocol):
    """How far a consumer is, in sequences of the stream."""

    @property
    def delivered(self) -> int:
        """The last sequence that was delivered."""

    @property
    def ack_floor(self) -> int:
        """Everything up to here is done with."""

    @property
    def pending(self) -> Sequence[int]:
        """What was delivered and not acknowledged, rising."""


class Consumer(Protocol):
    """A consumer to make."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its configuration."""


@dataclass
class Consumers:
    """The consumers of one stream."""

    js: JetStream
    stream: str
    source: Messages  #: what it holds
    wanted: Sequence[tuple[Consumer, Standing]]  #: the consumers to make, with their positions
    made: list[str] = field(default_factory=list)  #: names of those that were made

    def __post_init__(self) -> None:
        self._brought: dict[str, tuple[dict[str, Any], _Delivery]] = {}

    async def bring(self) -> bool:
        """Makes those that are not there or not finished. May be called again when it has failed.

        Returns:
            Whether some were brought to their states, and are to be finished.

        Raises:
            SetBackError: One got another state than it should have.
            StantoolsError: One could not be made.
        """
        for consumer, position in self.wanted:
            there = await self.js.consumer_info(self.stream, consumer.name)
            if there is not None:
                if there["config"].get("description") != UNFINISHED or self._is_right(consumer.name, there):
                    continue
                await self.js.consumer_delete(self.stream, consumer.name)
            await self._make(consumer, position)
            self.made += [consumer.name] if consumer.name not in self.made else []
        return bool(self._brought)

    async def finish(self) -> None:
        """Configures those that were brought to their states. May be called again when it has failed.

        Raises:
            SetBackError: The server has forgotten the state of one; all has to be done again.
            NatsError: Something else failed.
        """
        for name in self._brought:
            if not self._is_right(name, info := await _consumer_info(self.js, self.stream, name)):
                raise self._set_back(name, info)
        for name in list(self._brought):
            await self._configure(self._brought[name][0])
            del self._brought[name]

    async def _make(self, consumer: Consumer, position: Standing) -> None:
        self._brought.pop(consumer.name, None)
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

    async def _deliver(self, name: str, config: dict[str, Any], delivery: _Delivery) -> None:
        """Makes a consumer, and brings it to its state."""
        setup = {key: value for key, value in config.items() if key not in _REMOVED}
        setup |= {"ack_wait": _LONG, "max_ack_pending": -1, "max_deliver": -1, "headers_only": True}
        setup["description"] = UNFINISHED
        deliver = _push if config.get("deliver_subject") else _pull
        await deliver(self.js, self.stream, name, setup, delivery)
        self._brought[name] = config, delivery
        if not self._is_right(name, info := await _consumer_info(self.js, self.stream, name)):
            raise self._set_back(name, info)

    async def _configure(self, config: Mapping[str, Any]) -> None:
        """Configures a consumer."""
        for pause in (0.05, 0.2, 1.0, None):
            try:
                await self.js.consumer_create(self.stream, config)
                return
            except ApiError as problem:
                # Another server of a cluster may believe for a moment that we still listen.
                if pause is None or problem.err_code != _IN_USE:
                    raise
                await asyncio.sleep(pause)

    def _is_right(self, name: str, info: Mapping[str, Any]) -> bool:
        """Whether a consumer that is not finished has the state that it should have."""
        if name not in self._brought:
            return False
        _, delivery = self._brought[name]
        reached = int(info["delivered"]["stream_seq"]), int(info["num_ack_pending"])
        return reached == (delivery.last, len(delivery.pending))

    def _set_back(self, name: str, info: Mapping[str, Any]) -> SetBackError:
        _, delivery = self._brought[name]
        return SetBackError(
            f"consumer {name} of stream {self.stream} is at sequence {info['delivered']['stream_seq']} with "
            f"{info['num_ack_pending']} pending messages, expected {delivery.last} with {len(delivery.pending)}",
            "if somebody else uses it already, stop them; then run the command again",
        )


@dataclass(frozen=True)
class _Delivery:
    """What a consumer has to be given."""

    start: int  #: the sequence that it begins at
    count: int  #: how many messages there are from there to the last one delivered
    last: int  #: the last one of them, 0 if there is none
    pending: frozenset[int]  #: those not to acknowledge


def _plan_delivery(source: Messages, what: str, position: Standing, subject: str | None, *, lead: bool) -> _Delivery:
    """Finds out what a consumer has to be given."""
    start = position.ack_floor + 1
    before = _message_before(source, start, subject) if lead else 0
    if not before and not position.pending:
        return _Delivery(start, 0, 0, frozenset())
    left = set(position.pending)
    count = last = 0
    for part in _existing(source, before or start, position.delivered, subject):
        count += len(part)
        last = int(part[-1])
        left.difference_update(part.tolist())
    if left:
        raise StantoolsError(
            f"{what}: {len(left)} pending messages are not in the stream, the first is {min(left)}",
            "make the plan again: the store has changed",
        )
    return _Delivery(before or start, count, last, frozenset(position.pending))


def _existing(source: Messages, start: int, end: int, subject: str | None) -> Iterator[U64]:
    """The sequences from `start` to `end` that have a message on the subject."""
    for batch in source.read(after=start - 1, until=end):
        if subject is None or subject_matches(subject, os.fsdecode(batch.subject)):
            yield batch.sequence


def _message_before(source: Messages, sequence: int, subject: str | None) -> int:
    """The last message before a sequence, 0 if there is none nearby."""
    for distance in _LOOK_BACK:
        found = 0
        for part in _existing(source, max(sequence - distance, 1), sequence - 1, subject):
            found = int(part[-1])
        if found:
            return found
    return 0


async def _pull(js: JetStream, stream: str, name: str, setup: Mapping[str, Any], delivery: _Delivery) -> None:
    """Makes a pull consumer, and brings it to its state."""
    await js.consumer_create(stream, setup)
    connection, timeout = js.connection, js.connection.options.timeout
    subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"
    inbox = connection.open_inbox(connection.new_inbox())
    got = 0
    # They are answered when all have come, or they would come again in between.
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
                            continue  # the end
                        reply = bytes(received.buffer[start : start + size])
                        (kept if sequence in delivery.pending else answers).append(reply)
                        got += 1
                if got == before:
                    raise SetBackError(
                        f"consumer {name} of stream {stream}: {got} messages were delivered, expected {delivery.count}",
                        "somebody else uses it already: stop them, then run the command again",
                    )
                await _acknowledge(js, stream, name, answers, len(kept))
            await _keep_pending(js, kept)
    finally:
        connection.close_inbox(inbox)


def _ended(name: str, stream: str, received: Received) -> bool:
    """Returns whether the request is over: there are no more messages at the moment."""
    for row in np.flatnonzero(received.columns.status).tolist():
        line = received.header(row).split(b"\r\n")[0]
        if not line.startswith((b"NATS/1.0 404", b"NATS/1.0 408", b"NATS/1.0 409 Exceeded")):
            raise NoAnswerError(
                f"consumer {name} of stream {stream} ended a request: {line[9:].decode(errors='replace')}",
                "run the command again",
            )
    return bool(received.columns.status.any())


async def _push(js: JetStream, stream: str, name: str, setup: Mapping[str, Any], delivery: _Delivery) -> None:
    """Makes a push consumer, and brings it to its state."""
    connection, timeout = js.connection, js.connection.options.timeout
    open_limit = min(delivery.count, len(delivery.pending) + _BATCH)
    early = delivery.count - open_limit
    subject = connection.new_inbox()
    came = acknowledged = 0
    # Answered when all have come.
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
                        # Flow control: the consumer stops until it is answered.
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
    """Returns where a consumer that was stalled wants its answer, if a header block says so."""
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"nats-consumer-stalled":
            return value.strip()
    return b""


async def _acknowledge(js: JetStream, stream: str, name: str, replies: Sequence[bytes], pending: int) -> None:
    """Acknowledges messages, and waits until the consumer has taken that."""
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
                    f"let the user publish to $JS.ACK.{stream}.{name}.>, where messages are acknowledged",
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)


async def _keep_pending(js: JetStream, replies: Sequence[bytes]) -> None:
    """Leaves messages pending, to be delivered again as soon as somebody asks, as STAN does when a durable resumes."""
    await js.connection.write(b"".join(encoding.publish(reply, b"-NAK") for reply in replies))


async def _consumer_info(js: JetStream, stream: str, name: str) -> dict[str, Any]:
    """Returns configuration and state of a consumer that must be there."""
    return await js.api(f"CONSUMER.INFO.{stream}.{name}", asks=True)
