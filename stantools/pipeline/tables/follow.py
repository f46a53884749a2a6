"""New messages of stores since an offset that are safe to read.

`TableFollower.latest` returns how far a stream can advance, `TableFollower.work` the files to read between two offsets.
Both depend on the files alone, so a batch that is planned again after a restart is the same. Cached state only saves
time: a channel with unchanged files costs four `stat` calls, so that stores of ten thousand channels can be
followed; a channel directory is listed again only after a change in it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.pipeline.tables.model import FailedRead, SlicePiece, StoreRef
from stantools.pipeline.tables.positions import ANYWHERE, BEGINNING, REMOVED, LostRange, Offsets, not_followed
from stantools.pipeline.tables.watch import ChannelWatch, ReadAllowance
from stantools.store.directory import subject_matches
from stantools.store.safe_end import ChannelPosition, ChannelSnapshot, sign

LOG = logging.getLogger(__name__)

#: Attempts to look at a channel whose files change meanwhile.
_MAX_LOOKS = 3
#: Share of its time that an idle stream may spend on looking, and the least seconds between two looks.
_IDLE_SHARE = 0.1
_IDLE_SECONDS = 0.1
#: Failures of one batch that are logged one by one.
_MAX_LOGGED = 20
#: seconds between two searches for new stores
_SEARCH_SECONDS = 60.0

FoundStores = tuple[Sequence[StoreRef], Sequence[FailedRead]]
FollowPart = SlicePiece | LostRange | FailedRead
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Limit:
    """Limits of one batch; None is no limit."""

    bytes: int | None = (
        None  #: bytes of data files, about; at least one message is taken. The channels share it in turns.
    )
    rows: int | None = None
    files: int | None = None  #: slices touched


@dataclass
class Lag:
    waiting_bytes: int = 0  #: bytes of data files not read yet, complete or not
    waiting_channels: int = 0  #: channels with such bytes

    def add(self, waiting: int) -> None:
        self.waiting_bytes += waiting
        self.waiting_channels += waiting > 0


@dataclass
class _FollowedSnapshot(ChannelSnapshot):
    """A channel at its last look: signs of its growing files (`ChannelWatch.grows`) and of its directory."""

    position: ChannelPosition  #: the stream's position at that look
    waiting: int  #: unread bytes at that look
    aside: dict[str, str]  #: data files that are not followed (`ChannelWatch.aside`)


@dataclass
class _ChannelUpdate:
    watch: ChannelWatch
    at: ChannelPosition  #: the stream's position
    until: ChannelPosition  #: the furthest position it can reach
    snapshot: _FollowedSnapshot | None  #: state to keep if it advances there
    aside: dict[str, str]  #: data files that are not followed

    @property
    def key(self) -> tuple[str, str]:
        return self.watch.store.root, self.watch.name


@dataclass
class TableFollower:
    """Follows the stores that `find` returns, and in them the channels of some patterns (all without patterns).

    With `archived` it begins with `.bak` slices. Slices that become `.bak` before they are read are always read.
    """

    find: Callable[[], FoundStores]
    channels: tuple[str, ...] = ()
    archived: bool = False
    lag: Lag = field(default_factory=Lag)  #: backlog at the last look
    _crcs: dict[int, Crc] = field(default_factory=dict, repr=False)
    _snapshots: dict[str, dict[str, _FollowedSnapshot]] = field(default_factory=dict, repr=False)
    _matching: dict[str, bool] = field(default_factory=dict, repr=False)
    _found: FoundStores | None = field(default=None, repr=False)
    _found_at: float = field(default=0.0, repr=False)
    _frozen: Offsets | None = field(default=None, repr=False)
    next_look: float = field(default=0.0, repr=False)  #: `time.monotonic` of the next look
    _served: tuple[str, str] = field(default=("", ""), repr=False)

    def earliest(self) -> Offsets:
        return self._positions(ChannelWatch.begin)

    def newest(self) -> Offsets:
        return self._positions(lambda watch: watch.latest() or watch.begin(), with_aside=True)

    def freeze(self) -> None:
        """Makes the present end final: later data is ignored."""
        self._frozen = self.newest()

    def latest(self, start: Offsets, limit: Limit | None = None) -> Offsets:
        """Returns how far a batch that begins at `start` can go.

        Equal to `start` if nothing is new; then the call takes at least a tenth of a second. Raises
        `StoreUnreadableError` if none of the stores can be read.
        """
        time.sleep(min(max(self.next_look - time.monotonic(), 0.0), 1.0))
        began = time.monotonic()
        now = time.time()
        end, news, self.lag = start.copy(), [], Lag()
        end.unreadable, end.aside = {}, {}
        for store, names in self._stores(end, start):
            known = store.root in start.stores
            positions = end.stores.setdefault(store.root, {})
            seen = self._snapshots.setdefault(store.root, {})
            for name in names:
                at = positions.get(name) or (BEGINNING if known else ANYWHERE)
                look = seen.get(name)
                if look is not None and look.position == at and look.unchanged(now):
                    end.pass_over(store.root, look.aside)
                else:
                    new = self._look(store, name, at, end)
                    if new is not None and new.until != at:
                        news.append(new)
                    elif new is not None and name not in positions:
                        positions[name] = at
                    look = new.snapshot if new is not None else None
                    if look is None:
                        seen.pop(name, None)
                    else:
                        seen[name] = look
                if look is not None:
                    self.lag.add(look.waiting)
            for name in positions.keys() - set(names):
                # The directory is gone; `work` between the two offsets reports it.
                del positions[name]
                seen.pop(name, None)
        self._advance(news, end, limit or Limit())
        spent = time.monotonic() - began
        self.next_look = time.monotonic() + max(_IDLE_SECONDS, spent / _IDLE_SHARE) if end == start else 0.0
        return end

    def work(self, start: Offsets, end: Offsets) -> list[FollowPart]:
        """Returns the parts to read between two offsets, in the order of stores, channels and slices.

        Raises `StoreUnreadableError` if a channel cannot be listed any more, or a slice cannot be opened any more.
        """
        found: list[FollowPart] = []
        stores = {each.root: each for each in self._search(refresh=False)[0]}
        for root in sorted(start.stores.keys() | end.stores.keys()):
            before, after = start.stores.get(root, {}), end.stores.get(root, {})
            for name in sorted(before.keys() | after.keys()):
                at = before.get(name) or (BEGINNING if root in start.stores else ANYWHERE)
                until = after.get(name)
                if until is None:
                    message = f"{root}/{name}: the channel was removed"
                    found.append(LostRange(root, name, REMOVED, "", None, None, None, message))
                elif at != until:
                    store = stores.get(root)
                    if store is None:
                        raise StoreUnreadableError(
                            f"{root}: was a store when the batch began and is none now",
                            "make it accessible again, or start over with another checkpointLocation",
                        )
                    found += self._with_retry(store, name, partial(ChannelWatch.between, start=at, end=until))
        for root, reasons in sorted(end.unreadable.items()):
            known = start.unreadable.get(root, {})
            for name, reason in sorted(reasons.items()):
                if known.get(name) != reason:
                    found.append(FailedRead(root, reason, channel=name or None))
        for root, files in sorted(end.aside.items()):
            known = start.aside.get(root, {})
            found += [not_followed(root, file, files[file]) for file in sorted(files.keys() - known.keys())]
        # Logged as well, whatever becomes of the rows that report them.
        failures = [each.message for each in found if isinstance(each, LostRange | FailedRead)]
        for message in failures[:_MAX_LOGGED]:
            LOG.warning("%s", message)
        if len(failures) > _MAX_LOGGED:
            LOG.warning("and %d more that cannot be read", len(failures) - _MAX_LOGGED)
        return found

    def _positions(self, position: Callable[[ChannelWatch], ChannelPosition], *, with_aside: bool = False) -> Offsets:
        """Returns a position of every channel. Unreadable channels are left to the first batch, which reports them."""
        offsets = Offsets()

        def ask(watch: ChannelWatch) -> tuple[ChannelPosition, dict[str, str]]:
            at = position(watch)
            return at, watch.aside(at) if with_aside else {}

        for store, names in self._stores(offsets, offsets):
            positions = offsets.stores[store.root] = {}
            for name in names:
                try:
                    positions[name], aside = self._with_retry(store, name, ask)
                except StoreUnreadableError:
                    positions[name] = ANYWHERE
                else:
                    offsets.pass_over(store.root, aside)
        offsets.unreadable = {}
        return offsets

    def _look(self, store: StoreRef, name: str, at: ChannelPosition, end: Offsets) -> _ChannelUpdate | None:
        """Looks at a channel; None if there is no readable data."""
        until: ChannelPosition | None = None
        if self._frozen is not None:
            until = self._frozen.stores.get(store.root, {}).get(name)
            if until is None:
                return None

        def look(watch: ChannelWatch) -> _ChannelUpdate:
            # Signs are taken before the look: the next look then sees a change made meanwhile.
            paths = watch.grows()
            signs = tuple(map(sign, paths))
            to = watch.advance(at, ReadAllowance(), until)
            # Otherwise another slice that began after the listing would be missed.
            stale = signs[-1] is not None and not watch.has(paths[-1])
            waiting = watch.backlog(to)
            settles = watch.settles() if waiting else math.inf
            aside = watch.aside(at)
            grows, looks = (*paths, directory), (*signs, before)
            seen = _FollowedSnapshot(to, waiting, aside, paths=grows, signs=looks, settles=settles)
            return _ChannelUpdate(watch, at, to, None if stale else seen, aside)

        directory = f"{store.root}/{name}"
        before = sign(directory)

        try:
            found = self._with_retry(store, name, look)
        except StoreUnreadableError as error:
            end.note(store.root, name, error.message)
            return None
        end.pass_over(store.root, found.aside)
        return found

    def _advance(self, updates: list[_ChannelUpdate], end: Offsets, limit: Limit) -> None:
        """Advances the offsets over the new data, as far as the limit allows."""
        available = [each.watch.backlog(each.at) - each.watch.backlog(each.until) for each in updates]
        if limit.rows is None and limit.files is None and (limit.bytes is None or sum(available) <= limit.bytes):
            for each in updates:
                end.stores[each.key[0]][each.key[1]] = each.until
            return
        updates.sort(key=lambda each: (each.key <= self._served, each.key))
        left = ReadAllowance(limit.bytes, limit.rows, limit.files)
        for number, each in enumerate(updates):
            root, name = each.key
            if left.spent:
                reached = each.at
            else:
                share = left.share(len(updates) - number)
                reached = self._part(each, share, left, end)
                self._served = each.key
            if reached != each.until:
                self._snapshots[root].pop(name, None)
                self.lag.add(each.watch.backlog(reached) - each.watch.backlog(each.until))
            end.stores[root][name] = reached

    def _part(self, each: _ChannelUpdate, share: ReadAllowance, left: ReadAllowance, end: Offsets) -> ChannelPosition:
        before = replace(share)
        frozen = self._frozen.stores.get(each.key[0], {}).get(each.key[1]) if self._frozen is not None else None
        try:
            reached = each.watch.advance(each.at, share, frozen)
        except StoreUnreadableError as error:
            end.note(*each.key, error.message)
            return each.at
        left.take(*(0 if a is None or b is None else a - b for a, b in before.pairs(share)))
        return reached

    def _stores(self, offsets: Offsets, start: Offsets) -> Iterator[tuple[StoreRef, list[str]]]:
        """Yields the stores with the names of their channels; notes in the offsets those that cannot be listed."""
        stores, unreadable = self._search(refresh=True)
        for each in unreadable:
            offsets.note(each.root, each.channel or "", each.message)
        for root in start.stores.keys() - {store.root for store in stores}:
            offsets.note(root, "", f"{root}: is no longer a store")
        for store in stores:
            try:
                with os.scandir(store.root) as entries:
                    names = sorted(e.name for e in entries if self._wanted(e.name) and e.is_dir(follow_symlinks=False))
            except OSError as error:
                offsets.note(store.root, "", f"{store.root}: cannot be listed: {error.strerror}")
                continue
            yield store, names
        if not stores and not start.stores and unreadable:
            raise StoreUnreadableError(unreadable[0].message, unreadable[0].remedy)

    def _search(self, *, refresh: bool) -> FoundStores:
        now = time.monotonic()
        if self._found is None or (refresh and now - self._found_at > _SEARCH_SECONDS):
            try:
                self._found = self.find()
            except StoreUnreadableError:
                if self._found is None:
                    raise
                # Each known store reports its own failure.
            self._found_at = now
        return self._found

    def _wanted(self, name: str) -> bool:
        if not self.channels:
            return True
        known = self._matching.get(name)
        if known is None:
            known = self._matching[name] = any(subject_matches(pattern, name) for pattern in self.channels)
        return known

    def _watch(self, store: StoreRef, name: str) -> ChannelWatch:
        crc = self._crcs.get(store.polynomial)
        if crc is None:
            crc = self._crcs[store.polynomial] = Crc(store.polynomial)
        return ChannelWatch(store, name, crc, self.archived)

    def _with_retry(self, store: StoreRef, name: str, ask: Callable[[ChannelWatch], _Answer]) -> _Answer:
        """Calls `ask` for a channel, and once more if its files went away meanwhile."""
        for _ in range(_MAX_LOOKS - 1):
            try:
                return ask(self._watch(store, name))
            except StoreUnreadableError:
                continue
        return ask(self._watch(store, name))
