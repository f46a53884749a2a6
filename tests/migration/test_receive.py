"""Receiving in bulk on a connection that is used for other things at the same time, with real servers."""

from __future__ import annotations

import asyncio
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from stantools.nats import receive
from stantools.nats.receive import Inbox, InterruptedConnectionError, open_inbox


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


def run(url: str, work: Any, **options: Any) -> None:
    async def main() -> None:
        client = await nats.connect(url, **options)
        other = await nats.connect(url)
        try:
            await work(client, other)
        finally:
            await client.close()
            await other.close()

    asyncio.run(main())


@pytest.fixture(params=["bulk", "ordinary"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With nats-py as we know it, and with one whose parser we do not know."""
    if request.param == "ordinary":
        monkeypatch.setattr(receive, "_PARSER", ("parse", "something_else"))
    return request.param


def test_everything_on_one_connection(start_server: Any, way: str) -> None:
    async def work(client: Client, other: Client) -> None:
        first, second = await open_inbox(client, "one.*"), await open_inbox(client, "two")
        ordinary = await client.subscribe("three")
        await subscribed(client)

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
        assert (await client.request("twice", b"ab", timeout=5)).data == b"abab"
        one, two = await collect(first, 2000), await collect(second, 2000)
        assert [data for _, _, data in one] == [b"%d" % number for number in range(2000)]
        assert [subject for subject, _, _ in one] == [b"one.%d" % (number % 7) for number in range(2000)]
        assert {header for _, header, _ in one} == {b""}
        assert two == [
            (b"two", b"NATS/1.0\r\na: %d\r\nB: c d\r\n\r\n" % number, b"%d" % number * 300) for number in range(2000)
        ]
        assert [(await ordinary.next_msg(5)).data for _ in range(2000)] == [b"%d" % number for number in range(2000)]
        await first.close()
        await first.close()
        await other.publish("one.1", b"nobody")
        await other.publish("two", b"still")
        await other.flush()
        assert await collect(second, 1) == [(b"two", b"", b"still")]
        with pytest.raises(TimeoutError):
            await second.receive(0.05)
        await second.close()
        assert (await client.request("twice", b"x", timeout=5)).data == b"xx"

    run(start_server().url, work)


def test_statuses(each_server: Any) -> None:
    """A request that nobody answers, and a pull request of a consumer without messages."""

    async def work(client: Client, other: Client) -> None:
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.add_consumer("S", durable_name="c", ack_policy="explicit")
        inbox = await open_inbox(client, client.new_inbox())
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"no_wait":true}', reply=inbox.subject)
        batch = await inbox.receive(5)
        assert batch.columns.status.tolist() == [404]
        await client.publish("nobody", b"", reply=inbox.subject)
        assert (await inbox.receive(5)).columns.status.tolist() == [503]
        await other.jetstream().publish("s", b"data")
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply=inbox.subject)
        batch = await inbox.receive(5)
        columns = batch.columns
        assert (columns.status[0], columns.sequence[0], columns.consumer_sequence[0]) == (0, 1, 1)
        assert columns.timestamp[0] > 1_600_000_000_000_000_000
        assert (batch.subject(0), batch.data(0)) == (b"s", b"data")

    run(each_server.url, work)


def test_an_inbox_in_the_middle_of_a_message(start_server: Any) -> None:
    """nats-py has begun with a frame when the inbox is opened: it gets the rest of it."""

    async def work(client: Client, other: Client) -> None:
        big = await client.subscribe("big")
        await subscribed(client)
        for number in range(40):
            await other.publish("big", bytes([number]) * 300_000)
        flushed = asyncio.ensure_future(other.flush())
        inboxes = []
        for number in range(40):
            await asyncio.sleep(0.001)
            inboxes.append(await open_inbox(client, f"small.{number}"))
            # Not from the other side: a flush of nats-py does not wait for its subscriptions.
            await client.publish(f"small.{number}", b"%d" % number)
        await flushed
        for number, inbox in enumerate(inboxes):
            assert await collect(inbox, 1) == [(b"small.%d" % number, b"", b"%d" % number)]
            await inbox.close()
        for number in range(40):
            assert (await big.next_msg(5)).data == bytes([number]) * 300_000

    run(start_server().url, work)


def test_half_a_frame_in_the_parser() -> None:
    """Each place at which the first inbox can come, without a server."""
    first = b"MSG theirs 1 5\r\nhello\r\n"
    ours = b"MSG ours 2 2\r\nhi\r\n"

    class Stub(Client):
        def __init__(self) -> None:
            super().__init__()
            self.theirs: list[bytes] = []

        async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
            self.theirs.append(data)

    async def at(cut: int) -> None:
        client = Stub()
        tap = receive._tap(client)
        assert tap is not None
        assert receive._tap(client) is tap
        await client._ps.parse(first[:cut])
        inbox = Inbox("ours", tap)
        tap.add(2, inbox)
        for at in range(cut, len(first + ours)):
            await client._ps.parse((first + ours)[at : at + 1])
        assert client.theirs == [b"hello"]
        assert (await inbox.receive(1)).data(0) == b"hi"
        tap.remove(2)
        await client._ps.parse(first)
        assert client.theirs == [b"hello"] * 2

    for cut in range(len(first) + 1):
        asyncio.run(at(cut))


def test_a_connection_that_breaks(start_server: Any) -> None:
    server = start_server()

    async def work(client: Client, other: Client) -> None:
        inbox = await open_inbox(client, "x")
        await subscribed(client)
        await other.publish("x", b"before")
        assert await collect(inbox, 1) == [(b"x", b"", b"before")]
        waiting = asyncio.ensure_future(inbox.receive(10))
        await asyncio.sleep(0)
        server.kill()
        with pytest.raises(InterruptedConnectionError):
            await waiting
        server.start()
        while not (client.is_connected and other.is_connected):
            await asyncio.sleep(0.01)
        await subscribed(client)
        await other.publish("x", b"after")
        try:
            batch = await inbox.receive(5)
        except InterruptedConnectionError:  # some versions of nats-py tell it twice
            batch = await inbox.receive(5)
        assert batch.data(0) == b"after"

    async def quiet(_: Exception) -> None:
        return

    async def main() -> None:
        options: dict[str, Any] = {"reconnect_time_wait": 0.05, "error_cb": quiet, "max_reconnect_attempts": 100}
        client, other = await nats.connect(server.url, **options), await nats.connect(server.url, **options)
        await work(client, other)
        await client.close()
        await other.close()

    asyncio.run(main())


def test_no_protocol() -> None:
    """What is no frame ends the connection, as nats-py does it."""
    from nats.errors import ProtocolError

    async def work() -> None:
        client = Client()
        tap = receive._tap(client)
        assert tap is not None
        tap.add(1, Inbox("x", tap))
        with pytest.raises(ProtocolError):
            await client._ps.parse(b"MSG x\r\n")

    asyncio.run(work())
