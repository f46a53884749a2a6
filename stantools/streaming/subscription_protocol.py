"""Subscriptions as bytes: requests, their answers, messages and acks.

Facts: streaming-protocol.md sections 12 to 15 and 20.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from google.protobuf.message import DecodeError

from stantools.format.proto import protocol_pb2 as pb
from stantools.format.proto import store_pb2
from stantools.streaming.errors import RefusedByServerError, StreamingError
from stantools.streaming.streaming_protocol import is_subject, shown

_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """The start position of a new subscription; a resumed one continues at its own position.

    Use the class methods to make one.
    """

    position: store_pb2.StartPosition = store_pb2.NEW_ONLY
    start_sequence: int = 0
    #: nanoseconds before now, and since 1970; at most one of them is given
    back: int | None = None
    since: int | None = None

    @classmethod
    def new_only(cls) -> Self:
        """Only messages published from now on."""
        return cls()

    @classmethod
    def last_received(cls) -> Self:
        """From the last existing message."""
        return cls(store_pb2.LAST_RECEIVED)

    @classmethod
    def first(cls) -> Self:
        """From the first existing message."""
        return cls(store_pb2.FIRST)

    @classmethod
    def sequence(cls, number: int) -> Self:
        """From a sequence. A future one counts as `new_only` (streaming-protocol.md section 13)."""
        return cls(store_pb2.SEQUENCE_START, start_sequence=number)

    @classmethod
    def ago(cls, seconds: float) -> Self:
        """From the first message that is at most this old."""
        return cls(store_pb2.TIME_DELTA_START, back=round(seconds * _NANOSECONDS))

    @classmethod
    def at(cls, moment: datetime.datetime) -> Self:
        """From the first message that was stored at a time or later."""
        return cls(store_pb2.TIME_DELTA_START, since=round(moment.timestamp() * _NANOSECONDS))

    def delta(self) -> int:
        """Returns the nanoseconds between the position and now."""
        if self.since is not None:
            return time.time_ns() - self.since
        return self.back or 0


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    queue: str = ""  #: queue group, whose members share the messages; empty for none
    durable: str = ""  #: name under which the server keeps the position after a close; empty for none
    start: Start = Start()
    manual_acks: bool = False  #: messages are acknowledged by `Message.ack` instead of after the handler
    max_in_flight: int = 1024  #: maximum number of sent messages without an acknowledgement
    ack_wait: int = 30  #: whole seconds after which the server redelivers a message without an acknowledgement


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """A message as a server delivers it."""

    sequence: int  #: its place in the channel
    channel: str
    reply: str  #: reply subject of the publisher, or empty
    data: bytes
    timestamp: int  #: time of storage, nanoseconds since 1970
    redelivered: bool = False  #: whether it was sent before
    redelivery_count: int = 0  #: number of redeliveries; 0 from servers before 0.17.0


D = TypeVar("D", bound=DeliveredMessage)


def subscribe_request(client_id: str, channel: str, inbox: str, options: SubscriptionOptions) -> bytes:
    """Returns the request for a subscription; its answer goes to `read_answer`."""
    return store_pb2.SubscriptionRequest(
        client_id=client_id.encode(),
        subject=channel.encode("utf-8", "surrogateescape"),
        q_group=options.queue.encode(),
        inbox=inbox.encode(),
        max_in_flight=options.max_in_flight,
        ack_wait_in_secs=options.ack_wait,
        durable_name=options.durable.encode(),
        start_position=options.start.position,
        start_sequence=options.start.start_sequence,
        start_time_delta=options.start.delta(),
    ).SerializeToString()


def leave_request(client_id: str, channel: str, inbox: str, durable: str) -> bytes:
    """Returns the request that closes a subscription or unsubscribes, depending on the subject it is sent to.

    `inbox` is the subscription's ack inbox; `durable` may be empty.
    """
    return store_pb2.UnsubscribeRequest(
        client_id=client_id.encode(),
        subject=channel.encode("utf-8", "surrogateescape"),
        inbox=inbox.encode(),
        durable_name=durable.encode(),
    ).SerializeToString()


def read_answer(payload: bytes, request_name: str) -> str:
    """Returns the ack inbox from the answer to a request, called `request_name` in messages."""
    answer = pb.SubscriptionResponse()
    try:
        answer.ParseFromString(payload)
    except DecodeError as problem:
        raise StreamingError(f"the streaming server's answer to {request_name} cannot be read") from problem
    if answer.error:
        raise RefusedByServerError(request_name, shown(answer.error))
    if not is_subject(answer.ack_inbox):
        inbox = shown(answer.ack_inbox)
        raise StreamingError(f"the streaming server's answer to {request_name} has no valid inbox: {inbox!r}")
    return shown(answer.ack_inbox)


def read_message(payload: bytes, kind: type[D], **more: Any) -> D:
    """Decodes a message of a subscription's inbox to an object of `kind`, with `more` arguments.

    Raises StreamingError if it is not a message of a streaming server.
    """
    message = store_pb2.MsgProto()
    try:
        message.ParseFromString(payload)
    except DecodeError as problem:
        raise StreamingError("a message of the streaming server cannot be read") from problem
    return kind(
        message.sequence,
        shown(message.subject),
        shown(message.reply),
        message.data,
        message.timestamp,
        message.redelivered,
        message.redelivery_count,
        **more,
    )


def ack(message: DeliveredMessage) -> bytes:
    """Returns the acknowledgement of a message, for the ack inbox."""
    channel = message.channel.encode("utf-8", "surrogateescape")
    return pb.Ack(subject=channel, sequence=message.sequence).SerializeToString()
