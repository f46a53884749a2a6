"""What a person sees: in a terminal of 80 columns, and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from rich.cells import cell_len

from stantools.cli import console
from stantools.cli.output import table_text
from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.report import columns

TOOL = [sys.executable, "-m", "stantools"]


def in_terminal(columns: int, *words: object, cwd: Path | None = None) -> list[str]:
    """Runs the program in a terminal of its own and returns what stands there, line by line."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        if cwd:
            os.chdir(cwd)
        environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
        environment.pop("COLUMNS", None)
        os.execve(TOOL[0], [*TOOL, *map(str, words)], environment)
    told = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the end, as a terminal tells it
            break
        if not part:
            break
        told += part
    os.close(terminal)
    os.waitpid(child, 0)
    return told.decode().replace("\r\n", "\n").split("\n")


@pytest.fixture
def store(run, tmp_path: Path) -> Path:
    """A damaged store with long names, below a short path."""
    names = ("--name", "telemetry.europe.device-000001.temperature", "--name", "orders")
    damage = ("--damage", "flipped-byte", "--damage", "cut-subs", "--damage", "lost-clients")
    assert run("sample", tmp_path / "store", *names, *damage).code == 0
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("subs", "store"),
        ("doctor", "store", "--progress", "none"),
        ("explain", "Error looking up message orders:25 (unexpected EOF)"),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ("info", "store", "--progress", "none"),
                ("clients", "store"),
                ("verify", "store", "--progress", "none"),
                ("forecast", "store", "--progress", "none"),
                ("explain",),
                ("explain", "slice-bad-payload"),
                ("truncate-bad-eof", "store", "--dry-run"),
            )
        ),
    ],
    ids=lambda words: " ".join(words[:2]),
)
@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.slow)])
def test_everything_fits(store: Path, words: tuple[str, ...], columns: int) -> None:
    lines = in_terminal(columns, *words, cwd=store)
    assert len(lines) > 3
    # A command is never broken: pasted, it would be another one.
    assert [line for line in lines if len(line) > columns and "`stantools " not in line] == []


def test_what_is_cut_and_how_to_see_it(store: Path) -> None:
    lines = in_terminal(80, "subs", "store", cwd=store)
    name = "telemetry.europe.device-000001.temperature"
    assert name in dict(cells(lines))["channel"] and not any("wait" in title for title, _ in cells(lines))
    assert "without wait, in flight" in " ".join(lines) and "--wide" in " ".join(lines)
    for whole in (in_terminal(80, "subs", "store", "--wide", cwd=store), in_terminal(300, "subs", "store", cwd=store)):
        assert not any("…  " in line or "--wide" in line for line in whole)
        assert any(line.startswith(name) for line in whole) and any("wait" in line for line in whole)


#: Titles of columns that identify a row or are its state, as their last lines are.
KEYS = {"channel", "stream", "store", "status", "account", "consumer", "client", "durable", "group", "done", "proof"}
KEYS |= {"from channel", "remarks", "problem"}


def cells(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yields title and content of the columns of tables, by their rules."""
    for number, line in enumerate(lines):
        if not re.fullmatch(r" *-+(  -+)*", line):
            continue
        end = next((n for n in range(number + 1, len(lines)) if not lines[n].strip()), len(lines))
        for each in re.finditer("-+", line):
            column = [row[each.start() : each.end()] for row in lines[number - 1 : end] if row != line]
            yield column[0].strip(), "".join(cell.strip() for cell in column[1:])


#: Commands, and columns that their tables must have.
TABLES: list[tuple[tuple[str, ...], set[str]]] = [
    (("info", "store"), {"channel"}),
    (("info", "store", "--channel", "telemetry.>"), {"channel", "status"}),
    (("subs", "store"), {"channel", "status", "durable"}),
    (("clients", "store"), {"client"}),
    (("verify", "store"), {"channel"}),
    (("forecast", "store"), {"channel"}),
    (("doctor", "store"), {"channel"}),
    (("stats", "store"), {"channel"}),
    (("salvage", "store", "--out", "new", "--dry-run"), {"channel"}),
    (("compact", "store", "--dry-run"), set()),
    (("migrate", "store", "--out", "backup", "--dry-run"), {"stream", "from channel", "remarks"}),
    (("verify", "store", "js"), {"store"}),
    (("info", "store", "js"), {"store"}),
    (("info", "js"), {"stream"}),
    (("verify", "js"), {"stream"}),
    (("subs", "js"), {"stream", "consumer"}),
    (("forecast", "js"), {"stream"}),
    (("salvage", "js", "--out", "new", "--dry-run"), {"stream"}),
]


@pytest.mark.parametrize("columns", [80, 60])
def test_what_identifies_a_row_and_its_state_are_never_cut(
    columns: int, run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store)
    run("migrate", "store", "--jetstream-store", "js", "--yes", "--accept-loss")
    monkeypatch.setattr(console, "width", lambda **_: columns)
    for words, keys in TABLES:
        out = run(*words, "--progress", "none").out if words[0] not in ("subs", "clients") else run(*words).out
        found = list(cells(out.split("\n")))
        assert keys <= {title for title, _ in found}, (words, out)
        assert [(title, text) for title, text in found if title in KEYS and "…" in text] == [], words
        assert [line for line in out.split("\n") if len(line) > columns and "  " in line.strip()] == [], words
        if columns == 80 and words[:2] == ("subs", "store"):
            assert "telemetry.europe.device-000001.temperature" in dict(found)["channel"]


def test_columns_that_are_left_out_make_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = columns("channel", "first", "p50", numbers=("p50",), keys=("channel",), details=("p50",))
    row = "telemetry.device-001", "2026-11-21T03:00:00Z", "1,024 bytes"
    for width, cut in ((60, False), (44, False), (40, True)):
        monkeypatch.setattr(console, "width", lambda width=width, **_: width)
        text = table_text(names, [row])
        assert ("…" in text, "p50" in text) == (cut, width == 60), text


def test_numbers_are_never_cut(store: Path) -> None:
    rows = [line.split() for line in in_terminal(60, "info", "store", "--progress", "none", cwd=store)]
    assert any(row[:1] == ["orders"] and "100" in row for row in rows)


def test_meanings_are_folded(store: Path) -> None:
    text = " ".join(" ".join(in_terminal(80, "explain", cwd=store)).split())
    for each in CATALOGUE.values():
        assert each.meaning in text


def test_pipes_get_everything(run, store: Path) -> None:
    for verb in ("info", "subs", "forecast"):
        out = run(verb, store / "store").out
        assert "telemetry.europe.device-000001.temperature" in out or verb == "forecast"
    assert run("subs", store / "store", "--wide").out == run("subs", store / "store").out


@pytest.mark.parametrize("word", ["damaged", "注文", "u\u0308ber"])
def test_lines_break_where_the_width_ends_in_colors_too(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", lambda **_: 20)
    red = click.style(word, fg="red", bold=True)
    shown = cell_len(word)
    fits, too_long = "x" * (20 - shown - 1), "x" * (20 - shown)
    assert console.wrapped(f"{red} {fits}", 2) == f"{red} {fits}"
    assert console.wrapped(f"{red} {too_long}", 2) == f"{red}\n  {too_long}"
