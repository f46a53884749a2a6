"""Requests in frames, handled one by one, unlike publishes and acknowledgements; and control messages among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import Message

from stantools.format import gogo
from stantools.format.envelope import Buffer
from stantools.format.proto import protocol_pb2 as protocol
from stantools.nats.frames import Frames, Handler, for_each, rows

M = TypeVar("M", bound=Message)

#: No valid message has this many fields. A megabyte of fields would take seconds to refuse, while other clients wait.
_MAX_FIELDS: Final = 256


@dataclass(frozen=True, slots=True)
class StreamingRequest:
    """A received message without its headers; `reply` may be empty."""

    subject: bytes
    reply: bytes
    payload: bytes


def decode(kind: type[M], payload: bytes) -> M:
    """Decodes a client's message in bounded time. Raises gogo.DecodeError if it is invalid."""
    return gogo.decode(kind, payload, max_fields=_MAX_FIELDS)


def is_control(payload: bytes) -> bool:
    """Returns whether a message is one among servers; these are dropped silently (streaming-protocol.md section 3)."""
    try:
        decode(protocol.CtrlMsg, payload)
    except gogo.DecodeError:
        return False
    return True


def requests(buffer: Buffer, frames: Frames, begin: int, end: int) -> Iterator[StreamingRequest]:
    """Yields copies of the messages of some rows."""
    for subject, reply, _, payload in rows(buffer, frames, begin, end):
        yield StreamingRequest(subject, reply, payload)


def per_request(answer: Callable[[StreamingRequest], None]) -> Handler:
    """Returns a handler of frames that passes on one request at a time."""

    def handle(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        for_each(list(requests(buffer, frames, begin, end)), answer)

    return handle
