"""Golden JetStream directories salvaged, and what real servers make of the results.

The results of many cases are accounts of one server: nothing in a stream's files depends on its account.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stantools.notation import parse_moment
from stantools.recovery.recovery_options import StreamSalvageOptions
from stantools.recovery.streams.new_streams import StreamSalvageResult, write_store
from stantools.recovery.streams.stream_plan import SalvagedStream, StreamSalvagePlan, plan_stream_salvage
from stantools.sources.door import open_source
from stantools.sources.source import SourceRequest
from stantools.store import atomic
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.survey import StreamSurvey
from tests import natsclient, servers
from tests.streamfiles.test_golden_streams import contents

_TOGETHER = 200

#: What a salvage of a golden directory says: a line `CASE ACCOUNT/STREAM: NOTE` each.
NOTES = Path(__file__).with_name("golden_notes.txt")
#: Set to write the lines of the cases that are tried anew; look at the differences before a commit.
WRITE = "STANTOOLS_WRITE_NOTES"


@dataclass
class Salvage:
    plan: StreamSalvagePlan
    result: StreamSalvageResult
    out: Path

    def contents(self, stream: SalvagedStream) -> dict[int, bytes]:
        """The messages in the new directory, in the form of the golden digests."""
        path = self.out / "jetstream" / stream.account / "streams" / stream.name
        return contents(StreamSurvey(StoredStream(path, stream.account)))


def salvage(path: Path, out: Path, key: str | None = None, **options: Any) -> Salvage:
    source = open_source(path, SourceRequest(ReadOptions(encryption_key=key.encode() if key else None)))
    try:
        plan = plan_stream_salvage(source, StreamSalvageOptions(**options))
        with patch.object(atomic, "sync_tree"):  # what is durable is tested elsewhere, and takes most of the time
            result = write_store(plan, out)
    finally:
        source.release()
    assert result.good, result.problems
    return Salvage(plan, result, out)


def check_notes(case: str, done: Salvage) -> None:
    found = [f"{case} {each}" for each in done.plan.notes]
    found += [f"{case} left out: {done.plan.left_out}"] * bool(done.plan.left_out)
    found += [f"{case} {each.full_name}: {note}" for each in done.plan.streams for note in each.notes]
    kept = NOTES.read_text().splitlines()
    if os.environ.get(WRITE):
        kept = sorted([line for line in kept if line.split(" ")[0] != case] + found)
        NOTES.write_text("".join(f"{line}\n" for line in kept))
    assert sorted(found) == [line for line in kept if line.split(" ")[0] == case], f"rewrite with {WRITE}=1"


def check_server(version: str, salvages: dict[str, Salvage], folder: Path) -> None:
    """A server that is started on the results has exactly their messages and consumers."""
    accounts: dict[str, tuple[Salvage, str]] = {}
    for case, each in salvages.items():
        for account in {stream.account for stream in each.plan.streams}:
            accounts[f"A{len(accounts)}-{case}"] = each, account
    users = {name: {"jetstream": "enabled", "users": [{"user": name, "password": "x"}]} for name in accounts}
    server = servers.NatsServer(folder, version, {"accounts": users})
    for name, (each, account) in accounts.items():
        shutil.copytree(each.out / "jetstream" / account, server.store_dir / "jetstream" / name)
    with server:
        asyncio.run(_compare(server, accounts))


async def _compare(server: servers.NatsServer, accounts: dict[str, tuple[Salvage, str]]) -> None:
    for name, (each, account) in accounts.items():
        async with natsclient.connected(server.url, user=name, password="x") as client:

            async def ask(operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
                payload = json.dumps(body).encode() if body else b""
                answer = await client.request(f"$JS.API.{operation}", payload)
                found: dict[str, Any] = json.loads(answer.data)
                return found

            for stream in each.plan.streams:
                if stream.account == account:
                    await compare_stream(ask, (server.version, name), each, stream)


async def compare_stream(ask: Any, where: Any, each: Salvage, stream: SalvagedStream) -> None:
    info = await ask(f"STREAM.INFO.{stream.name}", {"deleted_details": True})
    assert "state" in info, (where, stream.name, info)
    state = info["state"]
    assert (state["messages"], state["last_seq"]) == (stream.messages, stream.last), (where, stream.name, state)
    if stream.messages:
        assert (state["first_seq"], state["bytes"]) == (stream.recovered.first, stream.bytes), (where, stream.name)
    wanted, found = each.contents(stream), {}
    sequences = [sequence for low, high in stream.recovered for sequence in range(low, high + 1)]
    for at in range(0, len(sequences), _TOGETHER):
        part = sequences[at : at + _TOGETHER]
        answers = await asyncio.gather(*(ask(f"STREAM.MSG.GET.{stream.name}", {"seq": seq}) for seq in part))
        for sequence, answer in zip(part, answers, strict=True):
            assert "message" in answer, (where, stream.name, sequence, answer)
            found[sequence] = _form(answer["message"])
    assert found == wanted, (where, stream.name)
    names = {consumer.name for consumer in stream.consumers}
    there = set((await ask(f"CONSUMER.NAMES.{stream.name}"))["consumers"] or ())
    assert there == names, (where, stream.name, there ^ names)
    for consumer in stream.consumers:
        if consumer.state is None:
            continue
        info = await ask(f"CONSUMER.INFO.{stream.name}.{consumer.name}")
        assert info["delivered"]["stream_seq"] == consumer.state.delivered[1], (where, stream.name, info)
        assert info["num_ack_pending"] == len(consumer.state.pending), (where, stream.name, info)


def _form(message: dict[str, Any]) -> bytes:
    form = struct.pack(">Qq", message["seq"], parse_moment(message["time"]))
    subject = message["subject"].encode()
    for text in (subject, *(base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))):
        form += struct.pack(">I", len(text)) + text
    return form


def ranges(pairs: list[list[int]]) -> Ranges:
    return Ranges.of((low, high) for low, high in pairs)
