"""Ports of the streaming rules, besides a clock: a bus, and a driver that calls the rules.

The rules call them and are called back; they open no socket, read no clock and never sleep.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker import ports
from broker.stores.interface import ChannelLog
from stantools.nats.frames import FrameHandler, Handler, Payloads


class Role(enum.StrEnum):
    """The server's NATS connections (streaming-protocol.md section 1.3), in the order in which they are opened.

    Messages keep their order only within a role.
    """

    SEND = "send"
    GENERAL = "general"
    ACKS = "acks"
    FAULT_TOLERANCE = "ft"
    HEARTBEATS = "hb"
    PARTITIONS = "pc"

    # Connections are looked up by role for each publish; the hash of an enumeration is computed in Python otherwise.
    __hash__ = str.__hash__


class RequestOutcome(enum.Enum):
    """The result of a request."""

    REPLY = enum.auto()
    TIMEOUT = enum.auto()
    NO_RESPONDERS = enum.auto()


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """The answer to a request; `payload` is empty unless the outcome is REPLY."""

    outcome: RequestOutcome
    payload: bytes = b""


class StreamingBus(Protocol):
    """NATS, as the streaming rules use it."""

    @property
    def max_payload(self) -> int:
        """Most bytes of a client's message."""

    @property
    def deliverable(self) -> int:
        """Most bytes of a message of this server; larger ones are never sent."""

    def publish(
        self, role: Role, subject: bytes, payload: bytes, reply: bytes = b"", *, to_servers: bool = False
    ) -> bool:
        """Publishes. Returns False if not connected.

        A message to an empty subject is dropped silently, and one to a reserved subject (`broker.reserved`) unless
        it is `to_servers`.
        """

    def publish_block(self, role: Role, subject: bytes, block: Payloads, begin: int, end: int) -> bool:
        """Publishes rows `begin` to `end`, one message each. The block is not referenced after the call."""

    def publish_runs(self, role: Role, runs: Sequence[tuple[bytes, int, int]], block: Payloads) -> None:
        """Publishes runs of rows (subject, first row, row after the last) of a block."""

    def publish_each(self, role: Role, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        """Publishes messages to subjects that are not congested.

        Returns the ascending positions of the messages that were not sent: their subjects are congested, or the bus
        is not connected.
        """

    def congested(self, subject: bytes) -> bool:
        """Returns whether much data waits for the receivers of a subject, so that senders should pause."""

    def has_receiver(self, subject: bytes) -> bool:
        """Returns whether a subject has receivers; True if that is unknown."""

    def slow_down(self) -> None:
        """Reads more slowly from the clients whose messages are being handled, until `end_slowdown` is called.

        Has no effect outside of a handler.
        """

    def end_slowdown(self) -> None:
        """Ends the slow reading."""

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

        A reserved subject never answers unless the request is `to_servers`. `answer` is never called during this
        call.
        """

    def listen(
        self, role: Role, subject: bytes, handler: Handler, *, gathered: bool = False, taker: FrameHandler | None = None
    ) -> object:
        """Subscribes. Returns the handle for `unlisten`. The handler is never called during this call.

        A `gathered` handler may get the publishes of many clients at once and a little later, but before `commit`,
        and before later messages of the same clients. Gathered messages for several handlers with the same `taker`
        may go to the taker instead.
        """

    def unlisten(self, subscription: object) -> None:
        """Unsubscribes; the handler is not called again."""

    def barrier(self, done: Callable[[], None]) -> None:
        """Calls `done` when all messages that reached NATS before are handled, maybe at once.

        Every earlier `listen` and `publish` has reached NATS by then.
        """


class Recipients(Protocol):
    """Another reader of the channels."""

    def changed(self, channel: ChannelLog) -> None:
        """A channel is new, or its deliverable messages have changed."""

    def removed(self, channel: ChannelLog) -> None: ...


class ClusterMember(Protocol):
    """This server as a node of a cluster, as monitoring shows it."""

    @property
    def node_id(self) -> str: ...

    @property
    def role(self) -> str:
        """`Leader`, `Follower`, or `Candidate`."""


class StreamingDriver(ports.RuleDriver, Protocol):
    """Calls the rules, and ends the process on their request."""

    def wake(self) -> None:
        """Requests a commit, from any thread."""

    def write_now(self) -> None:
        """Writes the output of the rules and of others, which otherwise leaves after `commit`."""

    def commit_by(self, time: int) -> None:
        """Requests a call of `commit` at a near time (monotonic ns), unless one comes before.

        Replaces an earlier request.
        """

    def fatal(self, message: str) -> None:
        """Ends the process with an error."""

    def abort(self, message: str) -> None:
        """Ends the process at once: the store must not be written to any more."""
