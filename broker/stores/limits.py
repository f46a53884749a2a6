"""Which limits hold for a channel, and limits from a configuration.

Facts: server-operations.md section 12, filestore.md section 10.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from broker.stores.options import StoreLimits
from stantools.store import limits as config
from stantools.store.directory import subject_matches
from stantools.store.limits import ChannelLimits, PatternLimits


def store_limits(
    max_channels: int = config.DEFAULT_MAX_CHANNELS,
    channel: ChannelLimits | None = None,
    per_channel: Mapping[str, PatternLimits] | None = None,
) -> StoreLimits:
    """Checks the limits of a configuration and works out what patterns inherit.

    Args:
        max_channels: Channels; 0 for no limit.
        channel: What a channel may hold that no pattern names; the defaults if None.
        per_channel: What names and patterns set.

    Raises:
        UsageError: As from `stantools.store.limits.StoreLimits`, with the original's texts.
    """
    checked = config.StoreLimits(max_channels, channel or ChannelLimits(), per_channel or {})
    resolved = {os.fsencode(name): checked.limits_for(name) for name in checked.per_channel}
    return StoreLimits(max_channels, checked.channel, resolved)


class LimitsTable:
    """Finds the limits of channels: those of the narrowest name or pattern that matches."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        named = {os.fsdecode(name): each for name, each in limits.channels.items()}
        # From narrow to wide: a literal token before `*` before `>`, the left-most difference decides.
        order = sorted(named, key=config.narrowness, reverse=True)
        self._patterns = [(pattern, named[pattern]) for pattern in order if "*" in pattern or ">" in pattern]

    def of(self, channel: bytes) -> ChannelLimits:
        """Returns what a channel may hold."""
        exact = self._limits.channels.get(channel)
        if exact is not None:
            return exact
        name = os.fsdecode(channel)
        return next((each for pattern, each in self._patterns if subject_matches(pattern, name)), self._limits.channel)
