"""Cuts a copy to its valid messages after a loss of power, so that it can be opened again.

The synced part of a file is intact. The bytes written after the last sync may be missing, cut or zero; their
messages were not acknowledged, or are in the streams. So the copy loses everything from the first missing or damaged
message on, which is more than NATS Streaming would remove and less than the whole copy. A slice may end in the
damage of an earlier loss of power: the broker began the next slice after the last message it could read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.log import STREAMING
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE
from stantools.store.durable import replace_file, writing
from stantools.store.mapping import mapped
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile

if TYPE_CHECKING:
    from stantools.format.crc import Crc

_SLICE: Final = re.compile(r"msgs\.(\d{1,18})\.(?:dat|idx)")


def truncate_copy(directory: Path, crc: Crc) -> None:
    """Cuts each channel of a copy after its last valid message. The copy must not be open.

    Raises StoreUnwritableError if a file cannot be changed.
    """
    with writing(directory):
        replace_file(directory / CLIENTS_FILE, FILE_HEADER_BYTES)
        for channel in sorted(each for each in directory.iterdir() if each.is_dir()):
            # Subscriptions are in the state's stream.
            replace_file(channel / SUBS_FILE, FILE_HEADER_BYTES)
            _cut_channel(channel, crc)


@dataclass
class _CutSlice:
    """A slice with its valid messages, from the first one on."""

    data: Path
    first: int
    last: int
    end: int  #: offset in the data file after the last message


def _cut_channel(channel: Path, crc: Crc) -> None:
    name = os.fsencode(channel.name)
    found = (_SLICE.fullmatch(each.name) for each in channel.iterdir())
    files = [channel / f"msgs.{number}.dat" for number in sorted({int(match[1]) for match in found if match})]
    kept: list[_CutSlice] = []
    for data in files:
        each = _intact_part(data, name, crc)
        if each is not None and kept and kept[-1].first < each.first <= kept[-1].last:
            # An earlier start left out the last messages of this slice, and the next slice has others at their
            # sequences.
            kept[-1] = _intact_part(kept[-1].data, name, crc, before=each.first) or kept[-1]
        if each is None or (kept and each.first != kept[-1].last + 1):
            # A message is missing. Damage at the end of a slice from an earlier loss of power does not matter.
            break
        kept.append(each)
    ends = {each.data: each.end for each in kept}
    for data in files:
        end, size = ends.get(data, 0), data.stat().st_size if data.exists() else 0
        if end == size > 0:
            continue
        STREAMING.warning("%s is cut at offset %d of %d: the bytes after it were not synced", data, end, size)
        # The start rebuilds it.
        data.with_suffix(".idx").unlink(missing_ok=True)
        if end:
            os.truncate(data, end)
        else:
            data.unlink(missing_ok=True)


def _intact_part(data: Path, channel: bytes, crc: Crc, before: int | None = None) -> _CutSlice | None:
    """Returns the messages of a slice before its first damage, or before a sequence; None if there are none."""
    if not data.exists() or data.stat().st_size <= FILE_HEADER_SIZE:
        return None
    found = None
    with mapped(data) as buffer:
        if bytes(buffer[:FILE_HEADER_SIZE]) != FILE_HEADER_BYTES:
            return None
        for part in SliceFile(buffer, channel, crc).records():
            if isinstance(part, DamagedRange):
                break
            rows = part.capacity if before is None else int(np.searchsorted(part.sequence, np.uint64(before)))
            if rows:
                wanted = part.part(0, rows)
                first = int(wanted.sequence[0]) if found is None else found.first
                found = _CutSlice(data, first, int(wanted.sequence[-1]), wanted.end)
            if rows < part.capacity:
                break
    return found
