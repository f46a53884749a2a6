"""Clients that do not read, do not answer, or are too many."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from pathlib import Path
from random import Random

from broker.nats.client import CloseReason
from broker.nats.connection import ClientConnection
from broker.nats.nats_options import NatsOptions
from broker.nats.nats_server import NatsServer
from broker.nats.status import resident_memory
from tests.broker.nats.serving import PATIENCE, Raw, both_loops, serving
from tests.broker.nats.simulator import Loop, Peer
from tests.brokers import Broker
from tests.waiting import eventually

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\n'


async def stuck(port: int) -> socket.socket:
    """A subscriber to everything that reads no more."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_recv(client, 4096)
    await loop.sock_sendall(client, QUIET + b"SUB > 1\r\nPING\r\n")
    assert (await loop.sock_recv(client, 100)).endswith(b"PONG\r\n")
    return client


@both_loops
async def test_slow_consumer_is_dropped() -> None:
    async with serving(max_pending=8 << 20) as server:
        slow = await stuck(server.port)
        async with await Raw.connect(server.port, QUIET + b"SUB a 1\r\n") as other:
            await other.until_pong()
            async with await Raw.connect(server.port, QUIET) as sender:
                frame = b"PUB a 60000\r\n" + bytes(60000) + b"\r\n"
                before = resident_memory()
                read = 0
                for _ in range(1000):
                    sender.send(frame)
                    await sender.writer.drain()
                    got = await other.reader.readexactly(len(b"MSG a 1 60000\r\n") + 60002)
                    read += len(got) > 0
                    if server.slow_consumers:
                        break
                assert server.slow_consumers == 1
                assert [each.reason for each in server.closed] == [CloseReason.SLOW_PENDING]
                assert (await sender.until_pong()).endswith(b"PONG\r\n")
                assert resident_memory() - before < 64 << 20
        slow.close()


async def test_nothing_taken_for_too_long() -> None:
    async with serving(write_deadline=0.3) as server:
        slow = await stuck(server.port)
        async with await Raw.connect(server.port, QUIET) as sender:
            for _ in range(100):
                sender.send(b"PUB a 60000\r\n" + bytes(60000) + b"\r\n")
                await sender.writer.drain()
            await eventually(lambda: server.slow_consumers)
            assert [each.reason for each in server.closed] == [CloseReason.SLOW_DEADLINE]
        slow.close()


async def test_who_does_not_keep_up_is_known_whatever_others_do() -> None:
    """Whoever sends from a store asks; that subjects were forgotten, as others came or went, is not an answer."""

    async with serving() as server:
        slow = await stuck(server.port)
        subscriptions = server.subscriptions
        assert not subscriptions.congested(b"a")
        async with await Raw.connect(server.port, QUIET) as sender:
            while not server.connections()[0].congested:
                sender.send(b"PUB a 60000\r\n" + bytes(60000) + b"\r\n")
                await sender.until_pong()
            assert subscriptions.congested(b"a")
            sender.send(b"SUB > 9\r\n")
            await sender.until_pong()
            assert subscriptions.congested(b"a")
            subscriptions.forget()
            assert subscriptions.congested(b"a")
        slow.close()


async def test_fast_publisher_waits_for_subscriber() -> None:
    """What waits in the server stays small though the subscriber reads slowly; nothing is lost."""

    async with serving() as server, await Raw.connect(server.port, QUIET + b"SUB a 1\r\n") as reader:
        await reader.until_pong()
        connection = server.connections()[0]
        async with await Raw.connect(server.port, QUIET) as sender:
            count, most = 400, 0
            frame = b"PUB a 100000\r\n" + bytes(100000) + b"\r\n"

            async def send() -> None:
                for _ in range(count):
                    sender.send(frame)
                    await sender.writer.drain()

            task = asyncio.create_task(send())
            for _ in range(count):
                await reader.reader.readexactly(len(b"MSG a 1 100000\r\n") + 100002)
                most = max(most, connection.pending)
                await asyncio.sleep(0)
            await task
            assert most < 48 << 20
            assert not server.slow_consumers


async def test_the_rest_of_what_a_stalled_publisher_sent_is_handled() -> None:
    """It sends many publishes and nothing afterwards; the time of a turn ends while it waits for a slow subscriber."""

    async with serving() as server:
        slow = await stuck(server.port)
        async with await Raw.connect(server.port, QUIET) as sender:
            while not server.connections()[0].congested:
                sender.send(b"PUB a 60000\r\n" + bytes(60000) + b"\r\n")
                await sender.until_pong()
            sender.send(b"".join(b"PUB a.%d 1\r\nx\r\n" % number for number in range(50_000)))
            assert await sender.until_pong() == b"PONG\r\n"
        slow.close()


async def test_connections_are_counted() -> None:
    async with serving(max_connections=2) as server:
        one = await Raw.connect(server.port, QUIET)
        two = await Raw.connect(server.port, QUIET)
        async with await Raw.connect(server.port) as three:
            assert await three.rest() == b"-ERR 'maximum connections exceeded'\r\n"
        await two.close()
        await eventually(lambda: len(server.connections()) == 1)
        async with await Raw.connect(server.port, QUIET) as three:
            assert await three.until_pong() == b"PONG\r\n"
        await one.close()


