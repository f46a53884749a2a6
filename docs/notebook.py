"""Runs the notebook of docs/pipeline-guide.md and writes what it prints below each part.

    python docs/notebook.py URL        (of a nats-server with JetStream, whose streams berlin-… it makes)

tests/pipeline/test_guide.py fails when the guide is not what would be written here.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).with_name("pipeline-guide.md")

#: A part in Python, and what it printed.
_PART = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n.*?^```\n)?", re.DOTALL | re.MULTILINE)


def run(text: str, values: dict[str, Any]) -> str:
    """Runs every part of a page, in the current directory, and returns the page with what they print.

    Args:
        text: The page.
        values: What the parts find defined; they share it.
    """

    def part(match: re.Match[str]) -> str:
        code = match["code"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "notebook", "exec"), values)
        output = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().strip("\n").splitlines())
        shown = f"\n```text\n{output}```\n" if output else ""
        return f"```python\n{code}```\n{shown}"

    return _PART.sub(part, text)


def main() -> None:
    """Runs the guide in a temporary directory and writes it."""
    text = GUIDE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        written = run(text, {"server_url": sys.argv[1]})
    GUIDE.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
