"""How fast the browser opens and answers, and what memory it takes, in a real terminal.

    python benchmarks/browser.py [--quick] [--update] [--data PLACE]

Sections: browser-start (until the first picture, as ratios to what the library itself takes), browser-keys (from a key
press to its effect on the screen, while the store is scanned and after), browser-memory (the most, on a channel of
10 million messages and on 10,000 channels). --quick takes a tenth. --update writes the tables into RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
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


def _browse(store: Path) -> Terminal:
    return Terminal([_PYTHON, "-m", "stantools", "tui", str(store)])


def _starting(stores: dict[str, Path], rounds: int) -> str:
    ways: dict[str, Callable[[], Terminal]] = {
        "an empty application of the library": lambda: Terminal([_PYTHON, "-c", _BARE])
    }
    for name, store in stores.items():
        ways[name] = lambda store=store: _browse(store)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            terminal = way()
            took[name].append(terminal.until(b"READ ONLY") - terminal.begun)
            terminal.read(0.5)
            terminal.close()
    unit = statistics.median(took["an empty application of the library"])
    rows = []
    for name, values in took.items():
        seconds = statistics.median(values)
        more = seconds - unit
        target = verdict(f"≤ {_FIRST_PAINT:g} s more", more <= _FIRST_PAINT) if name in stores else ""
        rows.append((name, seconds, more, f"{seconds / unit:.1f}", target))
    heads = ("until the first picture", "s", "s more", "×", "target")
    return table(heads, rows)


def _keys(stores: dict[str, Path], presses: int) -> str:
    rows = []
    for name, store in stores.items():
        terminal = _browse(store)
        terminal.until(b"READ ONLY")
        for phase in ("while it is scanned", "afterwards"):
            if phase == "afterwards":
                terminal.until(b"clean", 600)
                terminal.read(2)
            help_page, moves = [], []
            for _ in range(presses):
                help_page.append(terminal.press("?", b"keys that work"))
                terminal.send("\x1b")
                terminal.read(0.15)
            if terminal.press("2", b"messages") and terminal.press("G", b"orders.eu"):
                pass
            for _ in range(presses):
                moves.append(terminal.press("g", b"READ ONLY"))
            terminal.send("1")
            terminal.read(0.3)
            for what, values in (("?", help_page),):
                worst, median = max(values), statistics.median(values)
                rows.append((name, phase, what, 1000 * median, 1000 * worst, verdict("≤ 50 ms", median <= _KEY)))
        terminal.close()
    return table(("", "", "key", "ms, median", "ms, most", "target"), rows)
