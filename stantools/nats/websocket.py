"""NATS through a WebSocket (RFC 6455), between socket and session: a protocol for the one, a transport for the other.

A frame, numbers big-endian; clients mask their frames, servers do not:

    bit 0 FIN, 1-3 reserved, 4-7 opcode; bit 8 masked, 9-15 length: 126 is followed by two bytes of it, 127 by eight;
    four bytes of mask if it is masked; payload

Messages of NATS are in the payloads of data frames, wherever these begin and end.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from stantools.nats.login import NatsAddress
    from stantools.nats.nats_session import NatsSession

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FIN: Final = 0x80
_MASKED: Final = 0x80
#: maximum bytes of a control frame's payload, and of the answer to the opening request
_MAX_CONTROL: Final = 125
_MAX_ANSWER: Final = 16 << 10
_NORMAL_CLOSURE: Final = (1000).to_bytes(2, "big")


def frame(opcode: int, payload: bytes) -> bytes:
    """Returns a frame as clients send it."""
    size = len(payload)
    if size <= _MAX_CONTROL:
        head = bytes([_FIN | opcode, _MASKED | size])
    elif size < 1 << 16:
        head = bytes([_FIN | opcode, _MASKED | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([_FIN | opcode, _MASKED | 127]) + size.to_bytes(8, "big")
    mask = secrets.token_bytes(4)
    masked = np.frombuffer(payload, np.uint8) ^ np.resize(np.frombuffer(mask, np.uint8), size)
    return head + mask + masked.tobytes()


class WebSocket(asyncio.Protocol):
    def __init__(self, session: NatsSession, server: NatsAddress) -> None:
        self._session = session
        self._server = server
        self._key = base64.b64encode(secrets.token_bytes(16))
        self._transport: Any = None
        self._open = False
        self._rest = b""  # received bytes of an incomplete frame header or answer
        self._remaining = 0  # bytes of a data frame not received yet

    # The protocol of the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._session.connection_made(self)  # type: ignore[arg-type]
        lines = (
            f"GET {self._server.path or '/'} HTTP/1.1",
            f"Host: {self._server.url.split('/')[2]}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self._key.decode()}",
            "Sec-WebSocket-Version: 13",
        )
        self._transport.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())

    def connection_lost(self, problem: Exception | None) -> None:
        self._session.connection_lost(problem)

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()

    def data_received(self, data: bytes) -> None:
        view = memoryview(self._rest + data if self._rest else data)
        at = 0 if self._open else self._take_answer(bytes(view[:_MAX_ANSWER]))
        while self._open and at < len(view) and not self._transport.is_closing():
            if self._remaining:
                part = view[at : at + self._remaining]
                self._remaining -= len(part)
                at += len(part)
                self._deliver(part)
                continue
            size = self._begin_frame(view[at:])
            if not size:
                break
            at += size
        self._rest = bytes(view[at:])

    def _take_answer(self, begin: bytes) -> int:
        """Checks the answer to the opening request; returns its size, 0 if it is incomplete."""
        answer, end, _ = begin.partition(b"\r\n\r\n")
        if not end:
            if len(begin) == _MAX_ANSWER:
                self._session.abort("it is not a WebSocket server")
            return 0
        status, *lines = answer.split(b"\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        accept = base64.b64encode(hashlib.sha1(self._key + _GUID, usedforsecurity=False).digest())
        if not status.startswith(b"HTTP/1.1 101 ") or fields.get(b"sec-websocket-accept") != accept:
            self._session.abort("it is not a WebSocket server")
            return 0
        self._open = True
        return len(answer) + len(end)

    def _begin_frame(self, view: memoryview) -> int:
        """Reads a frame's header, and all of a control frame; returns the bytes read, 0 if more are needed."""
        if len(view) < 2:
            return 0
        first, length = view[0], view[1]
        more = {126: 2, 127: 8}.get(length, 0)
        if len(view) < 2 + more:
            return 0
        size = int.from_bytes(view[2 : 2 + more], "big") if more else length
        opcode, control = first & 0x0F, bool(first & 0x08)
        # features that were not requested: extensions, masks, large control frames
        if first & 0x70 or length & _MASKED or (control and size > _MAX_CONTROL):
            self._session.abort("it violates the WebSocket protocol")
            return 0
        if opcode in (_CONTINUATION, _TEXT, _BINARY):
            self._remaining = size
            return 2 + more
        if len(view) < 2 + size:
            return 0
        if opcode == _PING:
            self._transport.write(frame(_PONG, bytes(view[2 : 2 + size])))
        elif opcode == _CLOSE:
            self._session.close("closed by the server")
        elif opcode != _PONG:
            self._session.abort("it violates the WebSocket protocol")
        return 2 + size

    def _deliver(self, part: memoryview) -> None:
        while len(part) and not self._transport.is_closing():
            room = memoryview(self._session.get_buffer(len(part)))
            count = min(len(room), len(part))
            room[:count] = part[:count]
            self._session.buffer_updated(count)
            part = part[count:]

    # The transport of the session.

    def write(self, data: bytes) -> None:
        """Sends data that is not empty."""
        self._transport.write(frame(_BINARY, data))

    def get_write_buffer_size(self) -> int:
        return int(self._transport.get_write_buffer_size())

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)

    def close(self) -> None:
        """Sends a close frame, and closes after all data."""
        if not self._transport.is_closing():
            self._transport.write(frame(_CLOSE, _NORMAL_CLOSURE))
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
