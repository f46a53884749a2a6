"""Subscriptions, queue groups and clients as rows: gathered as the store is read, filtered, sorted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stantools.inspection.overview import ChannelOverview, ClientList, ClientStatus, ClientSummary, Overview
from stantools.inspection.subscribers import QueueGroup, Subscriber, queue_groups, text
from stantools.store.sublog import SubStatus
from tui.cells import Cell, Role, bar, name_text, number
from tui.rows import Column, Rows
from tui.session import StoreSession

#: What the server makes of a subscription -> symbol and what it means.
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
    """A subscription in its channel."""

    channel: ChannelOverview
    one: Subscriber
    words: str
    member: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies it, also after the store was read again."""
        return ("subscription", self.channel.name, str(self.one.state.id))


@dataclass(frozen=True, eq=False, slots=True)
class GroupRow:
    """A queue group in its channel."""

    channel: ChannelOverview
    group: QueueGroup
    words: str

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies it, also after the store was read again."""
        return ("group", self.channel.name, self.group.name, str(self.group.durable))


@dataclass(frozen=True, eq=False, slots=True)
class ClientRow:
    """A client."""

    client: ClientSummary
    words: str

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies it, also after the store was read again."""
        return ("client", text(self.client.id))


Row = SubscriptionRow | GroupRow | ClientRow


class Gathered:
    """All subscriptions and clients, as far as the store's logs have been read.

    Args:
        session: The store.
        channel: The only channel to take; None takes all.
    """

    def __init__(self, session: StoreSession, channel: str | None) -> None:
        self._session = session
        self._overview: Overview | None = None
        self.channel = channel
        self.subscriptions: list[SubscriptionRow] = []
        self.groups: list[tuple[GroupRow, list[SubscriptionRow]]] = []
        self.damaged: list[str] = []
        self.read = 0
        self._list: ClientList | None = None
        self._clients: list[ClientRow] | None = None

    @property
    def known(self) -> bool:
        """The logs of what is shown have been read."""
        if self._overview is None or self._overview is not self._session.overview:
            return False
        if self.channel is not None:
            facts = self._session.channels.get(self.channel)
            return facts is None or (facts.overview is not None and not self.behind)
        return self.read >= len(self._session.channels)

    @property
    def clients(self) -> list[ClientRow]:
        """The clients; of one channel those that have subscriptions in it."""
        if self._clients is None:
            found = self._list.clients() if self._list else []
            if self.channel is not None:
                found = [each for each in found if self.channel in each.channels]
            self._clients = [
                ClientRow(each, f"{text(each.id)}\n{text(each.info.hb_inbox) if each.info else ''}".casefold())
                for each in found
            ]
        return self._clients

    def update(self, seconds: float = 0.02) -> bool:
        """Takes what has been read since, and tells whether that was anything.

        Args:
            seconds: After this time it stops; `behind` then says that there is more.
        """
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
        """There is something that `update` has not taken yet."""
        overview = self._session.overview
        return overview is not None and (overview is not self._overview or self.read < len(overview.channels))

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
            words = f"{channel.name}\n{group.name}".casefold()
            members = [_subscription(channel, each, member=True) for each in group.members]
            self.groups.append((GroupRow(channel, group, words), members))


def _subscription(channel: ChannelOverview, one: Subscriber, *, member: bool = False) -> SubscriptionRow:
    words = (channel.name, text(one.state.client_id), one.kind, one.name, one.status.value)
    return SubscriptionRow(channel, one, "\n".join(words).casefold(), member)


_ORDERS: dict[str, Callable[[SubscriptionRow], Any]] = {
    "lag": lambda row: -row.one.lag,
    "pending": lambda row: -len(row.one.pending),
    "sent": lambda row: -row.one.state.last_sent,
    "channel": lambda row: row.channel.name,
    "client": lambda row: row.one.state.client_id,
    "state": lambda row: list(STATUS).index(row.one.status) * -1,
}
_GROUP_ORDERS: dict[str, Callable[[GroupRow], Any]] = {
    "lag": lambda row: -row.group.lag,
    "pending": lambda row: -row.group.pending,
    "sent": lambda row: -row.group.last_sent,
    "channel": lambda row: row.channel.name,
}
_CLIENT_ORDERS: dict[str, Callable[[ClientRow], Any]] = {
    "client": lambda row: row.client.id,
    "subs": lambda row: -row.client.subscriptions,
    "pending": lambda row: -row.client.pending,
    "state": lambda row: list(CLIENT_STATUS).index(row.client.status) * -1,
}


class SubRows(Rows[Any]):
    """What the three tables have in common.

    Attributes:
        one_channel: They are those of one channel.
    """

    def __init__(self, orders: Mapping[str, Callable[[Any], Any]]) -> None:
        super().__init__(orders, next(iter(orders)))
        self.one_channel = False

    def take(self, gathered: Gathered) -> None:
        """Shows what was gathered."""
        raise NotImplementedError

    def words(self, thing: Row) -> str:
        """Returns what the filter looks into."""
        return thing.words

    def key(self, row: Row) -> tuple[str, ...]:
        """Returns what a row is known by."""
        return row.key


class SubscriptionRows(SubRows):
    """Every subscription."""

    def __init__(self) -> None:
        super().__init__(_ORDERS)

    def take(self, gathered: Gathered) -> None:
        """Shows the subscriptions."""
        self.fill(gathered.subscriptions)

    def layout(self) -> Sequence[Column]:
        """Returns the columns that there is room for."""
        return _subscription_columns(wide=self.wide, one_channel=self.one_channel)

    def cells(self, row: SubscriptionRow) -> Sequence[Cell]:
        """Returns the cells of a subscription."""
        return _subscription_cells(row, wide=self.wide, one_channel=self.one_channel)