async def test_stale_connections() -> None:
    async with serving(ping_interval=0.05, ping_max=2) as server:
        async with await Raw.connect(server.port, QUIET) as silent:
            assert await silent.rest() == b"PING\r\nPING\r\n-ERR 'Stale Connection'\r\n"
        assert [each.reason for each in server.closed] == [CloseReason.STALE]
        async with await Raw.connect(server.port, QUIET) as polite:
            for _ in range(3):
                assert await polite.line() == b"PING\r\n"
                polite.send(b"PONG\r\n")
            assert await polite.until_pong()
            [connection] = server.connections()
            assert connection.rtt > 0 and connection.pings <= 1


async def test_a_large_size_alone_takes_no_memory() -> None:
    async with serving(max_payload=1 << 28) as server:
        before = resident_memory()
        clients = []
        for _ in range(20):
            client = await Raw.connect(server.port, QUIET + b"PUB a 200000000\r\n" + bytes(70_000))
            clients.append(client)
        await eventually(lambda: all(each.active for each in server.connections()))
        assert resident_memory() - before < 40 << 20
        for client in clients:
            await client.close()
        await eventually(lambda: not server.connections())


async def test_many_connections_with_subscriptions() -> None:
    async with serving() as server:
        clients = []
        start = time.monotonic()
        for i in range(300):
            client = await Raw.connect(server.port, QUIET)
            client.send(b"".join(b"SUB _INBOX.%d.%d %d\r\n" % (i, j, j) for j in range(100)))
            clients.append(client)
        for client in clients:
            assert await client.until_pong() == b"PONG\r\n"
        assert server.subscriptions.interest.count == 30_000
        clients[0].send(b"".join(b"PUB _INBOX.%d.7 2\r\nhi\r\n" % i for i in range(300)))
        for client in clients:
            await client.expect(b"MSG _INBOX.%d.7 7 2\r\nhi\r\n" % clients.index(client))
        for client in clients:
            await client.close()
        await eventually(lambda: server.subscriptions.interest.count == 0)
        assert time.monotonic() - start < 60


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


@both_loops
async def test_closed_connections_are_let_go_at_once() -> None:
    """The garbage collector is not needed for it."""
    gc.collect()
    gc.disable()
    try:
        async with serving() as server:
            before = alive(ClientConnection)
            for _ in range(20):
                async with await Raw.connect(server.port, QUIET + b"SUB a.* 1\r\nPUB b 1\r\nx\r\n") as client:
                    await client.until_pong()
            await eventually(lambda: len(server.closed) == 20)
            assert alive(ClientConnection) - before == 20
            server.closed.clear()
            await eventually(lambda: alive(ClientConnection) == before)
    finally:
        gc.enable()


async def test_closed_connections_are_small() -> None:
    async with serving() as server:
        async with await Raw.connect(server.port, QUIET + b"SUB a 1\r\n") as client:
            await client.until_pong()
        await eventually(lambda: len(server.closed) == 1)
        [closed] = server.closed
        assert isinstance(closed, ClientConnection)
        assert closed.reason is CloseReason.CLIENT_CLOSED
        assert not closed.subscriptions
        assert closed.pending == 0


def test_no_more_file_descriptors(tmp_path: Path) -> None:
    """Those who cannot be taken are turned away, the log says so once, and nobody spins."""

    class Narrow(Broker):
        def command(self) -> list[str]:
            return ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *super().command()]

    def processor(broker: Broker) -> float:
        assert broker.process is not None
        fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def wait_for(text: str, broker: Broker) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in broker.said():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with Narrow(tmp_path) as broker:
        clients = [socket.create_connection(("127.0.0.1", broker.port), PATIENCE) for _ in range(100)]
        wait_for("Out of file descriptors", broker)
        before = processor(broker), time.monotonic()
        clients += [socket.create_connection(("127.0.0.1", broker.port), PATIENCE) for _ in range(20)]
        # Long enough for a line a second to show.
        time.sleep(1.5)
        assert processor(broker) - before[0] < 0.5 * (time.monotonic() - before[1])
        for client in clients:
            client.close()
        deadline = time.monotonic() + PATIENCE
        while True:
            with socket.create_connection(("127.0.0.1", broker.port), PATIENCE) as client:
                if client.recv(4).startswith(b"INFO"):
                    break
            assert time.monotonic() < deadline
        assert broker.said().count("Out of file descriptors") == 1
        assert "ulimit -n) is 64" in broker.said()
        assert "Traceback" not in broker.said()
        assert broker.stop() == 0


def test_a_server_is_let_go_with_its_open_connections() -> None:
    """The garbage collector counts their references right."""

    def serve() -> None:
        with Loop(Random(1)).running():
            Peer(1, NatsServer(NatsOptions()))

    gc.collect()
    before = alive(NatsServer)
    serve()
    gc.collect()
    assert alive(NatsServer) == before
