"""How fast the browser opens and answers, and what memory it takes, in a real terminal.

    python benchmarks/browser.py [--quick] [--only SECTION] [--update] [--data PLACE]

Sections: browser-start (until the first picture, beside an empty application of the library), browser-keys (from a key
press to its effect on the screen, while the store is scanned and after), browser-memory (the most, after the store was
scanned and looked at). The stores: one channel of 10 million messages, and 10,000 channels. --quick takes a tenth.
--update writes the tables into RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measure import table, verdict
from report import report
from stores import make_store
from terminal import Terminal

_PYTHON = sys.executable
_FIRST_PAINT, _KEY, _MEMORY = 0.3, 0.05, 300
_BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("READ ONLY")
Bare().run()
"""
_CLEAN = "✓ clean".encode()
_EMPTY = "an empty application of the library"


def _browse(store: Path) -> Terminal:
    return Terminal([_PYTHON, "-m", "stantools", "tui", str(store)])


def _starting(stores: dict[str, Path], rounds: int) -> str:
    ways: dict[str, Callable[[], Terminal]] = {_EMPTY: lambda: Terminal([_PYTHON, "-c", _BARE])}
    for name, store in stores.items():
        ways[name] = partial(_browse, store)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            terminal = way()
            took[name].append(terminal.until(b"READ ONLY") - terminal.begun)
            terminal.read(0.5)
            terminal.close()
    unit = statistics.median(took[_EMPTY])
    rows = []
    for name, values in took.items():
        seconds = statistics.median(values)
        target = "" if name == _EMPTY else verdict(f"≤ {_FIRST_PAINT:g} s more", seconds - unit <= _FIRST_PAINT)
        rows.append((name, seconds, seconds - unit, f"{seconds / unit:.1f}", target))
    return table(("from the start of the process to the first picture", "s", "s more", "×", "target"), rows)


def _keys(stores: dict[str, Path], presses: int) -> str:
    rows = []
    for name, store in stores.items():
        terminal = _browse(store)
        terminal.until(b"READ ONLY")
        for phase in ("scanning", "afterwards"):
            if phase == "afterwards":
                terminal.send("1")
                if _CLEAN not in terminal.drawn:
                    terminal.until(_CLEAN, 300)
                terminal.read(2)
            for what, seconds in _measured(terminal, name, presses):
                median, worst = statistics.median(seconds), max(seconds)
                target = verdict(f"≤ {_KEY * 1000:g} ms", median <= _KEY)
                rows.append((name, phase, what, f"{1000 * median:.0f}", f"{1000 * worst:.0f}", target))
        terminal.close()
    return table(("store", "while", "key", "ms, median", "ms, most", "target"), rows)


def _measured(terminal: Terminal, name: str, presses: int) -> list[tuple[str, list[float]]]:
    """Presses keys that have something to draw that nothing else draws."""
    found: list[tuple[str, list[float]]] = []
    if "channels" in name:
        terminal.send("g")
        terminal.read(0.5)
        down = [terminal.press("j", b"orders.eu.%05d" % row) for row in range(1, presses + 1)]
        found.append(("down a channel", down))
    terminal.send("2")
    terminal.until(b"payload")
    terminal.read(0.5)
    if "channels" not in name:
        terminal.send("g")
        terminal.read(0.5)
        found.append(("down a message", [terminal.press("j", b"row %d of" % row) for row in range(2, presses + 2)]))
        ends = []
        for _ in range(presses // 2):
            ends.append(terminal.press("G", b"row 10,000,000 of" if "10,000,000" in name else b"row 1,000,000 of"))
            ends.append(terminal.press("g", b"row 1 of"))
        found.append(("to the last and the first message", ends))
    terminal.send("\x1b")
    terminal.read(0.5)
    pages = []
    for _ in range(presses // 2):
        pages.append(terminal.press("?", b"active keys"))
        terminal.send("\x1b")
        terminal.read(0.2)
    found.append(("help", pages))
    return found


def _memory(stores: dict[str, Path]) -> str:
    rows = []
    for name, store in stores.items():
        terminal = _browse(store)
        terminal.until(_CLEAN, 300)
        for key in "2G\x1b3\x1b4\x1b5\x1b6\x1b":
            terminal.send(key)
            terminal.read(1.5)
        most, own = terminal.memory()
        target = verdict(f"≤ {_MEMORY} MiB", most <= _MEMORY)
        rows.append((name, f"{most:.0f}", f"{own:.0f}", target))
        terminal.close()
    return table(("after every view was opened", "most MiB", "MiB of its own, at the end", "target"), rows)


def main() -> None:
    """Command line."""
    sections = ("browser-start", "browser-keys", "browser-memory")
    parser = argparse.ArgumentParser(description="speed and memory of the browser")
    parser.add_argument("--only", action="append", choices=sections, help="only this section; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--update", action="store_true", help="put the tables into RESULTS.md")
    parser.add_argument("--data", type=Path, help="where to write the data; default: a temporary directory")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    less = 10 if given.quick else 1
    with tempfile.TemporaryDirectory(dir=given.data, prefix="bench-") as place:
        messages, channels = 10_000_000 // less, 10_000 // less
        stores = {
            f"{messages:,} messages": make_store(Path(place, "messages"), messages, 128),
            f"{channels:,} channels": make_store(Path(place, "channels"), channels * 20, 128, channels=channels),
        }
        measured: dict[str, Callable[[], str]] = {
            "browser-start": partial(_starting, stores, given.rounds),
            "browser-keys": partial(_keys, stores, 20),
            "browser-memory": partial(_memory, stores),
        }
        for name in given.only or sections:
            report(name, measured[name], given.rounds, update=given.update)


if __name__ == "__main__":
    main()
