"""Builds the documentation site in build/site from the README and everything that it leads to.

    python docs/site.py            (or: make docs)

The pages are copied to build/pages with the layout of the repository, so that their links work as they are. Links that
lead nowhere, and pages that are not in the navigation of mkdocs.yml, are errors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_MARKER = re.compile(r"(?:[-*]|\d+\.) +(?=\S)")
_WIDTH = 4  #: columns by which Python-Markdown wants the content of a list item to be indented


def collect() -> set[Path]:
    """Copies the README, and what links lead to from there, to build/pages; returns the files."""
    shutil.rmtree(PAGES, ignore_errors=True)
    found, new = set(), {ROOT / "README.md", ROOT / "docs" / "site.css"}
    while new:
        found |= new
        new = {target for page in new if page.suffix == ".md" for target in _linked(page)} - found
    for path in found:
        copy = PAGES / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            lines = path.read_text(encoding="utf-8").split("\n")
            copy.write_text("\n".join(widened(lines)), encoding="utf-8")
        else:
            shutil.copyfile(path, copy)
    return found


def _linked(page: Path) -> Iterator[Path]:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        if "://" not in link and target.is_file() and target.is_relative_to(ROOT):
            yield target


def widened(lines: list[str]) -> Iterator[str]:
    """Yields lines with the content of list items indented as Python-Markdown wants it, lists apart from paragraphs."""
    before, fence, at = "", "", 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.lstrip().startswith("```"):
            fence = "" if fence else "```"
        marker = None if fence else _MARKER.match(line)
        if marker is None:
            yield line
            before = line
            continue
        if before.strip():
            yield ""
        content, own = [line[marker.end() :]], marker.end()
        while at < len(lines) and (lines[at].startswith(" " * own) or _goes_on(lines, at, own)):
            content.append(lines[at][own:])
            at += 1
        first, *rest = widened(content)
        yield marker[0].rstrip().ljust(_WIDTH) + first
        for each in rest:
            yield " " * _WIDTH + each if each else each
        before = line if "" in rest else ""  # items of several paragraphs or lists are set apart


def _goes_on(lines: list[str], at: int, indent: int) -> bool:
    """Returns whether a blank line is followed by more of a list item."""
    following = next((line for line in lines[at:] if line.strip()), "")
    return not lines[at].strip() and following.startswith(" " * indent)


def build(target: Path = SITE) -> int:
    """Builds the site in a directory; returns the exit code of mkdocs, whose warnings are errors (mkdocs.yml)."""
    collect()
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    """Builds the site and says where it is."""
    if code := build():
        return code
    sys.stderr.write(f"{SITE.relative_to(ROOT)}: written; to look at it: python -m http.server -d build/site\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
