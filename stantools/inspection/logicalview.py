"""What the server shows of a channel under given limits, while older messages are still on disk.

Facts: filestore.md sections 5.4 and weakness W20. Limits remove messages in memory only; a file goes when
all its messages are removed. So what is on disk is more than what a server with these limits shows, and a server with
wider limits shows more again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from stantools.format.crc import Crc
from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.inspection.slicesummary import SliceSummary, rows_of, totals_of
from stantools.store.limits import ChannelLimits


@dataclass(frozen=True)
class LogicalView:
    """What is left of a channel.

    Attributes:
        first_seq: First sequence; last_seq + 1 if age removed everything, 0 if the channel never had a message.
        last_seq: Last sequence.
        count: Messages.
        bytes: Their size in the server's accounting.
        removed: Messages on disk that the limits hide.
    """

    first_seq: int
    last_seq: int
    count: int
    bytes: int
    removed: int


def apply_limits(
    slices: Sequence[SliceSummary],
    limits: ChannelLimits,
    channel: bytes,
    crc: Crc,
    *,
    now_ns: int,
    check_crc: bool = True,
) -> LogicalView:
    """Applies limits as the server does at its start: first messages and bytes, then age.

    Args:
        slices: The channel's slices that hold messages, by number.
        limits: What the channel may hold.
        channel: The channel's name as stored in subjects.
        crc: The store's CRC.
        now_ns: The present, for the age.
        check_crc: As for reading.
    """
    slices = [each for each in slices if each.count]
    if not slices:
        return LogicalView(0, 0, 0, 0, 0)
    first_seq, last_seq, total, size = astuple(totals_of(slices))
    count = total
    position = row = 0  # the first message that is left: its slice, and its place in there
    while position < len(slices):
        each = slices[position]
        if _whole_slice_goes(each, count, size, limits):
            count, size, position = count - each.count, size - each.bytes, position + 1
            continue
        rows = rows_of(each.files, channel, crc, check_crc=check_crc)
        costs = np.concatenate(([0], np.cumsum(rows.size.astype(np.int64) + MESSAGE_OVERHEAD)))
        left = count - np.arange(len(costs))
        over = np.zeros(len(costs), bool)
        if limits.max_msgs > 0:
            over |= left > limits.max_msgs
        if limits.max_bytes > 0:
            over |= size - costs > limits.max_bytes
        over &= left > 1  # the newest message always stays
        row = int(np.argmin(over)) if not over.all() else len(over) - 1
        count, size = count - row, size - int(costs[row])
        if row == len(rows.sequence) and position + 1 < len(slices):
            position, row = position + 1, 0
            first_seq = slices[position].first_seq
        elif row < len(rows.sequence):
            first_seq = int(rows.sequence[row])
        break
    while limits.max_age_ns > 0 and position < len(slices):
        rows = rows_of(slices[position].files, channel, crc, check_crc=check_crc)
        fresh = np.flatnonzero(rows.timestamp[row:] > now_ns - limits.max_age_ns)
        gone = int(fresh[0]) if len(fresh) else len(rows.timestamp) - row
        sizes = rows.size[row : row + gone].astype(np.int64) + MESSAGE_OVERHEAD
        count, size = count - gone, size - int(sizes.sum())
        if len(fresh):
            first_seq = int(rows.sequence[row + gone])
            break
        position, row, first_seq = position + 1, 0, last_seq + 1
    return LogicalView(first_seq, last_seq, count, size, total - count)


def _whole_slice_goes(each: SliceSummary, count: int, size: int, limits: ChannelLimits) -> bool:
    """Even the slice's last message goes, because what is behind it alone is at a limit."""
    if count - each.count < 1:
        return False
    return (0 < limits.max_msgs <= count - each.count) or (0 < limits.max_bytes <= size - each.bytes)
