"""The table of limits."""

from __future__ import annotations

import pytest

from broker.config.file_reader import read_streaming
from broker.config.grammar import parse
from broker.stores.limits import friendly_bytes, limits_table
from stantools.errors import UsageError
from stantools.store.limits import ChannelLimits, PatternLimits, StoreLimits

HOUR = 3600 * 10**9


def test_defaults() -> None:
    assert (
        "\n".join(limits_table(StoreLimits(100, ChannelLimits(), {})))
        == """\
---------- Store Limits ----------
Channels:                  100 *
--------- Channels Limits --------
  Subscriptions:          1000 *
  Messages     :       1000000 *
  Bytes        :     976.56 MB *
  Age          :     unlimited *
  Inactivity   :     unlimited *
----------------------------------"""
    )


def test_example_of_the_documentation() -> None:
    channels = read_streaming(
        parse(
            """limits { channels {
                bar { mm: -1, ma: "0s" }, a.b.c.d { mb: 1KB }
                foo.> { mm: 500 }, foo.* { mm: 400, ma: "5m" }
                foo.bar { mb: 0, msu: 10, mi: "1h" }, foo.baz {}
            } }""",
            environ={},
        )
    ).settings["limits.channels"]
    table = limits_table(StoreLimits(20, ChannelLimits(10000, 64 << 20, 24 * HOUR, 5, 0), channels))
    head, _, listed = "\n".join(table).partition("\n--------- List of Channels ---------\n")
    assert (
        head
        == """\
---------- Store Limits ----------
Channels:                   20
--------- Channels Limits --------
  Subscriptions:             5
  Messages     :         10000
  Bytes        :      64.00 MB
  Age          :       24h0m0s
  Inactivity   :     unlimited *"""
    )
    # The order of names that have nothing to do with each other is free.
    assert (
        listed
        == """\
a.b.c.d
 |-> Bytes                   1.00 KB
bar
 |-> Messages              unlimited
 |-> Age                   unlimited
foo.>
 |-> Messages                    500
 foo.*
  |-> Messages                   400
  |-> Age                       5m0s
  foo.bar
   |-> Subscriptions              10
   |-> Bytes               unlimited
   |-> Inactivity             1h0m0s
  foo.baz
------------------------------------"""
    )


def test_widths() -> None:
    table = limits_table(StoreLimits(100, ChannelLimits(), {"x" * 51: PatternLimits()}))
    title = next(line for line in table if "List of Channels" in line)
    assert title == "-" * 16 + " List of Channels " + "-" * 17
    assert table[-1] == "-" * 51
    assert limits_table(StoreLimits(100, ChannelLimits(), {"a": PatternLimits()}))[-1] == "-" * 34


def test_sizes() -> None:
    shown = [friendly_bytes(size) for size in (1, 1023, 1024, 1536, 1 << 20, 1_024_000_000, 1 << 40, (1 << 63) - 1)]
    assert shown == ["1 B", "1023 B", "1.00 KB", "1.50 KB", "1.00 MB", "976.56 MB", "1.00 TB", "8.00 EB"]


def test_wrong_limits() -> None:
    with pytest.raises(UsageError, match="max channels limit cannot be negative"):
        limits_table(StoreLimits(-1, ChannelLimits(), {}))
