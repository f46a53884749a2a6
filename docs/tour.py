"""Runs the commands in the console blocks of README.md, in order, and puts what they print into it.

A test compares the README with what `tour` returns.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_BLOCK = re.compile(r"```console\n\$ stantools ([^\n]*)\n(.*?)```", re.DOTALL)
#: What differs from run to run, and what stands in its place.
_VARYING = ((re.compile(r"read in \d+\.\d+ s"), "read in 0.01 s"),)


def tour() -> str:
    """Returns the README with the output that its commands have now."""
    with tempfile.TemporaryDirectory() as place:
        return _BLOCK.sub(lambda block: _run(block[1], Path(place)), README.read_text(encoding="utf-8"))


def _run(command: str, place: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "stantools", *shlex.split(command)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = result.stdout
    for pattern, text in _VARYING:
        output = pattern.sub(text, output)
    return f"```console\n$ stantools {command}\n{output}```"


def main() -> None:
    """Writes the README again if it has changed."""
    text = tour()
    changed = README.read_text(encoding="utf-8") != text
    if changed:
        README.write_text(text, encoding="utf-8")
    sys.stderr.write(f"README.md: {'written' if changed else 'is as it should be'}\n")


if __name__ == "__main__":
    main()
