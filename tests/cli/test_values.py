"""What users write: times, durations, sizes, ranges, polynomials."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.notation import (
    format_size,
    format_time,
    parse_duration,
    parse_polynomial,
    parse_range,
    parse_size,
    parse_time,
)

S = 1_000_000_000
NOW = 1_800_000_000 * S


def test_duration() -> None:
    rows: list[tuple[str, int]] = [
        ("1d3h", 27 * 3600 * S),
        ("90m", 5400 * S),
        ("1.5s", 3 * S // 2),
        ("250ms", S // 4),
        ("0s", 0),
        ("2w", 1209600 * S),
    ]
    for text, value in rows:
        assert parse_duration(text) == value, (text, value)


def test_no_duration() -> None:
    rows: list[str] = ["", "3", "h", "1x", "-1h", "1h ", "1hh"]
    for text in rows:
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)
            pytest.fail(f"accepted: {text!r}")


def test_time() -> None:
    rows: list[tuple[str, int]] = [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01 00:00", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:00:00-01:00", 0),
        ("2026-11-21T00:23:43.985961640Z", 1795220623985961640),
        ("1969-12-31T23:59:59.5Z", -S // 2),
        ("1h", NOW - 3600 * S),
    ]
    for text, value in rows:
        assert parse_time(text, NOW) == value, (text, value)


def test_no_time() -> None:
    rows: list[str] = ["", "yesterday", "2026-13-01T00:00:00Z", "2026-11-21T25:00:00Z", "1795220623"]
    for text in rows:
        with pytest.raises(ValueError):
            parse_time(text, NOW)
            pytest.fail(f"accepted: {text!r}")


@given(st.integers(-62135596800 * S, 253402300799 * S))
def test_time_comes_back(moment: int) -> None:
    assert parse_time(format_time(moment), NOW) == moment


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_timestamp_can_be_shown(moment: int) -> None:
    assert format_time(moment)


def test_range() -> None:
    rows: list[tuple[str, tuple[int | None, int | None]]] = [
        ("5:9", (5, 9)),
        ("5:", (5, None)),
        (":9", (None, 9)),
        (":", (None, None)),
        ("7", (7, 7)),
        ("-10:", (-10, None)),
        ("-1", (-1, -1)),
        ("-5:-2", (-5, -2)),
    ]
    for text, value in rows:
        assert parse_range(text) == value, (text, value)


def test_no_range() -> None:
    rows: list[str] = ["", "a", "1:2:3", "1-2", "--1"]
    for text in rows:
        with pytest.raises(ValueError, match="is not a range"):
            parse_range(text)
            pytest.fail(f"accepted: {text!r}")


@pytest.mark.parametrize("text", ["7:5", "-2:-5"])
def test_a_range_that_ends_before_it_begins(text: str) -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        parse_range(text)


def test_size() -> None:
    rows: list[tuple[str, int]] = [("0", 0), ("4096", 4096), ("64k", 65536), ("1MB", 1 << 20), ("2GiB", 2 << 30)]
    for text, value in rows:
        assert parse_size(text) == value, (text, value)


def test_no_size() -> None:
    rows: list[str] = ["", "k", "-1", "1.5k", "1X"]
    for text in rows:
        with pytest.raises(ValueError, match="is not a number of bytes"):
            parse_size(text)
            pytest.fail(f"accepted: {text!r}")


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 45, "32.0 TiB")])
def test_size_for_people(value: int, text: str) -> None:
    assert format_size(value) == text


def test_polynomial() -> None:
    rows: list[tuple[str, int | None]] = [
        ("auto", None),
        ("IEEE", 0xEDB88320),
        ("castagnoli", 2197175160),
        ("0x12345678", 0x12345678),
        ("1", 1),
    ]
    for text, value in rows:
        assert parse_polynomial(text) == value, (text, value)


def test_no_polynomial() -> None:
    rows: list[str] = ["", "0", "4294967296", "-1", "crc32"]
    for text in rows:
        with pytest.raises(ValueError, match="is not a polynomial"):
            parse_polynomial(text)
            pytest.fail(f"accepted: {text!r}")
