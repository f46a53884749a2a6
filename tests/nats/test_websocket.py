"""NATS through a WebSocket: messages cut anywhere, servers that end or misbehave, and real servers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.nats import encoding
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection, connect
from stantools.nats.errors import CannotConnectError
from tests import servers
from tests.nats.authority import Authority
from tests.waiting import eventually

INFO = encoding.info({"server_id": "X"})
SIZES = (0, 100, 200, 70_000, 300_000)
MESSAGES = b"".join(encoding.message(b"a", b"1", b"x" * size, b"r") for size in SIZES)


@asynccontextmanager
async def served(talk: Callable[[web.WebSocketResponse], Awaitable[None]]) -> AsyncIterator[str]:
    """A server whose connections do this after INFO, CONNECT and PING; its URL."""

    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(INFO)
        heard = b""
        while encoding.PING not in heard:
            heard += await socket.receive_bytes()
        await socket.send_bytes(encoding.PONG)
        await talk(socket)
        return socket

    application = web.Application()
    application.router.add_get("/path", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    port = servers.free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"ws://127.0.0.1:{port}/path"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A server that answers requests to upgrade with any bytes; gets the right Sec-WebSocket-Accept."""

    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        request = await reader.readuntil(b"\r\n\r\n")
        key = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
        assert key
        accept = hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        writer.write(answer(base64.b64encode(accept)))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait(tasks)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, len(MESSAGES)), max_size=12), st.booleans())
async def test_messages_do_not_depend_on_the_frames(places: list[int], ping: bool) -> None:
    ends = sorted({*places, len(MESSAGES)})
    heard: list[bytes] = []

    async def talk(socket: web.WebSocketResponse) -> None:
        await socket.receive_bytes()  # SUB
        for begin, end in zip([0, *ends], ends, strict=False):
            await socket.send_bytes(MESSAGES[begin:end])
            if ping:
                await socket.ping(b"there?")
        await socket.send_bytes(encoding.PING)
        heard.append(await socket.receive_bytes())
        await socket.receive()

    async with served(talk) as url, connect(ConnectOptions(servers=(url,))) as connection:
        sizes: list[int] = []
        connection.listen(b"a", lambda message: sizes.append(len(message.data)))
        await eventually(lambda: heard == [encoding.PONG])
        assert tuple(sizes) == SIZES


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        b"Sec-WebSocket-Accept: wrong\r\n\r\n",
        b"x" * 20_000,
        INFO + b"\r\n\r\n",
    ],
)
async def test_a_refused_upgrade(answer: bytes) -> None:
    async with raw(lambda _: answer) as url:
        with pytest.raises(CannotConnectError, match="it does not speak the NATS protocol"):
            await ask(url)


@pytest.mark.parametrize("frame", [b"\xc2\x01a", b"\x8b\x00", b"\x81\x04PING", b"\x88\x02\x03\xe8"])
async def test_frames_that_end_the_connection(frame: bytes) -> None:
    def answer(accept: bytes) -> bytes:
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        return head + b"Sec-WebSocket-Accept: %b\r\n\r\n\x82%c%b" % (accept, len(INFO), INFO) + frame

    async with raw(answer) as url:
        with pytest.raises(CannotConnectError, match="it does not speak the NATS protocol"):
            await ask(url, timeout=60)


async def test_a_server_that_does_not_read() -> None:
    end = asyncio.Event()

    async def talk(socket: web.WebSocketResponse) -> None:
        await end.wait()

    async with served(talk) as url:
        async with connect(ConnectOptions(servers=(url,), timeout=1)) as connection:
            writing = asyncio.ensure_future(_publish(connection))
            await eventually(lambda: not connection.writable)
            written = await _stable(connection)
            assert not writing.done()
            assert 1 << 20 < written < 32 << 20  # buffers of the kernel included
            writing.cancel()
        end.set()  # the block has ended although nothing was read


async def test_a_client_that_pauses_reads_nothing_more() -> None:
    asked = asyncio.Event()

    async def talk(socket: web.WebSocketResponse) -> None:
        await socket.receive_bytes()  # SUB
        await socket.send_bytes(encoding.message(b"a", b"1", b"first"))
        await asked.wait()
        await socket.send_bytes(encoding.message(b"a", b"1", b"second"))
        await socket.receive()

    async with served(talk) as url, connect(ConnectOptions(servers=(url,))) as connection:
        heard: list[bytes] = []
        connection.listen(b"a", lambda message: heard.append(message.data))
        await eventually(lambda: heard == [b"first"])
        session = connection._session
        assert session
        session.pause_reading()
        asked.set()
        await asyncio.sleep(0.2)
        assert heard == [b"first"]
        session.resume_reading()
        await eventually(lambda: heard == [b"first", b"second"])


async def _publish(connection: NatsConnection) -> None:
    while True:
        await connection.wait_writable()
        connection.publish(b"a", bytes(10_000))
        connection.sent = getattr(connection, "sent", 0) + 10_000  # type: ignore[attr-defined]


async def _stable(connection: NatsConnection) -> int:
    before = -1
    while before != connection.sent:  # type: ignore[attr-defined]
        before = connection.sent  # type: ignore[attr-defined]
        await asyncio.sleep(0.3)
    return before


async def test_a_server_that_closes_is_connected_to_again() -> None:
    connections: list[web.WebSocketResponse] = []

    async def talk(socket: web.WebSocketResponse) -> None:
        connections.append(socket)
        if len(connections) > 1:
            await socket.receive()
            await socket.receive()

    async with served(talk) as url, connect(ConnectOptions(servers=(url,))) as connection:
        await eventually(lambda: len(connections) == 2 and connection.connected)


async def test_every_reason_is_named() -> None:
    with pytest.raises(CannotConnectError, match="nothing is listening there"):
        await ask(f"ws://127.0.0.1:{servers.free_port()}")
    with pytest.raises(CannotConnectError, match="no such host"):
        await ask("ws://no-such-host.invalid")


def test_aiohttp_is_imported_for_websockets_only() -> None:
    script = "import sys, stantools.streaming.client; print(sorted({'aiohttp', 'nats'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")


async def ask(url: str, **options: Any) -> tuple[str, bool, bytes]:
    """Connects and receives its own message of 300 KB."""

    async with connect(ConnectOptions(servers=(url,), **options)) as connection:
        inbox = connection.open_inbox(b"a")
        connection.publish(b"a", b"x" * 300_000)
        data = (await inbox.receive(5)).data(0)
        return connection.url, connection.encrypted, data


async def test_a_real_server(start_server: Any, tmp_path: Path) -> None:
    port = servers.free_port()
    start_server(config={"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}})
    url = f"ws://127.0.0.1:{port}"
    assert await ask(url) == (url, False, b"x" * 300_000)
    # Nothing is sent in clear text when TLS is wanted.
    with pytest.raises(CannotConnectError, match="does not offer TLS"):
        await ask(url, tls_insecure=True)
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.issue("server", "127.0.0.1")
    port = servers.free_port()
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    start_server(config={"websocket": {"host": "127.0.0.1", "port": port, "tls": tls}})
    url = f"wss://127.0.0.1:{port}"
    assert await ask(url, tls_ca=authority.path) == (url, True, b"x" * 300_000)
    with pytest.raises(CannotConnectError, match="its certificate is not trusted"):
        await ask(url)


async def test_a_server_without_websockets(start_server: Any) -> None:
    server = start_server()
    with pytest.raises(CannotConnectError, match="does not speak the NATS protocol"):
        await ask(server.url.replace("nats:", "ws:"))
