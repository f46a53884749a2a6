"""Stores and slices that were found: their channels and files by name and size, as listed.

Of slices that lie outside of a store, the heads are read to find the channel that each belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from stantools.errors import StoreUnreadableError
from stantools.format import gogo
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.pipeline.tables.listing import Entry, Place, listed
from stantools.pipeline.tables.model import Failed, SliceRef, StoreRef
from stantools.store.directory import INDEX_NAME, SLICE_NAME, slice_number, subject_matches
from stantools.store.reading import scan_slice
from stantools.store.resync import Damage


@dataclass(frozen=True)
class FoundChannel:
    """A channel directory as listed, or slices without a store."""

    store: StoreRef
    name: str  #: the channel
    directory: str  #: path or URL of its directory
    entries: tuple[Entry, ...]  #: what is in it; for slices without a store, these and their indexes

    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.entries)


@dataclass
class FoundStore:
    """A store, or slices that lie in one directory outside of any."""

    ref: StoreRef  #: its path and polynomial
    place: Place  #: where it lies
    entries: tuple[Entry, ...] = ()  #: what is in its root
    #: Its channels, sorted as the server sorts them; none for slices without a store.
    channel_names: list[str] = field(default_factory=list)
    loose: list[FoundChannel] | None = None  #: the slices without a store, by channel; None for a store
    #: Take `.bak` slices although that was not asked for: there is nothing else, or they were named.
    archived: bool = False

    def channels(self, patterns: tuple[str, ...] = ()) -> Iterator[FoundChannel | Failed]:
        """Lists its channels.

        Args:
            patterns: NATS wildcards; a channel that matches any is taken. None given takes all.

        Yields:
            Each channel, or what cannot be listed.
        """
        if self.loose is not None:
            yield from (each for each in self.loose if _wanted(each.name, patterns))
            return
        yield from listed(self._channel, [name for name in self.channel_names if _wanted(name, patterns)])

    def _channel(self, name: str) -> FoundChannel | Failed:
        directory = self.place.join(self.ref.root, name)
        try:
            return FoundChannel(self.ref, name, directory, tuple(self.place.entries(directory)))
        except StoreUnreadableError as error:
            return Failed(self.ref.root, error.message, error.remedy, name)

    def slices(self, channel: FoundChannel, *, archived: bool = False) -> list[SliceRef]:
        """Returns the slices of a channel by number, an archived one before a live one of the same number.

        Args:
            channel: One of its channels.
            archived: Take `.bak` slices as well.
        """
        data: list[tuple[int, bool, Entry]] = []
        indexes: dict[tuple[str, bool], Entry] = {}
        for entry in channel.entries:
            if match := SLICE_NAME.fullmatch(entry.name):  # even of a directory, which reading will refuse
                number = slice_number(match[1])
                if number is not None and (match[2] is None or archived or self.archived):
                    data.append((number, match[2] is None, entry))
            elif not entry.directory and (match := INDEX_NAME.fullmatch(entry.name)):
                indexes[match[1], match[2] is None] = entry
        data.sort(key=lambda each: each[:2])
        join = self.place.join
        refs = []
        for number, live, entry in data:
            index = indexes.get((str(number), live))
            refs.append(
                SliceRef(
                    self.ref,
                    channel.name,
                    number,
                    not live,
                    join(channel.directory, entry.name),
                    join(channel.directory, index.name) if index else None,
                    entry.size,
                    index.size if index else 0,
                )
            )
        return refs


def _wanted(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(subject_matches(pattern, name) for pattern in patterns)


#: Bytes of a slice that are looked at to find its channel: most slices name it at once, a damaged one later.
HEADS = (1 << 14, 1 << 20, 64 << 20)


def slices_by_channel(
    place: Place, directory: str, entries: list[Entry], crc: Crc, *, others: bool
) -> dict[str, list[Entry]]:
    """Sorts slices and indexes that lie in one directory by the channel that they belong to.

    Args:
        place: Where they lie.
        directory: The directory.
        entries: Slices, indexes, and what else may be wanted.
        crc: The CRC of their records.
        others: Keep what does not belong to a slice.
    """
    fallback = place.split(directory)[1] or directory
    indexes = {entry.name: entry for entry in entries if INDEX_NAME.fullmatch(entry.name)}
    slices = [entry for entry in entries if SLICE_NAME.fullmatch(entry.name)]
    groups: dict[str, list[Entry]] = {}

    def channel(entry: Entry) -> str:
        return _channel_of(place, place.join(directory, entry.name), crc) or fallback

    for entry, name in zip(slices, listed(channel, slices), strict=True):
        group = groups.setdefault(name, [])
        group.append(entry)
        match = SLICE_NAME.fullmatch(entry.name)
        number = slice_number(match[1]) if match else None
        index = indexes.pop(f"msgs.{number}.idx{(match and match[2]) or ''}", None)
        if index:
            group.append(index)
    if others:
        rest = [e for e in entries if e.name in indexes or not (SLICE_NAME.fullmatch(e.name) or _is_index(e))]
        groups.setdefault(next(iter(groups), fallback), []).extend(rest)
    return groups


def _is_index(entry: Entry) -> bool:
    return INDEX_NAME.fullmatch(entry.name) is not None


def _channel_of(place: Place, path: str, crc: Crc) -> str | None:
    """Returns the subject of the first good record of a slice; None if there is none or it cannot be read."""
    for size in HEADS:
        try:
            head = place.head(path, size)
        except StoreUnreadableError:
            return None
        for event in scan_slice(memoryview(head), b"", crc, columns=MessageColumns(64)):
            if isinstance(event, Damage):
                if len(head) < size or size == HEADS[-1]:
                    continue
                break  # it may look damaged only because the head ends in it
            begin = int(event.offset[0]) + RECORD_HEADER_SIZE
            message = gogo.decode(pb.MsgProto, memoryview(head)[begin : begin + int(event.size[0])])
            return os.fsdecode(message.subject)
        if len(head) < size:
            return None
    return None
