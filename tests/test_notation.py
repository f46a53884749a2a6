"""How times are written."""

from __future__ import annotations

import pytest

from stantools.notation import parse_moment


def test_moments() -> None:
    assert parse_moment("1970-01-01T00:00:00Z") == 0
    assert parse_moment("2020-09-13T12:26:40.12345679Z") == 1_600_000_000_123_456_790
    assert parse_moment("0001-01-01T00:00:00Z") == -62_135_596_800 * 10**9
    assert parse_moment("2020-09-13T14:26:40+02:00") == 1_600_000_000 * 10**9
    with pytest.raises(ValueError, match="is not a time"):
        parse_moment("yesterday")
