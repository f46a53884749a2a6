"""Durations, sizes, times and sets of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.migration.plan import fields
from stantools.notation import format_duration, format_time

_I64 = st.integers(0, 2**63 - 1)


@given(_I64)
def test_durations_and_sizes_come_back(number: int) -> None:
    assert fields.read_duration(format_duration(number)) == number
    assert fields.read_size(fields.format_size(number)) == number


@given(st.integers(-(2**63), 2**63 - 1))
def test_times_come_back(timestamp: int) -> None:
    assert fields.parse_time(format_time(timestamp)) == timestamp
    assert fields.parse_time(str(timestamp)) == timestamp


@given(st.sets(st.integers(1, 2**64 - 1) | st.integers(1, 60)))
def test_sequences_come_back(sequences: set[int]) -> None:
    rising = tuple(sorted(sequences))
    assert fields.parse_sequences(fields.format_sequences(rising)) == rising


def test_how_they_are_written() -> None:
    rows: list[tuple[Callable[[Any], str], Any, str]] = [
        (format_duration, 0, "0s"),
        (format_duration, 30 * 10**9, "30s"),
        (format_duration, 36 * 3600 * 10**9, "1d12h"),
        (format_duration, 1_500_000_000, "1s500ms"),
        (fields.format_size, 0, "0"),
        (fields.format_size, 64 << 20, "64MB"),
        (fields.format_size, 4097, "4097"),
        (fields.format_size, 1_024_000_000, "1000000KB"),
        (fields.format_sequences, [1, 3, 5, 6, 7], "1, 3, 5-7"),
        (fields.format_sequences, [], "none"),
        (fields.about, 1_258_291, "1.2 MB"),
        (fields.about, 12, "12 B"),
    ]
    for format_, value, text in rows:
        assert format_(value) == text, (format_, value, text)


def test_what_is_understood() -> None:
    rows: list[tuple[Callable[[str], Any], str, Any]] = [
        (fields.read_duration, "72h", 72 * 3600 * 10**9),
        (fields.read_duration, "1.5s", 1_500_000_000),
        (fields.read_duration, "250ms", 250_000_000),
        (fields.read_size, "64 MiB", 64 << 20),
        (fields.read_size, "1g", 1 << 30),
        (fields.read_size, "17B", 17),
        (fields.parse_number, "1_000_000", 1_000_000),
        (fields.parse_number, "1000000", 1_000_000),
        (fields.parse_sequences, "3 1,2", (1, 2, 3)),
        (fields.parse_sequences, "none", ()),
        (fields.parse_time, "1970-01-01T00:00:01.5Z", 1_500_000_000),
    ]
    for parse, text, value in rows:
        assert parse(text) == value, (parse, text, value)


def test_what_is_not() -> None:
    rows: list[tuple[Callable[[str], Any], str]] = [
        (fields.read_duration, "30"),
        (fields.read_duration, "-1s"),
        (fields.read_duration, "s"),
        (fields.read_duration, "999999d"),
        (fields.read_duration, "1s "),
        (fields.read_size, "-1"),
        (fields.read_size, "1XB"),
        (fields.read_size, "99999999TB"),
        (fields.read_size, ""),
        (fields.parse_number, "1_0"),
        (fields.parse_number, "-1"),
        (fields.parse_number, "٣"),
        (fields.parse_number, "18446744073709551616"),
        (fields.parse_sequences, "0"),
        (fields.parse_sequences, "5-3"),
        (fields.parse_sequences, "1-99999999999"),
        (fields.parse_sequences, "one"),
        (fields.parse_sequences, "18446744073709551616"),
        (fields.parse_time, "2026-13-01T00:00:00Z"),
        (fields.parse_time, "yesterday"),
    ]
    for parse, text in rows:
        with pytest.raises(ValueError, match=r"."):
            parse(text)
            pytest.fail(f"accepted: {(parse, text)!r}")
