"""Clients, from greeting to end, and what they subscribe to."""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.nats.auth import Credentials, Identity

if TYPE_CHECKING:
    from broker.nats.auth import Permit
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Handler, Payloads, Taker


class ClientState(enum.Enum):
    """How far a client has come."""

    #: Nothing has been sent to it yet.
    NEW = enum.auto()
    #: It has INFO in clear, and the TLS handshake is under way. What it sends waits.
    HANDSHAKE = enum.auto()
    #: It has INFO, and has to say who it is.
    GREETED = enum.auto()
    #: Its password is being checked. What it sends waits.
    CHECKING = enum.auto()
    #: It may do what its permissions allow.
    OPEN = enum.auto()
    #: It has ended.
    CLOSED = enum.auto()


#: What each state may become.
_NEXT: Final = {
    ClientState.NEW: {ClientState.HANDSHAKE, ClientState.GREETED, ClientState.OPEN, ClientState.CLOSED},
    ClientState.HANDSHAKE: {ClientState.GREETED, ClientState.OPEN, ClientState.CLOSED},
    ClientState.GREETED: {ClientState.CHECKING, ClientState.OPEN, ClientState.CLOSED},
    ClientState.CHECKING: {ClientState.OPEN, ClientState.CLOSED},
    # Somebody may say who it is once more.
    ClientState.OPEN: {ClientState.CHECKING, ClientState.OPEN, ClientState.CLOSED},
    ClientState.CLOSED: set[ClientState](),
}
#: For hot paths: a member of an enumeration is looked up slowly (Python 3.11).
OPEN: Final = ClientState.OPEN
CLOSED: Final = ClientState.CLOSED
#: In which states what a client sends is handled.
HEARS: Final = (ClientState.OPEN, ClientState.GREETED)


class Reason(enum.StrEnum):
    """Why a connection was closed."""

    CLIENT_CLOSED = "Client Closed"
    AUTHENTICATION_TIMEOUT = "Authentication Timeout"
    AUTHENTICATION_FAILURE = "Authentication Failure"
    TLS_HANDSHAKE = "TLS Handshake Failure"
    SLOW_PENDING = "Slow Consumer (Pending Bytes)"
    SLOW_DEADLINE = "Slow Consumer (Write Deadline)"
    READ_ERROR = "Read Error"
    PARSE_ERROR = "Parse Error"
    STALE = "Stale Connection"
    VIOLATION = "Protocol Violation"
    BAD_VERSION = "Bad Client Protocol Version"
    MAX_CONNECTIONS = "Maximum Connections Exceeded"
    MAX_PAYLOAD = "Maximum Message Payload Exceeded"
    MAX_CONTROL_LINE = "Maximum Control Line Exceeded"
    SERVER_SHUTDOWN = "Server Shutdown"
    NO_RESPONDERS = "No Responders Requires Headers"


@dataclass(slots=True, eq=False)
class NatsSubscription:
    """An interest of a client."""

    client: Client  #: whose
    sid: bytes  #: how the client calls it
    subject: bytes  #: subject, possibly with wildcards
    queue: bytes = b""  #: queue group; empty for none
    handler: Handler | None = None  #: who takes the messages, for the clients that live in this process
    taker: Taker | None = None  #: who may get what is gathered, instead of the handler, with that of others
    rank: int = 0  #: not 0: the handler takes what many clients sent at once, after those with a lower rank
    limit: int = 0  #: after how many messages it ends; 0 for never
    delivered: int = 0  #: messages so far
    narrowed: bool = False  #: some subjects that it matches are denied to the client
    closed: bool = False  #: it has ended
    but: bytes = b""  #: what it matches and another one of the client gets, which has this subject; empty for nothing
    pace: int = 64  #: how many rows the handler takes at a time; grows and shrinks with the time that it needs


