"""Limits of channels and slices: defaults, inheritance, derivation, and the server's error texts."""

from __future__ import annotations

import numpy as np
import pytest

from stantools.errors import UsageError
from stantools.notation import format_go_duration
from stantools.store.limits import (
    ONE_SLICE,
    UNLIMITED,
    ChannelLimits,
    PatternLimits,
    SliceLimits,
    StoreLimits,
    is_channel_name,
)

SECOND = 1_000_000_000


def test_defaults_are_the_servers():
    limits = StoreLimits()
    assert limits.max_channels == 100
    assert limits.limits_for("any") == ChannelLimits(1_000_000, 1_024_000_000, 0, 1000, 0)
    assert SliceLimits() == SliceLimits(0, 67_108_864, 0)


def test_the_specs_example_of_inheritance():
    limits = StoreLimits(
        channel=ChannelLimits(max_msgs=1000),
        per_channel={
            "foo.bar": PatternLimits(max_subs=2),
            ">": PatternLimits(max_msgs=500),
            "foo.>": PatternLimits(max_msgs=100),
            "foo.*": PatternLimits(max_bytes=-1),
        },
    )
    have = limits.limits_for("foo.bar")
    assert (have.max_msgs, have.max_bytes, have.max_subs) == (100, 0, 2)
    assert limits.limits_for("foo.baz").max_subs == 1000
    assert limits.limits_for("foo.baz").max_bytes == 0
    assert limits.limits_for("foo.a.b") == ChannelLimits(max_msgs=100)
    assert limits.limits_for("foo") == ChannelLimits(max_msgs=500)


def test_the_narrowest_pattern_wins_from_the_left():
    patterns = [">", "*.bar", "foo.>", "foo.*", "foo.bar"]
    for count in range(1, len(patterns) + 1):
        per_channel = {p: PatternLimits(max_msgs=i + 1) for i, p in enumerate(patterns[:count])}
        for each in (per_channel, dict(reversed(per_channel.items()))):
            assert StoreLimits(per_channel=each).limits_for("foo.bar").max_msgs == count


def test_a_pattern_inherits_only_from_patterns_that_match_its_own_text():
    limits = StoreLimits(
        per_channel={"*.bar": PatternLimits(max_subs=7), "foo.*": PatternLimits(max_msgs=5)},
    )
    # `*.bar` matches the channel but not the text `foo.*`, so nothing of it arrives.
    assert limits.limits_for("foo.bar") == ChannelLimits(max_msgs=5)
    assert limits.limits_for("x.bar").max_subs == 7
    wide = StoreLimits(per_channel={"foo.*": PatternLimits(max_msgs=5), "foo.>": PatternLimits(max_subs=3)})
    assert wide.limits_for("foo.x") == ChannelLimits(max_msgs=5, max_subs=3)
    assert wide.limits_for("foo.x.y") == ChannelLimits(max_subs=3), "the narrower foo.* gives nothing to foo.>"


@pytest.mark.parametrize("value", [0, -1, -5])
def test_zero_and_negative_in_a_pattern_mean_unlimited(value):
    limits = StoreLimits(per_channel={"a": PatternLimits(value, value, value, value, value)})
    assert limits.limits_for("a") == UNLIMITED


