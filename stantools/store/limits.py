"""Limits of channels and slices, and their inheritance through patterns.

Facts: filestore.md sections 5.1, 5.2 and 10. Always 0 means "no limit"; times are nanoseconds.

A channel's limits are those of the narrowest pattern that matches its name. At each token a literal is narrower than
`*`, which is narrower than `>`, and the left-most difference decides: for the channel `foo.bar`

    >  <  *.bar  <  foo.>  <  foo.*  <  foo.bar

A field that a pattern does not set comes from the next wider pattern that matches the pattern's own text, and in the
end from the limits of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from stantools.errors import UsageError
from stantools.notation import format_go_duration
from stantools.options import LimitOptions, SliceOptions
from stantools.server_options import DURATION, INT, SIZE, server_field
from stantools.store.directory import subject_matches

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_MAX_CHANNELS = 100
DEFAULT_MAX_MSGS = 1_000_000
DEFAULT_MAX_BYTES = 1_024_000_000
DEFAULT_MAX_SUBS = 1000
DEFAULT_SLICE_MAX_BYTES = 64 * 1024 * 1024

_SECOND = 1_000_000_000
_SLICES_PER_CHANNEL = 4  # slices per full channel if no slice limit is configured


@dataclass(frozen=True)
class ChannelLimits:
    """Limits of one channel; 0 is "no limit"."""

    max_msgs: int = server_field(
        INT, "Messages of a channel", "mm max_msgs", "mm max_msgs maxmsgs max_count maxcount", DEFAULT_MAX_MSGS
    )
    #: in the server's accounting: payload of the record plus 40 per message
    max_bytes: int = server_field(
        SIZE, "Bytes of a channel's messages", "mb max_bytes", "mb max_bytes maxbytes", DEFAULT_MAX_BYTES
    )
    max_age_ns: int = server_field(DURATION, "Age of messages", "ma max_age", "ma max_age maxage")
    max_subs: int = server_field(
        INT, "Subscriptions of a channel", "msu max_subs", "msu max_subs max_subscriptions maxsubscriptions",
        DEFAULT_MAX_SUBS,
    )  # fmt: skip
    #: counts from the last message and active subscription
    max_inactivity_ns: int = server_field(
        DURATION, "Time after which an unused channel is removed", "mi max_inactivity",
        "mi max_inactivity maxinactivity",
    )  # fmt: skip

    def check(self) -> None:
        """Checks the limits of a store as the server does at start; UsageError with its text if one is negative."""
        for name, value in (
            ("subscriptions", str(self.max_subs)),
            ("messages", str(self.max_msgs)),
            ("bytes", str(self.max_bytes)),
            ("age", format_go_duration(self.max_age_ns)),
            ("inactivity", format_go_duration(self.max_inactivity_ns)),
        ):
            if value.startswith("-"):
                raise UsageError(f"max {name} limit cannot be negative ({value})", "use 0 for no limit")

    def removes(
        self,
        count: int,
        size: int,
        costs: NDArray[np.int64],
        timestamps: NDArray[np.int64],
        now_ns: int,
        spent: int = 0,
    ) -> int:
        """Returns how many of a channel's oldest messages the limits remove (filestore.md sections 5.4 and 7.6).

        Limits of count and bytes apply first, but never to the newest message; then the age limit applies to the
        rest. `count` and `size` are the messages of the channel and their bytes in the server's accounting; `costs`
        the cumulative bytes of the oldest messages, starting from `spent`.
        """
        gone = max(count - self.max_msgs, 0) if self.max_msgs > 0 else 0
        if 0 < self.max_bytes < size:
            gone = max(gone, int(costs.searchsorted(size - self.max_bytes + spent)) + 1)
        gone = min(gone, count - 1, len(costs))
        age = self.max_age_ns
        if age > 0 and gone < len(costs) and now_ns - int(timestamps[gone]) >= age:
            (recent,) = (now_ns - timestamps[gone:] < age).nonzero()
            gone = gone + int(recent[0]) if len(recent) else len(costs)
        return gone


UNLIMITED = ChannelLimits(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class PatternLimits:
    """Limits that a pattern sets: None inherits the wider pattern's value, 0 or a negative number means "no limit"."""

    max_msgs: int | None = None
    max_bytes: int | None = None
    max_age_ns: int | None = None
    max_subs: int | None = None
    max_inactivity_ns: int | None = None

    def over(self, defaults: ChannelLimits) -> ChannelLimits:
        values = {}
        for each in fields(self):
            own: int | None = getattr(self, each.name)
            values[each.name] = getattr(defaults, each.name) if own is None else max(own, 0)
        return ChannelLimits(**values)

    @classmethod
    def given(cls, options: LimitOptions, defaults: ChannelLimits) -> StoreLimits | None:
        """Returns the limits of a store as users set them, completed by `defaults`; None if nothing is set."""
        found = cls(options.max_msgs, options.max_bytes, options.max_age)
        return None if found == cls() else found.of_store(defaults)

    def of_store(self, defaults: ChannelLimits) -> StoreLimits:
        """Returns store limits with these limits for each channel, completed by wider ones."""
        return StoreLimits(0, self.over(defaults))


