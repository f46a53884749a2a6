"""The README shows every verb, and its console blocks are real output."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from stantools.cli.verbs import summaries
from stantools.errors import ExitCode

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_the_tour_shows_real_output() -> None:
    spec = importlib.util.spec_from_file_location("docs_tour", ROOT / "docs" / "tour.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = README.read_text(encoding="utf-8")
    assert text.count("```console\n$ stantools ") >= 5
    assert text == module.tour(), "run: make docs"


def test_every_verb_and_exit_code_is_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    for name in summaries():
        assert re.search(rf"^\| `{name}[ `]", text, re.MULTILINE), name
    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", text, re.MULTILINE), code


def test_makefile_targets_named_in_the_text_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "samples").glob("*.md")):
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"
