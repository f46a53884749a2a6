"""The protocol between servers, as bytes (high-availability.md sections R.1 to R.3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stantools.nats.subjects import valid_pattern

#: The account of all clients of a server without accounts.
ACCOUNT: Final = b"$G"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
#: Maximum bytes of a line and of a message; larger ones are protocol errors.
_LINE: Final = 1 << 20
_MESSAGE: Final = 64 << 20


class WireError(ValueError):
    """Violation of the protocol; the text names the input."""


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """Facts about the sender, or another server."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RouteConnect:
    """Credentials and options of a server that wants to be a route."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RemoteInterest:
    """Interest of the other server's clients in a subject."""

    account: bytes  #: account of the clients
    subject: bytes  #: subject, possibly with wildcards
    queue: bytes  #: queue group; empty for none
    weight: int  #: number of members there; 0 ends the interest


@dataclass(frozen=True, slots=True)
class RoutedMessage:
    account: bytes  #: account of the clients
    subject: bytes
    reply: bytes  #: reply subject; empty for none
    queues: tuple[bytes, ...]  #: queue groups with one receiver each, besides all subscribers outside of groups
    header_size: int  #: bytes of headers at the beginning of the payload
    payload: bytes  #: headers and message


@dataclass(frozen=True, slots=True)
class RouteError:
    text: str


#: Besides these: `PING` and `PONG` as bytes.
Event = RouteInfo | RouteConnect | RemoteInterest | RoutedMessage | RouteError | bytes


class Parser:
    """Parses a stream of bytes, received in any pieces."""

    def __init__(self, *, trusted: bool = False) -> None:
        self.trusted = trusted  #: messages are accepted; before that they are errors of any size
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def events(self) -> Iterator[Event]:
        buffer, at = self._buffer, 0
        try:
            while (end := buffer.find(b"\n", at)) >= 0:
                words = bytes(buffer[at:end]).rstrip(b"\r").split(None, 1)
                after = end + 1
                if words:
                    operation, rest = words[0].upper(), words[1] if len(words) > 1 else b""
                    if operation in (b"RMSG", b"HMSG"):
                        if not self.trusted:
                            raise WireError("a message before the end of the handshake")
                        message, size = _message(operation, rest.split())
                        if len(buffer) < after + size + 2:
                            return
                        if buffer[after + size : after + size + 2] != b"\r\n":
                            raise WireError("a message without CRLF at its end")
                        yield RoutedMessage(*message, bytes(buffer[after : after + size]))
                        after += size + 2
                    elif (event := _line(operation, rest)) is not None:
                        yield event
                at = after
            if len(buffer) - at > _LINE:
                raise WireError("a line without end")
        finally:
            # The event yielded last is in use until the next one is requested.
            del buffer[:at]


def _line(operation: bytes, rest: bytes) -> Event | None:
    match operation:
        case b"RS+" | b"RS-":
            return _read_interest(operation, rest.split())
        case b"PING":
            return PING
        case b"PONG":
            return PONG
        case b"INFO":
            return RouteInfo(_fields(rest))
        case b"CONNECT":
            return RouteConnect(_fields(rest))
        case b"-ERR":
            return RouteError(rest.strip().strip(b"'").decode("utf-8", "replace"))
        case b"+OK" | b"LS+" | b"LS-" | b"A+" | b"A-":
            # For leaf nodes and accounts, which do not exist here.
            return None
    raise WireError(f"unknown operation {operation[:20]!r}")


def _fields(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise WireError("an object was expected")
    return found


def _read_interest(operation: bytes, words: Sequence[bytes]) -> RemoteInterest:
    added = operation == b"RS+"
    if len(words) == 2:
        account, subject, queue, weight = *words, b"", int(added)
    elif len(words) == 3 and not added:
        account, subject, queue, weight = *words, 0
    elif len(words) == 4 and added:
        account, subject, queue = words[:3]
        weight = _number(words[3])
    else:
        raise WireError(f"{operation.decode()} with {len(words)} words")
    if account == ACCOUNT and not valid_pattern(subject):
        raise WireError(f"{operation.decode()} with the subject {subject[:80]!r}")
    return RemoteInterest(account, subject, queue, weight)


def _message(
    operation: bytes, words: Sequence[bytes]
) -> tuple[tuple[bytes, bytes, bytes, tuple[bytes, ...], int], int]:
    numbers = 2 if operation == b"HMSG" else 1
    if len(words) < 2 + numbers:
        raise WireError(f"{operation.decode()} with {len(words)} words")
    account, subject, *middle = words[:-numbers]
    reply = b""
    queues: tuple[bytes, ...] = ()
    if middle and middle[0] == b"|":
        queues = tuple(middle[1:])
    elif middle and middle[0] == b"+":
        if len(middle) < 2:
            raise WireError(f"{operation.decode()} without its reply subject")
        reply, queues = middle[1], tuple(middle[2:])
    elif len(middle) == 1:
        reply = middle[0]
    elif middle:
        raise WireError(f"{operation.decode()} with {len(words)} words")
    size = _number(words[-1])
    header_size = _number(words[-2]) if numbers == 2 else 0
    if header_size > size or size > _MESSAGE:
        raise WireError(f"{operation.decode()} of {header_size} and {size} bytes")
    return (account, subject, reply, queues, header_size), size


def _number(word: bytes) -> int:
    if not word.isdigit() or len(word) > 10:
        raise WireError(f"{word[:20]!r} is not a number")
    return int(word)


def info(fields: Mapping[str, object]) -> bytes:
    return b"INFO %b\r\n" % json.dumps(fields, separators=(",", ":")).encode()


def connect(fields: Mapping[str, object]) -> bytes:
    return b"CONNECT %b\r\n" % json.dumps(fields, separators=(",", ":")).encode()


def error(text: str) -> bytes:
    return b"-ERR '%b'\r\n" % text.encode()


def interest_lines(subject: bytes, queue: bytes, weight: int) -> bytes:
    """Returns the lines that announce the interest of all clients here in a subject.

    `weight` is the number of members of the queue group, 0 without interest. `queue` is empty for none.
    """
    if not weight:
        return b"RS- %b %b%b%b\r\n" % (ACCOUNT, subject, b" " if queue else b"", queue)
    if queue:
        return b"RS+ %b %b %b %d\r\n" % (ACCOUNT, subject, queue, weight)
    return b"RS+ %b %b\r\n" % (ACCOUNT, subject)


def message(subject: bytes, reply: bytes, queues: Sequence[bytes], header_size: int, payload: bytes) -> bytes:
    middle = b""
    if queues:
        middle = b"%b %b " % (b"+ " + reply if reply else b"|", b" ".join(queues))
    elif reply:
        middle = reply + b" "
    if header_size:
        head = b"HMSG %b %b %b%d %d\r\n" % (ACCOUNT, subject, middle, header_size, len(payload))
    else:
        head = b"RMSG %b %b %b%d\r\n" % (ACCOUNT, subject, middle, len(payload))
    return b"%b%b\r\n" % (head, payload)
