"""Lines that real servers logged on the golden JetStream directories are explained, with codes and remedies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.explain import explain
from stantools.inspection.jetstreamlog import STREAM_LINES, STREAM_WRAPPERS

pytestmark = pytest.mark.golden
#: connections among nodes, steps of a group that are no trouble, and the frames of a panic
OTHERS = re.compile(r"route|rid:\d+ - |Metalayer blocking|Waiting for routing|^goroutine ")


def lines_of(logs: Any) -> Iterator[str]:
    if isinstance(logs, dict):
        for each in logs.values():
            yield from lines_of(each)
    elif isinstance(logs, list):
        if len(logs) == 2 and all(isinstance(each, str) for each in logs):
            if logs[0] in ("WRN", "ERR", "FTL", "PANIC"):
                yield logs[1]
            return
        for each in logs:
            yield from lines_of(each)


def logged(value: Any) -> Iterator[str]:
    """The lines of every log in an expectation."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from lines_of(each) if name in ("log", "log_while_reading") else logged(each)
    elif isinstance(value, list):
        for each in value:
            yield from logged(each)


def test_every_line_of_real_servers_is_explained(golden_jetstream: Path) -> None:
    kinds: dict[str, str] = {}
    for path in sorted(golden_jetstream.glob("*/expected.json")):
        for line in logged(json.loads(path.read_text())):
            if not OTHERS.search(line):
                kinds.setdefault(re.sub(r"\d+|'[^']*'|\"[^\"]*\"|\[[^]]*\]", "", line), line)
    assert len(kinds) > 40
    texts = {each.pattern.pattern for each in (*STREAM_LINES, *STREAM_WRAPPERS)}
    assert len(texts) == len(STREAM_LINES) + len(STREAM_WRAPPERS)
    meanings = {each.meaning.split("{")[0] for each in (*STREAM_LINES, *STREAM_WRAPPERS)}
    for line in kinds.values():
        found = explain(f"[42] 2026/11/26 22:18:09.959524 [WRN] {line}")
        assert found, line
        assert all(any(each.meaning.startswith(part) for part in meanings) for each in found), (line, found)


def test_meaning_and_codes() -> None:
    rows: list[tuple[str, set[str], str]] = [
        (
            'Error recreating stream "ORDERS": error reading compression reader: s2: corrupt input (10077)',
            {"js-block-compressed", "js-block-erase-bug"},
            "deleted the whole directory",
        ),
        (
            'Stream metafile "/d/jetstream/$G/streams/A/meta.inf": checksums do not match "1" vs "2"',
            {"js-meta-sum"},
            "skipped",
        ),
        (
            "Filestore [A] Stream state detected prior state, could not locate msg block 7",
            {"js-block-missing"},
            "7.blk",
        ),
        ("Detected orphaned stream '$G > A', will cleanup", set(), "$G > A is being deleted"),
        ("JetStream consumer '$G > A > c' delivered sequence 9 past last stream sequence of 4", {"js-cons-ahead"}, "9"),
        ("panic: runtime error: slice bounds out of range [4:0]", {"js-block-length"}, "flipped"),
    ]
    for line, codes, words in rows:
        found = explain(f"[WRN] {line}")
        assert words in " ".join(f"{each.meaning} {each.cause}" for each in found), (line, codes, words)
        assert codes <= {code for each in found for code in each.codes}, (line, codes, words)


def test_format_strings_of_the_reference_are_explained() -> None:
    """Every line in the sections about starts that begins as the servers' own lines do."""
    page = (Path(__file__).parents[2] / "docs/reference/jetstream-store.md").read_text(encoding="utf-8")
    part = page[page.index("## 15. ") : page.index("## 22. ")]
    begins = ("Error ", "Missing ", "Stream ", "Detected ", "Filestore ", "JetStream consumer", "indexCacheBuf ")
    quoted = [
        each.replace("\n", " ")
        for each in re.findall(r"`([^`]+)`", part)
        if each.startswith(begins) and re.search(r"[\"'=]", each)  # others are abbreviations
    ]
    assert len(quoted) > 12
    for text in quoted:
        line = re.sub(r"\b[nm]\b", "7", re.sub(r"<[a-z]+>|…", "x", text))
        if text.startswith("indexCacheBuf "):
            line = f"Filestore [x] {line}"
        assert explain(line), text


def test_codes_are_those_of_the_catalogue() -> None:
    for each in (*STREAM_LINES, *STREAM_WRAPPERS):
        assert set(each.codes) <= CATALOGUE.keys()
        assert each.meaning[0] == each.meaning[0].lower() and each.meaning.endswith(".")
