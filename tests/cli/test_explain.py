"""`explain`: every finding code, and every line that real servers logged in the golden stores."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
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


def test_lines_of_fault_tolerant_groups() -> None:
    rows: list[tuple[str, str]] = [
        ("[INF] STREAM: ft: unable to get store lock at this time, going back to standby", "another server"),
        (
            "[ERR] STREAM: ft: error attempting to get the store lock: ft: fatal error getting the store lock: open "
            "d/.rootdir.lck: permission denied",
            "cannot even try to become the active one: open d/.rootdir.lck: permission denied.",
        ),
        ('[FTL] STREAM: panic: ft: serverID "a" claims to be active, aborting', "active for a shorter time"),
        ('[ERR] STREAM: ft: serverID "a" claims to be active', "the other one should end by itself"),
        (
            'Failed to start: ft: the store is in use by the group "a", this server belongs to the group "b"',
            'a server of the group "b" does not join',
        ),
        ("[ERR] STREAM: Unable to send FT heartbeat: nats: connection closed", "It stays active."),
    ]
    for line, meaning in rows:
        (found,) = explain(line)
        assert meaning in str(found), (line, meaning)


def test_one_line_has_one_remedy(golden: Path) -> None:
    """A damaged clients.dat was once to be cut and not to be cut, in the same answer."""
    told = 0
    for line in logged_lines(golden):
        remedies = [each.remedy for each in explain(line) if each.remedy]
        assert len(remedies) <= 1, line
        told += bool(remedies)
        if "crc" in line or "record type" in line or "file version" in line or "permission denied" in line:
            assert "truncate-bad-eof" not in "".join(remedies), line
    assert told > 150
    lookup = explain("[ERR] STREAM: Error looking up message orders.eu:25 (unexpected EOF)")
    assert "--fill-gaps" in lookup[0].remedy and "--channel orders.eu`" in lookup[0].remedy
    assert "chown" in explain('unable to recover server file "server.dat": permission denied')[1].remedy


def test_codes(run) -> None:
    for code, entry in list(CATALOGUE.items())[::8]:
        outcome = run("explain", code.upper())
        assert outcome.code == 0
        assert entry.meaning.split()[0] in outcome.out
        assert run("explain", code, "-o", "json").json()["explanations"][0]["server"] == entry.server


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
        ("[FTL] STREAM: Failed to start: failed to load any existing snapshots", ("snapshot-damaged", "merge NODE...")),
        ('[ERR] raft: failed to get log: index=94 error="log not found"', ("raft-gap", "merge NODE...")),
        ("panic: freepages: failed to get all reachable pages (page 9: out of bounds: 40)", ("raft-page",)),
        ('Failed to start: streaming state was recovered but cluster log path "raft/trio" is empty', ('"raft/trio"',)),
        ('[FTL] STREAM: channel "orders" - unable to restore messages, aborting', ("store-behind-snapshot",)),
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
    assert "Record header" not in outcome.out and "a description follows" not in outcome.out
    assert run("explain", stdin=log).out == outcome.out


def test_a_log_as_it_comes(run, golden: Path, tmp_path: Path) -> None:
    log = load_expected("dmg_clients_payload_flip")["server_open"]["log"]
    journal = tmp_path / "a log"
    journal.write_text("".join(f"Nov 21 03:00:00 host nats-streaming-server[7]: [7] {line}\n" for line in log))
    outcome = run("explain", journal)
    assert outcome.code == 0
    assert "clients.dat could not be read" in outcome.out
    assert "truncate-bad-eof" not in outcome.out
    assert outcome.out == run("explain", stdin=journal.read_text()).out
    assert outcome.out.count("keeps every intact record") == 1
    with journal.open("rb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "stantools", "explain"], stdin=file, capture_output=True, check=True
        )
    assert done.stdout.decode() == outcome.out
    assert len(run("explain", journal, "-o", "json").json()["explanations"]) >= 3


def test_a_log_that_says_nothing(run, golden: Path, tmp_path: Path) -> None:
    binary = golden / "basic" / "datastore" / "server.dat"
    for outcome in (run("explain", binary), run("explain", stdin="all is well\n")):
        assert (outcome.code, outcome.out) == (0, "")
        assert "none is an error or a warning that is known" in outcome.err
    directory = run("explain", tmp_path)
    assert directory.code == 3
    assert "is a directory" in directory.err and f"stantools doctor {tmp_path}" in directory.err


def test_remedies_name_the_store_at_hand(run, golden: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "Error looking up message it's:25 (unexpected EOF)"
    assert "stantools verify STORE --channel " in run("explain", line).out
    store = tmp_path / "my store"
    shutil.copytree(golden / "basic" / "datastore", store)
    outcome = run("explain", line, env={"STANTOOLS_STORE": str(store)})
    text = " ".join(outcome.out.split())
    assert f"stantools salvage '{store}' --out '{store}.salvaged' --fill-gaps" in text
    assert "STANTOOLS_STORE" in outcome.err


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
