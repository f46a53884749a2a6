"""Runs sections of measurements and puts their tables into RESULTS.md."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

_RESULTS = Path(__file__).with_name("RESULTS.md")


def report(name: str, section: Callable[[], str], rounds: int, *, update: bool) -> None:
    """Runs a section and prints its tables.

    Args:
        name: Its name.
        section: Measures and returns the tables.
        rounds: How many rounds it takes, for the line below the tables.
        update: Also put the tables between the section's marks in RESULTS.md.
    """
    text = _measure(section, rounds)
    print(f"## {name}\n\n{text}\n", flush=True)
    if update:
        _update(name, text)


def _measure(section: Callable[[], str], rounds: int) -> str:
    begin, before = time.perf_counter(), os.getloadavg()[0]
    text = section()
    load = f"load average {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    took = f"{time.perf_counter() - begin:.0f} s"
    today = datetime.now(UTC).date().isoformat()
    return f"{text}\n\n*{today}, {rounds} rounds, {load}, {took} in all.*"


def _update(name: str, text: str) -> None:
    """Puts a section's tables between its marks."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    content = _RESULTS.read_text(encoding="utf-8")
    if not pattern.search(content):
        raise SystemExit(f"{_RESULTS}: has no place for {name}")
    content = pattern.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", content)
    _RESULTS.write_text(content, encoding="utf-8")
