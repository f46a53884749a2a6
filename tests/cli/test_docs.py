"""The README is short, and the console blocks of pages are real output."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from stantools.errors import ExitCode

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


@pytest.mark.parametrize("name", ["README.md", "docs/tour.md"])
def test_the_tour_shows_real_output(name: str) -> None:
    spec = importlib.util.spec_from_file_location("docs_tour", ROOT / "docs" / "tour.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    assert page in module.PAGES
    assert text.count("```console\n$ stantools ") >= 2
    assert text == module.tour(page), "run: make docs"


def test_the_readme_is_short_and_leads_to_every_guide() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", text))
    assert linked >= {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", text, re.MULTILINE), code


def test_makefile_targets_named_in_the_text_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "samples").glob("*.md")):
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"
