"""What JetStream tells of accounts, streams and consumers, as far as we use it; what is missing is 0 or ""."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Limits are -1, or 0, where there are none.
NO_LIMIT = 0


@dataclass(frozen=True, slots=True)
class Account:
    """Use and limits of the account."""

    domain: str
    memory: int
    storage: int
    streams: int
    consumers: int
    most_memory: int
    most_storage: int
    most_streams: int
    most_consumers: int


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream.

    Attributes:
        info: As the server gave it.
    """

    name: str
    subjects: tuple[str, ...]
    description: str
    storage: str
    retention: str
    replicas: int
    leader: str
    messages: int
    bytes: int
    first: int
    last: int
    first_time: str
    last_time: str
    deleted: int
    consumers: int
    sealed: bool
    info: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer; sequences are those of the stream."""

    stream: str
    name: str
    durable: bool
    push: bool
    filters: tuple[str, ...]
    delivered: int
    ack_floor: int
    pending: int
    ack_pending: int
    most_ack_pending: int
    redelivered: int
    waiting: int
    paused: bool

    @property
    def state(self) -> str:
        """`paused`, `stalled` (as many messages as it may have wait for acknowledgement) or `ok`."""
        if self.paused:
            return "paused"
        return "stalled" if self.pending and self.ack_pending >= self.most_ack_pending > 0 else "ok"


def read_account(answer: Mapping[str, Any]) -> Account:
    """Reads the answer to `INFO`."""
    limits = _object(answer, "limits")
    return Account(
        _text(answer, "domain"),
        *(_count(answer, name) for name in ("memory", "storage", "streams", "consumers")),
        *(_count(limits, name) for name in ("max_memory", "max_storage", "max_streams", "max_consumers")),
    )


def read_stream(info: Mapping[str, Any]) -> Stream:
    """Reads what `STREAM.INFO` gives of one stream."""
    config, state = _object(info, "config"), _object(info, "state")
    return Stream(
        _text(config, "name"),
        _texts(config.get("subjects")),
        _text(config, "description"),
        _text(config, "storage"),
        _text(config, "retention"),
        _count(config, "num_replicas") or 1,
        _text(_object(info, "cluster"), "leader"),
        _count(state, "messages"),
        _count(state, "bytes"),
        _count(state, "first_seq"),
        _count(state, "last_seq"),
        _time(state, "first_ts"),
        _time(state, "last_ts"),
        _count(state, "num_deleted"),
        _count(state, "consumer_count"),
        config.get("sealed") is True,
        info,
    )


def read_consumer(info: Mapping[str, Any]) -> Consumer:
    """Reads what `CONSUMER.INFO` gives of one consumer."""
    config = _object(info, "config")
    filters = _texts(config.get("filter_subjects")) or _texts([config.get("filter_subject")])
    return Consumer(
        _text(info, "stream_name"),
        _text(info, "name"),
        bool(_text(config, "durable_name")),
        bool(_text(config, "deliver_subject")),
        tuple(filter(None, filters)),
        _count(_object(info, "delivered"), "stream_seq"),
        _count(_object(info, "ack_floor"), "stream_seq"),
        _count(info, "num_pending"),
        _count(info, "num_ack_pending"),
        _count(config, "max_ack_pending"),
        _count(info, "num_redelivered"),
        _count(info, "num_waiting"),
        info.get("paused") is True,
    )


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(each for each in values if isinstance(each, str)) if isinstance(values, list) else ()


def _count(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _time(document: Mapping[str, Any], name: str) -> str:
    """Returns a time to the second; servers write the year 1 where there is none."""
    text = _text(document, name)
    return "" if text.startswith("0001-") else text[:19].replace("T", " ")
