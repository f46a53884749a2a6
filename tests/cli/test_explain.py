"""`explain`: every finding code, and every line that real servers logged in the golden stores."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.explain import explain
from stantools.inspection.serverlog import LINES, WRAPPERS
from tests.conftest import MUTATION_SETS, golden_cases, load_expected

#: Lines of the description of a bad record: bytes, size and so on. They say nothing by themselves.
_DUMP = re.compile(r"\[ERR\] STREAM: (?: (?:Bytes|Type|Size|CRC )|[0-9a-f]{2}(?: |$)|Record (?:header|payload):$)")


def logged_lines(golden: Path) -> set[str]:
    lines: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                if name == "log":
                    lines.update(line for line in each if isinstance(line, str))
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    for case in golden_cases():
        walk(load_expected(case))
    for name in MUTATION_SETS:
        for path in (golden / name).glob("*.json"):
            walk(json.loads(path.read_text()))
    return lines


def test_every_error_that_servers_logged_is_explained(golden: Path) -> None:
    levels = ("[ERR] STREAM: ", "[WRN] STREAM: ", "[FTL] STREAM: ")
    lines = [line for line in logged_lines(golden) if line.startswith(levels)]
    assert len(lines) > 200
    assert [line for line in lines if line not in levels and not _DUMP.match(line) and not explain(line)] == []


def test_fatal_errors_have_a_place_and_a_reason(golden: Path) -> None:
    for line in logged_lines(golden):
        if line.startswith("[FTL]") and "unable to recover" in line:
            assert len(explain(line)) == 2, line
            assert explain(line)[0].remedy


@pytest.mark.parametrize("code", CATALOGUE)
def test_codes(run, code: str) -> None:
    outcome = run("explain", code.upper())
    assert outcome.code == 0
    assert CATALOGUE[code].meaning.split()[0] in outcome.out
    assert run("explain", code, "-o", "json").json()["explanations"][0]["server"] == CATALOGUE[code].server


def test_related_codes_exist() -> None:
    for line in (*WRAPPERS, *LINES):
        assert set(line.codes) <= set(CATALOGUE)
        names = line.pattern.groupindex
        assert set(re.findall(r"\{(\w+)\}", line.meaning)) <= set(names)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "[42] 2026/11/21 03:00:00.123456 [FTL] STREAM: Failed to start: unable to recover message store for [a.b]"
            '(file: "a.b/msgs.1.idx"): corrupted data, expected crc to be 0x00000001, got 0x00000002',
            ("channel a.b", "stored 0x00000001, computed 0x00000002"),
        ),
        ("[ERR] STAN: Error looking up message foo:25 (unexpected EOF)", ("foo:25", "Delivery on this channel stops")),
        ('Reached limits for store "foo" (msgs=5/4 bytes=10/0)', ("raise the limits",)),
        ("panic: invalid client record type: 0", ("type 0",)),
        ("file store should not be opened consecutively with the TruncateUnexpectedEOF option set to true", ("twice",)),
        ('cluster ID "a" does not match recovered value of "b"', ("-cid", '"b"')),
    ],
)
def test_log_lines(run, line: str, words: tuple[str, ...]) -> None:
    text = " ".join(run("explain", line).out.split())
    for word in words:
        assert word in text
    assert run("explain", *line.split(" ")).out == run("explain", line).out


def test_stdin(run, golden: Path) -> None:
    log = "\n".join(load_expected("dmg_garbage_clients")["server_open"]["log"])
    outcome = run("explain", "-", stdin=log)
    assert outcome.code == 0
    assert outcome.out.count("clients.dat could not be read") == 1


def test_no_code(run) -> None:
    outcome = run("explain", "slice-torm")
    assert outcome.code == 2
    assert "did you mean slice-torn" in outcome.err
    outcome = run("explain", "what\x1b[2J", "is", "this")
    assert outcome.code == 2
    assert "\x1b" not in outcome.err


def test_list_of_codes(run) -> None:
    out = run("explain").out
    assert all(code in out for code in CATALOGUE)
    assert {each["code"] for each in run("explain", "-o", "json").json()["codes"]} == set(CATALOGUE)
