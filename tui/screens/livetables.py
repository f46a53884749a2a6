"""Tables of what runs: filtered, sorted, the cursor kept on its row; channels, clients, subscriptions, streams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stantools.notation import format_size
from tui.cells import Cell, Role, name_text, number, short_number, sparkline, text_of
from tui.live.facts import Client, Consumer
from tui.live.jetstream import WatchedStream
from tui.live.monitor import Monitor, Watched, WatchedChannel
from tui.live.source import Meter
from tui.rows import Column, Rows

_T = TypeVar("_T")


@dataclass(frozen=True)
class Field(Generic[_T]):
    """A column and how it is filled.

    Attributes:
        column: The column.
        cell: Returns its cell.
        order: What rows are sorted by, the first first; None if they cannot be.
        wide: It is only shown where there is room.
    """

    column: Column
    cell: Callable[[_T], Cell]
    order: Callable[[_T], Any] | None = None
    wide: bool = False


class LiveRows(Rows[_T]):
    """Rows that are described by their columns.

    Args:
        fields: The columns.
        words: Returns what the filter looks into.
        key: Returns what a thing is known by between two looks.
        order: Key of the column that is sorted by at first.

    Attributes:
        grey: What is shown is old.
    """

    def __init__(
        self, fields: Sequence[Field[_T]], words: Callable[[_T], str], key: Callable[[_T], Hashable], *, order: str
    ) -> None:
        super().__init__({each.column.key: each.order for each in fields if each.order is not None}, order)
        self.grey = False
        self._fields = self._seen = fields
        self._words, self._key = words, key
        self.update()

    def layout(self) -> Sequence[Column]:
        """Returns the columns that there is room for."""
        self._seen = [each for each in self._fields if self.wide or not each.wide]
        return [each.column for each in self._seen]

    def cells(self, row: _T) -> Sequence[Cell]:
        """Returns the cells of a row."""
        cells = [field.cell(row) for field in self._seen]
        return [(text_of(cell), "dim") for cell in cells] if self.grey else cells

    def words(self, thing: _T) -> str:
        """Returns what the filter looks into."""
        return self._words(thing).casefold()

    def key(self, row: _T) -> Hashable:
        """Returns what a thing is known by between two looks."""
        return self._key(row)


#: State -> its symbol, and how bad it is.
STATES: dict[str, tuple[str, Role, int]] = {
    "stalled": ("✗", "bad", 0),
    "not moving": ("!", "warn", 1),
    "behind": ("!", "warn", 2),
    "offline": ("○", "dim", 3),
    "paused": ("‖", "warn", 2),
    "ok": ("✓", "good", 4),
}


def state_cell(state: str) -> Cell:
    """Returns the symbol of a state."""
    symbol, role, _ = STATES[state]
    return symbol, role


def rate_text(rate: float | None) -> str:
    """Writes a rate in five columns; "" for none known, `·` for one that is zero."""
    if rate is None:
        return ""
    if 0 < rate < 9.95:
        return f"{rate:.1f}"
    return short_number(rate) if rate else "·"


def seconds_text(seconds: float) -> str:
    """Writes a duration in few columns: `0.2 s`, `45 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:g} s" if seconds in (0.2, 0.5) else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def zero(value: int, role: Role = "") -> Cell:
    """Writes a number; nothing for 0, so that others are seen."""
    return (number(value), role) if value else ""


def spark(meter: Meter, width: int) -> Cell:
    """Draws the last rates of a counter."""
    return sparkline(meter.rates, width), "accent"


def doing_text(watched: Watched) -> str:
    """Says what a subscription is doing."""
    if watched.state == "not moving":
        return f"not moving for {seconds_text(watched.still)}"
    return watched.state


def channel_rows() -> LiveRows[WatchedChannel]:
    """Returns the table of channels."""
    fields: Sequence[Field[WatchedChannel]] = (
        Field(Column("state", " ", 1), lambda c: state_cell(c.state), lambda c: (STATES[c.state][2], c.facts.name)),
        Field(Column("name", "channel", 14, grows=True), lambda c: name_text(c.facts.name), lambda c: c.facts.name),
        Field(
            Column("messages", "messages", 9, right=True),
            lambda c: number(c.facts.messages),
            lambda c: -c.facts.messages,
        ),
        Field(Column("size", "size", 9, right=True), lambda c: format_size(c.facts.bytes), lambda c: -c.facts.bytes),
        Field(Column("first", "first", 9, right=True), lambda c: str(c.facts.first), lambda c: c.facts.first, True),
        Field(Column("last", "last", 9, right=True), lambda c: str(c.facts.last), lambda c: -c.facts.last),
        Field(
            Column("rate", "msg/s", 6, right=True),
            lambda c: rate_text(c.meter.rate),
            lambda c: -(c.meter.rate or 0.0),
        ),
        Field(Column("spark", "", 16), lambda c: spark(c.meter, 16), None, True),
        Field(
            Column("subs", "subs", 5, right=True),
            lambda c: zero(c.facts.subscriptions_count),
            lambda c: -c.facts.subscriptions_count,
        ),
        Field(
            Column("stalled", "stalled", 7, right=True), lambda c: zero(c.stalled, "bad"), lambda c: -c.stalled, True
        ),
        Field(
            Column("pending", "pending", 8, right=True),
            lambda c: zero(c.pending),
            lambda c: -c.pending,
        ),
        Field(Column("lag", "lag", 7, right=True), lambda c: zero(c.lag, "warn"), lambda c: -c.lag),
    )
    return LiveRows(fields, lambda c: c.facts.name, lambda c: c.facts.name, order="name")


def _who(watched: Watched) -> str:
    facts = watched.facts
    kind = "durable " if facts.durable else "queue " if facts.queue else ""
    return f"{kind}{name_text(facts.name)}"


def subscription_rows(*, channel: bool = True, client: bool = True) -> LiveRows[Watched]:
    """Returns a table of subscriptions.

    Args:
        channel: With their channels.
        client: With their clients.
    """
    fields: list[Field[Watched]] = [
        # The worst first, then who is furthest behind; as one number, because there may be many thousands.
        Field(Column("state", " ", 1), lambda w: state_cell(w.state), lambda w: (STATES[w.state][2] << 64) - w.lag)
    ]
    if channel:
        fields.append(
            Field(Column("channel", "channel", 12, grows=True), lambda w: name_text(w.channel), lambda w: w.channel)
        )
    if client:
        fields.append(
            Field(
                Column("client", "client", 10, grows=True),
                lambda w: name_text(w.facts.client_id) or ("nobody", "dim"),
                lambda w: w.facts.client_id,
            )
        )
    fields += [
        Field(Column("name", "subscription", 16, grows=True), _who, _who),
        Field(
            Column("sent", "last sent", 9, right=True), lambda w: str(w.facts.last_sent), lambda w: -w.facts.last_sent
        ),
        Field(Column("pending", "pending", 8, right=True), lambda w: zero(w.facts.pending), lambda w: -w.facts.pending),
        Field(
            Column("most", "at most", 7, right=True),
            lambda w: number(w.facts.max_in_flight),
            lambda w: -w.facts.max_in_flight,
            True,
        ),
        Field(Column("wait", "ack wait", 8, right=True), lambda w: f"{w.facts.ack_wait} s", None, True),
        Field(Column("lag", "lag", 7, right=True), lambda w: zero(w.lag, "warn"), lambda w: -w.lag),
        Field(
            Column("doing", "", 8 if channel and client else 20),
            lambda w: _doing(w, short=channel and client),
            None,
        ),
    ]
    return LiveRows(
        fields,
        lambda w: " ".join((w.channel, w.facts.client_id, w.facts.durable, w.facts.queue, w.state)),
        lambda w: (w.channel, w.facts.key),
        order="state",
    )


def _doing(watched: Watched, *, short: bool) -> Cell:
    _, role, _ = STATES[watched.state]
    if not short:
        return doing_text(watched), role
    if watched.state == "not moving":
        return f"still {seconds_text(watched.still)}".replace(" s", "s").replace(" min", "m").replace(" h", "h"), role
    return watched.state, role


def client_rows(monitor: Monitor) -> LiveRows[Client]:
    """Returns the table of clients. What their subscriptions do is looked up when a row is seen or sorted by."""
    index: dict[str, tuple[int, int, int, int]] = {}
    made = -1

    def sums(client: Client) -> tuple[int, int, int, int]:
        nonlocal made
        if made != monitor.revision:
            made = monitor.revision
            index.clear()
            for each in monitor.subscriptions:
                if each.facts.offline:
                    continue
                pending, lag, stalled, still = index.get(each.facts.client_id, (0, 0, 0, 0))
                index[each.facts.client_id] = (
                    pending + each.facts.pending,
                    max(lag, each.lag),
                    stalled + each.facts.stalled,
                    still + (each.state == "not moving"),
                )
        return index.get(client.id, (0, 0, 0, 0))

    def state(client: Client) -> str:
        _, _, stalled, still = sums(client)
        return "stalled" if stalled else "not moving" if still else "ok"

    fields: Sequence[Field[Client]] = (
        Field(Column("state", " ", 1), lambda c: state_cell(state(c)), lambda c: (STATES[state(c)][2], c.id)),
        Field(Column("name", "client", 16, grows=True), lambda c: name_text(c.id), lambda c: c.id),
        Field(Column("subs", "subs", 5, right=True), lambda c: zero(c.subscriptions), lambda c: -c.subscriptions),
        Field(Column("stalled", "stalled", 7, right=True), lambda c: zero(sums(c)[2], "bad"), lambda c: -sums(c)[2]),
        Field(Column("pending", "pending", 8, right=True), lambda c: zero(sums(c)[0]), lambda c: -sums(c)[0]),
        Field(Column("lag", "worst lag", 9, right=True), lambda c: zero(sums(c)[1], "warn"), lambda c: -sums(c)[1]),
        Field(Column("inbox", "heartbeats on", 32), lambda c: name_text(c.hb_inbox), None, True),
    )
    return LiveRows(fields, lambda c: c.id, lambda c: c.id, order="name")


def subjects_text(subjects: Sequence[str]) -> str:
    """Writes subjects one behind the other."""
    return ", ".join(map(name_text, subjects))


def stream_rows() -> LiveRows[WatchedStream]:
    """Returns the table of streams."""
    fields: Sequence[Field[WatchedStream]] = (
        Field(
            Column("name", "stream", 14, grows=True),
            lambda s: name_text(s.facts.name),
            lambda s: s.facts.name.casefold(),
        ),
        Field(Column("subjects", "subjects", 14, grows=True), lambda s: subjects_text(s.facts.subjects), None, True),
        Field(
            Column("messages", "messages", 10, right=True),
            lambda s: number(s.facts.messages),
            lambda s: -s.facts.messages,
        ),
        Field(Column("size", "size", 9, right=True), lambda s: format_size(s.facts.bytes), lambda s: -s.facts.bytes),
        Field(Column("first", "first", 8, right=True), lambda s: str(s.facts.first), lambda s: s.facts.first),
        Field(Column("last", "last", 8, right=True), lambda s: str(s.facts.last), lambda s: -s.facts.last),
        Field(Column("deleted", "deleted", 7, right=True), lambda s: zero(s.facts.deleted), lambda s: -s.facts.deleted),
        Field(
            Column("rate", "msg/s", 6, right=True), lambda s: rate_text(s.meter.rate), lambda s: -(s.meter.rate or 0.0)
        ),
        Field(Column("spark", "", 12), lambda s: spark(s.meter, 12), None, True),
        Field(Column("storage", "store", 6), lambda s: name_text(s.facts.storage), lambda s: s.facts.storage, True),
        Field(
            Column("replicas", "R", 2, right=True), lambda s: str(s.facts.replicas), lambda s: -s.facts.replicas, True
        ),
        Field(Column("subs", "cons", 5, right=True), lambda s: zero(s.facts.consumers), lambda s: -s.facts.consumers),
    )
    return LiveRows(fields, lambda s: " ".join((s.facts.name, *s.facts.subjects)), lambda s: s.facts.name, order="name")


def _kind(consumer: Consumer) -> Cell:
    return ("durable" if consumer.durable else "ephemeral") + (" push" if consumer.push else "")


def consumer_rows() -> LiveRows[Consumer]:
    """Returns the table of consumers."""
    fields: Sequence[Field[Consumer]] = (
        Field(Column("state", " ", 1), lambda c: state_cell(c.state), lambda c: (STATES[c.state][2], c.name)),
        Field(Column("name", "consumer", 12, grows=True), lambda c: name_text(c.name), lambda c: c.name.casefold()),
        Field(Column("kind", "kind", 14), _kind, None, True),
        Field(Column("filter", "only", 10, grows=True), lambda c: subjects_text(c.filters), None, True),
        Field(Column("delivered", "delivered", 9, right=True), lambda c: str(c.delivered), lambda c: -c.delivered),
        Field(Column("floor", "ack floor", 9, right=True), lambda c: str(c.ack_floor), lambda c: c.ack_floor),
        Field(Column("pending", "pending", 8, right=True), lambda c: zero(c.pending, "warn"), lambda c: -c.pending),
        Field(Column("acks", "ack pend", 8, right=True), lambda c: zero(c.ack_pending), lambda c: -c.ack_pending),
        Field(Column("again", "redeliv", 7, right=True), lambda c: zero(c.redelivered), lambda c: -c.redelivered),
        Field(Column("waiting", "waiting", 7, right=True), lambda c: zero(c.waiting), lambda c: -c.waiting),
        Field(Column("doing", "", 7), _consumer_doing, None),
    )
    return LiveRows(fields, lambda c: f"{c.name} {' '.join(c.filters)}", lambda c: c.name, order="name")


def _consumer_doing(consumer: Consumer) -> Cell:
    return consumer.state, STATES[consumer.state][1]
