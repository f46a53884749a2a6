"""Clients, their states, and their subscriptions."""

from __future__ import annotations

import enum
import time
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.nats.auth import ClientCredentials, Identity

if TYPE_CHECKING:
    from broker.nats.auth import Permit
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import FrameHandler, Frames, Handler, Payloads


class ClientState(enum.Enum):
    #: no bytes sent to it yet
    NEW = enum.auto()
    #: INFO sent in clear, TLS handshake in progress; its input waits
    HANDSHAKE = enum.auto()
    #: INFO sent, credentials expected
    GREETED = enum.auto()
    #: password check in progress; its input waits
    CHECKING = enum.auto()
    #: authenticated
    OPEN = enum.auto()
    CLOSED = enum.auto()


#: Legal transitions.
_NEXT: Final = {
    ClientState.NEW: {ClientState.HANDSHAKE, ClientState.GREETED, ClientState.OPEN, ClientState.CLOSED},
    ClientState.HANDSHAKE: {ClientState.GREETED, ClientState.OPEN, ClientState.CLOSED},
    ClientState.GREETED: {ClientState.CHECKING, ClientState.OPEN, ClientState.CLOSED},
    ClientState.CHECKING: {ClientState.OPEN, ClientState.CLOSED},
    # A client may authenticate again.
    ClientState.OPEN: {ClientState.CHECKING, ClientState.OPEN, ClientState.CLOSED},
    ClientState.CLOSED: set[ClientState](),
}
#: Constant for hot paths: looking up members of an enumeration is slow (Python 3.11).
OPEN: Final = ClientState.OPEN
CLOSED: Final = ClientState.CLOSED
#: States in which input of a client is handled.
HEARS: Final = (ClientState.OPEN, ClientState.GREETED)


class CloseReason(enum.StrEnum):
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
    client: BrokerClient
    sid: bytes  #: id chosen by the client
    subject: bytes  #: subject, possibly with wildcards
    queue: bytes = b""  #: queue group; empty for none
    handler: Handler | None = None  #: takes the messages of a client in this process
    taker: FrameHandler | None = None  #: takes gathered messages for several handlers in one call
    rank: int = 0  #: order among gathered messages, lowest first; 0 if the subscription is never gathered
    limit: int = 0  #: messages after which it ends; 0 for unlimited
    delivered: int = 0
    narrowed: bool = False  #: the client lacks permission for some matching subjects
    closed: bool = False
    but: bytes = b""  #: subject of another subscription of the client whose messages are excluded here; empty for none
    pace: int = 64  #: rows per call of the handler, adapted to its speed

    def receives(self, origin: BrokerClient | None) -> bool:
        """Returns whether it gets messages of a client: it is open, and a client may not want its own messages."""
        return not (self.closed or (self.client is origin and not self.client.echo))


@dataclass(slots=True)
class Counters:
    """Messages and bytes (payloads with headers), from and to clients."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


@dataclass(slots=True, eq=False)
class BrokerClient:
    """A publisher and subscriber: a connection, or a part of this process."""

    cid: int  #: id, unique for the lifetime of the server
    name: str = ""  #: name chosen by the client
    lang: str = ""
    version: str = ""
    host: str = ""
    port: int = 0
    identity: Identity = field(default_factory=Identity)
    credentials: ClientCredentials = field(default_factory=ClientCredentials)
    user: str = ""  #: user name for logs and views
    permit: Permit | None = None  #: permissions; None if unrestricted
    echo: bool = True  #: gets its own messages
    headers: bool = False  #: supports headers
    no_responders: bool = False  #: wants no-responders replies
    state: ClientState = ClientState.NEW
    subscriptions: dict[bytes, NatsSubscription] = field(default_factory=dict)  #: by sid
    counters: Counters = field(default_factory=Counters)
    start: int = field(default_factory=time.time_ns)  #: start time, ns since the epoch
    last_activity: int = field(default_factory=time.time_ns)  #: time of its last input, ns since the epoch
    rtt: int = 0  #: last round trip in ns; 0 if unknown
    #: Publishers paused until this client has caught up, or a timeout.
    stalled: set[BrokerClient] = field(default_factory=set)
    #: On a socket and without backlog: small messages may be appended to its output directly (`hand_out`).
    direct: bool = False
    #: Set by a handler that can take no more input now: the publisher has to pause.
    full: bool = False

    @property
    def closed(self) -> bool:
        return self.state is CLOSED

    def advance(self, state: ClientState) -> None:
        """Enters another state; an illegal transition raises."""
        assert state in _NEXT[self.state], f"{self.state} does not become {state}"
        self.state = state

    def become(self, identity: Identity) -> None:
        self.identity, self.user, self.permit = identity, identity.name, identity.permit

    @property
    def pending(self) -> int:
        return 0

    @property
    def congested(self) -> bool:
        """Its backlog is long enough that patient senders should pause."""
        return False

    def stall(self, receiver: BrokerClient, seconds: float) -> None:
        """Pauses its input for a receiver that is slower, for `seconds` or until `unstall`."""

    def unstall(self, receiver: BrokerClient) -> None: ...

    def release_stalled(self) -> None:
        for origin in list(self.stalled):
            origin.unstall(self)

    def recheck(self) -> None: ...

    def may_publish(self, subject: bytes, size: int) -> bool:
        """Whether a part of this process may publish a message; logs a refusal."""
        return True

    def publish_denied(self, subject: bytes) -> None:
        """Reports a publish without permission."""

    def report_no_responders(self, reply: bytes) -> None:
        """Reports a request without responders."""

    def may_respond(self, subject: bytes) -> bool:
        """Returns whether it may answer a received message with this reply subject; counts the answer."""
        return False

    def take(
        self, subscription: NatsSubscription, buffer: Buffer, frames: Frames, begin: int, end: int, size: int
    ) -> float:
        """Takes rows `begin` to `end` of a table, for a subscription without a handler; `size` are their payload bytes.

        Buffer and table are valid during the call only. Returns the seconds that the publishers should pause, at
        most until `release_stalled`; 0 for no pause.
        """
        raise NotImplementedError

    @abstractmethod
    def take_block(self, subscription: NatsSubscription, subject: bytes, block: Payloads, begin: int, end: int) -> None:
        """Takes payloads published to one subject. The block is not referenced after the call."""

    @abstractmethod
    def take_one(
        self, subscription: NatsSubscription, subject: bytes, reply: bytes, payload: bytes, header_size: int
    ) -> None:
        """Takes one message; `payload` starts with `header_size` bytes of headers."""
