"""Tables of running channels, clients, subscriptions, streams and consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stantools.notation import format_size, short_number
from tui.cells import Cell, Role, name_text, sparkline
from tui.live.facts import LiveClient, LiveConsumer
from tui.live.monitor import Monitor, WatchedChannel, WatchedServer
from tui.live.source import RateMeter
from tui.live.streams_source import WatchedStream
from tui.rows import TableColumn, TableRows, count_column

_T = TypeVar("_T")


#: State -> symbol, role and rank.
STATES: dict[str, tuple[str, Role, int]] = {
    "stalled": ("✗", "bad", 0),
    "not moving": ("!", "warn", 1),
    "behind": ("!", "warn", 2),
    "offline": ("○", "dim", 3),
    "paused": ("‖", "warn", 2),
    "ok": ("✓", "good", 4),
}


def state_cell(state: str) -> Cell:
    symbol, role, _ = STATES[state]
    return symbol, role


def rate_text(rate: float | None) -> str:
    """Formats a rate in five columns; "" if unknown, `·` for zero."""
    if rate is None:
        return ""
    if 0 < rate < 9.95:
        return f"{rate:.1f}"
    return short_number(rate) if rate else "·"


def seconds_text(seconds: float) -> str:
    """Formats a duration in few columns: `0.2 s`, `45 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:g} s" if seconds in (0.2, 0.5) else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def trouble_cells(watched: Monitor | WatchedChannel, grey: Role) -> list[Cell]:
    stalled: list[Cell] = [(f" · ✗ {watched.stalled:,} stalled", grey or "bad")] if watched.stalled else []
    still: list[Cell] = [(f" · ! {watched.still:,} not moving", grey or "warn")] if watched.still else []
    return [*stalled, *still]


def rate_cells(figures: str, meter: RateMeter, width: int, grey: Role) -> list[Cell]:
    """Returns figures followed by a sparkline of the last rates, two columns short of `width`."""
    room = width - len(figures)
    return [(figures, grey), (sparkline(meter.rates, max(room - 2, 0)).ljust(room), grey or "accent")]


def inflow_cells(meter: RateMeter, width: int, grey: Role) -> list[Cell]:
    figures = f"in {rate_text(meter.rate) or '…':>5} msg/s  "
    return rate_cells(figures, meter, min(width - 2, 62 + len(figures)), grey)


def _state(state: Callable[[_T], str], sort_key: Callable[[_T], Any]) -> TableColumn[_T]:
    """Returns the column of a state, sorted by rank, then by another key."""
    return TableColumn(
        " ", 1, lambda t: state_cell(state(t)), lambda t: (STATES[state(t)][2], sort_key(t)), key="state"
    )


def _rate(meter: Callable[[_T], RateMeter]) -> TableColumn[_T]:
    return TableColumn(
        "msg/s", 6, lambda t: rate_text(meter(t).rate), lambda t: -(meter(t).rate or 0.0), key="rate", right=True
    )


def _spark(meter: Callable[[_T], RateMeter], width: int) -> TableColumn[_T]:
    return TableColumn("", width, lambda t: (sparkline(meter(t).rates, width), "accent"), key="spark", wide=True)


def _name(title: str, width: int, name: Callable[[_T], str], *, fold: bool = False) -> TableColumn[_T]:
    order = (lambda t: name(t).casefold()) if fold else name
    return TableColumn(title, width, lambda t: name_text(name(t)), order, key="name", grows=True)


def _first(width: int, first: Callable[[_T], int], *, wide: bool | None = None) -> TableColumn[_T]:
    return TableColumn("first", width, lambda t: str(first(t)), first, right=True, wide=wide)


def _sequence(title: str, width: int, sequence: Callable[[_T], int], key: str = "") -> TableColumn[_T]:
    return TableColumn(title, width, lambda t: str(sequence(t)), lambda t: -sequence(t), key=key, right=True)


def _size(size: Callable[[_T], int]) -> TableColumn[_T]:
    return TableColumn("size", 9, lambda t: format_size(size(t)), lambda t: -size(t), right=True)


def channel_rows() -> TableRows[WatchedChannel]:
    columns: Sequence[TableColumn[WatchedChannel]] = (
        _state(lambda c: c.state, lambda c: c.facts.name),
        _name("channel", 14, lambda c: c.facts.name),
        count_column("messages", 9, lambda c: c.facts.messages, zero=True),
        _size(lambda c: c.facts.bytes),
        _first(9, lambda c: c.facts.first, wide=True),
        _sequence("last", 9, lambda c: c.facts.last),
        _rate(lambda c: c.meter),
        _spark(lambda c: c.meter, 16),
        count_column("subs", 5, lambda c: c.facts.subscriptions_count),
        count_column("stalled", 7, lambda c: c.stalled, "bad", wide=True),
        count_column("pending", 8, lambda c: c.pending),
        count_column("lag", 7, lambda c: c.lag, "warn"),
    )
    return TableRows(columns, lambda c: c.facts.name, lambda c: c.facts.name, "name")


def _subscription_name(watched: WatchedServer) -> str:
    facts = watched.facts
    kind = "durable " if facts.durable else "queue " if facts.queue else ""
    return f"{kind}{name_text(facts.name)}"


def subscription_rows(*, channel: bool = True, client: bool = True) -> TableRows[WatchedServer]:
    short = channel and client
    columns: list[TableColumn[WatchedServer]] = [
        # The worst state first, then the largest lag; as one number, because there may be many thousands.
        TableColumn(" ", 1, lambda w: state_cell(w.state), lambda w: (STATES[w.state][2] << 64) - w.lag, key="state")
    ]
    if channel:
        columns.append(TableColumn("channel", 12, lambda w: name_text(w.channel), lambda w: w.channel, grows=True))
    if client:
        columns.append(TableColumn("client", 10, _client, lambda w: w.facts.client_id, grows=True))
    columns += [
        TableColumn("subscription", 16, _subscription_name, _subscription_name, key="name", grows=True),
        _sequence("last sent", 9, lambda w: w.facts.last_sent, "sent"),
        count_column("pending", 8, lambda w: w.facts.pending),
        count_column("at most", 7, lambda w: w.facts.max_in_flight, key="most", zero=True, wide=True),
        TableColumn("ack wait", 8, lambda w: f"{w.facts.ack_wait} s", right=True, wide=True),
        count_column("lag", 7, lambda w: w.lag, "warn"),
        TableColumn("", 8 if short else 20, lambda w: _state_cell(w, short=short), key="doing"),
    ]
    return TableRows(
        columns,
        lambda w: " ".join((w.channel, w.facts.client_id, w.facts.durable, w.facts.queue, w.state)),
        lambda w: (w.channel, w.facts.key),
        "state",
    )


def _client(watched: WatchedServer) -> Cell:
    return name_text(watched.facts.client_id) or ("nobody", "dim")


def _state_cell(watched: WatchedServer, *, short: bool) -> Cell:
    _, role, _ = STATES[watched.state]
    if watched.state != "not moving":
        return watched.state, role
    still = seconds_text(watched.still)
    if not short:
        return f"not moving for {still}", role
    return f"still {still}".replace(" s", "s").replace(" min", "m").replace(" h", "h"), role


@dataclass(slots=True)
class _ClientSums:
    pending: int = 0
    lag: int = 0
    stalled: int = 0
    still: int = 0

    @property
    def state(self) -> str:
        return "stalled" if self.stalled else "not moving" if self.still else "ok"


def client_rows(monitor: Monitor) -> TableRows[LiveClient]:
    """Returns the table of clients. The sums over their subscriptions are computed when a row is shown or sorted."""
    index: dict[str, _ClientSums] = {}
    made = -1

    def sums(client: LiveClient) -> _ClientSums:
        nonlocal made
        if made != monitor.revision:
            made = monitor.revision
            index.clear()
            for each in monitor.subscriptions:
                if not each.facts.offline:
                    found = index.setdefault(each.facts.client_id, _ClientSums())
                    found.pending += each.facts.pending
                    found.lag = max(found.lag, each.lag)
                    found.stalled += each.facts.stalled
                    found.still += each.state == "not moving"
        return index.get(client.id) or _ClientSums()

    columns: Sequence[TableColumn[LiveClient]] = (
        _state(lambda c: sums(c).state, lambda c: c.id),
        _name("client", 16, lambda c: c.id),
        count_column("subs", 5, lambda c: c.subscriptions),
        count_column("stalled", 7, lambda c: sums(c).stalled, "bad"),
        count_column("pending", 8, lambda c: sums(c).pending),
        count_column("worst lag", 9, lambda c: sums(c).lag, "warn", key="lag"),
        TableColumn("heartbeats on", 32, lambda c: name_text(c.hb_inbox), wide=True),
    )
    return TableRows(columns, lambda c: c.id, lambda c: c.id, "name")


def subjects_text(subjects: Sequence[str]) -> str:
    return ", ".join(map(name_text, subjects))


def stream_rows() -> TableRows[WatchedStream]:
    columns: Sequence[TableColumn[WatchedStream]] = (
        _name("stream", 14, lambda s: s.facts.name, fold=True),
        TableColumn("subjects", 14, lambda s: subjects_text(s.facts.subjects), grows=True, wide=True),
        count_column("messages", 10, lambda s: s.facts.messages, zero=True),
        _size(lambda s: s.facts.bytes),
        _first(8, lambda s: s.facts.first),
        _sequence("last", 8, lambda s: s.facts.last),
        count_column("deleted", 7, lambda s: s.facts.deleted),
        _rate(lambda s: s.meter),
        _spark(lambda s: s.meter, 12),
        TableColumn("store", 6, lambda s: name_text(s.facts.storage), lambda s: s.facts.storage, wide=True),
        count_column("R", 2, lambda s: s.facts.replicas, key="replicas", zero=True, wide=True),
        count_column("cons", 5, lambda s: s.facts.consumers),
    )
    return TableRows(columns, lambda s: " ".join((s.facts.name, *s.facts.subjects)), lambda s: s.facts.name, "name")


def consumer_rows() -> TableRows[LiveConsumer]:
    columns: Sequence[TableColumn[LiveConsumer]] = (
        _state(lambda c: c.state, lambda c: c.name),
        _name("consumer", 12, lambda c: c.name, fold=True),
        TableColumn(
            "kind", 14, lambda c: ("durable" if c.durable else "ephemeral") + (" push" if c.push else ""), wide=True
        ),
        TableColumn("only", 10, lambda c: subjects_text(c.filters), grows=True, wide=True),
        _sequence("delivered", 9, lambda c: c.delivered),
        TableColumn("ack floor", 9, lambda c: str(c.ack_floor), lambda c: c.ack_floor, right=True),
        count_column("pending", 8, lambda c: c.pending, "warn"),
        count_column("ack pend", 8, lambda c: c.ack_pending),
        count_column("redeliv", 7, lambda c: c.redelivered),
        count_column("waiting", 7, lambda c: c.waiting),
        TableColumn("", 7, lambda c: (c.state, STATES[c.state][1]), key="doing"),
    )
    return TableRows(columns, lambda c: f"{c.name} {' '.join(c.filters)}", lambda c: c.name, "name")
