"""Is a stream on a server what the plan says? Its messages, consumers and configuration; with patience for clusters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.plan.model import StreamPlan
from stantools.migration.prepared import PreparedStream
from stantools.migration.proof.stream import Proof, prove_stream
from stantools.migration.target.jetstream import JetStream
from stantools.migration.watch import Counter, Unwatched, Watch

#: Seconds that the replicas of a stream get to show what its leader has, and between two looks at them.
_CATCH_UP = 30.0
_PAUSE = 1.0


async def prove(
    js: JetStream, stream: PreparedStream, *, published: bool, configured: bool = False, watch: Watch | None = None
) -> Proof:
    """Compares a stream on a server with the store: every message, every consumer.

    Args:
        js: The server.
        stream: What it must be.
        published: Messages were published, all or some: those have their times in headers.
        configured: The stream should have its final configuration, limits included.
        watch: Told how many messages were compared.
    """
    counter = Counter(watch or Unwatched())
    deadline = time.monotonic() + _CATCH_UP
    while True:
        proof = await prove_stream(
            js,
            stream.name,
            stream.source,
            origin=stream.plan.origin_headers,
            via_publish=published,
            consumers=stream.positions(),
            progress=lambda count: counter.advance(stream.name, count),
        )
        proof.findings += await _config_findings(js, stream.plan) if configured else []
        if proof.clean or not await _is_replicated(js, stream.name) or time.monotonic() > deadline:
            return proof
        # Another server may have answered than the one that has it all: replicas follow a moment later.
        counter.take_back(stream.name)
        await asyncio.sleep(_PAUSE)


async def still_as_planned(js: JetStream, stream: PreparedStream) -> list[Finding]:
    """Looks whether a stream that was proven before has changed, by what the server tells of it and its consumers."""
    proof = await prove_stream(
        js,
        stream.name,
        stream.source,
        origin=stream.plan.origin_headers,
        via_publish=True,
        consumers=stream.positions(),
        messages=False,
    )
    # Limits go on removing messages, also from what consumers still have to deliver.
    moving = ("stream-state", "consumer-position") if stream.plan.limited else ()
    findings = [each for each in proof.findings if each.code not in moving]
    return findings + await _config_findings(js, stream.plan)


async def _is_replicated(js: JetStream, stream: str) -> bool:
    info = await js.stream_info(stream)
    return info is not None and int(info["config"].get("num_replicas", 1)) > 1


def config_differences(plan: StreamPlan, found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the settings of a plan that a stream has not: name -> (planned, found).

    What the server's version does not know is left out, and so is what a server adds to metadata.
    """
    differences = {}
    for name, planned in plan.config.items():
        there = found.get(name)
        if isinstance(planned, dict) and isinstance(there, dict):
            there = {key: there.get(key) for key in planned}
        if name in found and there != planned:
            differences[name] = planned, there
    return differences


async def _config_findings(js: JetStream, plan: StreamPlan) -> list[Finding]:
    info = await js.stream_info(plan.name)
    differences = config_differences(plan, info["config"]) if info else {}
    if not differences:
        return []
    words = "; ".join(f"{name} is {there!r} instead of {planned!r}" for name, (planned, there) in differences.items())
    return [finding("stream-config", f"stream {plan.name}: {words}")]
