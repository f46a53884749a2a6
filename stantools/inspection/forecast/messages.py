"""From a recovered state to a whole forecast: what the messages give, and what happens to subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from stantools.format.crc import Crc
from stantools.inspection.forecast.access import owner_of
from stantools.inspection.forecast.behind import destroyed
from stantools.inspection.forecast.changes import Append, Change
from stantools.inspection.forecast.channel import RecoveredChannel
from stantools.inspection.forecast.datascan import DataScan
from stantools.inspection.forecast.delivery import complete
from stantools.inspection.forecast.lookup import lookup_slice, unite, wanted_of_slices
from stantools.inspection.forecast.model import (
    ChannelForecast,
    Forecast,
    Lookups,
    ServerOptions,
    SubscriptionForecast,
)
from stantools.inspection.forecast.recover import Start, recover
from stantools.inspection.forecast.slices import Recovery
from stantools.inspection.forecast.startup import restore_subscriptions, start_delivery
from stantools.inspection.forecast.tasks import Task, in_order
from stantools.progress import Progress
from stantools.store.directory import SUBS_FILE, Datastore
from stantools.store.sublog import classify

_Found = tuple[Lookups, Lookups | None]


def forecast(
    store: Datastore,
    options: ServerOptions | None = None,
    *,
    truncate: bool = False,
    lookups: bool = True,
    progress: Progress | None = None,
) -> Forecast:
    """Predicts what the server does with a store if it is started now.

    Args:
        store: The store.
        options: How the server would be started.
        truncate: With its truncate option.
        lookups: Also find out which messages can be read, which means reading them all. Without, only what the server
            itself reads at start is read; what can be read and delivered stays empty.
        progress: Is told how many bytes of data files were dealt with.

    Raises:
        StoreUnreadableError: A file of the store cannot be read, although the server's user may.
    """
    recovery = _recovery(store, options or ServerOptions(), truncate)
    return _finish(recovery, store, recover(recovery, store), lookups, progress)


def forecast_both(
    store: Datastore,
    options: ServerOptions | None = None,
    *,
    lookups: bool = True,
    progress: Progress | None = None,
) -> tuple[Forecast, Forecast]:
    """Predicts a start without and one with the truncate option; what is the same in both is read once.

    The arguments and errors are those of `forecast`.
    """
    normal = _recovery(store, options or ServerOptions(), False)
    with_option = _recovery(store, options or ServerOptions(), True, normal.scans)
    one, two = recover(normal, store), recover(with_option, store)
    first = _finish(normal, store, one, lookups, progress)
    known = {_key(channel): first.channels[channel.name] for channel in one.channels if first.starts}
    return first, _finish(with_option, store, two, lookups, progress, known)


def _recovery(
    store: Datastore, options: ServerOptions, truncate: bool, scans: dict[Path, DataScan] | None = None
) -> Recovery:
    access = options.access or owner_of(store.path)
    return Recovery(store.path, options, Crc(options.polynomial), access, truncate, {} if scans is None else scans)


_Known = dict[tuple[object, ...], ChannelForecast]


def _key(channel: RecoveredChannel) -> tuple[object, ...]:
    """What the answers to lookups depend on."""
    return (
        channel.name,
        *((each.number, each.data_file, each.data_end, each.index, each.rows, each.removed) for each in channel.slices),
    )


def _finish(
    recovery: Recovery,
    store: Datastore,
    start: Start,
    lookups: bool,
    progress: Progress | None,
    known: _Known | None = None,
) -> Forecast:
    """Adds what is destroyed, and the channels, to the forecast of a recovery."""
    result = start.forecast
    result.destroys = destroyed(recovery, store, start)
    if not result.starts:
        return result
    for channel, found in _look_up(recovery, start, lookups, progress, known or {}):
        result.channels[channel.name] = _channel_forecast(channel, found, result)
    sizes = {channel.name: channel.subs_size for channel in start.channels}
    appended = dict.fromkeys(sizes, 0)
    for step in (restore_subscriptions, start_delivery) if lookups else (restore_subscriptions,):
        for each in result.channels.values():
            startup = step(each)
            result.log += startup.log
            appended[each.name] += startup.appended
    for name, count in appended.items():
        if count:
            file = f"{name}/{SUBS_FILE}"
            result.run_changes[file] = Change(file, sizes[name], sizes[name] + count, Append())
    return result


def _look_up(
    recovery: Recovery, start: Start, lookups: bool, progress: Progress | None, known: _Known
) -> Iterator[tuple[RecoveredChannel, _Found]]:
    """Looks up the messages of all channels, slice by slice in threads."""
    waiting: list[_Found] = []
    for channel, found in in_order(_tasks(recovery, start, lookups, progress, known), recovery.options.workers):
        if found is not None:
            waiting.append(found)
        if channel is not None:
            yield channel, unite(waiting) if waiting else (Lookups(), None)
            waiting = []


#: The channel if it was the last of its slices, and what was found.
_Part = tuple[RecoveredChannel | None, _Found | None]


def _tasks(
    recovery: Recovery, start: Start, lookups: bool, progress: Progress | None, known: _Known
) -> Iterator[Task[_Part]]:
    """One task for each slice; the last one of a channel gives the channel."""
    for channel in start.channels:
        if not lookups or not channel.slices:
            yield Task(0, partial(_same, channel, None))
        elif (same := known.get(_key(channel))) is not None:
            yield Task(0, partial(_same, channel, (same.lookups, same.alone)))
        else:
            last = channel.slices[-1]
            for each, wanted in zip(channel.slices, wanted_of_slices(channel.slices), strict=True):
                work = partial(lookup_slice, recovery, channel.raw_name, each, wanted, progress)
                yield Task(each.data_size, partial(_slice_task, work, channel if each is last else None))


def _same(channel: RecoveredChannel, found: _Found | None) -> _Part:
    return channel, found


def _slice_task(work: Callable[[], _Found], channel: RecoveredChannel | None) -> _Part:
    return channel, work()


def _channel_forecast(channel: RecoveredChannel, found: _Found, result: Forecast) -> ChannelForecast:
    totals = channel.totals
    subscriptions = [
        SubscriptionForecast(each.state, tuple(sorted(each.pending)), classify(each.state, result.clients))
        for _, each in sorted(channel.subs.subscriptions.items())
    ]
    forecast = ChannelForecast(
        channel.name,
        totals.first,
        totals.last,
        totals.count,
        totals.bytes,
        found[0],
        found[1],
        subscriptions=subscriptions,
    )
    complete(forecast)
    return forecast
