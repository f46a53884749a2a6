"""Messages that the limits of a stream remove while a server loads it. Facts: jetstream-store.md section 14."""

from __future__ import annotations

from typing import Final

import numpy as np

from stantools.inspection.stream_forecast.expiry import expire_at_start
from stantools.inspection.stream_forecast.recovery import RecoveredStream
from stantools.store.ranges import Ranges

_UNLIMITED: Final = 1 << 63


def apply_limits(store: RecoveredStream) -> None:
    if store.config.get("discard", "old") == "old":
        messages, size = _limit(store, "max_msgs"), _limit(store, "max_bytes")
        if store.state.messages > messages or store.state.bytes > size:
            _remove_head(store, messages, size)
    expire_at_start(store)
    if (per_subject := _limit(store, "max_msgs_per_subject")) < _UNLIMITED:
        _limit_subjects(store, per_subject)


def _limit(store: RecoveredStream, name: str) -> int:
    value = store.config.get(name)
    return value if isinstance(value, int) and value > 0 else _UNLIMITED


def _remove_head(store: RecoveredStream, messages: int, size: int) -> None:
    for block in list(store.blocks):
        count, surplus = store.state.messages - messages, store.state.bytes - size
        if count <= 0 and surplus <= 0:
            return
        records = store.records(block)
        rows = (records.flags == 0) & block.live.select(records.sequence)
        ends = np.cumsum(records.length[rows])
        wanted = max(count, int(np.searchsorted(ends, surplus)) + 1 if surplus > 0 else 0)
        if chosen := Ranges.from_sequences(records.sequence[rows][:wanted]):
            store.remove_from(block, chosen)


def _limit_subjects(store: RecoveredStream, limit: int) -> None:
    """Removes the oldest messages of subjects that have too many."""
    counts: dict[int, int] = {}
    for block in reversed(list(store.blocks)):
        records = store.records(block)
        rows = np.flatnonzero((records.flags == 0) & block.live.select(records.sequence))
        beyond = []
        for row in rows[::-1]:
            subject = int(records.subject[row])
            counts[subject] = counts.get(subject, 0) + 1
            if counts[subject] > limit:
                beyond.append(int(records.sequence[row]))
        if beyond:
            store.remove_from(block, Ranges.of((each, each) for each in beyond))
