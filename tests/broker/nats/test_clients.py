"""A published client library at work on the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from broker.nats.client import ClientState, CloseReason
from broker.nats.nats_options import Authorization, User
from broker.nats.nats_server import NatsServer
from tests import natsclient
from tests.broker.nats.serving import PATIENCE, Raw, serving
from tests.broker.nats.test_permissions import HASHED, PUBLIC, SEED
from tests.waiting import eventually


async def join(server: NatsServer, **options: Any) -> Client:
    return await natsclient.connect(f"nats://127.0.0.1:{server.port}", **options)


async def test_publish_subscribe_request() -> None:
    async with serving() as server:
        one, two = await join(server, name="one"), await join(server, name="two")

        async def answer(message: Msg) -> None:
            await message.respond(b"re: " + message.data)

        await one.subscribe("service", cb=answer)
        wild, rest = await one.subscribe("a.*.c"), await one.subscribe("a.>")
        await one.flush()
        await two.publish("a.b.c", b"1", headers={"k": "v"})
        await two.publish("a.b", b"2")
        first = await wild.next_msg(PATIENCE)
        assert (first.subject, first.data, first.headers) == ("a.b.c", b"1", {"k": "v"})
        assert [(await rest.next_msg(PATIENCE)).data for _ in range(2)] == [b"1", b"2"]
        assert (await two.request("service", b"x", timeout=PATIENCE)).data == b"re: x"
        assert (await two.request("service", b"y", timeout=PATIENCE, old_style=True)).data == b"re: y"
        with pytest.raises(nats.errors.NoRespondersError):
            await two.request("nobody", b"", timeout=PATIENCE)
        await one.close()
        await two.close()


async def test_queue_groups_share_the_work() -> None:
    async with serving() as server:
        got: list[tuple[int, int]] = []
        members = []
        for i in range(3):
            member = await join(server)

            async def take(message: Msg, i: int = i) -> None:
                got.append((i, int(message.data)))

            await member.subscribe("work.*", "group", cb=take)
            await member.flush()
            members.append(member)
        sender = await join(server)
        for i in range(900):
            await sender.publish(f"work.{i % 7}", b"%d" % i)
        await sender.flush()
        await eventually(lambda: len(got) == 900)
        assert sorted(number for _, number in got) == list(range(900))
        counts = Counter(i for i, _ in got)
        assert min(counts.values()) > 200
        for i in range(3):
            own = [number for member, number in got if member == i]
            assert own == sorted(own)
        for client in (*members, sender):
            await client.close()


async def test_drain_and_unsubscribe() -> None:
    async with serving() as server:
        one, two = await join(server), await join(server)
        few = await one.subscribe("few")
        await few.unsubscribe(limit=3)
        await one.flush()
        for i in range(5):
            await two.publish("few", b"%d" % i)
        await two.flush()
        assert [(await few.next_msg(PATIENCE)).data for _ in range(3)] == [b"0", b"1", b"2"]
        await one.flush()
        assert server.subscriptions.interest.count == 0
        got: list[bytes] = []

        async def take(message: Msg) -> None:
            await asyncio.sleep(0)
            got.append(message.data)

        await one.subscribe("many", cb=take)
        await one.flush()
        for i in range(500):
            await two.publish("many", b"%d" % i)
        await two.flush()
        await one.drain()
        assert got == [b"%d" % i for i in range(500)]
        await eventually(lambda: len(server.clients()) == 1)
        await two.close()


async def test_large_messages_and_many_small_ones() -> None:
    async with serving() as server:
        one, two = await join(server), await join(server)
        inbox = await one.subscribe("x.>", pending_bytes_limit=1 << 30, pending_msgs_limit=1 << 20)
        await one.flush()
        sizes = [0, 1, 60_000, 70_000, 262_144, 300_000, 1_048_576, 5, 1_000_000, 2, 2, 2]
        for size in sizes:
            await two.publish(f"x.{size}", bytes(size))
        for i in range(8_000):
            await two.publish(f"x.{i % 100}", b"%d" % i)
        await two.flush()
        for size in sizes:
            message = await inbox.next_msg(PATIENCE)
            assert (message.subject, len(message.data)) == (f"x.{size}", size)
        assert [int((await inbox.next_msg(PATIENCE)).data) for _ in range(8_000)] == list(range(8_000))
        await one.close()
        await two.close()


@pytest.mark.parametrize("version", ["user", "hash", "token", "nkey"])
async def test_credentials(version: str, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_bytes(SEED)
    how: dict[str, tuple[Authorization, dict[str, Any]]] = {
        "user": (Authorization(user="u", password="p"), {"user": "u", "password": "p"}),
        "hash": (Authorization(users=(User("u", HASHED),)), {"user": "u", "password": "secret"}),
        "token": (Authorization(token="t"), {"token": "t"}),
        "nkey": (Authorization(users=(User(nkey=PUBLIC),)), {"nkeys_seed": str(seed)}),
    }
    authorization, options = how[version]

    async with serving(authorization=authorization) as server:
        client = await join(server, **options)
        await client.flush()
        await client.close()
        with pytest.raises(nats.errors.Error):
            await join(server, allow_reconnect=False, max_reconnect_attempts=0)


async def test_a_client_goes_through_its_states() -> None:
    """A state that cannot follow is a mistake of ours, and noticed; with a password there is one more to go through."""

    for options, states in (
        ({}, [ClientState.OPEN, ClientState.OPEN]),
        ({"authorization": Authorization(user="u", password="p")}, [ClientState.GREETED, ClientState.OPEN]),
    ):
        async with serving(**options) as server, await Raw.connect(server.port) as client:
            [connection] = server.connections()
            seen = [connection.state]
            client.send(b'CONNECT {"verbose":false,"user":"u","pass":"p"}\r\nPING\r\n')
            await client.until_pong()
            assert [*seen, connection.state] == states
            with pytest.raises(AssertionError, match="does not become"):
                connection.advance(ClientState.HANDSHAKE)
            connection.close(CloseReason.CLIENT_CLOSED)
            assert connection.closed and connection.state is ClientState.CLOSED
            with pytest.raises(AssertionError, match="does not become"):
                connection.advance(ClientState.OPEN)
