"""The documentation keeps up with the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from stantools.cli.verbs import QUESTIONS, summaries
from stantools.inspection.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["commands.md", "findings.md"])
def test_generated_pages_are_up_to_date(generator: ModuleType, page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == generator.PAGES[page](), "run: make docs"


def test_every_finding_is_documented() -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    for entry in CATALOGUE.values():
        assert f"\n## {entry.code}\n" in text
        assert entry.remedy in text


def test_every_verb_is_documented() -> None:
    reference = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in summaries():
        assert f"\n### {name}\n" in reference
        assert re.search(rf"^\| `{name}[ `]", readme, re.MULTILINE), name
    for question in QUESTIONS:
        assert f"\n## {question}\n" in reference


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "samples").glob("*.md")]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?:^|`|\$ |\n)stantools ([a-z][a-z-]+)", text):
        assert name in summaries(), f"{page.name}: stantools {name}"


def test_makefile_targets_named_in_the_text_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in pages():
        for target in re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8")):
            assert target in targets, f"{page.name}: make {target}"
