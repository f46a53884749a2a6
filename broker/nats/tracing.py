"""The protocol trace: messages from and to clients (`trace` in the configuration)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log import NATS, TRACE
from stantools.format.quoting import quote
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, REPLY, REPLY_SIZE, SUBJECT, SUBJECT_SIZE

if TYPE_CHECKING:
    from broker.nats.client import BrokerClient, NatsSubscription
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Payloads


def _text(words: bytes) -> str:
    return words.decode("utf-8", "replace")


def quoted(payload: bytes, limit: int) -> str:
    """Returns a payload in the format of the trace, at most `limit` bytes of it (0: all)."""
    shown = payload[:limit] if limit else payload
    return quote(_text(shown) + ("..." if len(shown) < len(payload) else ""))


def publishes(connection: BrokerClient, data: Buffer, frames: Frames, rows: int, limit: int) -> None:
    """Logs the publishes of a client with at most `limit` bytes of each payload (0: all)."""
    view = memoryview(data)
    for row in frames[:rows].tolist():
        subject = bytes(view[row[SUBJECT] : row[SUBJECT] + row[SUBJECT_SIZE]])
        reply = bytes(view[row[REPLY] : row[REPLY] + row[REPLY_SIZE]])
        words = [_text(word) for word in (subject, reply) if word]
        sizes = [str(size) for size in (row[HEADER_SIZE], row[PAYLOAD_SIZE])]
        operation = "HPUB" if row[HEADER_SIZE] else "PUB"
        words += sizes if row[HEADER_SIZE] else sizes[1:]
        NATS.log(TRACE, "%s - <<- [%s %s]", connection, operation, " ".join(words))
        payload = bytes(view[row[PAYLOAD] : row[PAYLOAD] + row[PAYLOAD_SIZE]])
        NATS.log(TRACE, "%s - <<- MSG_PAYLOAD: [%s]", connection, quoted(payload, limit))


def delivery(
    connection: BrokerClient, to: NatsSubscription, subject: bytes, reply: bytes, size: int, header_size: int
) -> None:
    """Logs one message to a client; `size` is that of the payload after the headers."""
    words = [_text(word) for word in (subject, to.sid, reply) if word]
    words += [str(header_size), str(header_size + size)] if header_size else [str(size)]
    NATS.log(TRACE, "%s - ->> [%s %s]", connection, "HMSG" if header_size else "MSG", " ".join(words))


def deliveries(
    connection: BrokerClient, to: NatsSubscription, data: Buffer, frames: Frames, begin: int, end: int
) -> None:
    view = memoryview(data)
    for row in frames[begin:end].tolist():
        subject = bytes(view[row[SUBJECT] : row[SUBJECT] + row[SUBJECT_SIZE]])
        reply = bytes(view[row[REPLY] : row[REPLY] + row[REPLY_SIZE]])
        headers = row[HEADER_SIZE] if connection.headers else 0
        delivery(connection, to, subject, reply, row[PAYLOAD_SIZE] - row[HEADER_SIZE], headers)


def block(
    connection: BrokerClient, to: NatsSubscription, subject: bytes, payloads: Payloads, begin: int, end: int
) -> None:
    for row in range(begin, end):
        delivery(connection, to, subject, b"", int(payloads.sizes[row]), 0)
