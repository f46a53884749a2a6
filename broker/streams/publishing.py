"""What a message says about itself to the stream that stores it: expectations, its id, roll-up.

Facts: jetstream-server.md section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.streams.errors import ApiError, wrong_last_sequence

if TYPE_CHECKING:
    from broker.stores.streams.contents import Contents

#: Bytes of headers that a message may have.
MOST_HEADERS: Final = 64 << 10
MESSAGE_ID: Final = b"Nats-Msg-Id"
ROLLUP: Final = b"Nats-Rollup"
_PREFIX: Final = b"Nats-"
_STREAM: Final = b"Nats-Expected-Stream"
_LAST: Final = b"Nats-Expected-Last-Sequence"
_LAST_OF_SUBJECT: Final = b"Nats-Expected-Last-Subject-Sequence"
_OF_SUBJECT: Final = b"Nats-Expected-Last-Subject-Sequence-Subject"
_LAST_ID: Final = b"Nats-Expected-Last-Msg-Id"
#: Headers of what is not there yet, and the answer to each.
_MISSING: Final = (
    (b"Nats-Incr", 10168, "message counters is disabled"),
    (b"Nats-TTL", 10166, "per-message TTL is disabled"),
    (b"Nats-Batch-Id", 10174, "atomic publish is disabled"),
    (b"Nats-Schedule", 10188, "message schedules is disabled"),
)
NOTHING: Final[Mapping[bytes, bytes]] = {}


def said(header: bytes) -> Mapping[bytes, bytes]:
    """Returns the headers whose names begin with `Nats-`, the first of each name."""
    if _PREFIX not in header:
        return NOTHING
    found: dict[bytes, bytes] = {}
    for line in header.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.startswith(_PREFIX):
            found.setdefault(name, value.strip())
    return found


def check(headers: Mapping[bytes, bytes], stream: str, subject: bytes, contents: Contents) -> None:
    """Checks what a message expects of its stream.

    Raises:
        ApiError: Something is not so.
    """
    if (expected := headers.get(_STREAM)) and expected != stream.encode():
        raise ApiError(400, 10060, "expected stream does not match")
    for name, number, text in _MISSING:
        if name in headers:
            raise ApiError(400, number, text)
    if (text_of := headers.get(_LAST_OF_SUBJECT)) is not None:
        last = contents.last_of(headers.get(_OF_SUBJECT, subject))
        if _number(text_of) != last:
            raise wrong_last_sequence(last)
    elif _OF_SUBJECT in headers:
        raise ApiError(400, 10193, "missing sequence for expected last sequence per subject")
    if (text_of := headers.get(_LAST)) is not None and _number(text_of) != contents.last:
        raise wrong_last_sequence(contents.last)


def check_last_id(headers: Mapping[bytes, bytes], last_id: bytes) -> None:
    """Checks which id a message expects the last one to have.

    Raises:
        ApiError: It has another one.
    """
    expected = headers.get(_LAST_ID)
    if expected and expected != last_id:
        raise ApiError(400, 10070, f"wrong last msg ID: {last_id.decode(errors='replace')}")


def rollup(headers: Mapping[bytes, bytes], *, allowed: bool) -> str:
    """Returns what a message replaces: `sub` for its subject, `all`, or nothing.

    Raises:
        ApiError: It may not, or says something else.
    """
    value = headers.get(ROLLUP)
    if not value:
        return ""
    if not allowed:
        raise ApiError(500, 10111, "rollup not permitted")
    text = value.decode(errors="replace")
    if text.lower() not in ("sub", "all"):
        raise ApiError(500, 10111, f'rollup value invalid: "{text[:100]}"')
    return text.lower()


def _number(text: bytes) -> int:
    """What is no number is -1, which no sequence is."""
    return int(text) if text.isdigit() and len(text) < 20 else -1
