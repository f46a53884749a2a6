"""Messages that limits remove at start (filestore.md sections 5.4 and 7.6).

All messages on disk are counted again at every start. Then, from the oldest on, messages are removed while there are
more of them or more bytes than allowed, but never the newest; then those that are too old. A slice that lost all its
messages is deleted, unless it is the last one.
"""

from __future__ import annotations

import numpy as np

from stantools.format.layout import MESSAGE_OVERHEAD
from stantools.inspection.forecast.changes import Change, Delete
from stantools.inspection.forecast.rows import slice_rows
from stantools.inspection.forecast.slices import Recovery, Slice
from stantools.inspection.slicesummary import Totals
from stantools.store.limits import ChannelLimits


def apply_limits(
    slices: list[Slice], totals: Totals, limits: ChannelLimits, now_ns: int, recovery: Recovery, channel: bytes
) -> list[Change]:
    """Removes what limits remove: from the totals, and from the list of slices.

    Args:
        slices: The channel's slices by number.
        totals: Of the channel.
        limits: What holds for the channel.
        now_ns: The time of the start.
        recovery: The start.
        channel: The channel's name.

    Returns:
        The files that are deleted.
    """
    over = (0 < limits.max_msgs < totals.count) or (0 < limits.max_bytes < totals.bytes)
    if not slices or not (over or limits.max_age_ns > 0):
        return []
    changes: list[Change] = []
    while slices:
        found = slices[0]
        done = _remove_from(found, totals, limits, now_ns, recovery, channel)
        if found.removed < found.rows or len(slices) == 1:
            break
        changes += _delete(found)
        del slices[0]
        totals.first = slices[0].first
        if done:
            break
    return changes


def _delete(found: Slice) -> list[Change]:
    return [
        Change(found.data_file, found.data_size, None, Delete()),
        Change(found.index_file, found.index_size, None, Delete()),
    ]


def _remove_from(
    found: Slice, totals: Totals, limits: ChannelLimits, now_ns: int, recovery: Recovery, channel: bytes
) -> bool:
    """Removes messages from the front of a slice; returns whether the removal came to its end there."""
    for rows in slice_rows(found, recovery.crc, recovery.options.check_crc, channel):
        cost = rows.size.astype(np.int64) + MESSAGE_OVERHEAD
        behind = np.cumsum(cost)
        here = len(cost)
        gone = min(max(_over_count(totals, limits), _over_bytes(totals, limits, behind)), here, totals.count - 1)
        if limits.max_age_ns > 0 and gone < here:
            young = np.flatnonzero(now_ns - rows.timestamp[gone:] < limits.max_age_ns)
            gone = gone + int(young[0]) if len(young) else here
        if gone:
            totals.count -= gone
            totals.bytes -= int(behind[gone - 1])
            found.removed += gone
        if gone < here:
            found.first = totals.first = int(rows.sequence[gone])
            return True
    totals.first = found.first = totals.last + 1
    return False


def _over_count(totals: Totals, limits: ChannelLimits) -> int:
    return max(totals.count - limits.max_msgs, 0) if limits.max_msgs > 0 else 0


def _over_bytes(totals: Totals, limits: ChannelLimits, behind: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """How many messages must go until the bytes fit; one more than there are here means all of these and more."""
    surplus = totals.bytes - limits.max_bytes
    if limits.max_bytes <= 0 or surplus <= 0:
        return 0
    return int(np.searchsorted(behind, surplus, side="left")) + 1
