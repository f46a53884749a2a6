"""Operations besides publishes and messages: CONNECT, SUB, UNSUB, PING, PONG, INFO, +OK and -ERR. Sans-IO.

Refusals, their texts and log lines were observed with nats-server 2.9.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from stantools.format.envelope import Buffer

#: texts of -ERR
UNKNOWN_OPERATION: Final = "Unknown Protocol Operation"
LINE_TOO_LONG: Final = "maximum control line exceeded"
PAYLOAD_TOO_LARGE: Final = "Maximum Payload Violation"

#: reasons of closed connections, for logs and monitoring
CLOSED_VIOLATION: Final = "Protocol Violation"
CLOSED_LINE: Final = "Maximum Control Line Exceeded"
CLOSED_PAYLOAD: Final = "Maximum Message Payload Exceeded"
CLOSED_PARSE: Final = "Parse Error"


@dataclass(frozen=True, slots=True)
class ConnectOperation:
    """CONNECT. The options have checked types; names that nats-server does not know are omitted."""

    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sub:
    """SUB. The subject is unchecked. The queue is empty if there is none."""

    subject: bytes
    queue: bytes
    sid: bytes


@dataclass(frozen=True, slots=True)
class Unsub:
    """UNSUB: after `maximum` messages in total since it was subscribed, or at once for 0."""

    sid: bytes
    maximum: int


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Pong:
    pass


@dataclass(frozen=True, slots=True)
class InfoOperation:
    """INFO. It has no effect from a client."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ok:
    """+OK; sent only to clients that requested it (verbose)."""


@dataclass(frozen=True, slots=True)
class Err:
    """-ERR, with the original text, usually in single quotes. From a client it ends the connection."""

    text: str


Event = ConnectOperation | Sub | Unsub | Ping | Pong | InfoOperation | Ok | Err


@dataclass(frozen=True, slots=True)
class IncompleteOperation:
    """The operation is not complete yet."""


@dataclass(frozen=True, slots=True)
class MalformedOperation:
    """Bytes that end the connection."""

    answer: str  #: text for -ERR; empty for none
    log: str  #: line for the log
    closed: str = CLOSED_VIOLATION  #: reason of the closed connection


#: Maximum bytes of an accepted line of a server: INFO lists the addresses of a whole cluster.
MAX_LINE: Final = 1 << 20

NEED_MORE: Final = IncompleteOperation()
_PING: Final = Ping()
_PONG: Final = Pong()
_OK: Final = Ok()

_BLANKS: Final = b" \t"
#: longest name of an operation
_MAX_NAME: Final = 7
#: maximum bytes of a line in a log
_MAX_LOGGED: Final = 128
_WORD: Final = re.compile(rb"[^ \t\r\n]+")
_SIZE: Final = re.compile(rb"[0-9]{1,9}\Z")

Parsed = tuple[Event | IncompleteOperation | MalformedOperation, int]


def parse_operation(buffer: Buffer, begin: int, end: int, max_control_line: int) -> Parsed:
    """Parses one operation of a client that is not a publish.

    Bytes that `kernels.parse_publishes` found MALFORMED or LINE_TOO_LONG are accepted as well: the result has the
    answer. `max_control_line` limits the bytes of a line after its operation. Returns the operation and the offset
    after it; for NeedMore and Malformed that of its start.
    """
    return _parse(buffer, begin, end, max_control_line, _CLIENT)


def parse_answer(buffer: Buffer, begin: int, end: int, max_control_line: int) -> Parsed:
    """Parses one operation of a server that is not a message: Info, Ping, Pong, Ok or Err. See `parse_operation`.

    Messages are parsed by `kernels.parse_messages`.
    """
    return _parse(buffer, begin, end, max_control_line, _SERVER)


def payload_too_large(size: int, max_payload: int) -> MalformedOperation:
    return MalformedOperation(PAYLOAD_TOO_LARGE, f"maximum payload exceeded: {size} vs {max_payload}", CLOSED_PAYLOAD)


