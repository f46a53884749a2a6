"""`report`: a page says what the other verbs say, loads nothing, and shows hostile names harmlessly."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from stantools.errors import ExitCode
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import KINDS_OF_STORES, golden_cases, load_expected, others_slow
from tests.htmlpages import Tags


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("case", others_slow(golden_cases(), sorted(KINDS_OF_STORES)[::2]))
def test_golden_stores(run, golden: Path, golden_copy, tmp_path: Path, case: str) -> None:
    expected = load_expected(case)
    store = golden_copy(case) if expected["setup"] else golden / case / "datastore"
    limits = ["--max-msgs", "0", "--max-bytes", "0"]
    doctor = run("doctor", store, *limits, "-o", "json")
    outcome = run("report", store, *limits, "--html", tmp_path / "page.html")
    assert outcome.code == doctor.code
    said = doctor.json()
    assert outcome.out.splitlines()[0] == f"{store}: {said['state']}: {said['verdict']}"
    suspected = bool(said["encryption"]["suspected"])
    assert suspected is case.startswith("encrypted") is outcome.out.partition("\n")[2].startswith("encryption: ")
    tags = Tags.of((tmp_path / "page.html").read_text())
    assert tags.alone
    assert tags.seen["script"] == 1
    shown = words(tags.text)
    assert f"{store} a store of NATS Streaming" in shown
    assert f"{said['verdict']}." in shown
    for start in said["starts"]:
        assert words(start["says"]) in shown
        assert all(words(loss["detail"]) in shown for loss in start["destroys"])
    verify = run("verify", store, "-o", "json").json()
    for finding in verify["findings"]:
        assert f"{finding['severity']} {finding['code']}" in shown
    for channel in run("subs", store, "-o", "json").json()["channels"]:
        for each in channel["subscriptions"]:
            assert f" {each['id']} {each['status']} " in shown
    for channel in said["channels"].values():
        for what, words_of_it in (("intact", "intact"), ("recoverable", "recoverable"), ("missing", "missing before")):
            if ranges := channel.get(what):
                first, last = ranges[0]
                assert f"{words_of_it}: {first}" + (f"-{last}" if last > first else "") in shown


def test_names_are_harmless(run, golden_copy, tmp_path: Path) -> None:
    store = golden_copy("durables")
    hostile = "<script>alert(1)<∕script>\"'&\x1b[31m\u202e"
    channel = next(each for each in sorted(store.iterdir()) if each.is_dir())
    channel.rename(store / hostile)
    (store / os.fsdecode(b"\xff<b>")).mkdir()
    assert run("report", store, "--html", tmp_path / "page.html").code == ExitCode.FINDINGS
    text = (tmp_path / "page.html").read_bytes().decode("utf-8")
    tags = Tags.of(text)
    assert tags.alone and tags.seen["script"] == 1 and not tags.seen["b"]
    assert "\x1b" not in text and "\u202e" not in text
    assert "<script>alert(1)<∕script>\"'&\\x1b[31m\\u202e" in tags.text
    assert "\\xff<b>" in tags.text


def test_a_map_shows_where_the_damage_is(run, tmp_path: Path) -> None:
    store, page = tmp_path / "store", tmp_path / "page.html"
    assert run("sample", store, "--name", "c", "--messages", "1000", "--damage", "garbage-middle").code == 0
    findings = run("verify", store, "-o", "json").json()["findings"]
    (found,) = [finding for finding in findings if finding["code"] == "slice-garbage"]
    file = store / found["file"]
    assert run("report", store, "--html", page).code == ExitCode.FINDINGS
    maps = dict(re.findall(r'<td class="text">(msgs[^<]*)</td><td class="text map">(<svg.*?</svg>)', page.read_text()))
    assert [name for name, drawn in maps.items() if 'class="bad"' in drawn] == [file.name]
    bad = re.search(r'<path class="bad" d="M(\d+) 0H(\d+)v', maps[file.name])
    assert bad
    assert int(bad[1]) <= 1000 * found["offset"] / file.stat().st_size <= int(bad[2])


def test_exit_codes(run, golden: Path, tmp_path: Path) -> None:
    store, page = golden / "basic" / "datastore", tmp_path / "page.html"
    assert run("report", store).code == ExitCode.USAGE
    assert run("report", store, "--html", tmp_path).code == ExitCode.USAGE
    assert run("report", store, "--html", tmp_path / "none" / "page.html").code == ExitCode.UNREACHABLE
    assert run("report", tmp_path / "none", "--html", page).code == ExitCode.UNREACHABLE
    assert not page.exists()
    assert run("report", store, "--html", page).code == ExitCode.CLEAN
    refused = run("report", store, "--html", page)
    assert refused.code == ExitCode.UNREACHABLE and "--overwrite" in refused.err
    before = page.read_bytes()
    assert run("report", store, "--html", page, "--overwrite", "-o", "json").json()["page"] == str(page)
    assert re.sub(rb"read on [\d :-]+", b"", page.read_bytes()) == re.sub(rb"read on [\d :-]+", b"", before)


def test_a_page_is_no_directory(run, tmp_path: Path) -> None:
    """`stats --to` names a directory of tables, which nobody wants to be called page.html."""
    write_sample(tmp_path / "store", SampleOptions(messages=3))
    refused = run("stats", tmp_path / "store", "--to", tmp_path / "page.html")
    assert refused.code == 2
    assert "--report" in refused.err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("case", ["ok_consumers15", "dmg_flip_payload_idx", "dmg_missing_mid_idx", "s2_flip_block"])
def test_jetstream_directories(run, golden_jetstream: Path, tmp_path: Path, case: str) -> None:
    """The page says of streams, blocks and consumers what doctor, verify and subs say."""
    place = golden_jetstream / case / "store" / "jetstream"
    doctor, outcome = run("doctor", place, "-o", "json"), run("report", place, "--html", tmp_path / "page.html")
    assert outcome.code == doctor.code
    tags = Tags.of((tmp_path / "page.html").read_text())
    shown = words(tags.text)
    assert tags.alone and doctor.json()["verdict"] in outcome.out and doctor.json()["verdict"] in shown
    verify = run("verify", place, "-o", "json").json()
    for finding in verify["findings"]:
        assert f"{finding['severity']} {finding['code']}" in shown
    for stream in verify["streams"]:
        first, last = stream["intact"][0]
        assert f"intact: {first}" + (f"-{last}" if last > first else "") in shown
    for stream in run("subs", place, "-o", "json").json()["streams"]:
        for each in stream["consumers"]:
            assert f"{each['name']} " in shown
    for file in place.glob("$G/streams/*/msgs/*.blk"):
        assert f"{file.name} " in shown


def test_nodes_of_a_cluster(run, golden_jetstream: Path, tmp_path: Path) -> None:
    """The page is of a start of all nodes, as doctor says."""
    place = golden_jetstream / "cl_meta_old" / "store"
    doctor, outcome = run("doctor", place, "-o", "json"), run("report", place, "--html", tmp_path / "page.html")
    assert outcome.code == doctor.code
    assert doctor.json()["verdict"].startswith("If these nodes are started together")
    assert doctor.json()["verdict"] in outcome.out
    assert doctor.json()["verdict"] in words(Tags.of((tmp_path / "page.html").read_text()).text)


def test_sql_stores(run, golden_sql: Path, tmp_path: Path) -> None:
    """The rows of a dump are judged; those that are intact are drawn."""
    dump = golden_sql / "p_gap_at_limit" / "dump.sql"
    outcome = run("report", dump, "--html", tmp_path / "page.html")
    tags = Tags.of((tmp_path / "page.html").read_text())
    shown = words(tags.text)
    assert outcome.code == run("doctor", dump).code and tags.alone
    for finding in run("verify", dump, "-o", "json").json()["findings"]:
        assert f"{finding['severity']} {finding['code']}" in shown
    assert "msgs.1.dat" in shown and "-st SQL" in shown
