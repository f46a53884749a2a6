"""`messages`: every intact message of every golden store, selections, damage, encryption, following."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.store.sample import SampleOptions, write_sample
from tests.cli.expected import healthy_cases, key_of, payload_matches
from tests.conftest import cases_by_kind, golden_cases, load_expected
from tests.pipeline.tables.followed import Server

Copy = Callable[[str], Path]
READABLE = [c for c in golden_cases() if "damage" in load_expected(c) and "opened_as" not in load_expected(c)]


@pytest.mark.parametrize("case", cases_by_kind(healthy_cases()))
def test_every_message_as_the_server_reads_it(run, golden: Path, case: str) -> None:
    expected, key = load_expected(case), key_of(case)
    arguments = ["--encryption-key-env", "THE_KEY"] if key else []
    for name, channel in list(expected["channels"].items())[:20]:
        outcome = run(
            "messages",
            golden / case / "datastore",
            name,
            "-o",
            "ndjson",
            "--seq",
            f"{channel['first_seq']}:",
            *arguments,
            env={"THE_KEY": key or ""},
        )
        assert outcome.code == 0, outcome.err
        messages = outcome.ndjson()
        assert [m["seq"] for m in messages] == [m["seq"] for m in channel["messages"]]
        for message, real in zip(messages, channel["messages"], strict=True):
            assert set(message) == {"seq", "timestamp_ns", "time", "subject", "reply", "data", "size"}
            assert (message["timestamp_ns"], message["subject"]) == (real["ts"], real["subject"])
            assert (message["reply"], message["size"]) == (real["reply"], real["len"])
            assert payload_matches(real, message["data"])


@pytest.mark.parametrize("case", cases_by_kind(READABLE))
def test_every_intact_message_of_a_damaged_store(run, golden_copy: Copy, case: str) -> None:
    store = golden_copy(case)
    expected = load_expected(case)
    if "salvage" not in expected:
        return
    for name, facts in expected["salvage"]["messages"].items():
        intact = {seq for first, last in facts["intact"] for seq in range(first, last + 1)}
        if not (store / name).is_dir():
            assert not intact
            continue
        outcome = run("messages", store, name, "-o", "ndjson", "--data", "none")
        shown = [m["seq"] for m in outcome.ndjson()]
        assert intact <= set(shown), case
        if "dup" not in case:
            assert shown == sorted(set(shown)), case
        if facts["lost"] and outcome.code == 0:
            # Whole slices or ends of files that are gone leave nothing to report.
            assert not any(word in case for word in ("flip", "cut", "garbage"))


def seqs(outcome) -> list[int]:
    return [message["seq"] for message in outcome.ndjson()]


@pytest.mark.parametrize("case", ["slices_count", "dmg_idx_missing_all"])
def test_selections(run, golden: Path, case: str) -> None:
    channel, last = {"slices_count": ("count.a", 47), "dmg_idx_missing_all": ("alpha", 40)}[case]
    store = golden / case / "datastore"

    def chosen(*arguments: object) -> list[int]:
        return seqs(run("messages", store, channel, "-o", "ndjson", *arguments))

    everything = list(range(1, last + 1))
    assert chosen() == everything
    assert chosen("--seq", "8:12") == [8, 9, 10, 11, 12]
    assert chosen("--seq", "-5:") == everything[-5:]
    assert chosen("--seq", "-5:-4") == everything[-5:-3]
    assert chosen("--seq", ":3") == [1, 2, 3]
    assert chosen("--seq", "11") == [11]
    assert chosen("--seq", "1000:") == []
    assert chosen("--seq=-1000:2") == [1, 2]
    assert chosen("--tail", 13) == everything[-13:]
    assert chosen("--tail", 0) == []
    assert chosen("--tail", 3, "--seq", ":22") == [20, 21, 22]
    times = {m["seq"]: m["time"] for m in run("messages", store, channel, "-o", "ndjson").ndjson()}
    assert chosen("--since", times[20]) == everything[19:]
    assert chosen("--until", times[20]) == everything[:19]
    assert chosen("--since", times[9], "--until", times[11]) == [9, 10]
    assert chosen("--since", "1ns") == []


def test_grep(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"

    def found(*arguments: object) -> list[int]:
        return seqs(run("messages", store, "orders.eu.created", "-o", "ndjson", *arguments))

    every = run("messages", store, "orders.eu.created", "-o", "ndjson").ndjson()
    payloads = {m["seq"]: base64.b64decode(m["data"]) for m in every}
    assert found("--grep", "東京") == [seq for seq, data in payloads.items() if "東京".encode() in data]
    assert found("--grep", "ALPHA", "-i") == [seq for seq, data in payloads.items() if b"alpha" in data]
    assert found("--grep", "ALPHA") == []
    assert found("--grep", "a.pha") == []
    assert found("--grep", "a.pha", "--regex") == [seq for seq, data in payloads.items() if b"alpha" in data]
    assert found("--grep", "alpha", "--tail", 2) == [seq for seq, data in payloads.items() if b"alpha" in data][-2:]
    assert run("messages", store, "foo", "--grep", "(", "--regex").code == 2
    assert run("messages", store, "foo", "--regex").code == 2


def test_data_formats(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"

    def first(*arguments: object) -> dict[str, object]:
        return run("messages", store, "foo", "--seq", 1, "-o", "ndjson", *arguments).ndjson()[0]

    assert first()["data"] == base64.b64encode(b"hello").decode()
    assert first("--data", "text")["data"] == "hello"
    assert first("--data", "hex")["data"] == b"hello".hex()
    assert "data" not in first("--data", "none")
    table = run("messages", store, "foo", "--seq", 1).out
    assert table.split()[:3] == ["1", "2026-11-21T00:23:36.511547741Z", "5"]
    assert table.rstrip().endswith("hello")
    assert "68 65 6c 6c 6f" in run("messages", store, "foo", "--seq", 1, "--data", "hex").out


def test_a_table_never_floods_the_terminal(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"
    outcome = run("messages", store, "Deep.er.channel_name-1")
    assert max(map(len, outcome.out.splitlines())) < 900
    assert "bytes more" in outcome.out
    assert all(line.isprintable() for line in outcome.out.splitlines())
    whole = run("messages", store, "Deep.er.channel_name-1", "--cut", 0)
    assert len(whole.out) > 1_000_000


def test_json_and_csv(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"
    document = run("messages", store, "foo", "-o", "json").json()
    assert (document["schema"], document["channel"]) == (1, "foo")
    assert document["messages"] == run("messages", store, "foo", "-o", "ndjson").ndjson()
    rows = list(csv.DictReader(io.StringIO(run("messages", store, "foo", "-o", "csv").out)))
    assert [int(row["seq"]) for row in rows] == [m["seq"] for m in document["messages"]]
    assert run("messages", store, "foo", "-o", "json", "--seq", "99").json()["messages"] == []


def test_damage_is_reported_where_it_is_met(run, golden: Path) -> None:
    outcome = run("messages", golden / "dmg_payload_flip_idx_intact" / "datastore", "alpha", "-o", "ndjson")
    assert outcome.code == 1
    assert seqs(outcome) == [*range(1, 25), *range(26, 41)]
    assert "alpha/msgs.2.dat at offset 455, 81 bytes, sequence 25" in outcome.err


def test_damage_outside_of_the_selection_is_not_met(run, golden: Path) -> None:
    store = golden / "dmg_payload_flip_idx_intact" / "datastore"
    assert run("messages", store, "alpha", "--seq", "1:24").code == 0
    assert run("messages", store, "alpha", "--seq", "26:").code == 0
    assert run("messages", store, "alpha", "--seq", "25").code == 1
    scanned = golden / "dmg_payload_flip_noidx" / "datastore"
    assert seqs(run("messages", scanned, "alpha", "--seq", "26:27", "-o", "ndjson")) == [26, 27]


def test_a_proven_payload_under_a_damaged_header_is_shown(run, golden: Path) -> None:
    outcome = run("messages", golden / "dmg_length_flip_noidx" / "datastore", "alpha", "-o", "ndjson")
    assert outcome.code == 1
    assert seqs(outcome) == list(range(1, 41))


def test_messages_behind_the_index_are_shown_and_told(run, golden: Path) -> None:
    outcome = run("messages", golden / "dmg_idx_shorter_last" / "datastore", "alpha", "-o", "ndjson")
    assert seqs(outcome) == list(range(1, 41))
    assert outcome.code == 1
    assert "the server does not see them" in outcome.err


def test_encryption(run, golden: Path) -> None:
    store = golden / "encrypted_chacha" / "datastore"
    raw = run("messages", store, "enc.foo", "-o", "ndjson")
    assert raw.code == 0
    assert "may be encrypted" in raw.err
    wrong = run("messages", store, "enc.foo", "-o", "ndjson", "--encryption-key-env", "K", env={"K": "wrong"})
    assert wrong.code == 1
    assert "message authentication failed" in wrong.err
    assert len(wrong.ndjson()) == len(raw.ndjson())
    assert any("error" in message for message in wrong.ndjson())


def test_key_from_a_file(run, golden: Path, tmp_path: Path) -> None:
    key = key_of("encrypted_aes")
    assert key
    path = tmp_path / "key"
    path.write_text(key + "\n")
    outcome = run("messages", golden / "encrypted_aes" / "datastore", "enc.foo", "--encryption-key-file", path)
    assert (outcome.code, outcome.err) == (0, "")


def test_archived_slices(run, golden: Path) -> None:
    store = golden / "archived_bak" / "datastore"
    without = seqs(run("messages", store, "arch", "-o", "ndjson"))
    with_them = seqs(run("messages", store, "arch", "-o", "ndjson", "--archived"))
    assert without == list(range(16, 32))
    assert with_them == list(range(1, 32))
    assert seqs(run("messages", store, "arch", "-o", "ndjson", "--archived", "--seq", "3:4")) == [3, 4]


def test_no_such_channel(run, golden: Path) -> None:
    store = golden / "basic" / "datastore"
    for name in ("fo", "../basic", "", "foo/..", "/etc"):
        outcome = run("messages", store, name)
        assert outcome.code == 3
        assert "no channel" in outcome.err
    assert "did you mean: foo" in run("messages", store, "fo").err


def test_without_crc_a_damaged_payload_is_shown(run, golden: Path) -> None:
    store = golden / "dmg_crc_flip_idx_intact" / "datastore"
    assert run("messages", store, "alpha").code == 1
    outcome = run("messages", store, "alpha", "--no-crc", "-o", "ndjson")
    assert outcome.code == 0
    assert seqs(outcome) == list(range(1, 41))


def test_completion_offers_channels(golden: Path) -> None:
    store = golden / "basic" / "datastore"
    environment = {
        **os.environ,
        "_STANTOOLS_COMPLETE": "bash_complete",
        "COMP_WORDS": f"stantools messages {store} f",
        "COMP_CWORD": "3",
    }
    result = subprocess.run(
        [sys.executable, "-m", "stantools"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ["plain,foo"]
    environment |= {"COMP_WORDS": f"stantools info {store} --channel o", "COMP_CWORD": "4"}
    result = subprocess.run(
        [sys.executable, "-m", "stantools"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.stdout.split() == ["plain,orders.eu.created"]


def test_follow_gives_what_is_added(golden_copy: Copy) -> None:
    """A growing data file, its index behind, a half written record, a new slice; ended by Ctrl-C."""
    store = golden_copy("slices_count")
    channel = store / "count.a"
    data, index = (channel / "msgs.5.dat").read_bytes(), (channel / "msgs.5.idx").read_bytes()
    early = (channel / "msgs.4.dat").read_bytes(), (channel / "msgs.4.idx").read_bytes()
    for path in (channel / "msgs.5.dat", channel / "msgs.5.idx"):
        path.unlink()
    (channel / "msgs.4.dat").write_bytes(early[0][:400])
    (channel / "msgs.4.idx").unlink()
    command = [sys.executable, "-u", "-m", "stantools", "messages", str(store), "count.a", "--tail", "1", "-f"]
    process = subprocess.Popen([*command, "-o", "ndjson"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        first = int(process.stdout.readline().split(":")[1].split(",")[0])
        assert 31 <= first < 40
        (channel / "msgs.4.dat").write_bytes(early[0])
        given = [int(process.stdout.readline().split(":")[1].split(",")[0]) for _ in range(40 - first)]
        assert given == list(range(first + 1, 41))
        (channel / "msgs.5.dat").write_bytes(data[:-3])
        given = [int(process.stdout.readline().split(":")[1].split(",")[0]) for _ in range(6)]
        assert given == list(range(41, 47))
        (channel / "msgs.5.idx").write_bytes(index)
        (channel / "msgs.5.dat").write_bytes(data)
        assert '"seq":47,' in process.stdout.readline()
        time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=90)
    assert process.returncode == 1  # the index was missing at the beginning
    printed = 47 - first + 1
    assert f"stantools: {printed} messages of count.a printed, the last one is 47; " in errors
    assert "to continue from there: --seq 48: --follow" in " ".join(errors.split())
    assert "error" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_the_normal_end_of_following(number: signal.Signals, tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    server.publish()
    words = ["messages", str(server.root), server.channel, "-f", "-o", "json"]
    command = [sys.executable, "-m", "stantools", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    lines = [process.stdout.readline()]  # written out when following begins
    server.publish()
    lines.append(process.stdout.readline())
    process.send_signal(number)
    assert process.stderr
    rest, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(90) == 0, errors
    assert [each["seq"] for each in json.loads("".join(lines) + rest)["messages"]] == [1, 2]
    assert "2 messages of " in errors and "--seq 3: --follow" in errors and "error" not in errors


def test_ctrl_c_before_all_is_printed_is_an_interruption(tmp_path: Path) -> None:
    """The pipe is full: the messages that were there before are not printed yet."""
    write_sample(tmp_path / "store", SampleOptions(channels=1, messages=5000, size=200))
    command = [sys.executable, "-u", "-m", "stantools", "messages", str(tmp_path / "store"), "orders", "-f"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130, errors