@dataclass(slots=True)
class Counters:
    """Messages and bytes (payloads with headers), from and to clients."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


@dataclass(slots=True, eq=False)
class Client(ABC):
    """Somebody who publishes and subscribes: a connection, or a part of this process."""

    cid: int  #: number, unique as long as the server lives
    name: str = ""  #: what it calls itself
    lang: str = ""  #: language of its library
    version: str = ""  #: version of its library
    host: str = ""  #: its address
    port: int = 0
    identity: Identity = field(default_factory=Identity)  #: who it is
    credentials: Credentials = field(default_factory=Credentials)  #: what it said about that
    user: str = ""  #: who it is, for logs and views
    permit: Permit | None = None  #: what it may do; None for all
    echo: bool = True  #: it gets what it publishes itself
    headers: bool = False  #: it understands headers
    no_responders: bool = False  #: it wants to know if nobody gets its requests
    state: ClientState = ClientState.NEW  #: how far it has come
    subscriptions: dict[bytes, NatsSubscription] = field(default_factory=dict)  #: by sid
    counters: Counters = field(default_factory=Counters)  #: what it sent and got
    start: int = field(default_factory=time.time_ns)  #: when it came, ns since the epoch
    last_activity: int = field(default_factory=time.time_ns)  #: when it last sent something, ns since the epoch
    rtt: int = 0  #: last round trip in ns; 0 if there was none yet
    #: Who sends no more until this one has caught up, or a while has passed.
    stalled: set[Client] = field(default_factory=set)
    #: It is on a socket and keeps up: small messages may be added to what is collected for it (`hand_out`).
    direct: bool = False
    #: Set by a handler that can take no more now of what it was given: whoever has sent it has to wait.
    full: bool = False

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self.state is CLOSED

    def advance(self, state: ClientState) -> None:
        """Goes on to another state."""
        assert state in _NEXT[self.state], f"{self.state} does not become {state}"
        self.state = state

    def become(self, identity: Identity) -> None:
        """Gets the rights of a user."""
        self.identity, self.user, self.permit = identity, identity.name, identity.permit

    @property
    def pending(self) -> int:
        """Bytes that wait to be sent to it."""
        return 0

    @property
    def congested(self) -> bool:
        """So much waits for it that whoever can wait should."""
        return False

    def stall(self, receiver: Client, seconds: float) -> None:  # noqa: B027
        """Stops reading, as it sends faster than a receiver takes, for a while or until `unstall`."""

    def unstall(self, receiver: Client) -> None:  # noqa: B027
        """Reads again: the receiver has caught up."""

    def release_stalled(self) -> None:
        """Lets those read again who had to wait."""
        for origin in list(self.stalled):
            origin.unstall(self)

    def recheck(self) -> None:  # noqa: B027
        """Adapts to permissions that have changed."""

    def publish_denied(self, subject: bytes) -> None:  # noqa: B027
        """Is refused a message that it may not publish there."""

    def nobody_there(self, reply: bytes) -> None:  # noqa: B027
        """Is answered that nobody got its request."""

    def may_respond(self, subject: bytes) -> bool:
        """Returns whether it got a message with this reply subject and may answer it; counts the answer."""
        return False

    def take(
        self, subscription: NatsSubscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> float:
        """Takes rows of a table, for a subscription without a handler; they are good for this call only.

        Args:
            subscription: Whose messages.
            buffer: Where the frames are.
            frames: The table.
            begin: The first row.
            end: The row behind the last one.
            size: Bytes of their payloads.

        Returns:
            How long (seconds) whoever sent them should wait, at most until `release_stalled`; 0 for not at all.
        """
        raise NotImplementedError

    @abstractmethod
    def take_block(self, subscription: NatsSubscription, subject: bytes, block: Payloads, begin: int, end: int) -> None:
        """Takes payloads that were published with one subject. Nothing refers to the block after the call."""

    @abstractmethod
    def take_one(
        self, subscription: NatsSubscription, subject: bytes, reply: bytes, payload: bytes, header_size: int
    ) -> None:
        """Takes one message; `payload` begins with `header_size` bytes of headers."""
