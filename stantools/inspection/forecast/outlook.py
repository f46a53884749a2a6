"""What a start would mean for a single subscription, in words."""

from __future__ import annotations

from stantools.escaping import escape
from stantools.inspection.forecast.model import ChannelForecast, Forecast
from stantools.inspection.subscribers import Subscriber
from stantools.store.sublog import SubStatus

_KEPT = {
    SubStatus.OFFLINE_DURABLE: "kept, and offline until its client comes back",
    SubStatus.SHADOW: "kept: it holds the position of its queue group until a member comes back",
    SubStatus.GHOST: "deleted from subs.dat, because its client is not in clients.dat",
    SubStatus.ORPHAN: "dropped, because its client is not in clients.dat; its records stay in the file",
}


def subscription_outlook(forecast: Forecast, channel: str, number: int) -> str:
    """Says in one sentence what a start would make of a subscription.

    Names in it are safe to show.

    Args:
        forecast: What the start would do.
        channel: Name of the channel.
        number: Id of the subscription.
    """
    if not forecast.starts:
        reason = f": {escape(forecast.error)}" if forecast.error else ""
        return f"the server does not start{reason}"
    found = forecast.channels.get(channel) if forecast.recovered else None
    if found is None:
        return "not seen: the server begins anew" if not forecast.recovered else "not seen: the channel is not"
    one = next(iter(found.subscriptions.with_ids([number])), None)
    if one is None:
        return "not seen: its records lie behind the place where the server stops reading"
    if one.status in _KEPT:
        return _KEPT[one.status]
    return _delivery(found, one)


def _delivery(channel: ChannelForecast, one: Subscriber) -> str:
    group = (one.state.q_group, one.state.is_durable)
    # The members of a queue group go on behind what was sent to any of them.
    same = (each for each in channel.subscriptions if group[0] and (each.state.q_group, each.state.is_durable) == group)
    sent = max((each.state.last_sent for each in same), default=one.state.last_sent)
    again = f"{len(one.pending)} pending sent again, " if one.pending else ""
    stop = channel.stalls_at
    if stop is not None and (stop > sent or stop in one.pending):
        return f"kept; {again}delivery stops at {stop}: {escape(channel.stall_error) or 'it cannot be read'}"
    if sent > channel.last_seq:
        return f"kept; {again}nothing new before sequence {sent + 1}, and the last message is {channel.last_seq}"
    if sent == channel.last_seq:
        return f"kept; {again}then what is published next"
    return f"kept; {again}then from {max(sent + 1, channel.first_seq)} on"
