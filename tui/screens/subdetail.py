"""The details of a subscription, queue group or client, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stantools.browse.log_history import LogLoss
from stantools.inspection.forecast.channel_forecast import Forecast
from stantools.inspection.forecast.startup import subscription_outlook
from stantools.inspection.subscribers import Subscriber, first_ranges
from stantools.store.sublog import SubStatus
from tui.cells import Cell, counted, name_text, number
from tui.screens.subrows import CLIENT_STATUS, STATUS, ClientRow, ConsumerRow, GroupRow, Row, SubscriptionRow

#: Maximum numbers of ranges of pending messages, and of channels of a client.
_RANGES, _CHANNELS = 60, 40

_STATUS_WORDS = {
    SubStatus.ACTIVE: "active",
    SubStatus.OFFLINE_DURABLE: "offline",
    SubStatus.SHADOW: "without members",
    SubStatus.GHOST: "ghost: its client is not in clients.dat",
    SubStatus.ORPHAN: "orphan: its client is not in clients.dat",
}

Lines = Iterator[Sequence[Cell]]


def detail(row: Row, forecast: Forecast | None) -> Lines:
    """Yields the lines about a row. `forecast` is that of a normal start, if known."""
    if isinstance(row, SubscriptionRow):
        yield from _subscription(row, forecast)
    elif isinstance(row, GroupRow):
        yield from _group(row, forecast)
    elif isinstance(row, ConsumerRow):
        yield from _consumer(row)
    else:
        yield from _client(row)


def _field(label: str, *cells: Cell) -> Sequence[Cell]:
    return [(f"{label:<12} ", "dim"), *cells]


def _subscription(row: SubscriptionRow, forecast: Forecast | None) -> Lines:
    one, state, channel = row.one, row.one.state, row.channel
    symbol, role = STATUS[one.status]
    closed = ", closed" if state.is_closed else ""
    known = _STATUS_WORDS[one.status]
    yield [
        (f"{symbol} subscription {state.id}", "strong"),
        f" of {name_text(channel.name)}: ",
        (f"{one.kind}{closed}, {known}", role),
    ]
    yield _field("client", name_text(state.client_id) or ("none", "dim"))
    if one.name:
        yield _field("queue group" if state.q_group else "durable", name_text(one.name))
    lag = f", {counted(one.lag, 'message')} behind" if one.lag else ""
    yield _field("last sent", number(state.last_sent), f" of {number(channel.last_seq)}{lag}")
    yield _pending(one.pending)
    limit: list[Cell] = [f"{number(state.max_in_flight)} in flight, {state.ack_wait_in_secs} s to acknowledge"]
    if one.at_limit:
        limit.append(("; the limit is reached: the next message waits for an acknowledgement", "warn"))
    yield _field("limits", *limit)
    yield _field("at a start", *_start(forecast, channel.name, one))
    yield _field("inbox", name_text(state.inbox) or ("none", "dim"))
    yield _field("ack inbox", name_text(state.ack_inbox) or ("none", "dim"))
    if state.q_group and state.durable_name:
        yield _field("durable", name_text(state.durable_name))


def _pending(pending: Sequence[int]) -> Sequence[Cell]:
    if not pending:
        return _field("pending", ("nothing", "dim"))
    ranges = first_ranges(pending, _RANGES)
    written = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    rest = len(pending) - sum(last - first + 1 for first, last in ranges)
    cells: list[Cell] = [(number(len(pending)), "strong"), f": {written}"]
    if rest:
        cells.append((f" … and {number(rest)} more (p)", "dim"))
    return _field("pending", *cells)


def _start(forecast: Forecast | None, channel: str, one: Subscriber) -> Sequence[Cell]:
    if forecast is None:
        return [("not known yet", "dim")]
    said = subscription_outlook(forecast, channel, one.state.id)
    return [said if said.startswith("kept") else (said, "warn")]


def _group(row: GroupRow, forecast: Forecast | None) -> Lines:
    group, channel = row.group, row.channel
    kind = "durable queue group" if group.durable else "queue group"
    yield [(f"{kind} {name_text(group.name)}", "strong"), f" of {name_text(channel.name)}"]
    away = f", {number(group.away)} away" if group.away else ""
    yield _field("members", f"{number(group.present)} present{away}")
    lag = f", {counted(group.lag, 'message')} behind" if group.lag else ""
    yield _field("last sent", number(group.last_sent), f" of {number(channel.last_seq)}{lag}")
    yield _field("pending", number(group.pending) if group.pending else ("nothing", "dim"))
    for each in group.members:
        symbol, role = STATUS[each.status]
        client = name_text(each.state.client_id) or "no client"
        sent = f"{each.state.id} {client}, sent {number(each.state.last_sent)}: "
        yield [(f"  {symbol} ", role), sent, *_start(forecast, channel.name, each)]


#: members of a consumer's configuration that are listed
_SETTINGS = (
    *("durable_name", "description", "deliver_policy", "ack_policy", "ack_wait", "max_deliver", "max_ack_pending"),
    *("deliver_subject", "deliver_group", "replay_policy", "inactive_threshold"),
)


def _consumer(row: ConsumerRow) -> Lines:
    one, channel = row.one, row.channel
    config, state = one.consumer.config, one.consumer.state
    yield [(f"consumer {name_text(one.consumer.name)}", "strong"), f" of {name_text(channel.name)}: {row.kind}"]
    if state is None:
        yield [("! ", "warn"), "its position cannot be read: see the findings"]
    else:
        last = f" of {number(channel.summary.last_seq)}" if channel.summary else ""
        lag = f", {counted(one.lag, 'message')} behind" if one.lag else ""
        yield _field("delivered", f"{number(state.delivered[1])}{last}{lag}; {number(state.delivered[0])} deliveries")
        yield _field("acknowledged", f"up to {number(state.ack_floor[1])}; {number(state.ack_floor[0])} deliveries")
        yield _pending(row.pending)
        if state.redelivered:
            most = max(state.redelivered.values())
            yield _field("redelivered", counted(len(state.redelivered), "message"), f", one of them {most} times")
    if one.filters:
        yield _field("filter", name_text(", ".join(one.filters)))
    if config is None:
        yield [("! ", "warn"), "its configuration cannot be read: see the findings"]
        return
    for name in _SETTINGS:
        if config.get(name):
            yield _field(name.replace("_", " "), name_text(str(config[name])))


def _client(row: ClientRow) -> Lines:
    client = row.client
    symbol, role = CLIENT_STATUS[client.status]
    yield [(f"{symbol} client {name_text(client.id)}", "strong"), ": ", (client.status.value, role)]
    if client.info is not None:
        info = client.info
        yield _field("heartbeats", name_text(info.hb_inbox))
        yield _field("connection", name_text(info.conn_id) or ("none", "dim"), f"; protocol {info.protocol}")
        if info.ping_interval:
            yield _field("pings", f"every {info.ping_interval} s, given up after {info.ping_max_out} without answer")
    elif client.needed:
        yield [
            (
                f"It is not in clients.dat, so the server would drop {counted(client.needed, 'subscription')}.",
                "warn",
            )
        ]
    else:
        yield ["It has disconnected; its durables wait for it."]
    if not client.channels:
        yield _field("subscribes", ("to nothing", "dim"))
    for place, (name, count) in enumerate(client.channels.items()):
        if place == _CHANNELS:
            yield _field("", (f"… and {counted(len(client.channels) - _CHANNELS, 'more channel')}", "dim"))
            break
        yield _field("" if place else "subscribes", f"{name_text(name)}: {counted(count, 'subscription')}")
    if client.pending:
        yield _field("pending", number(client.pending))


def loss_lines(file: str, problem: str, loss: LogLoss | None, noun: str) -> Lines:
    """Yields the lines about a log that the server does not read completely.

    Args:
        file: Path relative to the store.
        problem: The error, as in the overview.
        loss: The records lost by it; None before they are counted.
        what: Contents of the log: subscription, client.
    """
    refused = loss is None or loss.error
    yield [("✗ ", "bad") if refused else ("! ", "warn"), (f"{name_text(file)}: ", "strong"), problem]
    if loss is not None:
        same = (loss.found, loss.found_records) == (loss.read, loss.read_records)
        found = f"intact: {counted(loss.found, noun)}, {counted(loss.found_records, 'record')}"
        yield [
            f"  server: {counted(loss.read, noun)}, {counted(loss.read_records, 'record')}; ",
            "nothing more is intact" if same else (found, "warn"),
            f"; {counted(loss.repaired, 'damaged record')} can be proven" if loss.repaired else "",
        ]
