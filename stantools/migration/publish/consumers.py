"""Consumers with an exact state, where none can be given to the server: they get there by receiving and acknowledging.

A consumer is made so that it begins behind what is done with, is given headers only, and as many of them as were
delivered; all are acknowledged but those that should be pending. Only then it gets its own configuration. Until that
last step its description says that it is not finished, so that after an interruption it is made anew; behind it, it
belongs to its users and is left alone.

Servers before 2.14 show an ack floor of 0 until there was an acknowledgement. There the message before the first
pending one is delivered and acknowledged too, which sets the floor right.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from stantools.errors import StantoolsError
from stantools.migration.publish.answering import acknowledge, consumer_info, keep_pending
from stantools.migration.publish.push import deliver_by_push
from stantools.migration.publish.receiving import receive
from stantools.migration.publish.writing import send_frames
from stantools.migration.target.errors import ApiError, NoAnswerError
from stantools.migration.wire.receive import open_inbox
from stantools.store.directory import subject_matches

if TYPE_CHECKING:
    from stantools.migration.publish.source import Source
    from stantools.migration.target.jetstream import JetStream
    from stantools.migration.wire.assembler import Received

#: Description of a consumer that is being made.
UNFINISHED: Final = "stantools: not finished yet"

_FLOOR_FROM: Final = (2, 14, 0)
#: How far back the message before the first pending one is looked for.
_LOOK_BACK: Final = (1, 1 << 16)
_BATCH: Final = 4096
#: Nothing is redelivered while the consumer is made.
_LONG: Final = 24 * 3600 * 1_000_000_000
#: Left out meanwhile: they limit or slow down what is delivered.
_REMOVED: Final = ("backoff", "rate_limit_bps", "max_batch", "max_expires", "max_bytes", "sample_freq", "pause_until")
_IN_USE: Final = 10013


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


@dataclass(frozen=True)
class Delivery:
    """What a consumer has to be given.

    Attributes:
        start: The sequence that it begins at.
        count: How many messages there are from there to the last one delivered.
        last: The last one of them, 0 if there is none.
        pending: Those not to acknowledge.
    """

    start: int
    count: int
    last: int
    pending: frozenset[int]


async def make_consumer(js: JetStream, stream: str, source: Source, consumer: Consumer, position: Standing) -> bool:
    """Makes a consumer, if it is not there or not finished. May be called again when it has failed.

    Args:
        js: JetStream.
        stream: Its stream, which holds what the source holds.
        source: For which messages there are.
        consumer: The consumer.
        position: Where it stands.

    Returns:
        Whether it was made; False if it is there.

    Raises:
        StantoolsError: It could not be made, or got another state than it should have.
    """
    there = await js.consumer_info(stream, consumer.name)
    if there is not None:
        if there["config"].get("description") != UNFINISHED:
            return False
        await js.consumer_delete(stream, consumer.name)
    config = {key: value for key, value in consumer.config.items() if not key.startswith("opt_start_")}
    if not position.delivered:
        await js.consumer_create(stream, config)
        return True
    lead = 0
    if js.connection.version < _FLOOR_FROM:
        lead = _message_before(source, position.ack_floor + 1, config.get("filter_subject"))
    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": lead or position.ack_floor + 1}
    if lead or position.pending:
        delivery = _delivery(source, config, position)
        _check_pending(stream, consumer.name, source, delivery, config.get("filter_subject"))
        await _deliver(js, stream, consumer.name, config, delivery)
    await _create(js, stream, config)
    return True


async def _create(js: JetStream, stream: str, config: Mapping[str, Any]) -> None:
    """Gives a consumer its configuration."""
    for pause in (0.05, 0.2, 1.0, None):
        try:
            await js.consumer_create(stream, config)
            return
        except ApiError as problem:
            # Another server of a cluster may believe for a moment that we still listen.
            if pause is None or problem.err_code != _IN_USE:
                raise
            await asyncio.sleep(pause)


def _existing(source: Source, start: int, end: int, subject: str | None) -> Iterator[np.ndarray[Any, Any]]:
    """The sequences from `start` to `end` that have a message on the subject."""
    for batch in source.read(after=start - 1):
        sequences = batch.sequence[batch.sequence <= end]
        if subject is None or subject_matches(subject, os.fsdecode(batch.subject)):
            yield sequences
        if len(sequences) < len(batch):
            return


def _message_before(source: Source, sequence: int, subject: str | None) -> int:
    """The last message before a sequence, 0 if there is none nearby."""
    for distance in _LOOK_BACK:
        found = [
            int(part[-1]) for part in _existing(source, max(sequence - distance, 1), sequence - 1, subject) if len(part)
        ]
        if found:
            return found[-1]
    return 0


def _delivery(source: Source, config: Mapping[str, Any], position: Standing) -> Delivery:
    count = last = 0
    start = config["opt_start_seq"]
    for part in _existing(source, start, position.delivered, config.get("filter_subject")):
        if len(part):
            count += len(part)
            last = int(part[-1])
    return Delivery(start, count, last, frozenset(position.pending))


def _check_pending(stream: str, name: str, source: Source, delivery: Delivery, subject: str | None) -> None:
    """Checks that what should be pending is there.

    Raises:
        StantoolsError: It is not.
    """
    left = set(delivery.pending)
    for part in _existing(source, delivery.start, delivery.last, subject):
        left.difference_update(part.tolist())
    if left:
        raise StantoolsError(
            f"consumer {name} of stream {stream}: {len(left)} pending messages are not in the stream, the first is "
            f"{min(left)}",
            "make the plan again: the store has changed",
        )


async def _deliver(js: JetStream, stream: str, name: str, config: Mapping[str, Any], delivery: Delivery) -> None:
    """Makes the consumer, and brings it to its state."""
    setup = {key: value for key, value in config.items() if key not in _REMOVED}
    setup |= {"ack_wait": _LONG, "max_ack_pending": -1, "max_deliver": -1, "headers_only": True}
    setup["description"] = UNFINISHED
    if config.get("deliver_subject"):
        await deliver_by_push(js, stream, name, setup, delivery)
    else:
        await js.consumer_create(stream, setup)
        await _deliver_by_pull(js, stream, name, delivery)
    info = await consumer_info(js, stream, name)
    if int(info["delivered"]["stream_seq"]) != delivery.last:
        raise StantoolsError(
            f"consumer {name} of stream {stream} was delivered messages up to {info['delivered']['stream_seq']}, "
            f"expected {delivery.last}",
            "somebody else uses it already: stop them, then run the command again",
        )


async def _deliver_by_pull(js: JetStream, stream: str, name: str, delivery: Delivery) -> None:
    connection, timeout = js.connection, js.connection.options.timeout
    subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"
    inbox = await open_inbox(connection.client, connection.client.new_inbox())
    got = 0
    # They are answered when all have come, or they would come again in between.
    kept: list[bytes] = []
    try:
        with connection.watch(subject) as failed:
            while got < delivery.count:
                wanted = min(_BATCH, delivery.count - got)
                body = json.dumps({"batch": wanted, "no_wait": True}).encode()
                frame = b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.subject.encode(), len(body), body)
                await send_frames(connection.client, frame)
                answers: list[bytes] = []
                ended = False
                before = got
                while got - before < wanted and not ended:
                    received = await receive(connection, inbox, failed, timeout, subject)
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
                    raise StantoolsError(
                        f"consumer {name} of stream {stream}: {got} messages were delivered, expected {delivery.count}",
                        "somebody else uses it already: stop them, then run the command again",
                    )
                await acknowledge(js, stream, name, answers, len(kept))
            await keep_pending(js, kept)
    finally:
        await inbox.close()


def _ended(name: str, stream: str, received: Received) -> bool:
    """Tells whether the request is over: there are no more messages at the moment.

    Raises:
        NoAnswerError: It ended for another reason.
    """
    for row in np.flatnonzero(received.columns.status).tolist():
        line = received.header(row).split(b"\r\n")[0]
        if not line.startswith((b"NATS/1.0 404", b"NATS/1.0 408", b"NATS/1.0 409 Exceeded")):
            raise NoAnswerError(
                f"consumer {name} of stream {stream} ended a request: {line[9:].decode(errors='replace')}",
                "run the command again",
            )
    return bool(received.columns.status.any())
