"""NATS through a WebSocket: frames cut anywhere, and real servers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.nats import encoding
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import connect
from stantools.nats.errors import CannotConnectError
from stantools.nats.login import NatsAddress
from stantools.nats.nats_session import NatsSession
from stantools.nats.websocket import WebSocket, frame
from tests import servers
from tests.broker.bus.test_bus import Heard
from tests.nats.authority import Authority
from tests.nats.sessions import Listener, Transport

INFO = encoding.info({"server_id": "X"})


class Socket(Transport):
    def is_closing(self) -> bool:
        return bool(self.closed)


def served(opcode: int, payload: bytes, *, first: int = 0x80) -> bytes:
    """A frame as servers send it."""
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big") if size < 1 << 16 else b""
    return bytes([first | opcode]) + (length or b"\x7f" + size.to_bytes(8, "big")) + payload


def unmasked(frames: bytes) -> list[tuple[int, bytes]]:
    """Opcode and payload of frames as clients send them."""
    found = []
    while frames:
        assert frames[0] & 0xF0 == 0x80 and frames[1] & 0x80
        size, at = frames[1] & 0x7F, 2
        if size > 125:
            at += 2 if size == 126 else 8
            size = int.from_bytes(frames[2:at], "big")
        mask, body = frames[at : at + 4], frames[at + 4 : at + 4 + size]
        found.append((frames[0] & 0x0F, bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))))
        frames = frames[at + 4 + size :]
    return found


async def feed(pieces: list[bytes], answer: bytes | None = None) -> tuple[Listener, Heard, Socket]:
    """A session after the server's answer to the upgrade and these pieces."""

    listener, heard, socket = Listener(), Heard(), Socket()
    listener.handlers = {1: heard}
    web = WebSocket(NatsSession(listener), NatsAddress.parse("ws://host:1/path"))
    web.connection_made(socket)  # type: ignore[arg-type]
    assert socket.written.startswith(b"GET /path HTTP/1.1\r\nHost: host:1\r\n")
    key = re.search(rb"Sec-WebSocket-Key: (\S+)", socket.written)
    assert key
    accept = base64.b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    good = b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: %b\r\n\r\n" % accept
    socket.written = b""
    data = (good if answer is None else answer) + b"".join(pieces)
    for piece in [data] if len(pieces) == 1 else [data[i : i + 7] for i in range(0, len(data), 7)]:
        web.data_received(piece)
    await asyncio.sleep(0)
    return listener, heard, socket


MESSAGES = [encoding.message(b"a", b"1", b"x" * size, b"r") for size in (0, 100, 200, 70_000)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 75_000), max_size=12), st.booleans())
async def test_messages_do_not_depend_on_the_frames(places: list[int], ping: bool) -> None:
    data = INFO + b"".join(MESSAGES) + encoding.PING
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    parts = [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    frames = [served(0 if i else 2, part, first=0x80 if i == len(parts) - 1 else 0) for i, part in enumerate(parts)]
    if ping:
        frames.insert(len(frames) // 2, served(9, b"there?"))
    _, heard, socket = await feed(frames)
    assert heard.messages == [(b"a", b"r", b"x" * size) for size in (0, 100, 200, 70_000)]
    assert sorted(unmasked(socket.written)) == sorted([(2, encoding.PONG), *([(10, b"there?")] if ping else [])])


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_sent_frames_are_masked(size: int) -> None:
    assert unmasked(frame(2, b"abc" * size) + frame(10, b"")) == [(2, b"abc" * size), (10, b"")]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: wrong\r\n\r\n",
        b"x" * 20_000,
        INFO + b"\r\n\r\n",
    ],
)
async def test_a_refused_upgrade_aborts(answer: bytes) -> None:
    assert (await feed([b""], answer))[2].closed == "aborted"


@pytest.mark.parametrize(
    "data", [b"\x82\x80", b"\xc2\x01a", served(9, bytes(126)), served(11, b""), served(3, b"x" * 10)]
)
async def test_malformed_frames_close(data: bytes) -> None:
    _, heard, socket = await feed([served(2, INFO) + data + served(2, MESSAGES[0])])
    assert socket.closed and not heard.messages


async def test_the_server_closes() -> None:
    _, heard, socket = await feed([served(2, INFO + MESSAGES[1]) + served(8, b"\x03\xe8") + served(2, MESSAGES[0])])
    assert socket.closed == "closed" and len(heard.messages) == 1
    assert unmasked(socket.written) == [(8, b"\x03\xe8")]


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
