"""Small stores, and the objects around a replay of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stantools.migration.replay.replay_options import PublishKind, ReplayOptions
from stantools.migration.replay.run import PUBLISHERS, Replay, ReplayOutcome, ReplaySpeed
from stantools.migration.replay.selection import ReplayPlan, ReplaySelection, plan_replay
from stantools.migration.replay.state import ReplayStateFile
from stantools.migration.replay.subjects import SubjectRules
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import connect
from tests.migration.stores import Record, opened

START = 1_700_000_000_000_000_000
MS = 1_000_000


def messages(count: int, *, first: int = 1, step: int = MS, start: int = START, text: str = "m") -> list[Record]:
    return [(n, start + (n - first) * step, b"", f"{text}{n}".encode()) for n in range(first, first + count)]


def planned(root: Path, *rules: str, streaming: bool = False, prefix: str = "", **chosen: Any) -> ReplayPlan:
    return plan_replay(opened(root), SubjectRules.parse(rules, prefix), ReplaySelection(**chosen), streaming=streaming)


def options(url: str, **more: Any) -> ConnectOptions:
    return ConnectOptions(servers=(url,), **more)


def core(**more: Any) -> ReplayOptions:
    return ReplayOptions(kind=PublishKind.CORE, **more)


def jetstream(**more: Any) -> ReplayOptions:
    return ReplayOptions(kind=PublishKind.JETSTREAM, **more)


def streaming(cluster_id: str = "test-cluster", client_id: str = "replayer", **more: Any) -> ReplayOptions:
    return ReplayOptions(kind=PublishKind.STREAMING, cluster_id=cluster_id, client_id=client_id, **more)


AT_ONCE = ReplaySpeed(None)


async def replay(
    plan: ReplayPlan,
    connect_options: ConnectOptions,
    to: ReplayOptions,
    file: ReplayStateFile,
    pace: ReplaySpeed = AT_ONCE,
    **more: Any,
) -> ReplayOutcome:
    """Replays a plan from where a state is."""
    async with connect(connect_options) as connection:
        run = Replay(plan, PUBLISHERS[to.kind](connection, plan, file.state, to), file, pace, **more)
        return await asyncio.wait_for(run.run(), 180)
