"""Small stores, and the objects around a replay of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.migration.replay.replay_options import PublishKind, ReplayOptions
from stantools.migration.replay.run import PUBLISHERS, Replay, ReplayOutcome, ReplaySpeed
from stantools.migration.replay.selection import ReplayPlan, ReplaySelection, plan_replay
from stantools.migration.replay.state import ReplayStateFile
from stantools.migration.replay.subjects import SubjectRules
from stantools.migration.source import SourceOptions, StoreSource, open_source
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import connect
from stantools.store.directory import open_datastore
from stantools.store.serverinfo import encode_server_file, new_server_info

CRC = Crc(IEEE)
START = 1_700_000_000_000_000_000
MS = 1_000_000
#: Sequence, timestamp, reply, payload.
Record = tuple[int, int, bytes, bytes]


def messages(count: int, *, first: int = 1, step: int = MS, start: int = START, text: str = "m") -> list[Record]:
    return [(n, start + (n - first) * step, b"", f"{text}{n}".encode()) for n in range(first, first + count)]


def write_store(root: Path, channels: Mapping[str, Sequence[Record]]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "server.dat").write_bytes(encode_server_file(new_server_info("test-cluster"), CRC))
    (root / "clients.dat").write_bytes(b"\1\0\0\0")
    for name, records in channels.items():
        folder = root / name
        folder.mkdir(exist_ok=True)
        (folder / "subs.dat").write_bytes(b"\1\0\0\0")
        columns = [list(each) for each in zip(*records, strict=True)] or [[], [], [], []]
        sequences, timestamps, replies, payloads = columns
        data, _ = kernels.encode_messages(os.fsencode(name), sequences, timestamps, replies, payloads, CRC)
        (folder / "msgs.1.dat").write_bytes(b"\1\0\0\0" + bytes(data))
    return root


def opened(root: Path, *patterns: str, **options: Any) -> StoreSource:
    return open_source(open_datastore(root, CRC), SourceOptions(patterns, **options))


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
