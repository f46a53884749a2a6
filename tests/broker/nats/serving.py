"""Servers for the tests, and a client that speaks bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest

from broker.nats import client_session
from broker.nats.nats_options import NatsOptions
from broker.nats.nats_server import NatsServer

#: The longest that something may take on a slow machine.
PATIENCE = 60.0
#: A test with either event loop of the broker.
both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[NatsServer]:
    """A server on a free port."""
    # On a slow machine the first ping would come amid what a test expects.
    with mock.patch.object(client_session, "FIRST_PING", 3600.0):
        server = NatsServer(NatsOptions(**{"host": "127.0.0.1", "port": -1, **options}))
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


class Raw:
    """A client that breaks the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.info = b""

    @classmethod
    async def connect(cls, port: int, first: bytes = b"") -> Raw:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))
        client.info = await client.line()
        if first:
            client.send(first)
        return client

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        return await asyncio.wait_for(self.reader.readline(), PATIENCE)

    async def expect(self, wanted: bytes) -> None:
        """The next bytes are these."""
        got = b""
        try:
            got = await asyncio.wait_for(self.reader.readexactly(len(wanted)), PATIENCE)
        except asyncio.IncompleteReadError as ended:
            got = ended.partial
        assert got == wanted

    async def rest(self) -> bytes:
        """All up to the end of the connection."""
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while part := await asyncio.wait_for(self.reader.read(1 << 20), PATIENCE):
                got += part
        return got

    async def until_pong(self) -> bytes:
        """What came until the answer to a PING that is sent now; all, if the connection ends."""
        with contextlib.suppress(ConnectionError):
            self.send(b"PING\r\n")
        got = b""
        with contextlib.suppress(ConnectionError):
            while not got.endswith(b"PONG\r\n"):
                part = await asyncio.wait_for(self.reader.read(1 << 20), PATIENCE)
                if not part:
                    return got + b"(closed)"
                got += part
            return got
        return got + b"(closed)"

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def __aenter__(self) -> Raw:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
