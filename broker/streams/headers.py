"""Header blocks that the server makes or adds to: statuses, and lines besides those of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_VERSION: Final = b"NATS/1.0"
_END: Final = b"\r\n\r\n"


def status(line: str, **headers: object) -> bytes:
    """Returns a header block with a status; in names of headers `_` stands for `-`."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0 {line}\r\n{lines}\r\n".encode()


def bare(header: bytes) -> tuple[bytes, int]:
    """Returns a message without payload, and the size of its header block."""
    return header, len(header)


def with_lines(header: bytes, *lines: bytes) -> bytes:
    """Returns a header block with more lines at its end; it may be empty."""
    start = header[: -len(_END)] if header.endswith(_END) else _VERSION
    return b"\r\n".join((start, *lines)) + _END


def without(header: bytes, unwanted: Callable[[bytes], bool]) -> bytes:
    """Returns a header block without the lines that are unwanted; empty if it has none then."""
    first, *lines = header.removesuffix(_END).split(b"\r\n")
    kept = [line for line in lines if not unwanted(line)]
    return b"\r\n".join((first, *kept)) + _END if kept else b""


def size_line(payload: bytes) -> bytes:
    """Returns the line that takes the place of a payload that is left out."""
    return b"Nats-Msg-Size: %d" % len(payload)