class GroupRows(SubRows):
    """Every queue group, its members below it."""

    def __init__(self) -> None:
        super().__init__(_GROUP_ORDERS)

    def take(self, gathered: Gathered) -> None:
        """Shows the groups."""
        self._members = {id(group): members for group, members in gathered.groups}
        self.fill(group for group, _ in gathered.groups)

    def words(self, thing: Any) -> str:
        """Returns what the filter looks into: a group stays if one of its members does."""
        return "\n".join((thing.words, *(each.words for each in self._members[id(thing)])))

    def unfolded(self, found: list[Any]) -> list[Any]:
        """Returns the groups with their members."""
        return [row for group in found for row in (group, *self._members[id(group)])]

    def layout(self) -> Sequence[Column]:
        """Returns the columns that there is room for."""
        return _subscription_columns(wide=self.wide, one_channel=self.one_channel)

    def cells(self, row: SubscriptionRow | GroupRow) -> Sequence[Cell]:
        """Returns the cells of a group or of a member."""
        if isinstance(row, SubscriptionRow):
            return _subscription_cells(row, wide=self.wide, one_channel=self.one_channel)
        group = row.group
        state: Cell = ("▸", "accent") if group.present else ("○", "dim")
        cells: list[Cell] = [state]
        if not self.one_channel:
            cells.append((name_text(row.channel.name), "strong"))
        cells += ["", (f"{group.present} of {group.present + group.away}", "dim")]
        cells += [(("durable " if group.durable else "") + "group " + name_text(group.name), "strong")]
        cells += [number(group.last_sent), number(group.pending) if group.pending else ""]
        cells += _lag_cells(group.lag, row.channel, _bar_width(wide=self.wide, one_channel=self.one_channel))
        return [*cells, "", ""] if self.wide else cells


class ClientRows(SubRows):
    """Every client."""

    def __init__(self) -> None:
        super().__init__(_CLIENT_ORDERS)

    def take(self, gathered: Gathered) -> None:
        """Shows the clients."""
        self.fill(gathered.clients)

    def layout(self) -> Sequence[Column]:
        """Returns the columns that there is room for."""
        columns = [
            Column("state", "", 1),
            Column("client", "client", 14, grows=True),
            Column("status", "status", 10),
            Column("subs", "subs", 5, right=True),
            Column("channels", "channels", 8, right=True),
            Column("pending", "pending", 8, right=True),
            Column("inbox", "heartbeat inbox", 18, grows=True),
        ]
        if self.wide:
            columns += [
                Column("protocol", "protocol", 8, right=True),
                Column("connection", "connection", 12, grows=True),
            ]
        return columns

    def cells(self, row: ClientRow) -> Sequence[Cell]:
        """Returns the cells of a client."""
        client = row.client
        symbol = CLIENT_STATUS[client.status]
        cells: list[Cell] = [
            symbol,
            name_text(client.id),
            (client.status.value, symbol[1]),
            number(client.subscriptions) if client.channels else "",
            number(len(client.channels)) if client.channels else "",
            number(client.pending) if client.pending else "",
            name_text(client.info.hb_inbox) if client.info else ("not in clients.dat", "dim"),
        ]
        if self.wide:
            cells += [str(client.info.protocol), name_text(client.info.conn_id)] if client.info else ["", ""]
        return cells


def _subscription_columns(*, wide: bool, one_channel: bool) -> list[Column]:
    columns = [Column("state", "", 1)]
    if not one_channel:
        columns.append(Column("channel", "channel", 10, grows=True))
    columns += [
        Column("id", "id", 4, right=True),
        Column("client", "client", 9, grows=wide or one_channel),
        Column("kind", "kind", 18, grows=True),
        Column("sent", "sent", 6, right=True),
        Column("pending", "pend", 5, right=True),
        Column("lag", "lag", 6, right=True),
        Column("bar", "", _bar_width(wide=wide, one_channel=one_channel)),
    ]
    if wide:
        columns += [Column("wait", "wait", 6, right=True), Column("limit", "in flight", 9, right=True)]
    return columns


def _subscription_cells(row: SubscriptionRow, *, wide: bool, one_channel: bool) -> Sequence[Cell]:
    one, state = row.one, row.one.state
    indent = "  " if row.member else ""
    kind = name_text(one.name) if row.member else f"{one.kind} {name_text(one.name)}".rstrip()
    if row.member:
        kind = one.status.value
    cells: list[Cell] = [STATUS[one.status]]
    if not one_channel:
        cells.append(("", "dim") if row.member else name_text(row.channel.name))
    cells += [str(state.id), indent + (name_text(state.client_id) or "(no client)"), indent + kind]
    cells.append(number(state.last_sent))
    pending = number(len(one.pending)) if one.pending else ""
    cells.append((pending, "warn") if one.at_limit else pending)
    bars = _bar_width(wide=wide, one_channel=one_channel)
    cells += ["", ""] if row.member else _lag_cells(one.lag, row.channel, bars)
    if wide:
        cells += [f"{state.ack_wait_in_secs} s", number(state.max_in_flight)]
    return cells


def _bar_width(*, wide: bool, one_channel: bool) -> int:
    return 8 if wide or one_channel else 4


def _lag_cells(lag: int, channel: ChannelOverview, width: int) -> list[Cell]:
    """The lag, and its share of the channel's messages."""
    if not lag:
        return ["", ""]
    messages = max(channel.last_seq - channel.first_seq + 1, 1)
    return [(number(lag), "warn"), (bar(lag / messages, width), "warn")]
