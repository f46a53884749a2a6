"""`info` against what the real server recovered, and everything around it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.expected import healthy_cases, options_of, renamed
from tests.conftest import cases_by_kind, golden_cases, load_expected

Copy = Callable[[str], Path]


@pytest.mark.parametrize("case", cases_by_kind(healthy_cases()))
def test_equals_what_the_server_recovered(run, golden: Path, case: str) -> None:
    expected = load_expected(case)
    outcome = run("info", golden / case / "datastore", "-o", "json", *options_of(case))
    assert (outcome.code, [line for line in outcome.err.splitlines() if "polynomial" not in line]) == (0, [])
    info = outcome.json()
    assert info["schema"] == 1
    assert info["path"] == str(golden / case / "datastore")
    assert info["server"] == renamed(expected["server_info"])
    assert sorted(info["clients"], key=lambda c: c["id"]) == [renamed(c) for c in expected["clients"]]
    assert [channel["name"] for channel in info["channels"]] == sorted(expected["channels"])
    for channel in info["channels"]:
        real = expected["channels"][channel["name"]]
        for field in ("first_seq", "last_seq", "count", "bytes"):
            assert channel[field] == real[field], (channel["name"], field)
        subscriptions = [
            {name: value for name, value in each.items() if name not in ("status", "lag")}
            for each in channel["subscriptions"]
        ]
        assert subscriptions == sorted((renamed(s) for s in real["subscriptions"]), key=lambda s: s["id"])
        assert all(each["source"] in ("index", "nothing") for each in channel["slices"])


STARTING = [
    case
    for case in golden_cases()
    if load_expected(case).get("server_open", {}).get("channels") and not load_expected(case)["setup"]
]


@pytest.mark.parametrize("case", cases_by_kind(STARTING))
def test_equals_what_the_server_recovered_of_a_damaged_store(run, golden: Path, case: str) -> None:
    real = load_expected(case)["server_open"]["channels"]
    info = run("info", golden / case / "datastore", "-o", "json", *options_of(case)).json()
    subs = {each["name"]: each for each in run("subs", golden / case / "datastore", "-o", "json").json()["channels"]}
    for channel in info["channels"]:
        theirs = real[channel["name"]]
        for field in ("first_seq", "last_seq", "count", "bytes"):
            assert channel[field] == theirs[field], (channel["name"], field)
        if theirs["subscriptions"]:
            assert subs[channel["name"]]["last_seq"] == theirs["last_seq"]
            lags = {each["id"]: each["lag"] for each in subs[channel["name"]]["subscriptions"]}
        for each in map(renamed, theirs["subscriptions"]):
            if not each["q_group"]:
                lag = theirs["last_seq"] - max(each["last_sent"], theirs["first_seq"] - 1)
                assert lags[each["id"]] == max(lag, 0)


def test_the_last_sequence_is_the_highest_one(run, golden: Path) -> None:
    store = golden / "dup_slice_after" / "datastore"
    (last,) = run("messages", store, "alpha", "--seq", "-1:", "-o", "ndjson").out.splitlines()
    assert '"seq":40,' in last


def test_the_other_limits_show_more(run, golden: Path) -> None:
    store = golden / "limits_msgs" / "datastore"
    (on_disk,) = [c for c in run("info", store, "-o", "json").json()["channels"] if c["name"] == "lim"]
    assert (on_disk["first_seq"], on_disk["count"]) == (61, 28)
    limited = run("info", store, "-o", "json", "--max-msgs", 25).json()["channels"][0]
    assert (limited["first_seq"], limited["count"]) == (64, 25)
    assert limited["on_disk"] == {"first_seq": 61, "count": 28, "bytes": on_disk["bytes"]}
    one = run("info", store, "-o", "json", "--max-bytes", 1).json()["channels"][0]
    assert (one["first_seq"], one["last_seq"], one["count"]) == (88, 88, 1)
    none = run("info", store, "-o", "json", "--max-age", "1ns").json()["channels"][0]
    assert (none["first_seq"], none["last_seq"], none["count"], none["bytes"]) == (89, 88, 0, 0)


def test_nothing_is_changed(run, golden_copy: Copy) -> None:
    store = golden_copy("dmg_idx_bad_crc")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")}
    for verb in ("info", "verify", "forecast", "subs", "clients"):
        run(verb, store)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")} == before


@pytest.mark.parametrize("case", ["dmg_idx_missing_all", "dmg_idx_bad_crc", "dmg_idx_cut_in_crc"])
def test_a_bad_index_is_replaced_by_a_scan_and_told(run, golden: Path, case: str) -> None:
    outcome = run("info", golden / case / "datastore", "-o", "json")
    assert outcome.code == 1
    assert "index" in outcome.err
    for channel in outcome.json()["channels"]:
        original = load_expected(case)["original"]["channels"][channel["name"]]
        assert {f: channel[f] for f in ("first_seq", "last_seq", "count", "bytes")} == {
            f: original[f] for f in ("first_seq", "last_seq", "count", "bytes")
        }


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("dmg_server_payload_flip", "server.dat: corrupted data"),
        ("dmg_server_missing", "server.dat: is missing"),
        ("dmg_clients_missing", "clients.dat: is missing"),
        ("dmg_subs_payload_flip", "alpha/subs.dat: the server stops reading at offset"),
        ("dmg_short_dat", "unable to verify file version: unexpected EOF"),
        ("bad_slice_name", "msgs.abc.dat: the name has no slice number"),
        ("dmg_garbage_dat", "lie after the last message of the index"),
    ],
)
def test_damage_that_is_noticed_is_told(run, golden: Path, case: str, told: str) -> None:
    outcome = run("info", golden / case / "datastore")
    assert outcome.code == 1
    assert told in outcome.err
    assert "stantools verify" in outcome.err


def test_table(run, golden: Path) -> None:
    out = run("info", golden / "durables" / "datastore", "--slices").out
    for text in ("test-cluster", "jobs.queue", "dur-closed", "offline durable", "shadow", "msgs.1.dat", "app-3"):
        assert text in out


def test_clustered_node(run, golden: Path) -> None:
    out = run("info", golden / "clustered" / "datastore").out
    assert "node-a" in out
    assert "Raft log" in out


def test_polynomial_is_found_and_told(run, golden: Path) -> None:
    outcome = run("info", golden / "crc_castagnoli" / "datastore", "-o", "json")
    assert outcome.code == 0
    assert outcome.json()["crc_polynomial"] == 2197175160
    assert "castagnoli (2197175160)" in outcome.err
    wrong = run("info", golden / "crc_castagnoli" / "datastore", "--crc-poly", "ieee")
    assert wrong.code == 1
    right = run("info", golden / "crc_castagnoli" / "datastore", "--crc-poly", 2197175160)
    assert (right.code, right.err) == (0, "")


def test_encryption_is_noticed(run, golden: Path) -> None:
    channels = run("info", golden / "encrypted_aes" / "datastore", "-o", "json").json()["channels"]
    assert any(channel["encrypted"] for channel in channels)
    channels = run("info", golden / "basic" / "datastore", "-o", "json").json()["channels"]
    assert not any(channel["encrypted"] for channel in channels)


def test_names_in_the_root(run, golden_copy: Copy) -> None:
    store = golden_copy("basic")
    (store / "FOO").mkdir()
    (store / "subs123").write_bytes(b"")
    (store / "notes.txt").write_bytes(b"")
    (store / "raft.log").write_bytes(b"")
    (store / ".truncate.lck").write_bytes(b"")
    (store / "linked").symlink_to(store / "foo")
    info = run("info", store, "-o", "json").json()
    assert info["case_collisions"] == [["FOO", "foo"]]
    assert info["leftovers"] == ["subs123"]
    assert info["foreign_files"] == ["notes.txt"]
    assert info["raft_logs"] == ["raft.log"]
    assert info["symlinks"] == ["linked"]
    assert info["witness"] is True
    table = run("info", store).out
    for text in ("FOO, foo", "subs123", "notes.txt", "raft.log", "linked", "truncate option"):
        assert text in table


def test_hostile_names_cannot_break_the_output(run, golden_copy: Copy) -> None:
    store = golden_copy("basic")
    shutil.copytree(store / "foo", store / os.fsdecode(b"x\x1b[2J\nname\xff"))
    for verb in ("info", "verify", "forecast"):
        for output in ("table", "json"):
            outcome = run(verb, store, "-o", output)
            assert "\x1b" not in outcome.out + outcome.err
            assert "x\\x1b[2J\\nname\\xff" in outcome.out or "x\\u001b[2J\\nname\\\\xff" in outcome.out, verb
    assert len(run("info", store, "-o", "csv").out.splitlines()) == 5


def test_channel_patterns(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"

    def names(*patterns: str) -> list[str]:
        arguments = [word for pattern in patterns for word in ("--channel", pattern)]
        return [channel["name"] for channel in run("info", store, "-o", "json", *arguments).json()["channels"]]

    assert names("foo") == ["foo"]
    assert names("orders.>", "foo") == ["foo", "orders.eu.created"]
    assert names("*.*.*") == ["Deep.er.channel_name-1", "orders.eu.created"]
    nothing = run("info", store, "--channel", "bar")
    assert nothing.code == 2
    assert "no channel matches bar" in nothing.err


def test_ndjson_and_csv_have_a_line_a_channel(run, golden: Path) -> None:
    store = golden / "many_channels" / "datastore"
    assert len(run("info", store, "-o", "ndjson").ndjson()) == 500
    assert len(run("info", store, "-o", "csv").out.splitlines()) == 501


def test_store_of_release_0_1_is_too_old(run, tmp_path: Path) -> None:
    store = tmp_path / "old"
    store.mkdir()
    info = b"\x0a\x02id\x12\x04disc"
    (store / "server.dat").write_bytes(b"\x01\0\0\0" + len(info).to_bytes(4, "little") + info)
    for verb in ("info", "verify", "forecast"):
        outcome = run(verb, store)
        assert outcome.code == 3
        assert "too old" in outcome.err
    (store / "server.dat").unlink()
    (store / "clients.dat").write_bytes(b"\x01\0\0\0A me _INBOX.1\r\nD me\r\n")
    assert "too old" in run("info", store).err


def test_store_of_release_0_2_has_no_indexes(run, golden_copy: Copy) -> None:
    store = golden_copy("v038")
    for path in store.rglob("*.idx"):
        path.unlink()
    info = run("info", store, "-o", "json").json()
    assert info["written_by"].startswith("0.2")
    assert sum(channel["count"] for channel in info["channels"]) == 32


def test_eras(run, golden: Path) -> None:
    for case, era in (("v038", "0.3.4 to 0.3.8"), ("basic", "0.4 or later"), ("clustered", "0.8 or later, clustered")):
        assert run("info", golden / case / "datastore", "-o", "json").json()["written_by"] == era


def test_only_indexes_are_read(run, golden_copy: Copy) -> None:
    """Bytes in the middle of a data file do not matter to info: it does not look at them."""
    store = golden_copy("damage_base")
    path = store / "alpha" / "msgs.1.dat"
    data = bytearray(path.read_bytes())
    data[60:100] = bytes(40)
    path.write_bytes(data)
    assert run("info", store).code == 0
    assert run("verify", store).code == 1


def test_key_options(run, golden: Path, tmp_path: Path) -> None:
    store = golden / "encrypted_aes" / "datastore"
    missing = run("messages", store, "enc.foo", "--encryption-key-env", "NOT_SET_ANYWHERE")
    assert missing.code == 2
    empty = tmp_path / "key"
    empty.write_bytes(b"\n")
    assert run("messages", store, "enc.foo", "--encryption-key-file", empty).code == 2
    assert run("messages", store, "enc.foo", "--encryption-key-file", tmp_path / "no").code == 3
    both = run("messages", store, "enc.foo", "--encryption-key-env", "X", "--encryption-key-file", empty)
    assert both.code == 2


def test_age_limit_uses_the_clock(run, golden: Path) -> None:
    store = golden / "limits_msgs" / "datastore"
    newest = run("info", store, "-o", "json").json()["channels"][0]["slices"][-1]["last_timestamp_ns"]
    old = (time.time_ns() - newest) // 10**9 + 3600
    kept = run("info", store, "-o", "json", "--max-age", f"{old}s").json()["channels"][0]
    assert kept["count"] == 28


def test_csv_of_an_empty_list_has_all_names(run, golden: Path) -> None:
    """A program finds the columns where there is no row."""
    for verb, full, empty in (("subs", "durables", "basic"), ("clients", "clients_many", "basic")):
        some, none = (run(verb, golden / case / "datastore", "-o", "csv").out.splitlines() for case in (full, empty))
        assert len(some) > 1 and none == some[:1]