@dataclass(frozen=True)
class StoreLimits:
    """The limits of a whole store.

    Raises UsageError with the server's text if a limit is negative, a pattern is not a valid channel name, or more
    channels are named than allowed.
    """

    #: channels found at start are always accepted
    max_channels: int = server_field(
        INT, "Number of channels (0 for unlimited, as for all limits)", "mc max_channels",
        "mc max_channels maxchannels", DEFAULT_MAX_CHANNELS,
    )  # fmt: skip
    channel: ChannelLimits = ChannelLimits()  #: limits of channels without a pattern
    #: Limits by channel name or pattern; `*` is one whole token, a final `>` is the rest.
    per_channel: Mapping[str, PatternLimits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_channels < 0:
            raise UsageError(f"max channels limit cannot be negative ({self.max_channels})", "use 0 for no limit")
        self.channel.check()
        for pattern in self.per_channel:
            if not is_channel_name(pattern, wildcards=True):
                raise UsageError(f'invalid channel name "{pattern}"', "use * for one whole token, > for the rest")
        named = sum(is_channel_name(pattern) for pattern in self.per_channel)
        if 0 < self.max_channels < named:
            raise UsageError(
                f"too many channels defined ({named}). The max channels limit is set to {self.max_channels}",
                "raise the limit of channels, or set it to 0",
            )
        # Narrowest last; each one is resolved against the already resolved wider ones.
        resolved: dict[str, ChannelLimits] = {}
        for pattern in sorted(self.per_channel, key=narrowness):
            wider = [limits for other, limits in resolved.items() if subject_matches(other, pattern)]
            resolved[pattern] = self.per_channel[pattern].over(wider[-1] if wider else self.channel)
        object.__setattr__(self, "_resolved", resolved)

    def limits_for(self, channel: str) -> ChannelLimits:
        """Returns the limits of a channel: those of the narrowest pattern that matches its name."""
        resolved: dict[str, ChannelLimits] = getattr(self, "_resolved")  # noqa: B009 (frozen: set in __post_init__)
        if (exact := resolved.get(channel)) is not None:
            return exact
        for pattern in reversed(resolved):
            if subject_matches(pattern, channel):
                return resolved[pattern]
        return self.channel


@dataclass(frozen=True)
class SliceLimits:
    """Limits that end a slice and open the next one (filestore.md section 5.1); 0 is "no limit"."""

    #: counts and bytes are those ever stored in the slice, in the server's accounting (payload plus 40 per message)
    max_msgs: int = server_field(
        INT, "Messages of a slice", "file_slice_max_msgs", "slice_max_msgs slice_max_count slice_msgs slice_count"
    )
    max_bytes: int = server_field(
        SIZE, "Bytes of a slice", "file_slice_max_bytes", "slice_max_bytes slice_max_size slice_bytes slice_size",
        DEFAULT_SLICE_MAX_BYTES,
    )  # fmt: skip
    max_age_ns: int = server_field(
        DURATION, "Age at which a slice is closed", "file_slice_max_age",
        "slice_max_age slice_age slice_max_time slice_time_limit",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if min(self.max_msgs, self.max_bytes, self.max_age_ns) < 0:
            raise UsageError("slice max values must be positive numbers", "use 0 for no limit")

    @classmethod
    def given(cls, options: SliceOptions) -> SliceLimits | None:
        """Returns the limits as users set them, without limit for the rest; None if nothing is set."""
        found = options.slice_msgs, options.slice_bytes, options.slice_age
        return None if found == (None, None, None) else cls(*(each or 0 for each in found))

    def for_channel(self, limits: ChannelLimits) -> SliceLimits:
        """Returns the limits of a channel's slices: these, or a quarter of the channel's if none is set."""
        if self.max_msgs or self.max_bytes or self.max_age_ns:
            return self
        return SliceLimits(
            max(limits.max_msgs // _SLICES_PER_CHANNEL, 1) if limits.max_msgs > 0 else 0,
            max(limits.max_bytes // _SLICES_PER_CHANNEL, 1) if limits.max_bytes > 0 else 0,
            max(limits.max_age_ns // _SLICES_PER_CHANNEL, _SECOND) if limits.max_age_ns > 0 else 0,
        )


#: the limits of a server without configuration: 64 MiB
DEFAULT_SLICES = SliceLimits()
ONE_SLICE = SliceLimits(0, 0, 0)


def is_channel_name(name: str, *, wildcards: bool = False) -> bool:
    """Returns whether a name is a valid channel name, or with `wildcards` a pattern of limits."""
    if not name or "/" in name:
        return False
    tokens = name.split(".")
    for position, token in enumerate(tokens):
        if not token:
            return False
        if "*" in token and not (wildcards and token == "*"):
            return False
        if ">" in token and not (wildcards and token == ">" and position == len(tokens) - 1):
            return False
    return True


def narrowness(pattern: str) -> tuple[int, ...]:
    """Returns the sort key of a name or pattern: the wider of two comes first."""
    return tuple({">": 0, "*": 1}.get(token, 2) for token in pattern.split("."))
