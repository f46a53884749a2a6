"""The figures of a server in a few lines: who it is, what goes in and out, what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stantools.notation import format_size
from tui.cells import Cell, Role, counted, cut, name_text, sparkline
from tui.live.documents import Server
from tui.live.history import Meter
from tui.live.monitor import Monitor
from tui.live.streams import Streams
from tui.screens.livecells import rate_text

#: State of a server -> how good that is.
_ROLES: dict[str, Role] = {
    "STANDALONE": "good",
    "CLUSTERED": "good",
    "FT_ACTIVE": "good",
    "FT_STANDBY": "warn",
    "FAILED": "bad",
    "SHUTDOWN": "bad",
}


def server_head(monitor: Monitor, width: int) -> Iterable[Sequence[Cell]]:
    """Gives the lines about a streaming server."""
    server = monitor.server
    if server is None:
        if monitor.problem is None:
            yield [("asking ", "dim"), monitor.address.shown]
        return
    grey: Role = "dim" if monitor.problem is not None else ""
    yield _who(monitor, server, width, grey)
    yield [
        *_flow("in ", monitor.rates.in_messages, monitor.rates.in_bytes, width // 2, grey),
        *_flow("out", monitor.rates.out_messages, monitor.rates.out_bytes, width // 2, grey),
    ]
    totals = f"{counted(server.messages, 'message')}, {format_size(server.bytes)}"
    yield [(totals, grey), *_troubled(monitor, grey)]
    if width >= 110:
        yield [(_limits(monitor, server), "dim")]
    if server.state == "FT_STANDBY":
        yield [("stand-by: it shows nothing of the store until it becomes active", "warn")]
    elif server.role and server.role != "Leader":
        yield [(f"{name_text(server.role)}: subscriptions are at work at the leader of the cluster", "warn")]


def _who(monitor: Monitor, server: Server, width: int, grey: Role) -> Sequence[Cell]:
    state = name_text(server.state) or "state unknown"
    if server.role:
        state += f" {name_text(server.role)}"
    role = grey or _ROLES.get(server.state, "warn")
    cells: list[Cell] = [
        (name_text(server.cluster_id) or "(no cluster id)", grey or "strong"),
        "  ",
        (state, role),
        (f"  {name_text(server.version) or 'version unknown'}", grey),
    ]
    if server.node_id:
        cells.append((f"  node {name_text(server.node_id)}", grey))
    if monitor.store is not None and monitor.store.kind:
        cells.append((f"  {name_text(monitor.store.kind)} store", grey))
    if server.uptime:
        cells.append((f"  up {name_text(server.uptime)}", grey))
    if width >= 100:
        cells.append((f"  id {cut(name_text(server.server_id), 40)}", "dim"))
    return cells


def _flow(title: str, messages: Meter, size: Meter, width: int, grey: Role) -> Sequence[Cell]:
    rate = f"{rate_text(messages.rate) or '…':>5} msg/s"
    amount = f"{format_size(int(size.rate or 0))}/s"
    figures = f"{title} {rate} {amount:>12} "
    line = sparkline(messages.rates, max(width - len(figures) - 2, 0))
    return [(figures, grey), (line.ljust(width - len(figures)), grey or "accent")]


def _troubled(monitor: Monitor, grey: Role) -> Sequence[Cell]:
    cells: list[Cell] = []
    if monitor.stalled:
        cells.append((f" · ✗ {monitor.stalled:,} stalled", grey or "bad"))
    if monitor.still:
        cells.append((f" · ! {monitor.still:,} not moving", grey or "warn"))
    return cells


def _limits(monitor: Monitor, server: Server) -> str:
    parts = []
    store, nats = monitor.store, monitor.nats
    if store is not None:
        limits = [
            f"{store.most_channels:,} channels" if store.most_channels else "",
            f"{store.most_messages:,} messages" if store.most_messages else "",
            f"{format_size(store.most_bytes)} in each" if store.most_bytes else "",
        ]
        parts.append("limits: " + (", ".join(filter(None, limits)) or "none"))
    if server.open_files:
        most = f" of {server.most_files:,}" if server.most_files else ""
        parts.append(f"{server.open_files:,}{most} files open")
    if nats is not None:
        parts.append(
            f"NATS {name_text(nats.version)}: {counted(nats.connections, 'connection')}, {format_size(nats.memory)}, "
            f"{nats.cpu:.0f}% CPU"
            + (f", {counted(nats.slow_consumers, 'slow consumer')}" if nats.slow_consumers else "")
        )
    return " · ".join(parts)


def account_head(streams: Streams, width: int) -> Iterable[Sequence[Cell]]:
    """Gives the lines about a JetStream account."""
    account = streams.account
    if account is None:
        if streams.problem is None:
            yield [("asking ", "dim"), name_text(streams.url)]
        return
    grey: Role = "dim" if streams.problem is not None else ""
    cells: list[Cell] = [("JetStream", grey or "strong"), (f" of {name_text(streams.url)}", grey)]
    if streams.version:
        cells.append((f"  {name_text(streams.version)}", grey))
    if account.domain:
        cells.append((f"  domain {name_text(account.domain)}", grey))
    if width >= 100 and streams.server:
        cells.append((f"  {cut(name_text(streams.server), 60)}", "dim"))
    yield cells
    used = [
        _of("storage", format_size(account.storage), account.most_storage and format_size(account.most_storage)),
        _of("memory", format_size(account.memory), account.most_memory and format_size(account.most_memory)),
        _of("streams", f"{account.streams:,}", account.most_streams and f"{account.most_streams:,}"),
        _of("consumers", f"{account.consumers:,}", account.most_consumers and f"{account.most_consumers:,}"),
    ]
    yield [(" · ".join(used), grey)]


def _of(what: str, used: str, most: str | int) -> str:
    return f"{what} {used} of {most}" if most else f"{what} {used}"
