from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.monitoring.http import QueryParameters, integer


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("", (0, 1024)),
        ("offset=3&limit=7", (3, 7)),
        ("offset=-3&limit=-7", (0, 1024)),
        ("offset=x&limit=0", (0, 1024)),
        ("offset=%2B3&limit=+7", (3, 1024)),
        ("offset=1_0&limit=1e3", (0, 1024)),
        ("limit=99999999999999999999", (0, 1024)),
        ("limit=5&limit=6", (0, 5)),
        ("limit=", (0, 1024)),
        ("limit", (0, 1024)),
        ("limit=9223372036854775807", (0, 9223372036854775807)),
    ],
)
def test_pages(text: str, page: tuple[int, int]) -> None:
    assert QueryParameters(text).page() == page


def test_names_and_values_are_unescaped() -> None:
    query = QueryParameters("channel=a%20b+c%C3%A4&%63=%ff&broken=%zz&semi;colon=1")
    assert query.raw("channel") == "a b cä".encode()
    assert query.raw("c") == b"\xff"
    assert query.text("c") == "\ufffd"
    assert query.texts() == {"channel": "a b cä", "c": "\ufffd"}
    assert "channel" in query
    assert "broken" not in query


def test_many_parameters_are_not_gone_through() -> None:
    query = QueryParameters("&".join(f"a{number}=1" for number in range(10000)) + "&last=1")
    assert len(query.texts()) == 64


@given(st.text(max_size=200))
def test_anything_can_be_asked(text: str) -> None:
    query = QueryParameters(text)
    offset, limit = query.page()
    assert offset >= 0
    assert limit > 0
    query.texts()


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_of_64_bits(number: int) -> None:
    assert integer(str(number)) == number
    assert integer(f"{number} ") == 0
