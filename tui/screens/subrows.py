"""Subscriptions, queue groups and clients as rows, collected while the store is being read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stantools.escaping import text
from stantools.inspection.overview import ChannelOverview, ClientList, ClientStatus, ClientSummary, Overview
from stantools.inspection.subscribers import QueueGroupSummary, Subscriber, queue_groups
from stantools.store.sublog import SubStatus
from tui.cells import Cell, Role, bar, name_text, number
from tui.rows import TableColumn, TableRows, count_column
from tui.session import ChannelFacts, SourceSession

if TYPE_CHECKING:
    from stantools.inspection.stream_consumers import ConsumerLag

#: Status of a subscription in the server -> symbol and role.
STATUS: dict[SubStatus, tuple[str, Role]] = {
    SubStatus.ACTIVE: ("✓", "good"),
    SubStatus.OFFLINE_DURABLE: ("○", "dim"),
    SubStatus.SHADOW: ("◌", "dim"),
    SubStatus.ORPHAN: ("!", "warn"),
    SubStatus.GHOST: ("✗", "bad"),
}
CLIENT_STATUS: dict[ClientStatus, tuple[str, Role]] = {
    ClientStatus.REGISTERED: ("✓", "good"),
    ClientStatus.AWAY: ("○", "dim"),
    ClientStatus.GHOST: ("✗", "bad"),
}


@dataclass(frozen=True, eq=False, slots=True)
class SubscriptionRow:
    channel: ChannelOverview
    one: Subscriber
    words: str
    member: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the row, stable when the store is read again."""
        return ("subscription", self.channel.name, str(self.one.state.id))


@dataclass(frozen=True, eq=False, slots=True)
class GroupRow:
    channel: ChannelOverview
    group: QueueGroupSummary
    words: str
    members: Sequence[SubscriptionRow]

    @property
    def key(self) -> tuple[str, ...]:
        return ("group", self.channel.name, self.group.name, str(self.group.durable))


@dataclass(frozen=True, eq=False, slots=True)
class ClientRow:
    client: ClientSummary
    words: str

    @property
    def key(self) -> tuple[str, ...]:
        return ("client", text(self.client.id))


@dataclass(frozen=True, eq=False, slots=True)
class ConsumerRow:
    """A consumer of a stream."""

    channel: ChannelFacts
    one: ConsumerLag
    words: str

    @property
    def key(self) -> tuple[str, ...]:
        return ("consumer", self.channel.name, self.one.consumer.name)

    @property
    def pending(self) -> Sequence[int]:
        state = self.one.consumer.state
        return sorted(state.pending) if state else ()

    @property
    def kind(self) -> str:
        config = self.one.consumer.config or {}
        kind = "push" if config.get("deliver_subject") else "pull"
        return f"{kind}, {config['deliver_group']}" if config.get("deliver_group") else kind


Row = SubscriptionRow | GroupRow | ClientRow | ConsumerRow


class SubscriptionTree:
    """All subscriptions and clients in the logs read so far; `channel` restricts them to one channel."""

    def __init__(self, session: SourceSession, channel: str | None) -> None:
        self._session = session
        self._overview: Overview | None = None
        self.channel = channel
        self.subscriptions: list[SubscriptionRow] = []
        self.groups: list[GroupRow] = []
        self.damaged: list[str] = []
        self.read = 0
        self._list: ClientList | None = None
        self._clients: list[ClientRow] | None = None

    @property
    def known(self) -> bool:
        if self._overview is None or self._overview is not self._session.overview:
            return False
        if self.channel is not None:
            facts = self._session.channels.get(self.channel)
            return facts is None or (facts.overview is not None and not self.behind)
        return self.read >= len(self._session.channels)

    @property
    def clients(self) -> list[ClientRow]:
        """The clients; for a single channel only the clients with subscriptions in it."""
        if self._clients is None:
            found = self._list.clients() if self._list else []
            if self.channel is not None:
                found = [each for each in found if self.channel in each.channels]
            self._clients = [
                ClientRow(each, f"{text(each.id)}\n{text(each.info.hb_inbox) if each.info else ''}") for each in found
            ]
        return self._clients

    def update(self, seconds: float = 0.02) -> bool:
        """Collects new rows for at most `seconds`; returns whether there were any."""
        overview = self._session.overview
        if overview is None:
            return False
        news = overview is not self._overview
        if news:
            self._overview, self.read = overview, 0
            self.subscriptions, self.groups, self.damaged = [], [], []
            self._list, self._clients = ClientList(overview.clients), None
        until = time.monotonic() + seconds
        while self.behind and time.monotonic() < until:
            for channel in overview.channels[self.read : self.read + 50]:
                self._take(channel)
                self.read += 1
                news = True
        return news

    @property
    def behind(self) -> bool:
        """Whether `update` has rows left to collect."""
        overview = self._session.overview
        return overview is not None and (overview is not self._overview or self.read < len(overview.channels))

    def counts(self) -> dict[str, int]:
        """Returns the number of rows of each tab."""
        counts = len(self.subscriptions), len(self.groups), len(self.clients)
        return dict(zip(("subscriptions", "queue groups", "clients"), counts, strict=True))

    def _take(self, channel: ChannelOverview) -> None:
        assert self._list is not None
        if channel.subscriptions:
            self._list.add(channel)
            self._clients = None
        if self.channel is not None and channel.name != self.channel:
            return
        if any(problem.startswith("subs.dat: ") for problem in channel.problems):
            self.damaged.append(channel.name)
        mine = {each.state.id: _subscription(channel, each) for each in channel.subscriptions}
        self.subscriptions += mine.values()
        for group in queue_groups(channel.subscriptions):
            members = [_subscription(channel, each, member=True) for each in group.members]
            # A group passes the filter if one of its members does.
            words = "\n".join((channel.name, group.name, *(each.words for each in members)))
            self.groups.append(GroupRow(channel, group, words, members))


