"""What the streaming rules need from outside, besides a clock: a bus, and somebody who calls again.

The rules call these and are called back; they open no socket, read no clock and sleep never.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker import ports
from broker.stores.interface import ChannelLog
from stantools.nats.frames import FrameHandler, Handler, Payloads


class Role(enum.StrEnum):
    """Over which of the server's NATS connections something goes (streaming-protocol.md section 1.3).

    In the order in which they are opened. Order of messages is kept within a role only.
    """

    SEND = "send"
    GENERAL = "general"
    ACKS = "acks"
    FAULT_TOLERANCE = "ft"
    HEARTBEATS = "hb"
    PARTITIONS = "pc"

    # Connections are looked up by role with each publish, and the hash of an enumeration is made in Python otherwise.
    __hash__ = str.__hash__


class RequestOutcome(enum.Enum):
    """How a request ended."""

    REPLY = enum.auto()
    TIMEOUT = enum.auto()
    NO_RESPONDERS = enum.auto()


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The answer to a request; `payload` is empty unless the outcome is REPLY."""

    outcome: RequestOutcome
    payload: bytes = b""


class StreamingBus(Protocol):
    """NATS, as the streaming rules see it."""

    @property
    def max_payload(self) -> int:
        """Bytes that a message of a client may have."""

    @property
    def deliverable(self) -> int:
        """Bytes that a message of ours may have: what is larger is never sent."""

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        """Publishes. Returns False if it could not be sent (not connected).

        An empty subject is dropped silently, and so is a reserved one (`broker.reserved`) unless it is `to_servers`.
        """

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        """Publishes rows `begin` to `end`, one message each. Nothing refers to the block after the call."""

    def publish_runs(self, role: Role, runs: Iterable[tuple[bytes, int, int]], block: Payloads) -> None:
        """Publishes rows of a block to several subjects: to each the rows from one to another."""

    def publish_each(self, role: Role, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        """Publishes messages, each with its subject, to those who keep up.

        Returns:
            The places of those that were not sent, rising: much waits for who gets them (`congested`), or nobody is
            connected.
        """

    def congested(self, subject: bytes) -> bool:
        """Returns whether much waits for those who get messages of a subject, so that more is better sent later."""

    def has_receiver(self, subject: bytes) -> bool:
        """Returns whether anybody gets messages of a subject; True where that is not known."""

    def slow_down(self) -> None:
        """Reads more slowly from whoever has sent what a handler is given at the moment, until `go_on` is called.

        Has no effect when no handler is called.
        """

    def go_on(self) -> None:
        """Reads from all as fast as they send."""

    def request(
        self,
        role: Role,
        subject: bytes,
        payload: bytes,
        timeout: int,
        answer: Callable[[RequestAnswer], None],
        *,
        to_servers: bool = False,
    ) -> None:
        """Publishes with a reply subject of its own and reports the first answer, or its absence after `timeout` ns.

        Nobody answers on a reserved subject unless it is `to_servers`. `answer` is never called from within this call.
        """

    def listen(
        self, role: Role, subject: bytes, handler: Handler, *, gathered: bool = False, taker: FrameHandler | None = None
    ) -> object:
        """Subscribes. Returns what `unlisten` wants. The handler is never called from within this call.

        Args:
            role: Over which connection.
            subject: Subject, possibly with wildcards.
            handler: Gets what comes.
            gathered: It may get what many clients published at once and a little later, but before `commit`, and before
                anything else that one of them has published later.
            taker: Who may get what is gathered for several handlers that have the same, instead of them.
        """

    def unlisten(self, subscription: object) -> None:
        """Unsubscribes; the handler is not called any more."""

    def barrier(self, done: Callable[[], None]) -> None:
        """Calls `done` when everything that reached NATS before has been handed to the handlers.

        Every `listen` and `publish` before has reached NATS as well then. May call it at once.
        """


class Recipients(Protocol):
    """Who else reads the channels."""

    def changed(self, channel: ChannelLog) -> None:
        """A channel is new, or has other messages that may be delivered than before."""

    def removed(self, channel: ChannelLog) -> None:
        """A channel was deleted."""


class ClusterMember(Protocol):
    """What a server is among others with the same streams, as monitoring shows it."""

    @property
    def node_id(self) -> str:
        """What it is called."""

    @property
    def role(self) -> str:
        """`Leader`, `Follower`, or `Candidate` while it tries."""


class StreamingDriver(ports.RuleDriver, Protocol):
    """Who calls the rules, and ends the process for them."""

    def wake(self) -> None:
        """As `commit_soon`, from any thread."""

    def commit_by(self, time: int) -> None:
        """Asks for a call of `commit` at that time of the monotonic clock, which is near, unless there is one before.

        Replaces an earlier wish.
        """

    def fatal(self, message: str) -> None:
        """Something after which the server cannot go on; the process ends with an error."""

    def abort(self, message: str) -> None:
        """Something after which nothing may be written to the store; the process ends on the spot."""
