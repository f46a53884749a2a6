"""How times are written."""

from __future__ import annotations

import pytest

from stantools.notation import cut, format_moment, format_uptime, parse_moment


def test_moments() -> None:
    assert parse_moment("1970-01-01T00:00:00Z") == 0
    assert parse_moment("2020-09-13T12:26:40.12345679Z") == 1_600_000_000_123_456_790
    assert parse_moment("0001-01-01T00:00:00Z") == -62_135_596_800 * 10**9
    assert parse_moment("2020-09-13T14:26:40+02:00") == 1_600_000_000 * 10**9
    with pytest.raises(ValueError, match="is not a time"):
        parse_moment("yesterday")


def test_moments_as_servers_write_them() -> None:
    assert format_moment(1_700_000_000 * 10**9 + 120) == "2023-11-14T22:13:20.00000012Z"
    assert format_moment(1_700_000_000 * 10**9 + 120_000_000) == "2023-11-14T22:13:20.12Z"
    assert format_moment(1_700_000_000 * 10**9) == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (3, "3s"),
        (125, "2m5s"),
        (3605, "1h0m5s"),
        (2 * 86400 + 3605, "2d1h0m5s"),
        (365 * 86400, "1y0d0h0m0s"),
        (366 * 86400, "1y1d0h0m0s"),
    ],
)
def test_time_spans(seconds: int, shown: str) -> None:
    assert format_uptime(seconds * 10**9 + 5) == shown


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("abcd", 1, "…"), ("abcd", 0, ""), ("", 0, ""), ("abcd", -1, "")],
)
def test_a_cut_text_shows_it(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
