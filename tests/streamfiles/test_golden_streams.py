"""Directories that real servers wrote, healthy and damaged: what is intact is found, and nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.sealing import ServerKeys
from stantools.streamfiles.survey import StreamSurvey
from tests import goldenstores
from tests.mutations import apply_mutation

pytestmark = pytest.mark.golden
#: what a healthy directory may show
HARMLESS = {FlawKind.ERASE_BUG, FlawKind.OLD_INDEX, FlawKind.INDEX_MISSING, FlawKind.INDEX_STALE}
#: Deletions of which nothing tells any more: the tombstones or the indexes of 2.9 are lost.
FORGOTTEN = {
    "dmg_cut_last_inside_killed": [(33, 33), (51, 51), (91, 91)],
    "dmg_missing_last_noidx": [(25, 25), (38, 38), (58, 58)],
    "dmg_zero_all_last": [(63, 63)],
    "dmg_zero_end_noidx": [(33, 33), (51, 51), (91, 91)],
    "old_flip_payload_noidx": [(32, 32), (109, 109)],
    "old_idx_missing": [(32, 32), (109, 109)],
}
#: What the reader that made the truth did not find: the hash of a block's last record, before the zeros of 2.10.
MORE = {"ok_s2_10": [(36, 36), (109, 109)], "s2_cut_block": [(36, 36), (109, 109)]}


@cache
def folder() -> Path:
    return goldenstores.unpacked() / "jetstream"


def cases(kind: str) -> list[str]:
    found = []
    for path in sorted(folder().glob("*/expected.json")):
        expected = json.loads(path.read_text())
        if expected["kind"] == kind and "nodes" not in expected and "truth" in expected:
            found.append(path.parent.name)
    return found


def load(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((folder() / case / "expected.json").read_text())
    return expected


def keys(expected: dict[str, Any], account: str) -> ServerKeys | None:
    settings = expected.get("written_with") or expected["server_settings"]
    key = settings["jetstream"].get("key")
    return ServerKeys([b"another one", key.encode()], account) if key else None


def directory(case: str, expected: dict[str, Any], stream: str) -> StoredStream:
    account, name = stream.split("/", 1)
    places = list(expected["truth"][stream].get("found_in", {f"jetstream/{account}/streams/{name}/msgs": ()}))
    return StoredStream((folder() / case / "store" / places[-1]).parent, account, keys(expected, account))


def ranges(pairs: list[list[int]]) -> Ranges:
    return Ranges.of((low, high) for low, high in pairs)


def contents(survey: StreamSurvey) -> dict[int, bytes]:
    """Each message in the form of the digest."""
    found: dict[int, bytes] = {}
    for _, batch in survey.messages():
        for row, sequence in enumerate(batch.sequence.tolist()):
            form = struct.pack(">Qq", sequence, int(batch.timestamp[row]))
            for text in (batch.subject(row), batch.header(row), batch.data(row)):
                form += struct.pack(">I", len(text)) + text
            assert sequence not in found
            found[sequence] = form
    return found


def digest(messages: dict[int, bytes], sequences: Ranges) -> str:
    return hashlib.sha256(b"".join(messages[each] for each in sorted(messages) if each in sequences)).hexdigest()


def test_healthy_directories() -> None:
    names = cases("healthy")
    assert len(names) == 48
    for case in names:
        expected = load(case)
        for stream, truth in expected["truth"].items():
            found = directory(case, expected, stream)
            survey = StreamSurvey(found)
            live, messages = ranges(truth["live"]["ranges"]), contents(survey)
            assert survey.live == survey.intact == live, (case, stream)
            assert survey.last == truth["live"]["last_seq"]
            assert digest(messages, live) == truth["live"]["digest"]
            assert {each.kind for each in (*survey.flaws, *found.flaws)} <= HARMLESS, (case, survey.flaws)
            blocks = {
                each.file.number: (
                    each.file.size,
                    each.records,
                    each.messages,
                    each.erased,
                    each.tombstones.tolist(),
                    each.first,
                    each.last,
                    each.compressed,
                    each.encrypted,
                )
                for each in survey.blocks
            }
            for block in expected["layout"][stream]["blocks"]:
                if "holes" not in block:
                    numbers = [block[name] for name in ("size", "records", "messages", "erased", "tombstones")]
                    ends = [block[name] or 0 for name in ("first", "last")]
                    forms = [block.get(name, False) for name in ("compressed", "encrypted")]
                    assert blocks[block["index"]] == (*numbers, *ends, *forms), (case, stream)
            seen = expected["original"]["streams"].get(stream)
            if seen and "writer_reads_less" not in expected:
                assert survey.totals() == (seen["bytes"], seen["num_subjects"]), (case, stream)
            for consumer in found.consumers:
                wanted = truth["consumers"][consumer.name]
                assert (wanted is None) == (consumer.state is None)
                if consumer.state:
                    state = consumer.state
                    for pair, name in ((state.ack_floor, "ack_floor"), (state.delivered, "delivered")):
                        assert list(pair) == [wanted[name]["consumer"], wanted[name]["stream"]]
                    pending = [[each, number, time // 10**9] for each, (number, time) in state.pending.items()]
                    assert sorted(pending) == wanted["pending"]
                    assert sorted(map(list, state.redelivered.items())) == wanted["redelivered"]


def test_indexes() -> None:
    read = 0
    for case in cases("healthy"):
        expected = load(case)
        for stream, layout in expected["layout"].items():
            wanted = layout.get("index")
            known = directory(case, expected, stream).index
            if not wanted:
                continue
            assert known
            read += 1
            assert (known.version, known.messages, known.size, known.subjects) == tuple(
                wanted[name] for name in ("version", "messages", "bytes", "subjects")
            )
            assert (known.first, known.first_time, known.last, known.last_time) == tuple(
                wanted[name] for name in ("first_seq", "first_ts", "last_seq", "last_ts")
            )
            assert (known.last_block, known.last_hash.hex()) == (wanted["last_block"], wanted["last_hash"])
            for block in wanted["blocks"]:
                entry = known.blocks[block["index"]]
                assert (entry.first, entry.last, entry.size) == (block["first"], block["last"], block["bytes"])
                assert Ranges.from_sequences(entry.deleted.astype("u8")).as_json() == block["deleted"]
    assert read > 50


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_damaged_directories(every: int) -> None:
    """Everything intact is found byte for byte; what is found besides was deleted, and nothing tells it any more."""
    names = cases("damaged")
    assert len(names) == 129
    for case in names[::every]:
        expected = load(case)
        for stream, truth in expected["truth"].items():
            survey = StreamSurvey(directory(case, expected, stream))
            messages, intact = contents(survey), ranges(truth["intact_on_disk"])
            assert survey.intact.count() == len(messages)
            assert not intact - survey.intact, (case, stream)
            assert digest(messages, intact) == truth["intact_digest"], (case, stream)
            extra = survey.intact - intact
            if stream.endswith("ORDERS"):
                extra = extra - Ranges.of(FORGOTTEN.get(case, []) + MORE.get(case, []))
            assert not extra, (case, stream)


def check_mutations(case: str, tmp_path: Path, step: int) -> None:
    expected = load(case)
    stream = next(iter(expected["live"])) if "ranges" not in expected["live"] else expected["stream"]
    undamaged = contents(StreamSurvey(StoredStream(stream_path(folder() / case / "store", stream), "$G")))
    for mutation in expected["mutations"][::step]:
        copy = tmp_path / str(mutation["id"])
        shutil.copytree(folder() / case / "store", copy)
        for name in mutation["also_removed"]:
            (copy / name).unlink()
        apply_mutation(copy, mutation)
        survey = StreamSurvey(StoredStream(stream_path(copy, stream), "$G"))
        messages, intact = contents(survey), ranges(mutation["intact"])
        assert not intact - survey.intact, mutation
        for sequence in messages:
            if sequence in undamaged:
                assert messages[sequence] == undamaged[sequence], mutation
        shutil.rmtree(copy)


def stream_path(store: Path, stream: str) -> Path:
    return store / "jetstream/$G/streams" / stream.split("/")[-1]


@pytest.mark.parametrize("case", ["systematic_10", "systematic_multi_15"])
def test_some_mutations(case: str, tmp_path: Path) -> None:
    check_mutations(case, tmp_path, 23)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["systematic_10", "systematic_multi_15"])
def test_all_mutations(case: str, tmp_path: Path) -> None:
    check_mutations(case, tmp_path, 1)


def test_what_is_not_on_disk_is_not_read(golden_jetstream: Path, tmp_path: Path) -> None:
    """A sparse block of 64 GB costs no more than its data."""
    source = golden_jetstream / "ok_basic15/store/jetstream/$G/streams/ORDERS"
    shutil.copytree(source, tmp_path / "ORDERS")
    block = tmp_path / "ORDERS/msgs/1.blk"
    with block.open("r+b") as file:
        file.truncate(64 << 30)
    begin = time.process_time()
    survey = StreamSurvey(StoredStream(tmp_path / "ORDERS", "$G"))
    assert time.process_time() - begin < 5
    assert survey.intact == Ranges.of([(1, 65)])
    assert [each.kind for each in survey.flaws] == [FlawKind.BLOCK_ZEROS, FlawKind.INDEX_STALE]
