"""Progress on stderr."""

from __future__ import annotations

import io
import json
import re
import threading

import pytest

from stantools.cli import progress
from stantools.cli.progress import ByteProgress
from stantools.cli.streamprogress import StreamsProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with ByteProgress("verify", 4 << 20, mode="auto") as shown:
        clock[0] += 0.1
        shown.advance(1 << 20)
        assert terminal.getvalue() == ""  # too early
        clock[0] += 0.9
        shown.found(object())
        shown.advance(1 << 20)
        line = "[##########..........]  50%  2.0 MiB of 4.0 MiB  2.0 MiB/s  0:01 left  1 finding"
        assert line in terminal.getvalue()
        before = terminal.getvalue()
        shown.advance(1)
        assert terminal.getvalue() == before  # not so often
    assert terminal.getvalue().endswith(" \r")


@pytest.mark.parametrize("columns", ["60", "70", "80"])
def test_the_time_left_is_never_cut(columns: str, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with ByteProgress("verify", 345_678, mode="bar") as shown:
        shown.found(object(), object())
        clock[0] += 10
        shown.advance(123_456)
        line = terminal.getvalue()
    assert line.endswith("0:18 left  2 findings") and len(line) <= int(columns), line
    assert ("KiB/s" in line) == (columns == "80")


def test_silence_without_a_terminal(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", stream)
    asked: list[str] = []
    for mode in ("auto", "none"):
        with ByteProgress("verify", lambda: asked.append("total") or 100, mode=mode) as shown:
            clock[0] += 5
            shown.advance(50)
    assert stream.getvalue() == "" and not asked


def test_json_lines(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", stream)
    with ByteProgress("salvage", 100, mode="json") as shown:
        for _ in range(4):
            clock[0] += 0.6
            shown.advance(25)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["bytes"] for line in lines] == [25, 75, 100]
    assert [line["done"] for line in lines] == [False, False, True]
    assert lines[0] == {
        "progress": "salvage",
        "bytes": 25,
        "total": 100,
        "bytes_per_second": 42,
        "seconds_left": 1.8,
        "findings": 0,
        "done": False,
    }


def test_totals_that_are_wrong_or_unknown(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with ByteProgress("info", mode="bar") as shown:
        clock[0] += 1
        shown.advance(10)
    assert "info  10 B  10 B/s" in terminal.getvalue()
    with ByteProgress("info", lambda: 100, mode="bar") as shown:
        clock[0] += 1
        shown.advance(500)
    assert "100%" in terminal.getvalue()


def test_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", stream)
    with ByteProgress("verify", 40_000, mode="json") as shown:
        threads = [threading.Thread(target=lambda: [shown.advance(1) for _ in range(10_000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert json.loads(stream.getvalue().splitlines()[-1])["bytes"] == 40_000


@pytest.mark.parametrize("mode", ["bar", "json"])
def test_what_is_waited_for(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves any more, and nobody calls: it is told all the same, and as soon as it goes on no longer."""
    terminal, written = Terminal(), threading.Event()
    says = {"bar": "waiting for nats://somewhere:4222, ", "json": r'"waiting_seconds": ([2-9]|\d\d)'}[mode]

    def write(text: str) -> int:
        if re.search(says, text):
            written.set()
        return len(text)

    monkeypatch.setattr(terminal, "write", write)
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with StreamsProgress("migrate", 1000, place="nats://somewhere:4222", mode=mode) as shown:
        shown.begin("orders", "load", 1000)
        shown.advance("orders", 500)
        assert not written.is_set()
        assert written.wait(60)


def test_streams_in_silence_have_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with StreamsProgress("migrate", 1000, mode="none"):
        assert threading.active_count() == before