def _parse(
    buffer: Buffer, begin: int, end: int, limit: int, known: dict[bytes, Callable[[bytes], Event | MalformedOperation]]
) -> Parsed:
    view = memoryview(buffer)
    head = bytes(view[begin : min(end, begin + _MAX_NAME)]).upper()
    name = next((name for name in known if head.startswith(name)), None)
    if name is None:
        if len(head) < _MAX_NAME and any(name.startswith(head) for name in known):
            return NEED_MORE, begin
        return _unknown(view, begin, end), begin
    at = begin + len(name)
    if name in _SPACED:
        if at == end:
            return NEED_MORE, begin
        if view[at] not in _BLANKS:
            return _unknown(view, begin, end), begin
    blanks = at
    while at < end and view[at] in _BLANKS:
        at += 1
        if at - blanks > limit:
            return _too_long(name, b""), begin
    rest = bytes(view[at : min(end, at + limit + 2)])
    size = rest.find(b"\n")
    behind = at + size + 1
    words = rest if size < 0 else rest[:size]
    words = words.removesuffix(b"\r")
    if len(words) > limit:
        return _too_long(name, words), begin
    if size < 0:
        return NEED_MORE, begin
    event = known[name](words)
    return event, begin if isinstance(event, MalformedOperation) else behind


def _unknown(view: memoryview, begin: int, end: int) -> MalformedOperation:
    line = bytes(view[begin : min(end, begin + _MAX_LOGGED)]).partition(b"\n")[0]
    return MalformedOperation(UNKNOWN_OPERATION, f"Client parser ERROR: proto='{_quoted(line)}...'")


def _too_long(name: bytes, words: bytes) -> MalformedOperation:
    log = f"{LINE_TOO_LONG}: {name.decode()} (snip: {_quoted(words[:_MAX_LOGGED])})"
    return MalformedOperation(LINE_TOO_LONG, log, CLOSED_LINE)


def _quoted(words: bytes) -> str:
    """Returns bytes as the original shows them in logs: in double quotes, with unprintable ones escaped."""
    text = words.decode("utf-8", "replace").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else _ESCAPES.get(c) or f"\\x{ord(c):02x}" for c in text) + '"'


_T = TypeVar("_T")
_ESCAPES: Final = {"\r": "\\r", "\n": "\\n", "\t": "\\t"}


def _with_json(make: Callable[[_T], Event], parse: Callable[[bytes], _T], words: bytes) -> Event | MalformedOperation:
    try:
        return make(parse(words))
    except JsonError as problem:
        return MalformedOperation("", str(problem))


def _sub(words: bytes) -> Event | MalformedOperation:
    match _WORD.findall(words):
        case [subject, sid]:
            return Sub(subject, b"", sid)
        case [subject, queue, sid]:
            return Sub(subject, queue, sid)
    return MalformedOperation("", f"processSub Parse Error: {_quoted(words)}")


def _unsub(words: bytes) -> Event | MalformedOperation:
    match _WORD.findall(words):
        case [sid]:
            return Unsub(sid, 0)
        case [sid, maximum]:
            # A maximum that is not a number is not refused: it ends the subscription at once.
            return Unsub(sid, int(maximum) if _SIZE.match(maximum) else 0)
    return MalformedOperation("", f"processUnsub Parse Error: {_quoted(words)}")


def _publish(words: bytes) -> Event | MalformedOperation:
    """Returns the error of a publish's line, or else of its payload."""
    parts = _WORD.findall(words)
    if b"\r" in words or len(parts) not in (2, 3):
        return MalformedOperation("", f"processPub Parse Error: {_quoted(words)}")
    if not _SIZE.match(parts[-1]):
        return MalformedOperation("", f"processPub Bad or Missing Size: {_quoted(words)}")
    return _PAYLOAD


def _publish_headers(words: bytes) -> Event | MalformedOperation:
    parts = _WORD.findall(words)
    if b"\r" in words or len(parts) not in (3, 4):
        return MalformedOperation("", f"processHeaderPub Parse Error: {_quoted(words)}")
    if not _SIZE.match(parts[-2]):
        return MalformedOperation("", f"processHeaderPub Bad or Missing Header Size: {_quoted(words)}")
    if not _SIZE.match(parts[-1]):
        return MalformedOperation("", f"processHeaderPub Bad or Missing Total Size: {_quoted(words)}")
    if int(parts[-2]) > int(parts[-1]):
        return MalformedOperation("", f"processHeaderPub Header Size larger then TotalSize: {_quoted(words)}")
    return _PAYLOAD


