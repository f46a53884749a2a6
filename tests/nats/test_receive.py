"""Receiving in bulk on a connection that is used for other things at the same time, with real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection, connect
from stantools.nats.errors import ConnectionLostError
from stantools.nats.inbox import Inbox
from tests import natsclient


async def collect(inbox: Inbox, count: int) -> list[tuple[bytes, bytes, bytes]]:
    """Subject, header and payload of so many messages."""
    found: list[tuple[bytes, bytes, bytes]] = []
    while len(found) < count:
        batch = await inbox.receive(5)
        found += [(batch.subject(row), batch.header(row), batch.data(row)) for row in range(len(batch))]
    assert len(found) == count
    return found


async def subscribed(client: Client) -> None:
    """Waits until the server knows the subscriptions; `flush` does not, its ping can overtake them."""
    check = await client.subscribe(client.new_inbox())
    await client.publish(check.subject, b"")
    await check.next_msg(5)
    await check.unsubscribe()


@asynccontextmanager
async def two_clients(url: str) -> AsyncIterator[tuple[NatsConnection, Client]]:
    """Our connection, and nats-py for the other side."""
    async with connect(ConnectOptions(servers=(url,))) as connection, natsclient.connected(url) as other:
        yield connection, other


async def test_everything_on_one_connection(start_server: Any) -> None:
    async with two_clients(start_server().url) as (connection, other):
        first, second = connection.open_inbox(b"one.*"), connection.open_inbox(b"two")
        single: list[bytes] = []
        connection.listen(b"three", lambda message: single.append(message.data))
        await connection.flush()

        async def answer(message: Any) -> None:
            await message.respond(message.data * 2)

        await other.subscribe("twice", cb=answer)
        await subscribed(other)
        for number in range(2000):
            data = b"%d" % number
            await other.publish(f"one.{number % 7}", data)
            await other.publish("two", data * 300, headers={"a": data.decode(), "B": "c d"})
            await other.publish("three", data)
        await other.flush()
        assert await connection.request("twice", b"ab") == b"abab"
        one, two = await collect(first, 2000), await collect(second, 2000)
        assert [data for _, _, data in one] == [b"%d" % number for number in range(2000)]
        assert [subject for subject, _, _ in one] == [b"one.%d" % (number % 7) for number in range(2000)]
        assert {header for _, header, _ in one} == {b""}
        assert two == [
            (b"two", b"NATS/1.0\r\na: %d\r\nB: c d\r\n\r\n" % number, b"%d" % number * 300) for number in range(2000)
        ]
        assert single == [b"%d" % number for number in range(2000)]
        connection.close_inbox(first)
        connection.close_inbox(first)
        await other.publish("one.1", b"nobody")
        await other.publish("two", b"still")
        await other.flush()
        assert await collect(second, 1) == [(b"two", b"", b"still")]
        with pytest.raises(TimeoutError):
            await second.receive(0.05)
        with pytest.raises(TimeoutError):
            await first.receive(0)
        assert await connection.request("twice", b"x") == b"xx"


async def test_statuses_of_requests_without_answer(each_server: Any) -> None:
    async with two_clients(each_server.url) as (connection, other):
        js = other.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.add_consumer("S", durable_name="c", ack_policy="explicit")
        inbox = connection.open_inbox(connection.new_inbox())
        ask = b"$JS.API.CONSUMER.MSG.NEXT.S.c"
        connection.publish(ask, b'{"batch":1,"no_wait":true}', inbox.subject)
        batch = await inbox.receive(5)
        assert batch.columns.status.tolist() == [404]
        connection.publish(b"nobody", b"", inbox.subject)
        assert (await inbox.receive(5)).columns.status.tolist() == [503]
        await js.publish("s", b"data")
        connection.publish(ask, b"1", inbox.subject)
        batch = await inbox.receive(5)
        columns = batch.columns
        assert (columns.status[0], columns.sequence[0], columns.consumer_sequence[0]) == (0, 1, 1)
        assert columns.timestamp[0] > 1_600_000_000_000_000_000
        assert (batch.subject(0), batch.data(0)) == (b"s", b"data")


async def test_an_inbox_while_large_messages_come(start_server: Any) -> None:
    async with two_clients(start_server().url) as (connection, other):
        sizes: list[int] = []
        connection.listen(b"big", lambda message: sizes.append(len(message.data)))
        await connection.flush()
        for number in range(40):
            await other.publish("big", bytes([number]) * 300_000)
        flushed = asyncio.ensure_future(other.flush())
        inboxes = []
        for number in range(40):
            await asyncio.sleep(0.001)
            inboxes.append(connection.open_inbox(b"small.%d" % number))
            connection.publish(b"small.%d" % number, b"%d" % number)
        await flushed
        for number, inbox in enumerate(inboxes):
            assert await collect(inbox, 1) == [(b"small.%d" % number, b"", b"%d" % number)]
            connection.close_inbox(inbox)
        await connection.flush()
        assert sizes == [300_000] * 40


async def test_an_inbox_survives_a_broken_connection(start_server: Any) -> None:
    server = start_server()

    async with connect(ConnectOptions(servers=(server.url,))) as connection:
        inbox = connection.open_inbox(b"x")
        connection.publish(b"x", b"before")
        assert await collect(inbox, 1) == [(b"x", b"", b"before")]
        waiting = asyncio.ensure_future(inbox.receive(10))
        await asyncio.sleep(0)
        server.kill()
        with pytest.raises(ConnectionLostError):
            await waiting
        # What cannot be sent is not sent later.
        with pytest.raises(ConnectionLostError):
            connection.publish(b"x", b"never")
        with pytest.raises(ConnectionLostError):
            await connection.write(b"PUB x 5\r\nnever\r\n")
        with pytest.raises(ConnectionLostError):
            await connection.drain()
        server.start()
        await connection.wait_connected(30)
        connection.publish(b"x", b"after")
        assert await collect(inbox, 1) == [(b"x", b"", b"after")]


async def test_malformed_frames_end_the_connection_and_it_reconnects() -> None:
    visits = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.write(b'INFO {"server_id":"x"}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        if visits == 1:
            await reader.readuntil(b"SUB ")
            writer.write(b"MSG x\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(ConnectOptions(servers=(f"127.0.0.1:{port}",))) as connection:
            inbox = connection.open_inbox(b"x")
            with pytest.raises(ConnectionLostError):
                await inbox.receive(30)
            await connection.wait_connected(30)
            assert visits == 2
