"""`subs`, `clients` and `records` on golden stores."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest

from stantools.inspection.records import kind_of
from tests.cli.expected import healthy_cases, renamed
from tests.conftest import KINDS_OF_STORES, cases_by_kind, golden_cases, load_expected, others_slow


@pytest.mark.parametrize("case", cases_by_kind(healthy_cases()))
def test_subs_as_recovered(run, golden: Path, case: str) -> None:
    outcome = run("subs", golden / case / "datastore", "-o", "json")
    assert outcome.code == 0
    shown = {channel["name"]: channel["subscriptions"] for channel in outcome.json()["channels"]}
    for name, channel in load_expected(case)["channels"].items():
        real = sorted((renamed(each) for each in channel["subscriptions"]), key=lambda each: each["id"])
        mine = [{k: v for k, v in each.items() if k not in ("status", "lag")} for each in shown[name]]
        assert mine == real


@pytest.mark.parametrize("case", cases_by_kind(healthy_cases()))
def test_clients_as_recovered(run, golden: Path, case: str) -> None:
    outcome = run("clients", golden / case / "datastore", "-o", "json")
    assert outcome.code == 0
    registered = [each for each in outcome.json()["clients"] if each["registered"]]
    mine = [{k: v for k, v in c.items() if k not in ("registered", "subscriptions", "pending")} for c in registered]
    assert sorted(mine, key=lambda c: c["id"]) == [renamed(c) for c in load_expected(case)["clients"]]


def test_status_and_lag(run, golden: Path) -> None:
    (events, jobs) = run("subs", golden / "durables" / "datastore", "-o", "json").json()["channels"]
    status = {each["id"]: each["status"] for each in events["subscriptions"]}
    assert (status[1], status[3], status[6]) == ("active", "offline durable", "offline durable")
    assert {each["id"]: each["lag"] for each in events["subscriptions"]}[1] == 23 - 7
    by_id = {each["id"]: each for each in jobs["subscriptions"]}
    assert by_id[8]["status"] == "shadow"
    # Both members of the queue group: what nobody of the group was sent.
    assert by_id[10]["lag"] == by_id[11]["lag"] == 0
    assert by_id[2]["lag"] == by_id[4]["lag"] == 18 - 17


def test_ghosts_are_told(run, golden: Path) -> None:
    outcome = run("subs", golden / "dmg_clients_missing" / "datastore")
    assert outcome.code == 1
    assert "clients.dat: is missing" in outcome.err
    assert "durable queue group dq:qd is a ghost" in outcome.err
    assert "ghost" in run("subs", golden / "dmg_clients_missing" / "datastore", "--status", "ghost").out


def test_filters(run, golden: Path) -> None:
    store = golden / "durables" / "datastore"
    rows = run("subs", store, "-o", "ndjson", "--channel", "jobs.>", "--id", 8).ndjson()
    assert [(row["channel"], row["id"]) for row in rows] == [("jobs.queue", 8)]
    assert {row["status"] for row in run("subs", store, "-o", "ndjson", "--status", "offline").ndjson()} == {
        "offline durable"
    }
    assert run("subs", golden / "basic" / "datastore").err == "stantools: no subscriptions\n"
    assert run("subs", golden / "basic" / "datastore", "-o", "csv").code == 0
    assert "dur-a" in run("subs", store, "-o", "csv").out


@pytest.mark.parametrize("output", ["table", "json", "ndjson", "csv"])
def test_history_of_subs(run, golden: Path, output: str) -> None:
    store = golden / "durables" / "datastore"
    outcome = run("subs", store, "--history", "-o", output)
    assert outcome.code == 0
    counts = load_expected("durables")["record_counts"]
    if output == "ndjson":
        rows = outcome.ndjson()
        for name in ("events", "jobs.queue"):
            mine = [row for row in rows if row["channel"] == name]
            assert len(mine) == counts["subs.dat"][name]["records"]
        last = {(row["channel"], row["id"]): row["pending_after"] for row in rows}
        state = run("subs", store, "-o", "ndjson").ndjson()
        assert {(s["channel"], s["id"]): len(s["pending"]) for s in state}.items() <= last.items()


@pytest.mark.parametrize("history", [[], ["--history"]])
def test_a_pattern_without_a_channel_is_refused(run, golden: Path, history: list[str]) -> None:
    outcome = run("subs", golden / "basic" / "datastore", "--channel", "bar", *history)
    assert outcome.code == 2
    assert "no channel matches bar" in outcome.err


def test_history_shows_damage(run, golden: Path) -> None:
    outcome = run("subs", golden / "dmg_subs_payload_flip" / "datastore", "--history", "-o", "ndjson")
    assert outcome.code == 1
    assert [row for row in outcome.ndjson() if not row["ok"]]
    outcome = run("clients", golden / "dmg_clients_payload_flip" / "datastore", "--history", "-o", "ndjson")
    assert outcome.code == 1
    (bad,) = [row for row in outcome.ndjson() if not row["ok"]]
    assert (bad["offset"], bad["length"]) == (78, 74)


def test_clients_table(run, golden: Path) -> None:
    outcome = run("clients", golden / "dmg_clients_payload_flip" / "datastore")
    assert outcome.code == 1
    assert "the server stops reading at offset 78 of 326" in outcome.err
    assert "w-2" in outcome.out  # not registered any more, and owns subscriptions
    for output in ("table", "csv", "ndjson"):
        assert run("clients", golden / "clients_many" / "datastore", "-o", output).code == 0
    assert run("clients", golden / "clustered" / "datastore").err.count("Raft log") == 1


@pytest.mark.parametrize(
    "case", others_slow((c for c in golden_cases() if c != "no_permission_dat"), sorted(KINDS_OF_STORES)[::2])
)
def test_records_cover_every_byte_of_every_file(run, golden: Path, case: str) -> None:
    store = golden / case / "datastore"
    for name in load_expected(case)["files"]:
        path = store / name
        if kind_of(path.name) is None:
            continue
        outcome = run("records", path, "-o", "ndjson", "--data", "none")
        records, end = outcome.ndjson(), 0
        for record in records:
            assert record["offset"] == end, path
            end += record["length"]
        assert end == path.stat().st_size, path
        assert outcome.code == int(any(not each["ok"] for each in records))


def test_records_of_a_healthy_store_are_good(run, golden: Path) -> None:
    store = golden / "archived_bak" / "datastore"
    for path in store.rglob("*"):
        if path.is_file():
            outcome = run("records", path)
            assert (outcome.code, outcome.err) == (0, ""), path
            assert "BAD" not in outcome.out


def test_records_of_messages(run, golden: Path) -> None:
    path = golden / "basic" / "datastore" / "foo" / "msgs.1.dat"
    version, first, *_ = run("records", path, "-o", "ndjson").ndjson()
    assert version == {
        "offset": 0,
        "length": 4,
        "type": "version",
        "ok": True,
        "crc": None,
        "computed_crc": None,
        "detail": "",
        "fields": {"version": 1},
    }
    assert (first["offset"], first["type"], first["crc"]) == (4, "message", first["computed_crc"])
    assert first["fields"]["subject"] == "foo"
    assert base64.b64decode(first["fields"]["data"]) == b"hello"
    assert "68 65 6c 6c 6f" in run("records", path, "--data", "hex").out
    assert "hello" in run("records", path, "--data", "text").out
    assert "hello" not in run("records", path).out
    assert run("records", path, "-o", "json").json()["kind"] == "messages"
    assert run("records", path, "-o", "csv").out.splitlines()[1] == "0,4,version,yes,,,"


def test_records_of_damage(run, golden: Path) -> None:
    path = golden / "dmg_payload_flip_noidx" / "datastore" / "alpha" / "msgs.2.dat"
    outcome = run("records", path, "--damaged", "-o", "ndjson")
    assert outcome.code == 1
    (bad,) = outcome.ndjson()
    assert (bad["offset"], bad["length"], bad["type"]) == (455, 81, "payload")
    assert bad["crc"] != bad["computed_crc"]
    assert "BAD" in run("records", path).out


def test_records_of_a_file_elsewhere(run, golden: Path, tmp_path: Path) -> None:
    copy = tmp_path / "saved.bin"
    shutil.copy(golden / "crc_castagnoli" / "datastore" / "foo" / "msgs.1.dat", copy)
    unknown = run("records", copy)
    assert unknown.code == 2
    assert "--kind" in unknown.err
    outcome = run("records", copy, "--kind", "messages")
    assert outcome.code == 0
    assert "castagnoli" in outcome.err
    assert run("records", tmp_path / "missing", "--kind", "index").code == 3
    assert run("records", tmp_path, "--kind", "index").code == 3


@pytest.mark.parametrize("kind", ["server", "clients", "subs", "messages", "index"])
def test_records_of_anything(run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    for content in (b"", b"\x01", b"\x01\0\0\0", b"\x01\0\0\0\x05", b"\xff" * 100, bytes(500)):
        path.write_bytes(content)
        outcome = run("records", path, "--kind", kind, "-o", "ndjson")
        assert outcome.code in (0, 1), content
        assert sum(record["length"] for record in outcome.ndjson()) == len(content), content