def test_errors_have_the_servers_text():
    rows = [
        (lambda: StoreLimits(max_channels=-1), "max channels limit cannot be negative (-1)"),
        (
            lambda: StoreLimits(channel=ChannelLimits(max_subs=-2)),
            "max subscriptions limit cannot be negative (-2)",
        ),
        (
            lambda: StoreLimits(channel=ChannelLimits(max_msgs=-2)),
            "max messages limit cannot be negative (-2)",
        ),
        (lambda: StoreLimits(channel=ChannelLimits(max_bytes=-2)), "max bytes limit cannot be negative (-2)"),
        (
            lambda: StoreLimits(channel=ChannelLimits(max_age_ns=-SECOND)),
            "max age limit cannot be negative (-1s)",
        ),
        (
            lambda: StoreLimits(channel=ChannelLimits(max_inactivity_ns=-90 * SECOND)),
            "max inactivity limit cannot be negative (-1m30s)",
        ),
        (lambda: StoreLimits(per_channel={"foo..bar": PatternLimits()}), 'invalid channel name "foo..bar"'),
        (lambda: StoreLimits(per_channel={">.bar": PatternLimits()}), 'invalid channel name ">.bar"'),
        (
            lambda: StoreLimits(max_channels=1, per_channel={c: PatternLimits() for c in ("a", "b", ">")}),
            "too many channels defined (2). The max channels limit is set to 1",
        ),
        (lambda: SliceLimits(max_msgs=-1), "slice max values must be positive numbers"),
    ]
    for make, text in rows:
        with pytest.raises(UsageError) as caught:
            make()
            pytest.fail(f"accepted: {(make, text)!r}")
        assert caught.value.message == text, (make, text)


def test_slice_limits_are_derived_only_when_none_is_set():
    channel = ChannelLimits(max_msgs=10, max_bytes=1000, max_age_ns=10 * SECOND)
    assert ONE_SLICE.for_channel(channel) == SliceLimits(2, 250, 2_500_000_000)
    assert SliceLimits().for_channel(channel) == SliceLimits()
    assert SliceLimits(3, 0, 0).for_channel(channel) == SliceLimits(3, 0, 0)
    assert ONE_SLICE.for_channel(UNLIMITED) == ONE_SLICE
    assert ONE_SLICE.for_channel(ChannelLimits(3, 3, 3, 0, 0)) == SliceLimits(1, 1, SECOND)


def test_channel_names():
    rows = [
        ("foo", True, True),
        ("foo.bar", True, True),
        ("a:b $x!", True, True),
        ("", False, False),
        (".foo", False, False),
        ("foo.", False, False),
        ("a..b", False, False),
        ("a/b", False, False),
        ("foo.*", False, True),
        ("*.foo", False, True),
        (">", False, True),
        ("foo.>", False, True),
        (">.foo", False, False),
        ("foo*", False, False),
        ("foo.b>", False, False),
    ]
    for name, plain, pattern in rows:
        assert is_channel_name(name) is plain, (name, plain, pattern)
        assert is_channel_name(name, wildcards=True) is pattern, (name, plain, pattern)


def test_durations():
    rows = [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (250_000_000, "250ms"),
        (1_500_000_000, "1.5s"),
        (60 * SECOND, "1m0s"),
        (3630 * SECOND, "1h0m30s"),
        (-SECOND, "-1s"),
        (25 * 3600 * SECOND + 1, "25h0m0.000000001s"),
    ]
    for nanoseconds, text in rows:
        assert format_go_duration(nanoseconds) == text, (nanoseconds, text)


def test_what_limits_remove():
    rows = [
        (ChannelLimits(3, 0), (5, 500), 0, 2),
        (ChannelLimits(0, 250), (5, 500), 0, 3),
        (ChannelLimits(0, 250), (5, 500), 50, 3),  # the sums begin with what went before
        (ChannelLimits(0, 300), (5, 500), 0, 2),
        (ChannelLimits(0, 50), (5, 500), 0, 4),  # never the newest
        (ChannelLimits(1, 0), (9, 900), 0, 5),  # there are only five here
        (ChannelLimits(0, 0, 3), (5, 500), 0, 3),  # as old as allowed is too old
        (ChannelLimits(3, 0, 3), (5, 500), 0, 3),
        (ChannelLimits(1, 0, 3), (5, 500), 0, 4),
        (ChannelLimits(0, 0, 1), (5, 500), 0, 5),  # by age the newest goes, too
        (ChannelLimits(0, 0, 9), (5, 500), 0, 0),
    ]
    for limits, held, spent, gone in rows:
        costs, timestamps = np.arange(1, 6) * 100 + spent, np.arange(1, 6)
        assert limits.removes(*held, costs, timestamps, 6, spent) == gone, (limits, held, spent, gone)
