"""Cells: whatever goes in, nothing that moves the cursor or breaks the line comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from stantools.notation import cut, short_number
from tui import cells
from tui.cells import bar, counted, name_text, number, role_of, sparkline, text_of, time_text
from tui.widgets.line import content, lines

ANY_TEXT = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["[bold]x[/]", "\x1b[31mred", "a\r\nb", "‮abc", "\udcff", "\\x1b", "\x00\x07\x7f\x9b31m", "\u2028\u2029"]
)


@given(ANY_TEXT)
def test_text_of_a_cell_is_harmless(text: str) -> None:
    assert text_of(text).isprintable()
    assert text_of((text, "bad")) == text_of(text)
    if text.isprintable():
        assert text_of(text) == text


@given(ANY_TEXT | st.binary(max_size=40))
def test_names_are_harmless_and_stay_apart(name: str | bytes) -> None:
    assert name_text(name).isprintable()


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_two_names_never_look_the_same(one: bytes, other: bytes) -> None:
    assert (name_text(one) == name_text(other)) == (one == other)


@given(st.lists(st.lists(ANY_TEXT, max_size=4), max_size=4))
def test_lines_have_the_text_and_no_markup(rows: list[list[str]]) -> None:
    shown = lines(rows)
    assert isinstance(shown, Content)
    assert len(shown.plain.split("\n")) == max(len(rows), 1) or any("\n" in row for row in rows)
    for line in shown.plain.split("\n"):
        assert line.isprintable()
    assert content(["[bold]x[/bold]"]).plain == "[bold]x[/bold]"


def test_roles() -> None:
    assert role_of("text") == ""
    assert role_of(("text", "warn")) == "warn"
    symbols = [symbol for symbol, _ in cells.SYMBOLS.values()]
    assert len(set(symbols)) == len(symbols)
    assert all(len(symbol) == 1 for symbol in symbols)


@given(st.integers(-(10**20), 10**20))
def test_number_can_be_read_back(value: int) -> None:
    assert int(number(value).replace(",", "")) == value


@given(st.floats(0, 1e15))
def test_short_numbers_are_short_and_near(value: float) -> None:
    shown = short_number(value)
    assert len(shown) <= 5
    unit = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(shown[-1], 1)
    assert float(shown.rstrip("kMGT")) * unit == pytest.approx(value, rel=0.06, abs=0.5)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12.3k"), (999_499, "999k"), (999_500, "1.0M"), (4.5e6, "4.5M")],
)
def test_short_numbers(value: float, shown: str) -> None:
    assert short_number(value) == shown


def test_counted() -> None:
    assert counted(1, "channel") == "1 channel"
    assert counted(1234, "channel") == "1,234 channels"
    assert counted(2, "entry", "entries") == "2 entries"


@given(st.floats(-1, 2), st.integers(0, 50))
def test_bars_fit_and_grow(share: float, width: int) -> None:
    drawn = bar(share, width)
    assert len(drawn) <= max(width, 1)
    assert set(drawn) <= set("▏▎▍▌▋▊▉█")
    assert bool(drawn) == (share > 0)
    if width and share >= 1:
        assert drawn == "█" * width
    assert len(bar(share / 2, width)) <= len(drawn)


@given(st.lists(st.floats(0, 1e9), max_size=60), st.integers(1, 40))
def test_sparklines(values: list[float], width: int) -> None:
    drawn = sparkline(values, width)
    assert len(drawn) == min(len(values), width)
    assert set(drawn) <= set("▁▂▃▄▅▆▇█")
    shown = values[-width:]
    if shown and max(shown) > 0:
        assert drawn[shown.index(max(shown))] == "█"


@given(ANY_TEXT, st.integers(-2, 50))
def test_cut(text: str, width: int) -> None:
    shown = cut(text, width)
    assert len(shown) <= max(width, 0)
    assert shown == text if len(text) <= width else shown.endswith("…") or not shown


@given(st.integers(-(2**63), 2**63 - 1))
def test_times_are_one_line(timestamp: int) -> None:
    assert time_text(timestamp).isprintable()


def test_times() -> None:
    assert time_text(1_700_000_000_123_456_789) == "2023-11-14 22:13:20.123"
