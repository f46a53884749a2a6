"""Requests that come in frames: one by one, unlike publishes and acknowledgements; and control messages among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import Message

from stantools.format import gogo
from stantools.format.envelope import Buffer
from stantools.format.proto import protocol_pb2 as protocol
from stantools.nats.frames import (
    HEADER_SIZE,
    PAYLOAD,
    PAYLOAD_SIZE,
    REPLY,
    REPLY_SIZE,
    SUBJECT,
    SUBJECT_SIZE,
    Frames,
    Handler,
)

M = TypeVar("M", bound=Message)

#: No message has as many fields. What has more takes seconds to refuse, a megabyte of it, and the others wait.
_MAX_FIELDS: Final = 256


@dataclass(frozen=True, slots=True)
class StreamingRequest:
    """A message that came: where to, where an answer is wanted (maybe nowhere), and what it says, without headers."""

    subject: bytes
    reply: bytes
    payload: bytes


def decode(kind: type[M], payload: bytes) -> M:
    """Decodes what came from a client, within a bounded time.

    Raises:
        gogo.DecodeError: It is no such message.
    """
    return gogo.decode(kind, payload, max_fields=_MAX_FIELDS)


def is_control(payload: bytes) -> bool:
    """Returns whether it is a message among servers, which are dropped silently (streaming-protocol.md section 3)."""
    try:
        decode(protocol.CtrlMsg, payload)
    except gogo.DecodeError:
        return False
    return True


def requests(buffer: Buffer, frames: Frames, begin: int, end: int) -> Iterator[StreamingRequest]:
    """Yields the messages of some rows, copied."""
    view = memoryview(buffer)
    for row in frames[begin:end].tolist():
        start = row[PAYLOAD] + row[HEADER_SIZE]
        yield StreamingRequest(
            bytes(view[row[SUBJECT] : row[SUBJECT] + row[SUBJECT_SIZE]]),
            bytes(view[row[REPLY] : row[REPLY] + row[REPLY_SIZE]]),
            bytes(view[start : row[PAYLOAD] + row[PAYLOAD_SIZE]]),
        )


def one_by_one(answer: Callable[[StreamingRequest], None]) -> Handler:
    """Returns a handler of frames that hands over one request at a time."""

    def handle(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        for request in list(requests(buffer, frames, begin, end)):
            answer(request)

    return handle
