"""Stores of the real streaming server, published to real servers, and proven there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.format.crc import Crc
from stantools.migration.plan.choices import DurablesChoice
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.plan.planner import make_plan
from stantools.migration.prepared_stream import prepare
from stantools.migration.proof.stream_proof import ExpectedStream
from stantools.migration.publish import stream_publish as stream_module
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.stream_publish import publish_stream
from stantools.migration.source import open_source
from stantools.store.directory import open_datastore
from tests.conftest import load_expected
from tests.natsclient import jetstream

#: Gaps, damage, durables, encryption, several generations, another CRC.
CASES = (
    "basic",
    "durables",
    "gap_filled",
    "gap_truncated_slice",
    "limits_msgs",
    "encrypted_aes",
    "crc_castagnoli",
    "v038",
    "clustered",
    "dmg_payload_flip_noidx",
    "dmg_middle_slice_missing",
    "dmg_zeroed_last_records",
    "dmg_subs_cut_payload",
)


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("2.9.10", "push"),
        ("2.15.1", "pull"),
        pytest.param("2.9.10", "pull", marks=pytest.mark.slow),
        pytest.param("2.12.8", "pull", marks=pytest.mark.slow),
        pytest.param("2.15.1", "push", marks=pytest.mark.slow),
    ],
)
async def test_golden_stores(
    golden_copy: Callable[[str], Path],
    start_server: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    kind: str,
) -> None:
    # The server is not killed here, and forgets nothing.
    monkeypatch.setattr(stream_module, "SETTLING", 0.0)
    # A payload may be as large as servers take by default; with headers it is larger.
    server = start_server(version, config={"max_payload": 2 << 20})

    async with jetstream(server.url) as js:
        consumers = 0
        for case in CASES:
            expected = load_expected(case)
            key = (expected["options"].get("encryption") or {}).get("key")
            crc = Crc(expected["options"]["file_crc_poly"])
            source = open_source(open_datastore(golden_copy(case), crc, key.encode() if key else None))
            options = PlanOptions(
                via="publish",
                stream_prefix=case,
                subject_prefix=f"{case}.",
                decrypted=bool(key),
                consumers=DurablesChoice(kind),
            )
            plan = make_plan(source, options)
            for stream in prepare(plan, source):
                positions = stream.positions()
                config, origin = stream.plan.loading_config, stream.plan.origin_headers
                publishing = PublishOptions(origin=origin)
                result = await publish_stream(js, stream.name, config, stream.source, positions, options=publishing)
                assert result.messages == stream.source.count and result.interruptions == 0
                proof = await ExpectedStream(stream.name, stream.source, origin, True, positions).prove(js)
                assert not proof.findings, (case, stream.name, proof.findings)
                assert proof.messages == stream.source.count
                consumers += len(result.consumers)
    assert consumers >= 5
