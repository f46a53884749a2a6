"""The documentation site: every page is in it, looks as on a forge, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.htmlpages import Tags
from tests.programs import load

pytestmark = pytest.mark.xdist_group("site")  # one test process writes build/pages

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load(ROOT / "docs" / "site.py")


@pytest.fixture(scope="module")
def site(program: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed (the optional part docs)")
    target = tmp_path_factory.mktemp("site")
    assert program.build(target) == 0  # warnings are errors: broken links, pages outside of the navigation
    return target


def built(site: Path, page: Path) -> Tags:
    own = page.relative_to(ROOT)
    path = site / (own.with_name("index.html") if own.name == "README.md" else own.with_suffix(".html"))
    return Tags.of(path.read_text(encoding="utf-8"))


def test_the_readme_leads_to_every_page(program: ModuleType) -> None:
    found = program.collect()
    assert set((ROOT / "docs").rglob("*.md")) <= found
    assert {ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")} <= found


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for path in pages:
        assert not [url for url in Tags.of(path.read_text(encoding="utf-8")).loaded if "//" in url], path
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.slow
def test_search_finds_what_a_server_prints(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "file_truncate_bad_eof" in entry["text"]}
    assert {"docs/recovery-guide.html", "docs/findings.html"} <= found


def lists_and_tables(page: Path) -> Iterator[str]:
    """The items of lists and the tables of a page, as its Markdown has them."""
    fenced, before = False, ""
    for line in page.read_text(encoding="utf-8").split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        item = re.match(r"( *)(?:[-*]|\d+\.) +\S", line)
        if item and not fenced and (len(item[1]) < 4 or before.strip()):
            yield "li"
        if re.fullmatch(r" *\|[-| :]+\|", line) and not fenced:
            yield "table"
        before = line


@pytest.mark.slow
def test_lists_and_tables_are_what_they_are_in_the_source(program: ModuleType, site: Path) -> None:
    for page in sorted(path for path in program.collect() if path.suffix == ".md"):
        shown = built(site, page).article
        wanted = Counter(lists_and_tables(page))
        assert (shown["li"], shown["table"]) == (wanted["li"], wanted["table"]), page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n  b\n- c", "-   a\n    b\n-   c"),
        ("1. a\n\n       code\n\n   more\n2. b", "1.  a\n\n        code\n\n    more\n\n2.  b"),
        ("text\n- a\n  - b\n- c", "text\n\n-   a\n\n    -   b\n\n-   c"),
        ("```\n- a\n```\n", "```\n- a\n```\n"),
        ("- a\n\n      code\n\ntext", "-   a\n\n        code\n\ntext"),
    ],
)
def test_lists_are_indented_as_the_site_wants_them(program: ModuleType, text: str, expected: str) -> None:
    assert "\n".join(program.widened(text.split("\n"))) == expected
