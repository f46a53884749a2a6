"""Real servers of every version make of an archive exactly what went into it, and still have it after a restart."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import ServerError

from stantools.streamfiles.headers import header_block
from stantools.streamfiles.layout import MAX_RECORD_SIZE, MAX_SKIPS
from stantools.streamfiles.meta import CONSUMER_FIELDS, STREAM_FIELDS, ConsumerState
from stantools.streamfiles.writer import ConsumerEntry, StreamArchive
from tests import natsclient, servers
from tests.conftest import EACH_VERSION
from tests.streamfiles.making import TIME, Item, batch, numbered

NOW = time.time_ns()
PIECE = 128 << 10


@dataclass(frozen=True)
class Case:
    """A stream to restore. Its name is its subject."""

    name: str
    messages: Sequence[Item]
    last: int
    options: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    consumers: Sequence[ConsumerEntry] = ()

    @property
    def missing(self) -> int:
        """How many sequences are deleted."""
        return self.last - self.messages[0].place + 1 - len(self.messages) if self.messages else 0

    @property
    def wide(self) -> bool:
        """A gap that is not filled: old servers count it as messages."""
        ends = [*(message.place for message in self.messages), self.last + 1]
        return any(behind - before > MAX_SKIPS + 1 for before, behind in pairwise(ends))

    @property
    def wide_end(self) -> bool:
        return bool(self.messages) and self.last - self.messages[-1].place > MAX_SKIPS


def some(sequences: Sequence[int]) -> list[Item]:
    """Messages with all kinds of content."""
    return [
        Item(n, TIME + n % 1000 * 1_000_000_007, bytes([n % 256]) * (n % 300), b"reply.%d" % n if n % 3 else b"")
        for n in sequences
    ]


#: More than a block, and all that a record can have.
LARGE, LARGEST = 9_000_000, MAX_RECORD_SIZE
PENDING = {4: (4, NOW - 3600 * 10**9), 9: (9, NOW - 3600 * 10**9)}
CASES = [
    Case("plain", some(range(1, 400)), 399),
    Case("origin", some(range(1, 400)), 399, {"origin": True}),
    Case("blocks", some(range(5, 1500, 3)), 1510, {"block_bytes": 3000}),
    Case("offset", some([1 << 40, (1 << 40) + 1]), (1 << 40) + 1),
    Case("gaps", some([1, 2, 3, 10, 11, 50, 60_000, 60_001]), 60_001),
    Case("between", some([1, 2, 50, 51, 300, 302]), 310, {"block_bytes": 200}),
    Case("trailing", some(range(1, 20)), 19 + MAX_SKIPS),
    Case("wide", numbered([7, 8, 50_000_007, 50_000_009]), 50_000_009),
    Case("wideend", numbered([1, 2]), 50_000_000),
    Case("empty", [], 12_345),
    Case("nothing", [], 0),
    Case("large", [Item(1, 1, b"x" * LARGE), Item(2, 2, b"y"), Item(3, 3, bytes(LARGEST - 35))], 3),
    Case("clock", [Item(n, t) for n, t in enumerate([-1, 0, -(1 << 62), (1 << 62), 5, TIME], 1)], 6),
    Case(
        "config",
        some(range(1, 21)),
        21,
        {},
        {"description": "é", "allow_direct": True, "deny_delete": True, "deny_purge": True, "max_msg_size": 1 << 20},
        [
            ConsumerEntry(
                "pull",
                {"max_ack_pending": 77, "ack_wait": 5_000_000_000, "filter_subject": "config", "max_waiting": 9}
                | {"max_batch": 5, "max_expires": 10**9, "max_bytes": 5, "inactive_threshold": 10**15},
                ConsumerState((3, 3), (10, 10), PENDING, {4: 2}),
            ),
            ConsumerEntry(
                "push",
                {"deliver_subject": "d.x", "deliver_group": "push", "sample_freq": "5", "rate_limit_bps": 1 << 20}
                | {"backoff": [10**9, 10**10], "max_deliver": 5, "headers_only": True},
                ConsumerState((21, 21), (21, 21)),
            ),
            ConsumerEntry(
                "flow",
                {"deliver_subject": "d.y", "flow_control": True, "idle_heartbeat": 5 * 10**9, "description": "d"},
            ),
            ConsumerEntry("n" * 200, {"deliver_policy": "all"}),
        ],
    ),
]


async def call(client: Client, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = json.dumps(body).encode() if body is not None else b""
    answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{operation}", data, timeout=20)).data)
    assert "error" not in answer, (operation, answer)
    return answer


async def restored(client: Client, case: Case) -> dict[str, Any]:
    """Restores a stream and returns what the server says of it, compared with what the archive says."""
    config = {"name": case.name, "subjects": [case.name], **case.config}
    of = StreamArchive(case.name, config, 1_500_000_000_000_000_001, **{"origin": False, **case.options})
    batches = [batch(case.messages, case.name.encode())]
    data = b"".join(bytes(piece) for piece in of.pieces(batches, lambda: case.consumers, case.last))
    state = of.state.as_json() | {"consumer_count": len(case.consumers)}
    answer = await call(client, f"STREAM.RESTORE.{case.name}", {"config": config, "state": state})
    pieces = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)]
    for group in range(0, len(pieces), 32):
        some_pieces = pieces[group : group + 32]
        for reply in await asyncio.gather(
            *(client.request(answer["deliver_subject"], piece, timeout=20) for piece in some_pieces)
        ):
            assert not reply.data, reply.data
    final: dict[str, Any] = json.loads((await client.request(answer["deliver_subject"], b"", timeout=60)).data)
    assert "error" not in final, final
    assert final["created"] == "2017-07-14T02:40:00.000000001Z"
    return final


def check_state(case: Case, state: dict[str, Any], version: str) -> None:
    old = version == servers.OLDEST
    expected = {"messages": len(case.messages), "last_seq": case.last, "num_deleted": case.missing}
    if case.messages:
        expected["first_seq"] = case.messages[0].place
        if old and case.wide_end:
            # It takes the block with only the last sequence for the first one, until that gets a message.
            del expected["first_seq"], expected["num_deleted"]
    elif old:
        del expected["num_deleted"]
    else:
        expected["first_seq"] = case.last + 1 if case.last else 0
    found = {name: state.get(name, 0) for name in expected}
    assert found == expected, case.name


async def check_messages(client: Client, case: Case, more: int, version: str) -> None:
    """Reads the whole stream through a consumer; `more` messages were published after the restore."""
    stream = client.jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await stream.pull_subscribe("", stream=case.name, durable=f"reader{more}", config=config)
    info = await subscription.consumer_info()
    if version != servers.OLDEST or not case.wide:
        assert info.num_pending == len(case.messages) + more or not case.messages, case.name
    wanted = len(case.messages) + more
    got: list[Any] = []
    while len(got) < wanted:
        got += await subscription.fetch(min(500, wanted - len(got)), timeout=natsclient.PATIENCE)
    origin = case.options.get("origin", False)
    for message, found in zip(case.messages, got, strict=False):
        assert found.metadata.sequence.stream == message.place
        assert int(found.reply.split(".")[-2]) == message.timestamp
        assert found.data == message.data
        assert (found.headers is None) == (not origin and not message.reply)
    assert [found.metadata.sequence.stream for found in got[len(case.messages) :]] == [
        case.last + number for number in range(1, more + 1)
    ]
    for message in case.messages[:: max(1, len(case.messages) // 5)]:
        if len(message.data) > 1 << 20:
            continue
        raw = (await call(client, f"STREAM.MSG.GET.{case.name}", {"seq": message.place}))["message"]
        block = header_block(case.name.encode(), message.sequence, message.timestamp, message.reply, origin=origin)
        assert base64.b64decode(raw.get("hdrs", "")) == block
        assert base64.b64decode(raw.get("data", "")) == message.data
        assert raw["subject"] == case.name
    with contextlib.suppress(ServerError):  # 2.9 may be writing a file where it removes the directory
        await stream.delete_consumer(case.name, f"reader{more}")


async def check_consumers(client: Client, case: Case) -> None:
    for entry in case.consumers:
        info = await call(client, f"CONSUMER.INFO.{case.name}.{entry.name}")
        state = entry.state or ConsumerState((0, 0), (0, 0))
        pairs = [(info[name]["consumer_seq"], info[name]["stream_seq"]) for name in ("ack_floor", "delivered")]
        assert pairs == [state.ack_floor, state.delivered]
        assert info["num_ack_pending"] == len(state.pending)
        assert info["num_redelivered"] == len(state.redelivered)
        skipped = {"ack_wait"} if "backoff" in entry.config else set()
        expected = {name: value for name, value in entry.config.items() if name not in skipped}
        assert {name: info["config"].get(name) for name in expected} == expected


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_restored_exactly(version: str, start_server: Callable[..., Any]) -> None:
    """Restored, read, restarted, published to, read, restarted, read."""
    server = start_server(version)
    old = server.version == servers.OLDEST

    async def again(more: int, publish: bool) -> None:
        async with natsclient.connected(server.url) as client:
            for case in CASES:
                info = await call(client, f"STREAM.INFO.{case.name}")
                if not (old and (case.wide_end or not case.messages)):
                    assert info["state"]["messages"] == len(case.messages) + more - publish
                assert info["config"].get("description") == case.config.get("description")
                await check_consumers(client, case)
                if publish:
                    answer = await client.jetstream().publish(case.name, b"next")
                    assert answer.seq == case.last + more
                if case.name != "large":
                    await check_messages(client, case, more, server.version)

    async with natsclient.connected(server.url) as client:
        for case in CASES:
            final = await restored(client, case)
            check_state(case, final["state"], server.version)
            await check_consumers(client, case)
            if case.name != "large":
                await check_messages(client, case, 0, server.version)
    server.stop()
    server.start()
    await again(1, True)
    server.stop()
    server.start()
    await again(1, False)
    assert "decoding error" not in server.text()


async def test_pending_messages_come_first(each_server: Any) -> None:
    """What was sent and not acknowledged is sent again, then what was never sent."""
    state = ConsumerState((3, 3), (10, 10), PENDING)
    case = Case("work", some(range(1, 21)), 20, consumers=[ConsumerEntry("w", {}, state)])

    async with natsclient.connected(each_server.url) as client:
        await restored(client, case)
        stream = client.jetstream()
        subscription = await stream.pull_subscribe_bind("w", case.name)
        got: list[Any] = []
        while len(got) < 12:
            got += await subscription.fetch(12 - len(got), timeout=natsclient.PATIENCE)
        facts = [(message.metadata.sequence.stream, message.metadata.num_delivered) for message in got]
        if each_server.version == servers.OLDEST:
            facts.sort()  # it looks for what is overdue a moment later
        assert facts == [(4, 2), (9, 2), *((number, 1) for number in range(11, 21))]
        await next(message for message in got if message.metadata.sequence.stream == 4).ack_sync()
        info = await subscription.consumer_info()
        assert info.ack_floor is not None
        assert info.ack_floor.stream_seq == 8


async def test_compressed(each_server: Any) -> None:
    pytest.importorskip("cramjam")
    case = Case("small", some(range(1, 3000)), 3005, {"compression": "snappy", "block_bytes": 50_000})

    async with natsclient.connected(each_server.url) as client:
        check_state(case, (await restored(client, case))["state"], each_server.version)
        await check_messages(client, case, 0, each_server.version)


def test_every_field_was_tried() -> None:
    """A field that some server does not know would take streams offline."""
    shown = {"durable_name", "deliver_policy", "ack_policy", "replay_policy", "num_replicas"}
    tried = shown.union(*(entry.config for case in CASES for entry in case.consumers))
    assert set(CONSUMER_FIELDS) <= tried
    # Placement needs a cluster; a sealed stream takes no message, which the tests want to publish.
    spec = {"placement", "sealed", "allow_rollup_hdrs"}
    always = {"name", "subjects", "retention", "max_consumers", "max_msgs", "max_bytes", "max_age", "discard"}
    always |= {"max_msgs_per_subject", "max_msg_size", "storage", "num_replicas", "duplicate_window"}
    assert set(STREAM_FIELDS) <= spec | always | set(CASES[-1].config)