_PAYLOAD: Final = MalformedOperation(UNKNOWN_OPERATION, "Client parser ERROR: no CR LF behind a payload")

#: operations whose name must be followed by a blank
_SPACED: Final = (b"PUB", b"HPUB", b"SUB", b"UNSUB")

_BOTH: Final[dict[bytes, Callable[[bytes], Event | MalformedOperation]]] = {
    b"PING": lambda words: _PING,
    b"PONG": lambda words: _PONG,
    b"+OK": lambda words: _OK,
    b"-ERR": lambda words: Err(words.decode("utf-8", "replace")),
    b"INFO": lambda words: _with_json(InfoOperation, parse_object, words),
}
_CLIENT: Final = {
    b"SUB": _sub,
    b"UNSUB": _unsub,
    b"CONNECT": lambda words: _with_json(ConnectOperation, parse_options, words),
    b"PUB": _publish,
    b"HPUB": _publish_headers,
    **_BOTH,
}
_SERVER: Final = _BOTH


# The JSON of CONNECT and INFO: parsed with bounds, its types checked, refused with the texts of the original.

#: options of CONNECT that nats-server knows, with their types
_OPTIONS: Final[dict[str, type]] = {
    "echo": bool,
    "verbose": bool,
    "pedantic": bool,
    "tls_required": bool,
    "nkey": str,
    "jwt": str,
    "sig": str,
    "auth_token": str,
    "user": str,
    "pass": str,
    "name": str,
    "lang": str,
    "version": str,
    "protocol": int,
    "account": str,
    "new_account": bool,
    "headers": bool,
    "no_responders": bool,
}
#: Numbers have 64 bits; errors show this many characters of one.
_MAX_NUMBER: Final = (1 << 63) - 1
_DIGITS: Final = 32
_TYPE_NAMES: Final[dict[type, str]] = {bool: "bool", str: "string", int: "int"}


class JsonError(ValueError):
    """JSON that is not accepted; the text is the log line of the original."""


def parse_options(text: bytes) -> dict[str, Any]:
    """Returns the options of a CONNECT: names in lower case, known ones that are not null.

    Raises RefusedError if it is not an object, or an option has another type.
    """
    options: dict[str, Any] = {}
    for written, value in parse_object(text).items():
        name = written.lower()
        wanted = _OPTIONS.get(name)
        if wanted is None or value is None:
            continue
        if type(value) is not wanted or (isinstance(value, int) and abs(value) > _MAX_NUMBER):
            shown = f"number {str(value)[:_DIGITS]}" if wanted is int and _kind(value) == "number" else _kind(value)
            field = f"ClientOpts.{name} of type {_TYPE_NAMES[wanted]}"
            raise JsonError(f"json: cannot unmarshal {shown} into Go struct field {field}")
        options[name] = value
    return options


def parse_object(text: bytes) -> dict[str, Any]:
    """Returns a JSON object of bounded size; an empty one for null. Raises RefusedError for other values."""
    try:
        # the original also replaces bytes that are not UTF-8
        value = json.loads(text.decode("utf-8", "replace"), parse_constant=_constant)
    except JsonError:
        raise
    except json.JSONDecodeError as problem:
        raise JsonError(_json_error_text(problem)) from None
    except (ValueError, RecursionError):
        raise JsonError("invalid JSON") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise JsonError(f"json: cannot unmarshal {_kind(value)} into Go value of type server.ClientOpts")
    return value


def _constant(name: str) -> Never:
    raise JsonError(f"invalid character {name[0]!r} looking for beginning of value")


def _json_error_text(problem: json.JSONDecodeError) -> str:
    if problem.pos >= len(problem.doc.rstrip()):
        return "unexpected end of JSON input"
    character = problem.doc[problem.pos]
    where = {
        "Expecting value": "looking for beginning of value",
        "Extra data": "after top-level value",
        "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
        "Expecting ':' delimiter": "after object key",
        "Expecting ',' delimiter": "after value",
    }.get(problem.msg)
    return f"invalid character {character!r} {where}" if where else f"invalid JSON: {problem.msg}"


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "null"
