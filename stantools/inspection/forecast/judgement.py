"""What a forecast comes to: is a start harmless, which data would it destroy, and all of it in one sentence."""

from __future__ import annotations

from stantools.escaping import escape
from stantools.inspection.forecast.model import ChannelForecast, Forecast, Harm
from stantools.notation import counted
from stantools.store.sublog import SubStatus


def losses(forecast: Forecast) -> list[str]:
    """Returns the files that a start would shorten or remove, indexes that are rebuilt aside."""
    lost = []
    for path, (before, after) in forecast.files_changed().items():
        if path.endswith(".dat") and before is not None and (after is None or after < before):
            lost.append(path)
    return lost


def stalling(forecast: Forecast) -> list[ChannelForecast]:
    """Returns the channels in which some message could not be delivered, or not the right one."""
    return [
        channel
        for channel in forecast.channels.values()
        if channel.stalls_at is not None or channel.lookups.failing or channel.lookups.wrong
    ]


def harmless(forecast: Forecast) -> bool:
    """Tells whether a start works, destroys nothing, keeps every durable, and can deliver every message."""
    loses = losses(forecast) or forecast.destroys or ghosts(forecast)
    return forecast.starts and forecast.recovered and not stalling(forecast) and not loses


def ghosts(forecast: Forecast) -> int:
    """Returns how many durable queue members a start would delete."""
    return sum(len(channel.subscriptions.having(SubStatus.GHOST)) for channel in forecast.channels.values())


def sentence(forecast: Forecast) -> str:
    """Says in one sentence what the server would do if it were started now.

    Names in it are safe to show.
    """
    if not forecast.starts:
        reason = f": {escape(forecast.error)}" if forecast.error else ""
        return f"Started now, the server would exit with code {forecast.exit_code}{reason}"
    if not forecast.recovered:
        return "Started now, the server would begin anew as if the store were empty"
    parts = []
    if lost := losses(forecast):
        parts.append(f"cut or remove {counted(len(lost), 'file')}, {escape(lost[0])} first")
    if anew := [loss for loss in forecast.destroys if loss.how is Harm.ANEW]:
        where = f"{escape(anew[0].channel)} from sequence {anew[0].at} on"
        parts.append(f"give sequences of {counted(len(anew), 'channel')} a second time: {where}")
    stalled = stalling(forecast)
    stops = [channel for channel in stalled if channel.stalls_at is not None]
    if stops:
        first = stops[0]
        where = f"{escape(first.name)} at sequence {first.stalls_at}"
        parts.append(f"stall in {counted(len(stops), 'channel')}: {where}")
    elif stalled:
        parts.append(f"fail to deliver messages of {counted(len(stalled), 'channel')}, {escape(stalled[0].name)} first")
    if deleted := ghosts(forecast):
        parts.append(f"delete {counted(deleted, 'durable queue member')} whose client is gone")
    if not parts:
        return "Started now, the server would start and deliver every message"
    return f"Started now, the server would start, and would {'; it would '.join(parts)}"
