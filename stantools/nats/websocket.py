"""NATS through a WebSocket: a transport of a session, on a connection of aiohttp.

Messages of NATS are in the payloads of binary messages, wherever these begin and end.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import aiohttp

if TYPE_CHECKING:
    import ssl

    from stantools.nats.login import NatsAddress
    from stantools.nats.nats_session import NatsSession

#: maximum bytes of a received message: a server sends all that waits for a client in one
_MAX_RECEIVED: Final = 256 << 20
#: bytes waiting to be sent, above which the session pauses, and up to which it resumes
_HIGH_WATER: Final = 64 << 10
_LOW_WATER: Final = 16 << 10
#: seconds to wait for the server's part of a regular end
_GOODBYE: Final = 1.0


async def open_websocket(session: NatsSession, server: NatsAddress, context: ssl.SSLContext | None, name: str) -> None:
    """Connects a session; `name` is expected in the certificate. Raises OSError."""
    client = aiohttp.ClientSession()
    try:
        if context is None:
            socket = await client.ws_connect(server.url, max_msg_size=_MAX_RECEIVED)
        else:
            url = replace(server, scheme="wss").url
            socket = await client.ws_connect(url, ssl=context, server_hostname=name, max_msg_size=_MAX_RECEIVED)
    except BaseException as problem:
        await client.close()
        if isinstance(problem, aiohttp.ClientConnectorCertificateError):
            raise problem.certificate_error from problem
        if isinstance(problem, aiohttp.ClientConnectorError):
            raise problem.os_error from problem
        if isinstance(problem, aiohttp.ClientError):
            raise ConnectionResetError("it is not a WebSocket server") from problem
        raise
    WebSocket(session, client, socket)


class WebSocket:
    def __init__(
        self, session: NatsSession, client: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._session = session
        self._client = client
        self._socket = socket
        self._outgoing = bytearray()
        self._sending = 0  # bytes that the sender has taken
        self._wake = asyncio.Event()
        self._closing = False
        self._readable = asyncio.Event()
        self._readable.set()
        self._goodbye = _GOODBYE
        session.begin(self)
        self._receiver = asyncio.get_running_loop().create_task(self._receive())

    async def _receive(self) -> None:
        sender = asyncio.get_running_loop().create_task(self._send())
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                await self._deliver(memoryview(message.data))
            self.close()
            await sender
        except (asyncio.CancelledError, aiohttp.ClientError, ConnectionError):  # aborted, or lost while sending
            sender.cancel()
            await asyncio.wait({sender})
        finally:
            try:
                await self._client.close()
            finally:
                problem = self._socket.exception()
                self._session.connection_lost(problem if isinstance(problem, Exception) else None)

    async def _deliver(self, data: memoryview) -> None:
        while len(data):
            await self._readable.wait()
            if self._closing:
                return
            buffer = memoryview(self._session.get_buffer(len(data)))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self._session.buffer_updated(count)
            data = data[count:]

    async def _send(self) -> None:
        try:
            while self._outgoing or not self._closing:
                if not self._outgoing:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                data, self._outgoing = bytes(self._outgoing), bytearray()
                self._sending = len(data)
                await self._socket.send_bytes(data)
                self._sending = 0
                if len(self._outgoing) <= _LOW_WATER:
                    self._session.resume_writing()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._goodbye):
                    await self._socket.close()

    # The transport of the session.

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        self._outgoing += data
        self._wake.set()
        if self.get_write_buffer_size() > _HIGH_WATER:
            self._session.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing) + self._sending

    def get_extra_info(self, name: str) -> Any:
        return self._socket.get_extra_info(name)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    def close(self) -> None:
        """Closes after all data."""
        self._closing = True
        self._readable.set()
        self._wake.set()

    def abort(self) -> None:
        self._closing = True
        self._goodbye = 0.0
        self._receiver.cancel()
