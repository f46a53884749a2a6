"""New messages of stores since an offset that are safe to read.

`TableFollower.latest` returns how far a stream can advance, `TableFollower.work` the files to read between two offsets.
Both depend on the files alone, so a batch that is planned again after a restart is the same. Cached state only saves
time: a channel with unchanged files costs four `stat` calls, so that stores of ten thousand channels can be
followed; a channel directory is listed again only after a change in it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from stantools.errors import StoreUnreadableError
from stantools.format.crc import Crc
from stantools.pipeline.tables.model import FailedRead, SlicePiece, SliceRef, StoreRef
from stantools.pipeline.tables.positions import Offsets, not_followed
from stantools.store.directory import matches_any
from stantools.store.growing_channel import (
    ANYWHERE,
    BEGINNING,
    REMOVED,
    ChannelFollower,
    ChannelNews,
    ChannelPiece,
    GrowingChannel,
    LostRange,
    ReadAllowance,
)
from stantools.store.growing_slice import ChannelPosition

LOG = logging.getLogger(__name__)

#: Share of its time that an idle stream may spend on looking, and the least seconds between two looks.
_IDLE_SHARE = 0.1
_IDLE_SECONDS = 0.1
#: Failures of one batch that are logged one by one.
_MAX_LOGGED = 20
#: seconds between two searches for new stores
_SEARCH_SECONDS = 60.0

FoundStores = tuple[Sequence[StoreRef], Sequence[FailedRead]]
FollowPart = SlicePiece | LostRange | FailedRead


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
class TableFollower:
    """Follows the stores that `find` returns, and in them the channels of some patterns (all without patterns).

    With `archived` it begins with `.bak` slices. Slices that become `.bak` before they are read are always read.
    """

    find: Callable[[], FoundStores]
    channels: tuple[str, ...] = ()
    archived: bool = False
    lag: Lag = field(default_factory=Lag)  #: backlog at the last look
    _crcs: dict[int, Crc] = field(default_factory=dict, repr=False)
    _followers: dict[str, dict[str, ChannelFollower]] = field(default_factory=dict, repr=False)
    _matching: dict[str, bool] = field(default_factory=dict, repr=False)
    _found: FoundStores | None = field(default=None, repr=False)
    _found_at: float = field(default=0.0, repr=False)
    _frozen: Offsets | None = field(default=None, repr=False)
    next_look: float = field(default=0.0, repr=False)  #: `time.monotonic` of the next look
    _served: tuple[str, str] = field(default=("", ""), repr=False)

    def earliest(self) -> Offsets:
        return self._positions(GrowingChannel.begin)

    def newest(self) -> Offsets:
        return self._positions(GrowingChannel.latest, with_aside=True)

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
        end, self.lag = start.copy(), Lag()
        end.unreadable, end.aside = {}, {}
        news: list[tuple[tuple[str, str], ChannelNews]] = []  #: by root and name
        for store, names in self._stores(end, start):
            known = store.root in start.stores
            positions = end.stores.setdefault(store.root, {})
            for name in names:
                at = positions.get(name) or (BEGINNING if known else ANYWHERE)
                until = self._limit(store.root, name)
                if self._frozen is not None and until is None:
                    continue
                follower = self._follower(store, name)
                if not follower.unchanged(at):
                    try:
                        found = follower.look(at, until)
                    except StoreUnreadableError as error:
                        end.note(store.root, name, error.message)
                        continue
                    if found.end != at:
                        news.append(((store.root, name), found))
                positions[name] = at
                end.pass_over(store.root, follower.aside)
                self.lag.add(follower.waiting)
            for name in positions.keys() - set(names):
                # The directory is gone; `work` between the two offsets reports it.
                del positions[name]
                self._followers.get(store.root, {}).pop(name, None)
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
                    between = partial(GrowingChannel.between, start=at, end=until)
                    found += (
                        _table_piece(store, name, each) if isinstance(each, ChannelPiece) else each
                        for each in self._follower(store, name).ask(between)
                    )
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

    def _positions(self, position: Callable[[GrowingChannel], ChannelPosition], *, with_aside: bool = False) -> Offsets:
        """Returns a position of every channel. Unreadable channels are left to the first batch, which reports them."""
        offsets = Offsets()

        def ask(channel: GrowingChannel) -> tuple[ChannelPosition, dict[str, str]]:
            at = position(channel)
            return at, channel.aside(at) if with_aside else {}

        for store, names in self._stores(offsets, offsets):
            positions = offsets.stores[store.root] = {}
            for name in names:
                try:
                    positions[name], aside = self._follower(store, name).ask(ask)
                except StoreUnreadableError:
                    positions[name] = ANYWHERE
                else:
                    offsets.pass_over(store.root, aside)
        offsets.unreadable = {}
        return offsets

    def _advance(self, news: list[tuple[tuple[str, str], ChannelNews]], end: Offsets, limit: Limit) -> None:
        """Advances the offsets over the new data, as far as the limit allows."""
        available = sum(each.channel.backlog(each.start) - each.channel.backlog(each.end) for _, each in news)
        left = None
        if (limit.rows, limit.files) != (None, None) or (limit.bytes is not None and available > limit.bytes):
            left = ReadAllowance(limit.bytes, limit.rows, limit.files)
            news.sort(key=lambda each: (each[0] <= self._served, each[0]))
        for number, ((root, name), each) in enumerate(news):
            reached = each.end
            if left is not None:
                reached = each.start
                if not left.spent:
                    self._served = root, name
                    try:
                        reached = each.part(left.share(len(news) - number), self._limit(root, name))
                    except StoreUnreadableError as error:
                        end.note(root, name, error.message)
                self.lag.add(each.channel.backlog(reached) - each.channel.backlog(each.end))
            end.stores[root][name] = reached

    def _limit(self, root: str, name: str) -> ChannelPosition | None:
        """Returns the end of a channel that `freeze` made final, if it did."""
        return self._frozen.stores.get(root, {}).get(name) if self._frozen is not None else None

    def _stores(self, offsets: Offsets, start: Offsets) -> Iterator[tuple[StoreRef, list[str]]]:
        """Yields the stores with the names of their channels; notes in the offsets the stores that cannot be listed."""
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
        known = self._matching.get(name)
        if known is None:
            known = self._matching[name] = matches_any(name, self.channels)
        return known

    def _follower(self, store: StoreRef, name: str) -> ChannelFollower:
        followers = self._followers.setdefault(store.root, {})
        if name not in followers:
            if store.polynomial not in self._crcs:
                self._crcs[store.polynomial] = Crc(store.polynomial)
            crc = self._crcs[store.polynomial]
            followers[name] = ChannelFollower(store.root, name, crc, archived=self.archived)
        return followers[name]


def _table_piece(store: StoreRef, name: str, piece: ChannelPiece) -> SlicePiece:
    files = piece.files
    index = str(files.index) if files.index else None
    place = SliceRef(store, name, files.number, files.archived, str(files.data), index, piece.end, files.index_size)
    return SlicePiece(place, piece.start, piece.end)
