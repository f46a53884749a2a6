"""`/metrics`: the state of both servers for Prometheus. Names and labels are in the broker guide.

The samples come from the documents of the other endpoints. Channels are read one page at a time. Large installations
can omit series: `channels=0` those of single channels, `subs=0` those of single subscriptions.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.monitoring.http import QueryParameters, Reply

Document = Mapping[str, Any]

_GAUGE: Final = "gauge"
_COUNTER: Final = "counter"
#: channels read before other tasks run
_PAGE: Final = 256
_NANOSECONDS: Final = 1_000_000_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?Z")

# name, kind, member of the document, help
_SERVER: Final = (
    ("stan_clients", _GAUGE, "clients", "Clients that are connected."),
    ("stan_subscriptions", _GAUGE, "subscriptions", "Subscriptions, offline durables included."),
    ("stan_channels", _GAUGE, "channels", "Channels."),
    ("stan_stored_messages", _GAUGE, "total_msgs", "Messages in all channels."),
    ("stan_stored_bytes", _GAUGE, "total_bytes", "Bytes in all channels, in the accounting of the store."),
    ("stan_in_messages_total", _COUNTER, "in_msgs", "Messages received from publishers."),
    ("stan_in_bytes_total", _COUNTER, "in_bytes", "Bytes received from publishers."),
    ("stan_out_messages_total", _COUNTER, "out_msgs", "Messages delivered, redeliveries included."),
    ("stan_out_bytes_total", _COUNTER, "out_bytes", "Bytes delivered, redeliveries included."),
    ("stan_open_fds", _GAUGE, "open_fds", "Open file descriptors of the process."),
    ("stan_max_fds", _GAUGE, "max_fds", "Limit of open file descriptors."),
)
_LIMITS: Final = (
    ("stan_limit_channels", 1, "max_channels", "Limit of channels; 0 for no limit."),
    ("stan_limit_messages", 1, "max_msgs", "Limit of messages in a channel; 0 for no limit."),
    ("stan_limit_bytes", 1, "max_bytes", "Limit of bytes in a channel; 0 for no limit."),
    ("stan_limit_age_seconds", _NANOSECONDS, "max_age", "Age at which messages are removed; 0 for no limit."),
    ("stan_limit_subscriptions", 1, "max_subscriptions", "Limit of subscriptions of a channel; 0 for no limit."),
    (
        "stan_limit_inactivity_seconds",
        _NANOSECONDS,
        "max_inactivity",
        "Inactivity after which a channel is removed; 0 for no limit.",
    ),
)
_CHANNEL: Final = (
    ("stan_channel_messages", "msgs", "Messages in a channel."),
    ("stan_channel_bytes", "bytes", "Bytes in a channel, in the accounting of the store."),
    ("stan_channel_first_sequence", "first_seq", "First sequence of a channel."),
    ("stan_channel_last_sequence", "last_seq", "Last sequence of a channel: messages ever stored."),
    ("stan_channel_subscriptions", "subs_count", "Subscriptions of a channel, offline durables included."),
)
_NATS: Final = (
    ("nats_connections", _GAUGE, "connections", "Connections, those of the streaming server included."),
    ("nats_connections_total", _COUNTER, "total_connections", "Connections since the start."),
    ("nats_subscriptions", _GAUGE, "subscriptions", "Subscriptions."),
    ("nats_in_messages_total", _COUNTER, "in_msgs", "Messages received from clients."),
    ("nats_in_bytes_total", _COUNTER, "in_bytes", "Bytes received from clients."),
    ("nats_out_messages_total", _COUNTER, "out_msgs", "Messages sent to clients."),
    ("nats_out_bytes_total", _COUNTER, "out_bytes", "Bytes sent to clients."),
    ("nats_slow_consumers_total", _COUNTER, "slow_consumers", "Clients disconnected as slow consumers."),
    ("nats_memory_bytes", _GAUGE, "mem", "Resident memory of the process."),
    ("nats_cpu_percent", _GAUGE, "cpu", "CPU usage of the process, percent of one core."),
)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """Gathers and writes metrics.

    `nats` and `streaming` are the servers or None; the views make their documents.
    """

    def __init__(
        self,
        nats: object | None,
        nats_views: Any,
        streaming: object | None,
        streaming_views: Any,
    ) -> None:
        self._nats = nats
        self._nats_views = nats_views
        self.streaming = streaming
        self._streaming_views = streaming_views

    async def reply(self, query: QueryParameters) -> Reply:
        families: list[Family] = []
        if self.streaming is not None:
            families += self._of_server()
            if query.raw("channels") != b"0":
                families += await self._of_channels(subs=query.raw("subs") != b"0")
        if self._nats is not None:
            families += self._of_nats()
        pieces: list[str] = []
        for family in families:
            for number, line in enumerate(family.lines()):
                pieces.append(line)
                if number % 512 == 511:
                    await asyncio.sleep(0)
        return Reply(200, "".join(pieces).encode("utf-8", "replace"), CONTENT_TYPE)

    def _of_server(self) -> Iterator[Family]:
        server, store = self._streaming_views.serverz(self.streaming), self._streaming_views.storez(self.streaming)
        info = Family("stan_server_info", _GAUGE, "Identity of the streaming server; always 1.")
        labels = {"cluster_id": self._streaming_views.configured_cluster_id(self.streaming)}
        labels |= {name: str(server.get(name, "")) for name in ("server_id", "version", "state")}
        labels |= {name: str(server[name]) for name in ("role", "node_id") if name in server}
        info.add(1, **labels, store=str(store.get("type", "")))
        yield info
        start = Family("stan_start_time_seconds", _GAUGE, "Start time of the streaming server, seconds since 1970.")
        start.add(_seconds(str(server.get("start_time", ""))))
        yield start
        yield from _scalars(_SERVER, server)
        limits = store.get("limits", {})
        for name, unit, member, text in _LIMITS:
            family = Family(name, _GAUGE, text)
            family.add(limits.get(member, 0) / unit)
            yield family

    async def _of_channels(self, *, subs: bool) -> Iterable[Family]:
        families = [Family(name, _GAUGE, text) for name, _, text in _CHANNEL]
        groups = _Groups()
        offset, last = 0, ""
        while True:
            page = self._streaming_views.channelsz(self.streaming, offset, _PAGE, True).get("channels", ())
            for channel in page:
                name = str(channel["name"])
                if name == last:
                    continue  # a channel was created before it meanwhile
                last = name
                for family, (_, member, _) in zip(families, _CHANNEL, strict=True):
                    family.add(channel.get(member, 0), channel=name)
                if subs:
                    groups.add(name, channel)
            if len(page) < _PAGE:
                return [*families, *groups.families()] if subs else families
            offset += _PAGE
            await asyncio.sleep(0)

    def _of_nats(self) -> Iterator[Family]:
        varz = self._nats_views.varz(self._nats)
        info = Family("nats_server_info", _GAUGE, "Identity of the NATS server; always 1.")
        info.add(1, **{name: str(varz.get(name, "")) for name in ("server_id", "server_name", "version")})
        yield info
        yield from _scalars(_NATS, varz)


class _Groups:
    """Gathers subscriptions by labels: a queue group, a durable, or a client's other ones on a channel."""

    def __init__(self) -> None:
        self._members = Family("stan_subscription_members", _GAUGE, "Subscriptions that are online.")
        self._pending = Family("stan_subscription_pending_messages", _GAUGE, "Messages sent but not acknowledged.")
        self._lag = Family("stan_subscription_lag_messages", _GAUGE, "Messages not sent yet.")
        self._stalled = Family("stan_subscription_stalled", _GAUGE, "Subscriptions waiting for acks.")

    def add(self, name: str, channel: Document) -> None:
        groups: dict[tuple[str, str, str], list[int]] = {}
        for each in channel.get("subscriptions", ()):
            queue, durable = str(each.get("queue_name", "")), str(each.get("durable_name", ""))
            client = "" if queue else str(each.get("client_id", ""))
            sent = int(each.get("last_sent", 0))
            numbers = groups.setdefault((client, durable, queue), [0, 0, sent, 0])
            numbers[0] += not each.get("is_offline", False)
            numbers[1] += int(each.get("pending_count", 0))
            # A group is at the position of its furthest member; single subscriptions each need all messages.
            numbers[2] = max(numbers[2], sent) if queue else min(numbers[2], sent)
            numbers[3] += bool(each.get("is_stalled", False))
        gone = max(int(channel.get("first_seq", 0)) - 1, 0)
        for (client, durable, queue), (members, pending, sent, stalled) in groups.items():
            lag = max(int(channel.get("last_seq", 0)) - max(sent, gone), 0)
            for family, value in zip(self.families(), (members, pending, lag, stalled), strict=True):
                family.add(value, channel=name, client_id=client, durable=durable, queue=queue)

    def families(self) -> tuple[Family, ...]:
        return self._members, self._pending, self._lag, self._stalled


def _scalars(table: Iterable[tuple[str, str, str, str]], document: Document) -> Iterator[Family]:
    for name, kind, member, text in table:
        value: Any = document.get(member)
        if value is None:
            continue
        family = Family(name, kind, text)
        family.add(value)
        yield family


def _seconds(time: str) -> float:
    found = _TIME.fullmatch(time)
    if not found:
        return 0.0
    whole = datetime.datetime.fromisoformat(f"{found[1]}+00:00").timestamp()
    return whole + float(found[2] or 0)


@dataclass(slots=True)
class Family:
    """All samples of one name."""

    name: str  #: counters end with `_total`
    kind: str
    help: str  #: help in one line, with the unit
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        self.samples.append((labels, value))

    def lines(self) -> Iterator[str]:
        """Yields the text; nothing without samples."""
        if not self.samples:
            return
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"
        for labels, value in self.samples:
            pairs = ",".join([f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items()])
            yield f"{self.name}{f'{{{pairs}}}' if pairs else ''} {_number(value)}\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    # exact for sequences of any size
    return str(int(value)) if value == int(value) else repr(float(value))
