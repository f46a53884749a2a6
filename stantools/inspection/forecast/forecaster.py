"""From a recovered state to a complete forecast: readable messages, and deliveries to subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from stantools.inspection.forecast.changes import AppendChange, Change
from stantools.inspection.forecast.channel import RecoveredChannel
from stantools.inspection.forecast.channel_forecast import ChannelForecast, Forecast, Lookups, complete
from stantools.inspection.forecast.lookup import lookup_slice, panic, unite, wanted_of_slices
from stantools.inspection.forecast.losses import destroyed
from stantools.inspection.forecast.recover import ForecastStart, recover
from stantools.inspection.forecast.server_options import SERVER_VERSIONS, ServerOptions, owner_of
from stantools.inspection.forecast.server_reading import DataScan
from stantools.inspection.forecast.slices import RecoveryContext
from stantools.inspection.forecast.sound_slices import SoundSlice
from stantools.inspection.forecast.startup import restore_subscriptions, start_delivery
from stantools.inspection.subscribers import SubscriberList
from stantools.progress import Progress
from stantools.store.directory import SUBS_FILE, Datastore
from stantools.store.logscan import LogState
from stantools.work import ThreadWork, WorkItem


def forecast(
    store: Datastore,
    options: ServerOptions | None = None,
    *,
    truncate: bool = False,
    lookups: bool = True,
    progress: Progress | None = None,
) -> Forecast:
    """Predicts a start of the server on a store, now.

    Without `lookups`, only those bytes are read that the server itself reads at start; readable and delivered
    messages stay empty. `progress` is called with bytes of data files. Raises `StoreUnreadableError` for a file that
    cannot be read, although the server's user may read it.
    """
    return _Forecaster(store, lookups, progress).start(options or ServerOptions(), truncate)


def forecast_both(
    store: Datastore,
    options: ServerOptions | None = None,
    *,
    lookups: bool = True,
    progress: Progress | None = None,
    sound: Iterable[SoundSlice] = (),
) -> tuple[Forecast, Forecast]:
    """Predicts a start without and one with the truncate option; parts that are the same in both are read once.

    `sound`: slices that a survey with the store's CRC found sound; they are not read again unless their size differs.
    """
    return _Forecaster(store, lookups, progress, sound).both(options or ServerOptions())


def forecast_versions(
    store: Datastore, options: ServerOptions, *, progress: Progress | None = None, sound: Iterable[SoundSlice] = ()
) -> list[tuple[Forecast, Forecast]]:
    """Predicts both starts of a server, and those of other versions with another outcome.

    The version of the options comes first. Parts that are the same are read once, `sound` slices (see `forecast_both`)
    not at all.
    """
    forecaster = _Forecaster(store, True, progress, sound)
    result = [forecaster.both(options)]
    if any(start.version_matters for start in result[0]):
        others = (version for version in SERVER_VERSIONS if version != options.version)
        result += [forecaster.both(replace(options, version=version)) for version in others]
    return result


class _Forecaster:
    """Several starts on the same store."""

    def __init__(
        self, store: Datastore, lookups: bool, progress: Progress | None, sound: Iterable[SoundSlice] = ()
    ) -> None:
        self._store = store
        self._lookups = lookups
        self._progress = progress
        self._scans: dict[Path, DataScan] = {}
        self._folds: dict[Path, LogState] = {}
        self._sound = {each.data: each for each in sound}
        self._index_scans = {(each.index, each.index_size): each.scan for each in self._sound.values()}
        self._known: dict[tuple[object, ...], ChannelForecast] = {}

    def both(self, options: ServerOptions) -> tuple[Forecast, Forecast]:
        return self.start(options, False), self.start(options, True)

    def start(self, options: ServerOptions, truncate: bool) -> Forecast:
        access = options.access or owner_of(self._store.path)
        recovery = RecoveryContext(
            self._store.path, options, access, truncate, self._scans, self._folds, self._index_scans, self._sound
        )
        start = recover(recovery, self._store)
        result = start.forecast
        result.destroys = destroyed(recovery, self._store, start)
        if result.starts:
            self._add_channels(recovery, start)
            self._known |= {_key(channel): result.channels[channel.name] for channel in start.channels}
        return result

    def _add_channels(self, recovery: RecoveryContext, start: ForecastStart) -> None:
        """Adds the channels to the forecast of a recovery."""
        result = start.forecast
        waiting: list[_Found] = []
        for channel, found in ThreadWork(recovery.options.workers).tasks(self._tasks(recovery, start)):
            if found is not None:
                waiting.append(found)
            if channel is not None:
                lookups, alone = unite(waiting) if waiting else (Lookups(), None)
                described = _channel_forecast(channel, lookups, alone, result)
                described.overlaid = channel.overlaid(recovery.crc) & described.lookups.readable
                result.channels[channel.name] = described
                waiting = []
        sizes = {channel.name: channel.subs_size for channel in start.channels}
        appended = dict.fromkeys(sizes, 0)
        for step in (restore_subscriptions, start_delivery) if self._lookups else (restore_subscriptions,):
            for each in result.channels.values():
                startup = step(each)
                result.log += startup.log
                appended[each.name] += startup.appended
        for name, count in appended.items():
            if count:
                file = f"{name}/{SUBS_FILE}"
                result.run_changes[file] = Change(file, sizes[name], sizes[name] + count, AppendChange())

    def _tasks(self, recovery: RecoveryContext, start: ForecastStart) -> Iterator[WorkItem[_Part]]:
        """Looks up the messages, one task per slice; the last task of a channel returns the channel."""
        for channel in start.channels:
            if not self._lookups or not channel.slices:
                yield WorkItem(0, partial(_part, channel, None))
            elif channel.unusable:
                yield WorkItem(0, partial(_part, channel, (panic(channel.totals.first, channel.totals.last), None)))
            elif (same := self._known.get(_key(channel))) is not None:
                yield WorkItem(0, partial(_part, channel, (same.lookups, same.alone)))
            else:
                last = channel.slices[-1]
                for each, wanted in zip(channel.slices, wanted_of_slices(channel.slices), strict=True):
                    work = partial(lookup_slice, recovery, channel.raw_name, each, wanted, self._progress)
                    yield WorkItem(each.data_size, partial(_lookup_part, channel if each is last else None, work))


#: The lookups in a slice, or in a whole channel.
_Found = tuple[Lookups, Lookups | None]
#: The channel if this was the last of its slices, and the lookups.
_Part = tuple[RecoveredChannel | None, _Found | None]


def _key(channel: RecoveredChannel) -> tuple[object, ...]:
    """Everything that the lookups of a channel depend on."""
    return (
        channel.name,
        *((each.number, each.data_file, each.data_end, each.index, each.rows, each.removed) for each in channel.slices),
    )


def _part(channel: RecoveredChannel, found: _Found | None) -> _Part:
    return channel, found


def _lookup_part(channel: RecoveredChannel | None, work: Callable[[], _Found]) -> _Part:
    return channel, work()


def _channel_forecast(
    channel: RecoveredChannel, lookups: Lookups, alone: Lookups | None, result: Forecast
) -> ChannelForecast:
    totals = channel.totals
    forecast = ChannelForecast(
        channel.name,
        totals.first,
        totals.last,
        totals.count,
        totals.bytes,
        lookups,
        alone,
        limited=channel.limited,
        misplaces=channel.misplaces,
        subscriptions=SubscriberList(channel.subs, result.clients, totals.first, totals.last),
    )
    complete(forecast)
    return forecast
