"""Monitoring data of a streaming server, in the shape and order of the original.

Facts: server-operations.md section 14.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.streaming.names import text
from broker.streaming.streaming_options import VERSION
from stantools.notation import format_moment, format_uptime

if TYPE_CHECKING:
    from broker.streaming.server import StreamingServer
    from broker.streaming.state import Channel, ChannelSubscription, StreamingSession
    from stantools.store.limits import ChannelLimits

#: default length of a list
DEFAULT_LIMIT: Final = 1024

Json = dict[str, Any]


def serverz(server: StreamingServer) -> Json:
    now = server.clock.wall()
    messages, size = _totals(server)
    statistics = server.statistics
    view: Json = {
        "cluster_id": _cluster_id(server),
        "server_id": server.server_id,
        "version": VERSION,
        "go": f"python{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
        "state": server.state,
        **({} if server.member is None else {"role": server.member.role, "node_id": server.member.node_id}),
        "now": format_moment(now),
        "start_time": format_moment(server.started_at),
        "uptime": format_uptime(now - server.started_at),
        "clients": len(server.clients),
        "subscriptions": sum(_count(channel) for channel in server.channels),
        "channels": len(server.channels),
        "total_msgs": messages,
        "total_bytes": size,
        "in_msgs": statistics.in_msgs,
        "in_bytes": statistics.in_bytes,
        "out_msgs": statistics.out_msgs,
        "out_bytes": statistics.out_bytes,
    }
    view |= _descriptors()
    return view


def counters(server: StreamingServer) -> tuple[int, int]:
    """Returns the numbers of messages received and delivered."""
    return server.statistics.in_msgs, server.statistics.out_msgs


def storez(server: StreamingServer) -> Json:
    """Returns the store's state and its limits, after inheritance."""
    messages, size = _totals(server)
    limits = server.store.limits
    shown: Json = {"max_channels": limits.max_channels} | _limits(limits.channel)
    if limits.per_channel:
        shown["channels"] = {name: _limits(limits.limits_for(name)) for name in sorted(limits.per_channel)}
    return {
        "cluster_id": _cluster_id(server),
        "server_id": server.server_id,
        "now": format_moment(server.clock.wall()),
        "type": server.store.kind,
        "limits": shown,
        "total_msgs": messages,
        "total_bytes": size,
    }


def clientsz(server: StreamingServer, offset: int = 0, limit: int = DEFAULT_LIMIT, subs: bool = False) -> Json:
    """Returns a page of the clients, by id; `subs` adds their subscriptions."""
    page, head = _page(server, sorted(server.clients, key=lambda each: each.id), offset, limit)
    return head | {"clients": [_client(each, subs) for each in page]}


def client(server: StreamingServer, client_id: bytes, subs: bool = False) -> Json | None:
    found = server.clients.get(client_id)
    return None if found is None else _client(found, subs)


def channelsz(server: StreamingServer, offset: int = 0, limit: int = DEFAULT_LIMIT, subs: bool = False) -> Json:
    """Returns a page of the channels, by name; `subs` adds all their details."""
    page, head = _page(server, sorted(server.channels, key=lambda each: each.name), offset, limit)
    if page and subs:
        head["channels"] = [_channel(each, subs=True) for each in page]
    elif page:
        head["names"] = [text(each.name) for each in page]
    return head


def channel(server: StreamingServer, name: bytes, subs: bool = False) -> Json | None:
    found = server.channels.get(name)
    return None if found is None else _channel(found, subs=subs)


def _cluster_id(server: StreamingServer) -> str:
    """Returns the cluster id, which a server on standby does not show."""
    return "" if server.state == "FT_STANDBY" else configured_cluster_id(server)


def configured_cluster_id(server: StreamingServer) -> str:
    """Returns the cluster id of the configuration, which connects the metrics of all servers of a group."""
    return text(server.options.cluster_id)


def _page(server: StreamingServer, everything: list[Any], offset: int, limit: int) -> tuple[list[Any], Json]:
    offset = max(offset, 0)
    limit = limit if limit > 0 else DEFAULT_LIMIT
    page = everything[offset : offset + limit]
    return page, {
        "cluster_id": _cluster_id(server),
        "server_id": server.server_id,
        "now": format_moment(server.clock.wall()),
        "offset": offset,
        "limit": limit,
        "count": len(page),
        "total": len(everything),
    }


def _client(shown: StreamingSession, subs: bool) -> Json:
    view: Json = {
        "id": text(shown.id),
        "hb_inbox": text(shown.info.hb_inbox),
        "subs_count": len(shown.subscriptions),
    }
    if subs and shown.subscriptions:
        by_channel: dict[str, list[Json]] = {}
        for subscription in sorted(shown.subscriptions, key=lambda each: each.channel.name):
            by_channel.setdefault(text(subscription.channel.name), []).append(_subscription(subscription))
        view["subscriptions"] = by_channel
    return view


def _channel(shown: Channel, *, subs: bool) -> Json:
    messages = shown.messages
    view: Json = {
        "name": text(shown.name),
        "msgs": messages.count,
        "bytes": messages.bytes,
        "first_seq": messages.first,
        "last_seq": messages.last,
        "subs_count": _count(shown),
    }
    if subs and (subscriptions := [_subscription(each) for each in shown.subscriptions()]):
        view["subscriptions"] = subscriptions
    return view


def _subscription(shown: ChannelSubscription) -> Json:
    state = shown.state
    view: Json = {
        "client_id": text(shown.last_client_id),
        "inbox": text(state.inbox),
        "ack_inbox": text(state.ack_inbox),
    }
    if state.durable_name:
        view["durable_name"] = text(state.durable_name)
    if state.q_group:
        view["queue_name"] = text(state.q_group)
    return view | {
        "is_durable": state.is_durable,
        "is_offline": not shown.active,
        "max_inflight": state.max_in_flight,
        "ack_wait": state.ack_wait_in_secs,
        "last_sent": shown.last_sent,
        "pending_count": len(shown.pending),
        "is_stalled": shown.stalled,
    }


def _count(shown: Channel) -> int:
    """Returns the number of active subscriptions, offline durables and offline durable groups."""
    offline = sum(not each.active for each in shown.durables.values())
    shadows = sum(group.shadow is not None for group in shown.groups.values())
    return len(shown.by_ack_inbox) + offline + shadows


def _totals(server: StreamingServer) -> tuple[int, int]:
    return (
        sum(each.messages.count for each in server.channels),
        sum(each.messages.bytes for each in server.channels),
    )


def _limits(limits: ChannelLimits) -> Json:
    return {
        "max_msgs": limits.max_msgs,
        "max_bytes": limits.max_bytes,
        "max_age": limits.max_age_ns,
        "max_subscriptions": limits.max_subs,
        "max_inactivity": limits.max_inactivity_ns,
    }


def _descriptors() -> Json:
    """Returns open files and their limit, if the system reports them."""
    view: Json = {}
    try:
        if count := sum(1 for _ in Path("/proc/self/fd").iterdir()):
            view["open_fds"] = count
        if (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) > 0:
            view["max_fds"] = limit
    except OSError:
        pass
    return view
