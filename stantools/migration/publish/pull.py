"""Bringing a pull consumer to its state: it gives what it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.migration.publish.answering import acknowledge, keep_pending
from stantools.migration.publish.receiving import receive
from stantools.migration.publish.retry import SetBackError
from stantools.migration.publish.writing import send_frames
from stantools.migration.target.errors import NoAnswerError
from stantools.nats.receive import open_inbox

if TYPE_CHECKING:
    from stantools.migration.publish.delivery import Delivery
    from stantools.migration.target.jetstream import JetStream
    from stantools.nats.assembler import Received

#: Messages that are asked for at once.
_BATCH: Final = 4096


async def deliver_by_pull(js: JetStream, stream: str, name: str, setup: Mapping[str, Any], delivery: Delivery) -> None:
    """Makes a pull consumer, and brings it to its state.

    Args:
        js: JetStream.
        stream: The stream.
        name: The consumer.
        setup: Its configuration meanwhile.
        delivery: What it has to be given.

    Raises:
        SetBackError: It was given something else.
        TargetError: Something else failed.
    """
    await js.consumer_create(stream, setup)
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
                    raise SetBackError(
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
