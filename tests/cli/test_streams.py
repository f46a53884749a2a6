"""`messages`, `records` and `subs` of JetStream directories that real servers wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.inspection.block_records import read_block
from stantools.inspection.stored_messages import Selection, StoredMessage
from stantools.inspection.stream_consumers import consumer_lags
from stantools.inspection.stream_messages import StreamMessageReader
from stantools.sources.door import open_source
from stantools.sources.source import SourceRequest
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions

pytestmark = pytest.mark.golden
ORDERS = "store/jetstream/$G/streams/ORDERS"


def run(*words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, list(map(str, words)), prog_name="stantools")
    assert done.exit_code in (0, 1, 2, 3), done.output
    return done.exit_code, done.stdout, done.stderr


def opened(case: Path) -> tuple[Any, dict[str, Any]]:
    expected: dict[str, Any] = json.loads((case / "expected.json").read_text())
    key = expected["server_settings"]["jetstream"].get("key")
    options = ReadOptions(encryption_key=key.encode() if key else None)
    return open_source(case / "store", SourceRequest(options)), expected


def check_messages(case: Path) -> None:
    """The messages are those that the server stored, byte for byte and in order."""
    source, expected = opened(case)
    for stream in source.streams:
        truth = expected["truth"].get(f"{stream.account}/{stream.name}")
        if not truth:
            continue
        digest, sequences = hashlib.sha256(), []
        for each in StreamMessageReader(stream).read(Selection()):
            assert isinstance(each, StoredMessage) and each.headers is not None
            sequences.append(each.sequence)
            digest.update(struct.pack(">Qq", each.sequence, each.timestamp))
            for part in (each.subject, each.headers, each.data):
                digest.update(struct.pack(">I", len(part)) + part)
        assert sequences == sorted(sequences)
        assert digest.hexdigest() == truth["live"]["digest"], (case.name, stream.name)


SAMPLE = ["ok_basic9", "ok_blocks15k", "ok_chacha_s2_14", "ok_deletes10", "ok_kv15"]


@pytest.mark.parametrize("case", SAMPLE)
def test_messages_are_those_of_the_server(golden_jetstream: Path, case: str) -> None:
    check_messages(golden_jetstream / case)


@pytest.mark.slow
def test_messages_of_every_healthy_directory(golden_jetstream: Path) -> None:
    for path in sorted(golden_jetstream.glob("ok_*")):
        check_messages(path)


def messages(*words: str | Path) -> list[dict[str, Any]]:
    code, said, _ = run("messages", *words, "-o", "ndjson")
    assert code == 0
    return [json.loads(line) for line in said.splitlines()]


def test_selections(golden_jetstream: Path) -> None:
    store = golden_jetstream / "ok_basic15/store"
    everything = messages(store, "ORDERS")
    assert [each["seq"] for each in everything] == list(range(1, 66))
    assert messages(store, "ORDERS", "--tail", "3") == everything[-3:]
    assert messages(store, "$G/ORDERS", "--seq", "5:7") == everything[4:7]
    assert messages(store, "ORDERS", "--seq", "-2:") == everything[-2:]
    assert messages(store, "ORDERS", "--seq", "10:20", "--tail", "2") == everything[18:20]
    since = everything[30]["time"]
    assert messages(store, "ORDERS", "--since", since) == everything[30:]
    text = base64.b64decode(everything[40]["data"])[:12].decode()
    found = messages(store, "ORDERS", "--grep", text)
    assert everything[40] in found and len(found) < 65
    assert messages(store, "ORDERS", "--grep", text, "--tail", "1") == found[-1:]
    assert everything[63]["headers"] == {"A": ["1", "2"], "Nats-Msg-Id": ["m1"]}


def test_damage_is_told_where_it_concerns_the_selection(golden_jetstream: Path) -> None:
    store = golden_jetstream / "dmg_two_flips/store"
    code, said, stderr = run("messages", store, "ORDERS", "--seq", "19:21", "--data", "none")
    assert code == 1 and "sequence 20: the record has another hash" in stderr and "sequence 85" not in stderr
    assert [line.split()[0] for line in said.splitlines()] == ["19", "21"]
    code, _, stderr = run("messages", store, "ORDERS", "--seq", "30:40")
    assert code == 0 and not stderr
    code, _, stderr = run("messages", golden_jetstream / "dmg_missing_mid_idx/store", "ORDERS", "--seq", "36:40")
    assert code == 1 and "sequence 37 missing" in stderr and "sequences 39-40 missing" in stderr


def test_streams_are_named(golden_jetstream: Path) -> None:
    store = golden_jetstream / "ok_accounts15/store"
    code, _, stderr = run("messages", store, "AUDIT")
    assert code == 3 and "2 streams are called AUDIT" in stderr and "ACME/AUDIT, B-corp/AUDIT" in stderr
    assert run("messages", store, "ACME/AUDIT")[0] == 0
    code, _, stderr = run("messages", store, "NONE")
    assert code == 3 and "no stream NONE" in stderr
    code, _, stderr = run("messages", store, "ACME/AUDIT", "--follow")
    assert code == 2 and "are for file stores" in stderr
    code, _, stderr = run("messages", golden_jetstream / "enc_no_key/store", "ORDERS")
    assert code == 1 and "no key was given" in stderr


@pytest.mark.parametrize("case", ["ok_blocks15", "ok_deletes10", "dmg_flip_payload_idx", "dmg_zero_region_mid_noidx"])
def test_records_cover_every_byte(golden_jetstream: Path, case: str) -> None:
    for block in sorted((golden_jetstream / case / ORDERS / "msgs").glob("*.blk")):
        at = 0
        for record in read_block(block):
            assert record.offset == at
            at += record.length
            assert record.ok is (record.type != "damaged") and record.crc == record.computed
        assert at == block.stat().st_size


def test_records_of_blocks(golden_jetstream: Path) -> None:
    expected = json.loads((golden_jetstream / "ok_deletes15/expected.json").read_text())
    for block in expected["layout"]["$G/ORDERS"]["blocks"]:
        kinds = [
            each.type for each in read_block(golden_jetstream / f"ok_deletes15/{ORDERS}/msgs/{block['index']}.blk")
        ]
        counts = [kinds.count(each) for each in ("message", "erased", "tombstone")]
        assert counts == [block["messages"], block["erased"], len(block["tombstones"])]
    file = golden_jetstream / "dmg_flip_payload_idx" / ORDERS / "msgs/2.blk"
    code, said, _ = run("records", file, "--damaged", "-o", "json")
    (record,) = json.loads(said)["records"]
    assert code == 1 and (record["offset"], record["type"], record["fields"]) == (21597, "damaged", {"sequence": 62})
    code, said, _ = run("records", golden_jetstream / "ok_basic15" / ORDERS / "msgs/1.blk")
    assert code == 0 and "headers={'A': ['1', '2'], 'Nats-Msg-Id': ['m1']}" in said


def test_records_in_a_container(golden_jetstream: Path) -> None:
    first = next(iter(read_block(golden_jetstream / "ok_s2_10" / ORDERS / "msgs/1.blk")))
    assert (first.type, first.ok, first.fields["compressed"]) == ("container", False, True)
    case = golden_jetstream / "ok_chacha15"
    key = opened(case)[1]["server_settings"]["jetstream"]["key"].encode()
    records = list(read_block(case / ORDERS / "msgs/1.blk", key))
    assert records[0].fields["encrypted"] and records[1].type == "message"
    code, _, stderr = run("records", case / ORDERS / "msgs/1.blk")
    assert code == 3 and "its key cannot be opened" in stderr
    moved = list(read_block(golden_jetstream / "dmg_block_renumbered" / ORDERS / "msgs/7.blk"))
    assert moved[0].detail == "the records are those of block 3 of stream ORDERS" and moved[1].ok


#: 2.9 counts one message more than there is; a consumer of the last message of each subject skips the others.
OTHER_LAG = {("ok_blocks9", "ORDERS"), ("ok_killed_stale_index", "ORDERS")}


def check_consumers(case: Path) -> int:
    source, expected = opened(case)
    compared = 0
    for stream in source.streams:
        seen = (expected["original"]["streams"].get(f"{stream.account}/{stream.name}") or {}).get("consumers") or {}
        for each in consumer_lags(stream):
            if (server := seen.get(each.consumer.name)) and (case.name, stream.name) not in OTHER_LAG:
                compared += 1
                assert each.lag == server["num_pending"], (case.name, stream.name, each.consumer.name)
    return compared


def test_lag_of_consumers_is_that_of_the_server(golden_jetstream: Path) -> None:
    assert sum(check_consumers(golden_jetstream / each) for each in ("ok_consumers15", "ok_wq10", "ok_chacha15")) > 20


@pytest.mark.slow
def test_lag_of_all_consumers(golden_jetstream: Path) -> None:
    assert sum(map(check_consumers, sorted(golden_jetstream.glob("ok_*")))) > 100


def test_consumers_on_the_command_line(golden_jetstream: Path) -> None:
    store = golden_jetstream / "ok_consumers15/store"
    code, said, _ = run("subs", store, "-o", "json")
    document = json.loads(said)
    (stream,) = document["streams"]
    assert code == 0 and document["kind"] == "jetstream" and stream["name"] == "ORDERS"
    multi = next(each for each in stream["consumers"] if each["name"] == "multi")
    assert (multi["delivered"]["stream"], multi["lag"]) == (44, 25)
    assert Ranges.of((each[0], each[0]) for each in multi["pending"]) == Ranges.of([(1, 1), (6, 7), (12, 12), (14, 14)])
    code, said, _ = run("subs", store)
    assert code == 0 and "orders.s0, orders.s3" in said
    code, said, stderr = run("subs", golden_jetstream / "dmg_cons_dat_magic/store", "-o", "csv")
    assert code == 1 and "$G,ORDERS,pull-explicit,,,,," in said and "o.dat" in stderr
    code, _, stderr = run("subs", store, "--status", "ghost")
    assert code == 2 and "neither ids nor a status" in stderr
    code, _, stderr = run("subs", store, "--history")
    assert code == 3 and "keeps no history of its consumers" in stderr
