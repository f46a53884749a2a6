"""Small stores, streams with the same content, and stores as sources of migrations."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.format.proto import store_pb2 as pb
from stantools.migration.source import SourceOptions, StoreSource, open_source
from stantools.migration.stream_source import SingleSource
from stantools.notation import parse_moment
from stantools.store.directory import open_datastore
from stantools.store.serverinfo import new_server_info
from stantools.store.storewriter import StoreWriter
from tests import natsclient

CRC = Crc(IEEE)
T0 = 1_600_000_000_123_456_789
#: Sequence, timestamp, reply, payload.
Record = tuple[int, int, bytes, bytes]


def records(count: int, *, first: int = 1, size: int = 10) -> list[Record]:
    return [(n, T0 + n, b"", b"%d" % n * size) for n in range(first, first + count)]


def write_store(
    root: Path,
    channels: Mapping[str, Sequence[Record]],
    *,
    cluster: str = "test-cluster",
    clients: Sequence[pb.ClientInfo] = (),
    subscriptions: Mapping[str, Sequence[tuple[pb.SubState, Sequence[int]]]] | None = None,
) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    writer = StoreWriter(root, CRC)
    writer.write_server(new_server_info(cluster))
    writer.write_clients(clients)
    for name, rows in channels.items():
        raw = os.fsencode(name)
        writer.write_subs(raw, (subscriptions or {}).get(name, ()))
        columns = [list(each) for each in zip(*rows, strict=True)] or [[], [], [], []]
        data, _ = kernels.encode_messages(raw, *columns, CRC)  # type: ignore[arg-type]
        (root / name / "msgs.1.dat").write_bytes(b"\1\0\0\0" + bytes(data))
    return root


def opened(root: Path, *patterns: str, crc: Crc = CRC, key: bytes | None = None, **options: Any) -> StoreSource:
    """A store as a source."""
    return open_source(open_datastore(root, crc, key), SourceOptions(patterns, **options))


def single(root: Path, channel: str, subject: bytes | None = None) -> SingleSource:
    found = opened(root).channel(channel)
    assert found is not None
    return SingleSource(found, subject)


async def fill(url: str, stream: str, messages: Sequence[tuple[str, bytes, dict[str, str]]], **config: Any) -> None:
    """Makes a stream by publishing."""
    async with natsclient.connected(url) as client:
        js = client.jetstream()
        await js.add_stream(name=stream, **config)
        waiting = []
        for subject, data, headers in messages:
            waiting.append(await js.publish_async(subject, data, headers=headers or None))
        await asyncio.gather(*waiting)


async def stored(url: str, stream: str) -> list[Record]:
    """Reads a stream one message at a time, without the code under test: sequence, time, nothing, payload."""
    async with natsclient.connected(url) as client:
        state = (await client.jsm().stream_info(stream)).state
        found = []
        for sequence in range(state.first_seq, state.last_seq + 1):
            answer = await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq":%d}' % sequence)
            message = json.loads(answer.data).get("message")
            if message:
                found.append((sequence, parse_moment(message["time"]), b"", base64.b64decode(message.get("data", ""))))
        return found
