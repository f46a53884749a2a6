"""Runs the commands in the console blocks of pages, in order, and puts what they print into them.

A test compares each page with what `tour` returns. Where no nats-server can be started, blocks that need one stay as
they are.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from stantools.errors import StantoolsError
from stantools.nats.serverprocess import find_server

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "tour.md", ROOT / "docs" / "jetstream-guide.md")
#: samples that pages call `data`
_DATA = {"jetstream-guide.md": ROOT / "samples" / "streams-damaged"}
_BLOCK = re.compile(r"```console\n\$ stantools ([^\n]*)\n(.*?)```", re.DOTALL)
#: What differs from run to run, and what replaces it.
_VARYING = (
    (re.compile(r"read in \d+\.\d+ s"), "read in 0.01 s"),
    (re.compile(r"in \d+\.\d s; compared in \d+\.\d s"), "in 0.1 s; compared in 0.1 s"),
    (re.compile(r"nats://127\.0\.0\.1:\d+"), "nats://127.0.0.1:4222"),
    (re.compile(r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"), "[7] 2026/11/23 09:41:07.000000"),
    (re.compile(r"\b(?=\w*\d|[A-Za-z]*[a-z][A-Z])(?:N[A-Z0-9]{55}|[0-9A-Za-z]{22})\b"), "kQ3vXw8LJm2ZtR5nYb7HdA"),
    (re.compile(r"on Python [\d.]+"), "on Python 3.13"),
)
#: Column of a table that differs as well, with its width -> what every row shows.
_LOADED, _RATE = "loaded", "9,000/s"


def tour(page: Path) -> str:
    """Returns a page with the output that its commands have now."""
    serving = can_serve()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "shop")  # in the names of plans
        place.mkdir()
        if data := _DATA.get(page.name):
            shutil.copytree(data, place / "data")

        def fill(block: re.Match[str]) -> str:
            needed = block[1].startswith("migrate ")
            return (
                f"```console\n$ stantools {block[1]}\n{run(block[1], place)}```" if serving or not needed else block[0]
            )

        return _BLOCK.sub(fill, page.read_text(encoding="utf-8"))


def can_serve() -> bool:
    """Returns whether there is a nats-server to start."""
    try:
        find_server()
    except StantoolsError:
        return False
    return True


def run(command: str, place: Path) -> str:
    """Runs a command of stantools in a directory; returns what it prints, as `steady` has it."""
    result = subprocess.run(
        [sys.executable, "-m", "stantools", *shlex.split(command)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return steady(result.stdout)


def steady(output: str) -> str:
    """Returns output in which nothing differs from run to run."""
    output = _same_rates(output)
    for pattern, text in _VARYING:
        output = pattern.sub(text, output)
    return output


def _same_rates(output: str) -> str:
    """Puts the same rate into every row of a table that has a column of rates, which is as wide as its widest."""
    lines = output.split("\n")
    for number, line in enumerate(lines):
        if _LOADED in line.split() and lines[number + 1].startswith("---"):
            rule = next(
                r for r in re.finditer("-+", lines[number + 1]) if r.end() == line.index(_LOADED) + len(_LOADED)
            )
            for row, text in enumerate(lines[number:], number):
                if len(text) <= rule.start():
                    break
                cell = text[rule.start() : rule.end()].strip()
                shown = "-" * len(_RATE) if cell.startswith("-") else cell if cell in ("", _LOADED) else _RATE
                lines[row] = f"{text[: rule.start()]}{shown:>{len(_RATE)}}{text[rule.end() :]}"
    return "\n".join(lines)


def main() -> None:
    """Writes the pages again that have changed."""
    for page in PAGES:
        text = tour(page)
        changed = page.read_text(encoding="utf-8") != text
        if changed:
            page.write_text(text, encoding="utf-8")
        sys.stderr.write(f"{page.name}: {'written' if changed else 'is as it should be'}\n")
    if not can_serve():
        sys.stderr.write("blocks with migrate are as they were: there is no nats-server to start\n")


if __name__ == "__main__":
    main()
