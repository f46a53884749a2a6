"""Golden stores as sources: what real servers wrote comes out message by message, as far as it is intact."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.format.crc import Crc
from stantools.migration.stream_source import SingleSource
from stantools.store.directory import open_datastore
from stantools.store.ranges import Ranges
from tests.conftest import MUTATION_SETS, cases_by_kind, load_expected
from tests.migration.source.contents import Message, contents, stored
from tests.migration.stores import CRC, opened
from tests.mutations import mutated_stores

#: Every so manyth mutation is tried here; salvage, whose plan this goes by, is tested with all of them.
_EVERY = 13


def key_of(expected: dict[str, Any]) -> bytes | None:
    """The encryption key of a golden store."""
    if not expected["options"].get("encryption"):
        return None
    arguments: list[str] = expected["open_args"]
    return arguments[arguments.index("-encryption_key") + 1].encode()


def digest(messages: dict[int, Message]) -> str:
    """The digest that golden stores give of a channel's messages."""
    state = hashlib.sha256()
    for sequence, (timestamp, _, data) in messages.items():
        state.update(sequence.to_bytes(8, "big") + timestamp.to_bytes(8, "big", signed=True) + data)
    return state.hexdigest()


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden(case: str, golden_copy: Callable[[str], Path]) -> None:
    if case == "no_permission_dat" and os.geteuid() != 0:
        pytest.skip("the facts hold for a reader who may read the file")
    root, expected = golden_copy(case), load_expected(case)
    crc, key = Crc(expected["options"]["file_crc_poly"]), key_of(expected)
    source = opened(root, crc=crc, key=key)
    assert [channel.raw_name for channel in source.channels] == sorted(channel.raw_name for channel in source.channels)
    had = {channel.name: contents(channel.read(), channel.raw_name) for channel in source.channels}
    for channel in source.channels:
        have = had[channel.name]
        assert list(have) == [n for first, last in channel.sequences for n in range(first, last + 1)]
        assert (channel.count, channel.first) == (len(have), min(have, default=0))
        assert channel.last >= max(have, default=0)
        assert not any(n in have for first, last in channel.lost for n in range(first, last + 1))
        if have:
            assert channel.first_timestamp == have[channel.first][0]
            assert channel.last_timestamp == have[channel.sequences.last][0]
        assert channel.encrypted is (key is not None)
    if key is None:
        for name, messages in stored(root, crc).items():
            assert {n: had[name][n] for n in messages} == messages
    for name, facts in expected.get("channels", {}).items():
        for message in facts["messages"]:
            timestamp, reply, data = had[name][message["seq"]]
            assert (timestamp, reply.decode(), hashlib.sha256(data).hexdigest()) == (
                message["ts"],
                message["reply"],
                message["sha256"],
            )
        seen = Ranges.of(facts["readable"])
        assert digest({n: m for n, m in had[name].items() if n in seen}) == facts["digest"]
    for name, facts in expected.get("salvage", {}).get("messages", {}).items():
        assert not Ranges.of(facts["intact"]) - Ranges.of((n, n) for n in had[name])


@pytest.mark.parametrize("case", MUTATION_SETS)
def test_mutations(case: str, golden: Path, tmp_path: Path) -> None:
    base = stored(golden / case / "datastore")
    for mutation, root in mutated_stores(case, tmp_path, _EVERY):
        source = opened(root)
        facts = mutation.get("salvage", {})
        for name, whole in base.items():
            lost = Ranges.of(facts.get("lost", {}).get(name, []))
            channel = source.channel(name)
            have = contents(channel.read()) if channel else {}
            assert have == {n: m for n, m in whole.items() if n not in lost}, mutation
            assert channel is None or channel.last <= max(whole), mutation


def test_parts_of_a_channel(golden: Path) -> None:
    (channel, *_) = opened(golden / "slices_count" / "datastore").channels
    whole = contents(channel.read())
    for after in range(len(whole) + 2):
        for until in (None, after, after + 1, after + 7, 2**64 - 1):
            part = contents(channel.read(after=after, until=until))
            assert part == {n: m for n, m in whole.items() if after < n <= (2**64 if until is None else until)}


def test_the_last_sequence_outlives_its_message(golden_copy: Callable[[str], Path]) -> None:
    channel = opened(golden_copy("dmg_payload_flip_very_last_record")).channel("alpha")
    assert channel is not None
    assert (channel.sequences.last, channel.last, channel.lost.pairs()) == (39, 40, [(40, 40)])
    stream = SingleSource(channel, b"other")
    assert (stream.count, stream.first, stream.last, stream.renumbered) == (39, 1, 40, False)
    assert list(contents(stream.read(after=36), b"other")) == [37, 38, 39]
    # What was sent before the damage stays sent: a stream, unlike a store, can hold the position.
    healthy = opened(golden_copy("damage_base")).channel("alpha")
    assert healthy is not None
    positions = [(s.state.id, s.state.last_sent, s.pending) for s in channel.subscriptions]
    assert positions == [(s.state.id, s.state.last_sent, s.pending) for s in healthy.subscriptions]


def test_a_lost_server_record_is_no_obstacle(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("damage_base")
    (root / "server.dat").write_bytes(b"")
    source = opened(root)
    assert sum(channel.count for channel in source.channels) == 52
    assert source.plan.clients and not source.plan.lossy and not source.plan.gone


def test_subscriptions(golden: Path) -> None:
    expected = load_expected("durables")["channels"]
    source = opened(golden / "durables" / "datastore")
    for channel in source.channels:
        planned = {s.state.id: (s.state.last_sent, sorted(s.pending)) for s in channel.subscriptions}
        for facts in expected[channel.name]["subscriptions"]:
            if facts["ID"] in planned:
                assert planned[facts["ID"]] == (facts["LastSent"], facts["pending"])
        assert planned.keys() <= {facts["ID"] for facts in expected[channel.name]["subscriptions"]}
        assert planned


def test_the_store_is_not_changed(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("dmg_length_flip_noidx")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for channel in opened(root, crc=CRC).channels:
        assert contents(channel.read())
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert open_datastore(root).path == root
