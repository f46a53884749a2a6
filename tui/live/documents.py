"""The documents of a streaming server's monitoring, as far as we use them.

Servers of all versions are told apart by what they leave out: a member that is missing, or is of another kind than
expected, is 0, "" or None here, and never a reason to show nothing. Only what is no such document at all is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tui.live.endpoint import MonitorError

#: Larger numbers than these are not what they say they are; all of ours have 64 bits.
_MOST = 2**64


@dataclass(frozen=True, slots=True)
class Server:
    """`serverz`. Counters are None where they are missing."""

    cluster_id: str
    server_id: str
    version: str
    state: str
    role: str
    node_id: str
    start_time: str
    uptime: str
    clients: int
    subscriptions: int
    channels: int
    messages: int
    bytes: int
    in_messages: int | None
    in_bytes: int | None
    out_messages: int | None
    out_bytes: int | None
    open_files: int
    most_files: int


@dataclass(frozen=True, slots=True)
class Store:
    """`storez`. A limit of 0 is none."""

    kind: str
    most_channels: int
    most_messages: int
    most_bytes: int
    most_age_ns: int
    most_subscriptions: int


@dataclass(frozen=True, slots=True)
class Nats:
    """`varz`: the NATS server below the streaming server."""

    version: str
    connections: int
    memory: int
    cpu: float
    slow_consumers: int


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is connected."""

    id: str
    hb_inbox: str
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription; `pending` are messages that were sent and not acknowledged."""

    client_id: str
    inbox: str
    ack_inbox: str
    durable: str
    queue: str
    is_durable: bool
    offline: bool
    max_in_flight: int
    ack_wait: int
    last_sent: int
    pending: int
    stalled: bool

    @property
    def key(self) -> tuple[str, ...]:
        """What it is known by between two looks."""
        return (self.ack_inbox,) if self.ack_inbox else (self.client_id, self.inbox, self.durable, self.queue)

    @property
    def name(self) -> str:
        """What an operator calls it: its durable or its group; else its inbox."""
        return self.durable or self.queue or self.inbox


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel with its subscriptions."""

    name: str
    messages: int
    bytes: int
    first: int
    last: int
    subscriptions_count: int
    subscriptions: tuple[Subscription, ...]


def read_server(document: Mapping[str, Any]) -> Server:
    """Reads `serverz`.

    Raises:
        MonitorError: It has nothing of it.
    """
    if not {"cluster_id", "state", "total_msgs"} & document.keys():
        raise MonitorError(
            "the answer has nothing of what a NATS Streaming server says about itself", "check host, port and path"
        )
    return Server(
        _text(document, "cluster_id"),
        _text(document, "server_id"),
        _text(document, "version"),
        _text(document, "state"),
        _text(document, "role"),
        _text(document, "node_id"),
        _text(document, "start_time"),
        _text(document, "uptime"),
        _count(document, "clients"),
        _count(document, "subscriptions"),
        _count(document, "channels"),
        _count(document, "total_msgs"),
        _count(document, "total_bytes"),
        _counter(document, "in_msgs"),
        _counter(document, "in_bytes"),
        _counter(document, "out_msgs"),
        _counter(document, "out_bytes"),
        _count(document, "open_fds"),
        _count(document, "max_fds"),
    )


def read_store(document: Mapping[str, Any]) -> Store:
    """Reads `storez`."""
    limits = document.get("limits")
    limits = limits if isinstance(limits, dict) else {}
    names = ("max_channels", "max_msgs", "max_bytes", "max_age", "max_subscriptions")
    return Store(_text(document, "type"), *(_count(limits, name) for name in names))


def read_nats(document: Mapping[str, Any]) -> Nats:
    """Reads `varz`."""
    cpu = document.get("cpu")
    share = float(cpu) if isinstance(cpu, int | float) and 0 <= cpu < 1e6 else 0.0
    connections, memory = _count(document, "connections"), _count(document, "mem")
    return Nats(_text(document, "version"), connections, memory, share, _count(document, "slow_consumers"))


def read_clients(document: Mapping[str, Any]) -> Iterator[Client]:
    """Reads a page of `clientsz`."""
    for each in _objects(document.get("clients")):
        yield Client(_text(each, "id"), _text(each, "hb_inbox"), _count(each, "subs_count"))


def read_channels(document: Mapping[str, Any]) -> Iterator[Channel]:
    """Reads a page of `channelsz`; servers that give names only are taken at their word."""
    for each in _objects(document.get("channels")):
        yield _channel(each)
    names = document.get("names")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str):
            yield Channel(name, 0, 0, 0, 0, 0, ())


def read_total(document: Mapping[str, Any]) -> int:
    """Returns how many entries a list has on all its pages."""
    return _count(document, "total")


def _channel(document: Mapping[str, Any]) -> Channel:
    subscriptions = tuple(_subscription(each) for each in _objects(document.get("subscriptions")))
    return Channel(
        _text(document, "name"),
        _count(document, "msgs"),
        _count(document, "bytes"),
        _count(document, "first_seq"),
        _count(document, "last_seq"),
        _count(document, "subs_count") or len(subscriptions),
        subscriptions,
    )


def _subscription(document: Mapping[str, Any]) -> Subscription:
    return Subscription(
        _text(document, "client_id"),
        _text(document, "inbox"),
        _text(document, "ack_inbox"),
        _text(document, "durable_name"),
        _text(document, "queue_name"),
        document.get("is_durable") is True,
        document.get("is_offline") is True,
        _count(document, "max_inflight"),
        _count(document, "ack_wait"),
        _count(document, "last_sent"),
        _count(document, "pending_count"),
        document.get("is_stalled") is True,
    )


def _objects(value: Any) -> Iterable[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else ()


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _count(document: Mapping[str, Any], name: str) -> int:
    return _counter(document, name) or 0


def _counter(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if isinstance(value, float) and 0 <= value < _MOST:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST:
        return value
    return None
