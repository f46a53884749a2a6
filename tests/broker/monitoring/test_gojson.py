from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.monitoring.http import compact, written


def text(value: Any) -> str:
    return "".join(written(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("foo.>", r'"foo.\u003e"'),
        ("<a & b>", r'"\u003ca \u0026 b\u003e"'),
        ('"\\/\n\r\t', r'"\"\\/\n\r\t"'),
        ("\b\f\x00\x1f\x7f", '"\\u0008\\u000c\\u0000\\u001f\x7f"'),
        ("\u2028\u2029äö€😀", r'"\u2028\u2029äö€😀"'),
        ("\udcff", r'"\ufffd"'),
        (b"ab\xff", '"ab\ufffd"'),
        (0, "0"),
        (-5, "-5"),
        (1 << 63, "9223372036854775808"),
        (np.uint64(1 << 63), "9223372036854775808"),
        (True, "true"),
        (None, "null"),
        (0.0, "0"),
        (0.8, "0.8"),
        (98.6, "98.6"),
        (-2.0, "-2"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-7, "1e-7"),
        (0.00001234, "0.00001234"),
        (math.nan, "null"),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_values_are_written_as_go_writes_them(value: Any, expected: str) -> None:
    assert text(value) == expected


def test_indentation() -> None:
    document = {"a": {}, "b": [], "c": [{"d": 1, "e": "x"}, {"f": [1, 2]}], "g": {"h": {"i": None}}}
    assert text(document) == json.dumps(document, indent=2)


def test_a_piece_for_each_entry_of_a_list() -> None:
    pieces = list(written({"clients": [{"id": str(number), "subs_count": 0} for number in range(1000)]}))
    assert len(pieces) > 1000
    assert max(map(len, pieces)) < 100


def test_compact() -> None:
    assert compact({"status": "ok", "n": 1}) == b'{"status":"ok","n":1}'


def test_what_is_no_document_is_refused() -> None:
    with pytest.raises(TypeError):
        text({"a": object()})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_reading_gives_what_was_written(value: Any) -> None:
    # Halves of surrogate pairs are not made by st.text; floats come back as numbers of the same value.
    assert json.loads(text(value)) == value
