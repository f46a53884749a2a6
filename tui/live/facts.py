"""Facts from the answers of servers: a streaming server's monitoring, and JetStream.

Versions differ in the members they have: a member that is missing, or has another type than expected, becomes 0, "",
() or None here. Only a document of a wholly different kind is refused.

Each field names the member it is read from; a dot leads into a nested object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from stantools.nats.monitoring import MonitorError

_T = TypeVar("_T")
Document = Mapping[str, Any]

#: Larger numbers are errors: all numbers in the documents have 64 bits.
_MAX_NUMBER = 2**64
#: class -> readers of its fields
_READERS: dict[type[Any], list[Callable[[Document], Any]]] = {}


def read(kind: type[_T], document: Document) -> _T:
    readers = _READERS.get(kind)
    if readers is None:
        readers = _READERS[kind] = [each.metadata["read"] for each in fields(kind)]  # type: ignore[arg-type]
    return kind(*(each(document) for each in readers))


def _made(read: Callable[[Document], Any], **options: Any) -> Any:
    return field(metadata={"read": read}, **options)


def _member(path: str, convert: Callable[[Any], Any]) -> Any:
    """Returns a dataclass field for a member of the document, or of an object in it."""
    place, _, name = path.rpartition(".")
    if place:
        return _made(lambda document: convert(_object(document, place).get(name)))
    return _made(lambda document: convert(document.get(name)))


def _object(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Document]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _as_counter(value: Any) -> int | None:
    if isinstance(value, float) and 0 <= value < _MAX_NUMBER:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER:
        return value
    return None


def _as_count(value: Any) -> int:
    return _as_counter(value) or 0


def _as_time(value: Any) -> str:
    """Truncates a time to the second; the year 1 means no time."""
    text = _as_text(value)
    return "" if text.startswith("0001-") else text[:19].replace("T", " ")


def _text(path: str) -> Any:
    return _member(path, _as_text)


def _count(path: str) -> Any:
    return _member(path, _as_count)


def _counter(path: str) -> Any:
    return _member(path, _as_counter)


def _true(path: str) -> Any:
    return _member(path, lambda value: value is True)


# Streaming server


@dataclass(frozen=True, slots=True)
class ServerFacts:
    cluster_id: str = _text("cluster_id")
    server_id: str = _text("server_id")
    version: str = _text("version")
    state: str = _text("state")
    role: str = _text("role")
    node_id: str = _text("node_id")
    start_time: str = _text("start_time")
    uptime: str = _text("uptime")
    subscriptions: int = _count("subscriptions")
    messages: int = _count("total_msgs")
    bytes: int = _count("total_bytes")
    in_messages: int | None = _counter("in_msgs")
    in_bytes: int | None = _counter("in_bytes")
    out_messages: int | None = _counter("out_msgs")
    out_bytes: int | None = _counter("out_bytes")
    open_files: int = _count("open_fds")
    most_files: int = _count("max_fds")


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """`storez`. A limit of 0 means unlimited."""

    kind: str = _text("type")
    most_channels: int = _count("limits.max_channels")
    most_messages: int = _count("limits.max_msgs")
    most_bytes: int = _count("limits.max_bytes")


def _as_share(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e6 else 0.0


@dataclass(frozen=True, slots=True)
class NatsFacts:
    """`varz` of the NATS server under the streaming server."""

    version: str = _text("version")
    connections: int = _count("connections")
    memory: int = _count("mem")
    cpu: float = _member("cpu", _as_share)
    slow_consumers: int = _count("slow_consumers")


@dataclass(frozen=True, slots=True)
class LiveClient:
    id: str = _text("id")
    hb_inbox: str = _text("hb_inbox")
    subscriptions: int = _count("subs_count")


@dataclass(frozen=True, slots=True)
class LiveSubscription:
    """A subscription; `pending` counts unacknowledged messages."""

    client_id: str = _text("client_id")
    inbox: str = _text("inbox")
    ack_inbox: str = _text("ack_inbox")
    durable: str = _text("durable_name")
    queue: str = _text("queue_name")
    offline: bool = _true("is_offline")
    max_in_flight: int = _count("max_inflight")
    ack_wait: int = _count("ack_wait")
    last_sent: int = _count("last_sent")
    pending: int = _count("pending_count")
    stalled: bool = _true("is_stalled")

    @property
    def key(self) -> tuple[str, ...]:
        return (self.ack_inbox,) if self.ack_inbox else (self.client_id, self.inbox, self.durable, self.queue)

    @property
    def name(self) -> str:
        """The name for people: the durable or the group, otherwise the inbox."""
        return self.durable or self.queue or self.inbox


def _subscriptions(document: Document) -> tuple[LiveSubscription, ...]:
    return tuple(read(LiveSubscription, each) for each in _objects(document.get("subscriptions")))


@dataclass(frozen=True, slots=True)
class LiveChannel:
    name: str = _text("name")
    messages: int = _count("msgs")
    bytes: int = _count("bytes")
    first: int = _count("first_seq")
    last: int = _count("last_seq")
    counted: int = _count("subs_count")
    subscriptions: tuple[LiveSubscription, ...] = _made(_subscriptions)

    @property
    def subscriptions_count(self) -> int:
        return self.counted or len(self.subscriptions)


def read_server(document: Document) -> ServerFacts:
    """Reads `serverz`. Raises `MonitorError` if none of its members is there."""
    if not {"cluster_id", "state", "total_msgs"} & document.keys():
        raise MonitorError("the answer does not describe a NATS Streaming server", "check host, port and path")
    return read(ServerFacts, document)


def read_clients(document: Document) -> Iterator[LiveClient]:
    for each in _objects(document.get("clients")):
        yield read(LiveClient, each)


def read_channels(document: Document) -> Iterator[LiveChannel]:
    """Reads a page of `channelsz`, with details or with names only."""
    for each in _objects(document.get("channels")):
        yield read(LiveChannel, each)
    for name in _as_texts(document.get("names")):
        yield read(LiveChannel, {"name": name})


def read_total(document: Document) -> int:
    """Returns the number of entries on all pages of a list."""
    return _as_count(document.get("total"))


# JetStream


@dataclass(frozen=True, slots=True)
class LiveAccount:
    """The answer to `INFO`: use and limits of the account. A limit of 0 means unlimited."""

    domain: str = _text("domain")
    memory: int = _count("memory")
    storage: int = _count("storage")
    streams: int = _count("streams")
    consumers: int = _count("consumers")
    most_memory: int = _count("limits.max_memory")
    most_storage: int = _count("limits.max_storage")
    most_streams: int = _count("limits.max_streams")
    most_consumers: int = _count("limits.max_consumers")


@dataclass(frozen=True, slots=True)
class LiveStream:
    """The answer to `STREAM.INFO`; `info` is the server's object unchanged."""

    name: str = _text("config.name")
    subjects: tuple[str, ...] = _member("config.subjects", _as_texts)
    storage: str = _text("config.storage")
    retention: str = _text("config.retention")
    replicas: int = _member("config.num_replicas", lambda value: _as_count(value) or 1)
    leader: str = _text("cluster.leader")
    messages: int = _count("state.messages")
    bytes: int = _count("state.bytes")
    first: int = _count("state.first_seq")
    last: int = _count("state.last_seq")
    first_time: str = _member("state.first_ts", _as_time)
    last_time: str = _member("state.last_ts", _as_time)
    deleted: int = _count("state.num_deleted")
    consumers: int = _count("state.consumer_count")
    sealed: bool = _true("config.sealed")
    info: Document = _made(lambda document: document, repr=False, compare=False)


def _filters(document: Document) -> tuple[str, ...]:
    config = _object(document, "config")
    several = _as_texts(config.get("filter_subjects"))
    return tuple(filter(None, several or _as_texts([config.get("filter_subject")])))


@dataclass(frozen=True, slots=True)
class LiveConsumer:
    """The answer to `CONSUMER.INFO`; sequences are those of the stream."""

    name: str = _text("name")
    durable: bool = _member("config.durable_name", lambda value: bool(_as_text(value)))
    push: bool = _member("config.deliver_subject", lambda value: bool(_as_text(value)))
    filters: tuple[str, ...] = _made(_filters)
    delivered: int = _count("delivered.stream_seq")
    ack_floor: int = _count("ack_floor.stream_seq")
    pending: int = _count("num_pending")
    ack_pending: int = _count("num_ack_pending")
    most_ack_pending: int = _count("config.max_ack_pending")
    redelivered: int = _count("num_redelivered")
    waiting: int = _count("num_waiting")
    paused: bool = _true("paused")

    @property
    def state(self) -> str:
        """`paused`, `stalled` (max_ack_pending is reached) or `ok`."""
        if self.paused:
            return "paused"
        return "stalled" if self.pending and self.ack_pending >= self.most_ack_pending > 0 else "ok"
