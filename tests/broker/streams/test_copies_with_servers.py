"""Mirrors and sources in one directory, which ours and real servers open in turns: each goes on where the other was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig, StreamSource
from nats.js.errors import NotFoundError

from tests import natsclient, servers
from tests.broker.streams.test_directory_with_servers import ours, theirs
from tests.conftest import others_slow

VERSIONS = [version for version in ("2.10.26", "2.12.8", "2.15.1") if version in servers.available()]
PATIENCE = 60
COPIES = {
    "whole": {"mirror": StreamSource(name="origin")},
    "late": {"mirror": StreamSource(name="origin", opt_start_seq=6)},
    "filtered": {"mirror": StreamSource(name="origin", filter_subject="origin.1")},
    "gathered": {
        "subjects": ["own"],
        "sources": [StreamSource(name="origin", filter_subject="origin.2"), StreamSource(name="other")],
    },
}


class Expected:
    """What copies hold of their origins: sequences of mirrors, origins and sequences of what was gathered."""

    def __init__(self) -> None:
        self.origin: dict[int, str] = {}
        self.other: list[int] = []
        self.own = 0

    def copied(self) -> dict[str, list[Any]]:
        return {
            "whole": list(self.origin),
            "late": [each for each in self.origin if each > 5],
            "filtered": [each for each, subject in self.origin.items() if subject == "origin.1"],
            "gathered": sorted(
                [("origin", each) for each, subject in self.origin.items() if subject == "origin.2"]
                + [("other", each) for each in self.other]
                + [("", 0)] * self.own
            ),
        }


async def publish(js: Any, expected: Expected, count: int) -> None:
    """Publishes to the origins, and to the subject of the stream that gathers."""
    for i in range(count):
        ack = await js.publish(f"origin.{i % 3}", b"%d" % i)
        expected.origin[ack.seq] = f"origin.{i % 3}"
    expected.other.append((await js.publish("other", b"other")).seq)
    await js.publish("own", b"own")
    expected.own += 1


async def messages(js: Any, name: str) -> list[Any]:
    """All messages of a stream."""
    state = (await js.stream_info(name)).state
    wanted = (js.get_msg(name, each) for each in range(state.first_seq, state.last_seq + 1))
    got = await asyncio.gather(*wanted, return_exceptions=True)
    found = [each for each in got if not isinstance(each, NotFoundError)]
    assert len(found) == state.messages
    return found


async def held(js: Any) -> dict[str, list[Any]]:
    """What the copies hold."""
    found: dict[str, list[Any]] = {name: [each.seq for each in await messages(js, name)] for name in COPIES}
    marks = [(each.headers or {}).get("Nats-Stream-Source", " 0").split(" ") for each in await messages(js, "gathered")]
    found["gathered"] = sorted((mark[0], int(mark[1])) for mark in marks)
    return found


async def begin(url: str, expected: Expected) -> None:
    """Makes origins and copies; some messages go before they can be copied, some afterwards."""
    async with natsclient.connected(url) as client:
        js = client.jetstream()
        for name, subjects in (("origin", ["origin.>"]), ("other", ["other"])):
            await js.add_stream(StreamConfig(name=name, subjects=subjects))
        for i in range(12):
            await js.publish(f"origin.{i % 3}", b"%d" % i)
            expected.origin[i + 1] = f"origin.{i % 3}"
        for gone in (3, 8, 12):
            await js.delete_msg("origin", gone)
            del expected.origin[gone]
        for name, config in COPIES.items():
            await js.add_stream(StreamConfig(name=name, **config))
        await publish(js, expected, 3)
        await arrived(js, expected)
        # A copy stays where its origin is no more.
        await js.delete_msg("origin", 5)
        await js.delete_msg("whole", 7)


async def arrived(js: Any, expected: Expected) -> None:
    """Waits until everything is copied."""
    wanted = expected.copied()
    async with asyncio.timeout(PATIENCE):
        while {name: len(each) for name, each in wanted.items()} != {
            name: (await js.stream_info(name)).state.messages for name in COPIES
        }:
            await asyncio.sleep(0.05)
    assert await held(js) == wanted


async def go_on(url: str, before: dict[str, list[Any]] | None, count: int) -> dict[str, list[Any]]:
    """Looks at the copies, publishes more, and waits for just that. Returns what they hold then."""
    async with natsclient.connected(url) as client:
        js = client.jetstream()
        found = await held(js)
        assert before is None or found == before
        more = Expected()
        await publish(js, more, count)
        wanted = {name: sorted([*found[name], *added]) for name, added in more.copied().items()}
        async with asyncio.timeout(PATIENCE):
            while (held_now := await held(js)) != wanted:
                assert not any(len(each) > len(wanted[name]) for name, each in held_now.items())
                await asyncio.sleep(0.05)
    return wanted


@pytest.mark.parametrize("version", others_slow(VERSIONS, (*VERSIONS[:1], servers.NEWEST)))
async def test_copies_go_on_where_another_server_was(tmp_path: Path, version: str) -> None:
    for first, second in (("ours", "theirs"), ("theirs", "ours")):
        store = tmp_path / first / "store"
        before = None
        for turn, which in enumerate((first, second, first)):
            folder = tmp_path / first / str(turn)
            with ours(folder, store) if which == "ours" else theirs(folder, store, version) as server:
                if not turn:
                    await begin(server.url, Expected())
                before = await go_on(server.url, before, 4)
                if which == "ours":
                    server.stop()
