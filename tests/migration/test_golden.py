"""Golden stores onto real servers: what nats-py reads back is what the streaming server saw, message by message."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.format.crc import Crc
from stantools.migration.journal import Journal
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import MigrationPlan, StreamPlan
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import prepare
from stantools.migration.source import open_source
from stantools.migration.targets.stream_load import ApplyOptions, StreamOutcome, StreamResult, apply_streams
from stantools.store.directory import open_datastore
from tests import servers
from tests.conftest import golden_cases, load_expected
from tests.migration.facts import ChannelFacts, facts_of
from tests.migration.reading import consumers_of, read_stream, state_of
from tests.natsclient import jetstream

#: Every kind of gap, damage, durable and encryption; in the slow run the newest server gets all stores.
SOME = [
    "basic",
    "durables",
    "gap_filled",
    "gap_truncated_slice",
    "limits_msgs",
    "encrypted_aes",
    "encrypted_chacha",
    "crc_castagnoli",
    "v038",
    "dmg_payload_flip_noidx",
    "dmg_length_flip_idx_intact",
    "dmg_subs_cut_payload",
    "dmg_middle_slice_missing",
    "dmg_zeroed_last_records",
]
#: Those that the oldest server gets in a normal run; in the slow run each version gets `SOME`, the newest all.
FEW = {"basic", "durables", "gap_filled", "encrypted_aes", "dmg_payload_flip_noidx"}


def usual(version: str, case: str) -> bool:
    if version == servers.NEWEST:
        return case in SOME
    return version == servers.OLDEST and case in FEW


PAIRS = [
    pytest.param(version, case, marks=() if usual(version, case) else pytest.mark.slow)
    for version in servers.VERSIONS
    for case in golden_cases()
    if case in SOME or version == servers.NEWEST
]


@pytest.fixture(scope="module")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """One server of each version for all cases."""
    running: dict[str, Any] = {}

    def get(version: str) -> Any:
        if not servers.binary(version).exists():
            pytest.skip(f"nats-server {version} is not here (python tests/servers.py)")
        if version not in running:
            running[version] = servers.NatsServer(tmp_path_factory.mktemp(f"v{version}"), version).start()
        return running[version]

    yield get
    for server in running.values():
        # Those with hundreds of streams take ten seconds to end in order.
        server.kill()


async def migrate(
    root: Path, url: str, work: Path, expected: dict[str, Any], prefix: str, way: LoadMethod = LoadMethod.ARCHIVE
) -> tuple[MigrationPlan, list[StreamResult]]:
    """Plans and applies, as the command does."""
    key = (expected["options"].get("encryption") or {}).get("key")
    crc = Crc(expected["options"]["file_crc_poly"])
    source = open_source(open_datastore(root, crc, key.encode() if key else None))
    via = "publish" if way is LoadMethod.PUBLISH else "restore"
    options = PlanOptions(via=via, stream_prefix=prefix, subject_prefix=f"{prefix}.", decrypted=bool(key))
    plan = make_plan(source, options)
    async with jetstream(url) as js:
        with Journal(work / "plan.yaml", plan.digest, url) as journal:
            return plan, await apply_streams(js, prepare(plan, source), journal, ApplyOptions(way=plan.way))


async def compare(url: str, stream: StreamPlan, facts: ChannelFacts, subject: str) -> None:
    """Compares what a client sees with what the streaming server saw."""
    seen = await read_stream(url, stream.name)
    found = {
        m.sequence: (m.timestamp, hashlib.sha256(m.data).hexdigest(), m.headers.get("Nats-Streaming-Reply", ""))
        for m in seen
    }
    assert len(found) == len(seen) == stream.messages
    assert [m.sequence for m in seen] == sorted(found)
    if facts.listed:
        # A server with limits removes messages from its view before it removes them from the files.
        assert all(sequence < min(facts.messages) for sequence in found.keys() - facts.messages.keys())
    assert {sequence: found.get(sequence) for sequence in facts.messages} == facts.messages
    assert all(m.subject == subject and set(m.headers) <= {"Nats-Streaming-Reply"} for m in seen)


async def compare_consumers(url: str, stream: StreamPlan, facts: ChannelFacts) -> None:
    """Compares the positions of consumers with those of durables."""
    infos = await consumers_of(url, stream.name)
    planned = {(each.durable, each.group, each.client): each.name for each in stream.consumers}
    assert planned.keys() == facts.durables.keys()
    assert set(infos) == set(planned.values())
    for key, (last_sent, pending) in facts.durables.items():
        info = infos[planned[key]]
        there = [sequence for sequence in pending if sequence in facts.messages]
        floor = there[0] - 1 if there else last_sent
        assert info.delivered.stream_seq == last_sent, key
        assert info.ack_floor.stream_seq == floor, key
        assert info.num_ack_pending == len(there), key


@pytest.mark.parametrize(("version", "case"), PAIRS)
async def test_golden(
    version: str,
    case: str,
    golden_copy: Callable[[str], Path],
    server_of: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    if case == "no_permission_dat" and os.geteuid() != 0:
        pytest.skip("the facts hold for a reader who may read the file")
    server, expected = server_of(version), load_expected(case)
    prefix = case.replace(".", "_")
    plan, results = await migrate(golden_copy(case), server.url, tmp_path, expected, prefix)
    assert [(r.stream, r.outcome, r.error, r.findings) for r in results] == [
        (s.name, StreamOutcome.MIGRATED, None, []) for s in plan.streams
    ]
    facts = facts_of(expected)
    by_channel = {part.channel: stream for stream in plan.streams for part in stream.parts}
    intact_subs = "salvage" not in expected or all(
        each["records"] == each["intact"] for each in expected["salvage"].get("subs", {}).values()
    )

    for name, channel in facts.items():
        if name not in by_channel:
            assert not channel.messages, name
            continue
        stream = by_channel[name]
        if intact_subs and case not in ("clustered",):
            await compare_consumers(server.url, stream, channel)
        await compare(server.url, stream, channel, f"{prefix}.{name}")
        state = (await state_of(server.url, stream.name)).state
        assert state.last_seq == stream.last
        assert state.messages == stream.messages
