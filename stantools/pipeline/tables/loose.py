"""Slices that lie outside of a store: which channel each of them belongs to."""

from __future__ import annotations

import os

from stantools.errors import StoreUnreadableError
from stantools.format import gogo
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.pipeline.tables.listing import Entry, Place, listed
from stantools.store.directory import INDEX_NAME, SLICE_NAME, slice_number
from stantools.store.reading import scan_slice
from stantools.store.resync import Damage

#: Bytes of a slice that are looked at to find its channel: most slices tell it at once, a damaged one later.
HEADS = (1 << 14, 1 << 20, 64 << 20)


def by_channel(place: Place, directory: str, entries: list[Entry], crc: Crc, *, others: bool) -> dict[str, list[Entry]]:
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