class ConsumerTree:
    """The consumers of the streams read so far; `channel` restricts them to one stream."""

    damaged: Sequence[str] = ()

    def __init__(self, session: SourceSession, channel: str | None) -> None:
        self._session = session
        self._opened: object = None
        self.channel = channel
        self.consumers: list[ConsumerRow] = []
        self.read = 0

    @property
    def known(self) -> bool:
        return self.read >= len(self._session.channels)

    @property
    def behind(self) -> bool:
        return self._opened is not self._session.opened or self.read < len(self._session.consumers)

    def update(self) -> bool:
        """Collects new rows; returns whether there were any."""
        if not self.behind:
            return False
        if self._opened is not self._session.opened:
            self._opened, self.consumers, self.read = self._session.opened, [], 0
        for name, found in list(self._session.consumers.items())[self.read :]:
            self.read += 1
            if self.channel in (None, name):
                facts = self._session.channels[name]
                self.consumers += [
                    ConsumerRow(facts, each, "\n".join((name, each.consumer.name, *each.filters))) for each in found
                ]
        return True

    def counts(self) -> dict[str, int]:
        return {"consumers": len(self.consumers)}


def gather(session: SourceSession, channel: str | None) -> SubscriptionTree | ConsumerTree:
    """Returns the collection of a session's subscriptions or consumers."""
    return ConsumerTree(session, channel) if session.NOUN == "stream" else SubscriptionTree(session, channel)


def _subscription(channel: ChannelOverview, one: Subscriber, *, member: bool = False) -> SubscriptionRow:
    words = (channel.name, text(one.state.client_id), one.kind, one.name, one.status.value)
    return SubscriptionRow(channel, one, "\n".join(words), member)


def _symbol(row: SubscriptionRow | GroupRow | ClientRow) -> Cell:
    if isinstance(row, GroupRow):
        return ("▸", "accent") if row.group.present else ("○", "dim")
    return CLIENT_STATUS[row.client.status] if isinstance(row, ClientRow) else STATUS[row.one.status]


def _channel(row: SubscriptionRow | GroupRow) -> Cell:
    if isinstance(row, GroupRow):
        return name_text(row.channel.name), "strong"
    return ("", "dim") if row.member else name_text(row.channel.name)


def _client(row: SubscriptionRow | GroupRow) -> Cell:
    if isinstance(row, GroupRow):
        return f"{row.group.present} of {row.group.present + row.group.away}", "dim"
    return "  " * row.member + (name_text(row.one.state.client_id) or "(no client)")


def _kind(row: SubscriptionRow | GroupRow) -> Cell:
    if isinstance(row, GroupRow):
        return ("durable " if row.group.durable else "") + "group " + name_text(row.group.name), "strong"
    return f"  {row.one.status.value}" if row.member else f"{row.one.kind} {name_text(row.one.name)}".rstrip()


def _sent(row: SubscriptionRow | GroupRow) -> int:
    return row.group.last_sent if isinstance(row, GroupRow) else row.one.state.last_sent


def _pending(row: SubscriptionRow | GroupRow) -> int:
    return row.group.pending if isinstance(row, GroupRow) else len(row.one.pending)


def _pending_cell(row: SubscriptionRow | GroupRow) -> Cell:
    shown = number(count) if (count := _pending(row)) else ""
    return (shown, "warn") if isinstance(row, SubscriptionRow) and row.one.at_limit else shown


def _lag(row: SubscriptionRow | GroupRow) -> int:
    if isinstance(row, GroupRow):
        return row.group.lag
    return 0 if row.member else row.one.lag  # a member belongs to the lag of its group


def _bar(width: int, wide: bool | None) -> TableColumn[SubscriptionRow | GroupRow]:
    """Returns the column of the lag as a share of the channel's messages."""

    def cell(row: SubscriptionRow | GroupRow) -> Cell:
        messages = max(row.channel.last_seq - row.channel.first_seq + 1, 1)
        return (bar(lag / messages, width), "warn") if (lag := _lag(row)) else ""

    return TableColumn("", width, cell, key="bar", wide=wide)


