"""What a loss of power leaves of a copy, made to open again.

What was synced is whole, in front; what was written behind it may be there in part, cut, or as zeros. None of that was
acknowledged, or it is in the streams. So everything from the first record on that is not whole is taken away, which is
more than NATS Streaming would do, and less than to give the copy up.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.log import STREAMING
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection.forecast.server_reading import DataScan, scan_data
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE
from stantools.store.durable import replace_file, writing
from stantools.store.mapping import mapped

if TYPE_CHECKING:
    from stantools.format.crc import Crc

_SLICE: Final = re.compile(r"msgs\.(\d{1,18})\.(?:dat|idx)")


def cut_back(directory: Path, crc: Crc) -> None:
    """Cuts each channel of a copy behind its last message that is whole; nobody has the copy open.

    Args:
        directory: The copy.
        crc: How its records are checked.

    Raises:
        StoreUnwritableError: It cannot be changed.
    """
    with writing(directory):
        replace_file(directory / CLIENTS_FILE, FILE_HEADER_BYTES)
        for channel in sorted(each for each in directory.iterdir() if each.is_dir()):
            # Subscriptions are in the state's stream.
            replace_file(channel / SUBS_FILE, FILE_HEADER_BYTES)
            _cut_channel(channel, crc)


def _cut_channel(channel: Path, crc: Crc) -> None:
    found = (_SLICE.fullmatch(each.name) for each in channel.iterdir())
    last = None
    damaged = False
    for number in sorted({int(match[1]) for match in found if match}):
        data, index = channel / f"msgs.{number}.dat", channel / f"msgs.{number}.idx"
        size = data.stat().st_size if data.exists() else 0
        whole = None if damaged else _whole(data, size, os.fsencode(channel.name), crc)
        # What an earlier loss of power left at the end of a slice says nothing about the next one, which was begun
        # because of it: there is damage only where a message is missing.
        damaged = whole is None or last not in (None, whole.first - 1)
        end = 0 if whole is None or damaged else whole.end
        if whole is not None and not damaged:
            last = whole.last
        if end == size > 0:
            continue
        STREAMING.warning("%s is cut at offset %d of %d; what was behind was not synced", data, end, size)
        # The start makes it again.
        index.unlink(missing_ok=True)
        if end:
            os.truncate(data, end)
        else:
            data.unlink(missing_ok=True)


def _whole(data: Path, size: int, channel: bytes, crc: Crc) -> DataScan | None:
    """Returns the messages from the first on that are whole, if there are any."""
    if size <= FILE_HEADER_SIZE:
        return None
    with mapped(data) as buffer:
        if bytes(buffer[:FILE_HEADER_SIZE]) != FILE_HEADER_BYTES:
            return None
        scan = scan_data(buffer, channel, crc, None)
        return scan if scan.count else None
