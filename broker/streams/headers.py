"""Header blocks of the server: statuses, and lines added to those of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_VERSION: Final = b"NATS/1.0"
_END: Final = b"\r\n\r\n"


def status(line: str, **headers: object) -> bytes:
    """Returns a header block with a status; `_` in the names of headers stands for `-`."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0 {line}\r\n{lines}\r\n".encode()


def bare(header: bytes) -> tuple[bytes, int]:
    """Returns a message without payload, and the size of its header block."""
    return header, len(header)


def with_lines(header: bytes, *lines: bytes) -> bytes:
    """Returns a header block, possibly empty, with more lines at its end."""
    start = header[: -len(_END)] if header.endswith(_END) else _VERSION
    return b"\r\n".join((start, *lines)) + _END


def without(header: bytes, unwanted: Callable[[bytes], bool]) -> bytes:
    """Returns a header block without the unwanted lines; empty if no line is left."""
    first, *lines = header.removesuffix(_END).split(b"\r\n")
    kept = [line for line in lines if not unwanted(line)]
    return b"\r\n".join((first, *kept)) + _END if kept else b""


def size_line(payload: bytes) -> bytes:
    """Returns the header line for the size of an omitted payload."""
    return b"Nats-Msg-Size: %d" % len(payload)
