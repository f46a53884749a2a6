"""What a subscriber gets that reads a channel from its first message (filestore.md sections 5.3 and 7.7).

Missing sequences are skipped. At a sequence that gives an error, delivery stops for good. Where a sequence gives
another message than its own, that other message is delivered, and delivery goes on with the next sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

from stantools.inspection.forecast.model import ChannelForecast
from stantools.store.ranges import Ranges


def complete(channel: ChannelForecast) -> None:
    """Fills in what follows from the lookups: missing sequences, what is delivered, where it stalls."""
    lookups = channel.lookups
    if lookups.readable.pairs() == [(channel.first_seq, channel.last_seq)]:
        channel.delivered = [(channel.first_seq, channel.last_seq)]
        return
    if 0 < channel.first_seq <= channel.last_seq:
        channel.missing = Ranges.of([(channel.first_seq, channel.last_seq)]) - lookups.found()
    if lookups.failing:
        channel.stalls_at = lookups.failing.first
        channel.stall_error = lookups.errors.get(channel.stalls_at, "")
    channel.delivered = list(_delivered(channel))


def _delivered(channel: ChannelForecast) -> Iterator[tuple[int, int]]:
    """The sequences of what is delivered, as runs in the order of delivery."""
    lookups, end = channel.lookups, channel.stalls_at
    asked = [(first, last, first) for first, last in lookups.readable]
    asked += [(sequence, sequence, got) for sequence, got in lookups.wrong.items()]
    run: tuple[int, int] | None = None
    for first, last, got in sorted(asked):
        if end is not None and first > end:
            break
        if end is not None:
            last = min(last, end - 1)
        part = (got, got + last - first)
        if run is not None and run[1] + 1 == part[0]:
            run = (run[0], part[1])
            continue
        if run is not None:
            yield run
        run = part
    if run is not None:
        yield run