def _of_one(title: str, width: int, cell: Callable[[Subscriber], str], *, wide: bool | None = None) -> TableColumn[Any]:
    """Returns a column that is empty for groups."""
    return TableColumn(
        title, width, lambda row: cell(row.one) if isinstance(row, SubscriptionRow) else "", right=True, wide=wide
    )


def _columns(*, one_channel: bool, groups: bool) -> Sequence[TableColumn[Any]]:
    state = None if groups else (lambda row: -list(STATUS).index(row.one.status))
    client = None if groups else (lambda row: row.one.state.client_id)
    # On narrow screens the name of the channel takes space from the client and the bar.
    wide = None if one_channel else True
    columns: list[TableColumn[Any]] = [
        TableColumn("", 1, _symbol, state, key="state"),
        TableColumn("channel", 10, _channel, lambda row: row.channel.name, grows=True),
        _of_one("id", 4, lambda one: str(one.state.id)),
        TableColumn("client", 9, _client, client, grows=True, wide=wide),
        TableColumn("client", 9, _client, client, wide=False),
        TableColumn("kind", 18, _kind, grows=True),
        count_column("sent", 6, _sent, zero=True),
        TableColumn("pend", 5, _pending_cell, lambda row: -_pending(row), key="pending", right=True),
        count_column("lag", 6, _lag, "warn"),
        _bar(8, wide),
        _bar(4, wide=False),
        _of_one("wait", 6, lambda one: f"{one.state.ack_wait_in_secs} s", wide=True),
        _of_one("in flight", 9, lambda one: number(one.state.max_in_flight), wide=True),
    ]
    if one_channel:
        return [each for each in columns if each.key != "channel" and (each.wide is not False)]
    return columns


_CLIENT_COLUMNS: Sequence[TableColumn[ClientRow]] = (
    TableColumn("", 1, _symbol, lambda row: -list(CLIENT_STATUS).index(row.client.status), key="state"),
    TableColumn("client", 14, lambda row: name_text(row.client.id), lambda row: row.client.id, grows=True),
    TableColumn("status", 10, lambda row: (row.client.status.value, CLIENT_STATUS[row.client.status][1])),
    TableColumn(
        "subs",
        5,
        lambda row: number(row.client.subscriptions) if row.client.channels else "",
        lambda row: -row.client.subscriptions,
        right=True,
    ),
    TableColumn("channels", 8, lambda row: number(len(row.client.channels)) if row.client.channels else "", right=True),
    count_column("pending", 8, lambda row: row.client.pending),
    TableColumn(
        "heartbeat inbox",
        18,
        lambda row: name_text(row.client.info.hb_inbox) if row.client.info else ("not in clients.dat", "dim"),
        grows=True,
    ),
    TableColumn(
        "protocol", 8, lambda row: str(row.client.info.protocol) if row.client.info else "", right=True, wide=True
    ),
    TableColumn(
        "connection",
        12,
        lambda row: name_text(row.client.info.conn_id) if row.client.info else "",
        grows=True,
        wide=True,
    ),
)


def _delivered(row: ConsumerRow) -> int:
    return row.one.delivered


def _consumer_pending(row: ConsumerRow) -> int:
    return len(row.pending)


_CONSUMER_COLUMNS: Sequence[TableColumn[ConsumerRow]] = (
    TableColumn("stream", 10, lambda row: name_text(row.channel.name), lambda row: row.channel.name, grows=True),
    TableColumn(
        "consumer", 12, lambda row: name_text(row.one.consumer.name), lambda row: row.one.consumer.name, grows=True
    ),
    TableColumn("kind", 8, lambda row: row.kind, grows=True),
    TableColumn("filter", 12, lambda row: name_text(", ".join(row.one.filters)), grows=True, wide=True),
    count_column("delivered", 9, _delivered, zero=True),
    TableColumn(
        "acked",
        8,
        lambda row: number(row.one.consumer.state.ack_floor[1]) if row.one.consumer.state else ("unknown", "bad"),
        right=True,
    ),
    count_column("pending", 7, _consumer_pending),
    count_column("lag", 6, lambda row: row.one.lag, "warn"),
)


class SubRows(TableRows[Any]):
    """The rows of a tab: subscriptions, queue groups (with their members below them), clients, or consumers."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        super().__init__(
            (),
            lambda row: row.words,
            lambda row: row.key,
            "client" if kind == "clients" else "lag",
            lambda found: [each for row in found for each in (row, *row.members)] if kind == "queue groups" else found,
        )

    def take(self, gathered: SubscriptionTree | ConsumerTree) -> None:
        if isinstance(gathered, ConsumerTree):
            self.fill(gathered.consumers, _CONSUMER_COLUMNS)
            return
        if self._kind == "clients":
            self.fill(gathered.clients, _CLIENT_COLUMNS)
            return
        groups = self._kind == "queue groups"
        columns = _columns(one_channel=gathered.channel is not None, groups=groups)
        self.fill(gathered.groups if groups else gathered.subscriptions, columns)
