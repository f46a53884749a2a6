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
from stantools.streaming.session import shown

_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new subscription begins; one that is resumed continues where it was.

    Make one with the class methods.
    """

    position: store_pb2.StartPosition = store_pb2.NEW_ONLY
    start_sequence: int = 0
    #: Nanoseconds back from now, and since the epoch: at most one of them is given.
    back: int | None = None
    since: int | None = None

    @classmethod
    def new_only(cls) -> Self:
        """Only messages that are published from now on."""
        return cls()

    @classmethod
    def last_received(cls) -> Self:
        """From the last message that is there."""
        return cls(store_pb2.LAST_RECEIVED)

    @classmethod
    def first(cls) -> Self:
        """From the first message that is there."""
        return cls(store_pb2.FIRST)

    @classmethod
    def sequence(cls, number: int) -> Self:
        """From a sequence. One that is not there yet counts as `new_only` (streaming-protocol.md section 13)."""
        return cls(store_pb2.SEQUENCE_START, start_sequence=number)

    @classmethod
    def ago(cls, seconds: float) -> Self:
        """From the first message that is not older than so many seconds."""
        return cls(store_pb2.TIME_DELTA_START, back=round(seconds * _NANOSECONDS))

    @classmethod
    def at(cls, moment: datetime.datetime) -> Self:
        """From the first message that was stored at a time or later."""
        return cls(store_pb2.TIME_DELTA_START, since=round(moment.timestamp() * _NANOSECONDS))

    def delta(self) -> int:
        """Returns how many nanoseconds back from now it is, now."""
        if self.since is not None:
            return time.time_ns() - self.since
        return self.back or 0


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """How a subscription behaves."""

    queue: str = ""  #: Queue group; its members share the messages. Empty for none.
    durable: str = ""  #: Name under which the server remembers the position after a close. Empty for none.
    start: Start = Start()  #: where it begins
    manual_acks: bool = False  #: messages are acknowledged by `Message.ack`, not by themselves after the handler
    max_in_flight: int = 1024  #: messages that may be sent and not acknowledged
    ack_wait: int = 30  #: seconds, whole ones, after which the server sends a message again that was not acknowledged


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as a server delivers it."""

    sequence: int  #: its place in the channel
    channel: str  #: name of the channel
    reply: str  #: reply subject that the publisher gave, or empty
    data: bytes  #: the payload
    timestamp: int  #: when it was stored, nanoseconds since the epoch
    redelivered: bool = False  #: whether it was sent before
    redelivery_count: int = 0  #: how often; servers before 0.17.0 do not say


D = TypeVar("D", bound=Delivered)


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
    """Returns the request that closes a subscription or unsubscribes, whichever subject it is sent to.

    Args:
        client_id: Whose subscription it is.
        channel: Its channel.
        inbox: Its ack inbox.
        durable: Its durable name, or empty.
    """
    return store_pb2.UnsubscribeRequest(
        client_id=client_id.encode(),
        subject=channel.encode("utf-8", "surrogateescape"),
        inbox=inbox.encode(),
        durable_name=durable.encode(),
    ).SerializeToString()


def read_answer(payload: bytes, what: str) -> str:
    """Returns the ack inbox from the answer to a request; the answers to `leave_request` have none.

    Args:
        payload: The answer.
        what: Names what was asked for, for messages.

    Raises:
        RefusedByServerError: The server refused.
        StreamingError: The answer cannot be read.
    """
    answer = pb.SubscriptionResponse()
    try:
        answer.ParseFromString(payload)
    except DecodeError as problem:
        raise StreamingError(f"the streaming server's answer to {what} cannot be read") from problem
    if answer.error:
        raise RefusedByServerError(what, shown(answer.error))
    return shown(answer.ack_inbox)


def read_message(payload: bytes, kind: type[D], **more: Any) -> D:
    """Reads what came to a subscription's inbox.

    Args:
        payload: What came.
        kind: What to make of it.
        more: What else it takes.

    Raises:
        StreamingError: It is not a message of a streaming server.
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


def ack(message: Delivered) -> bytes:
    """Returns what acknowledges a message, on the ack inbox."""
    channel = message.channel.encode("utf-8", "surrogateescape")
    return pb.Ack(subject=channel, sequence=message.sequence).SerializeToString()
