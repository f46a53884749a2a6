"""Headers of a published message for its stream: expectations, message id, roll-up, lifetime.

Facts: jetstream-server.md section 7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.streams.api_errors import RequestError, wrong_last_sequence
from broker.streams.headers import with_lines, without
from broker.streams.stream_source import HEADER
from stantools.notation import format_go_duration, parse_duration

if TYPE_CHECKING:
    from broker.stores.streams.contents import Contents
    from broker.streams.configuration import StreamConfig

#: largest header block (bytes) of a message
MOST_HEADERS: Final = 64 << 10
MESSAGE_ID: Final = b"Nats-Msg-Id"
ROLLUP: Final = b"Nats-Rollup"
_PREFIX: Final = b"Nats-"
#: prefix of the headers with expectations
EXPECTED: Final = b"Nats-Expected-"
_STREAM: Final = EXPECTED + b"Stream"
_LAST: Final = EXPECTED + b"Last-Sequence"
_LAST_OF_SUBJECT: Final = EXPECTED + b"Last-Subject-Sequence"
_OF_SUBJECT: Final = _LAST_OF_SUBJECT + b"-Subject"
_LIFETIME: Final = b"Nats-TTL"
_MARKER: Final = b"Nats-Marker-Reason"
#: lifetime of messages without an age limit
FOREVER: Final = -1
_SECOND: Final = 1_000_000_000
_LAST_ID: Final = EXPECTED + b"Last-Msg-Id"
#: Headers of unsupported features and the error for each: those checked before the expectations, and those checked
#: after.
_REFUSED_FIRST: Final = (
    (b"Nats-Batch-Id", 10174, "atomic publish is disabled"),
    (b"Nats-Incr", 10168, "message counters is disabled"),
)
_REFUSED: Final = (
    (b"Nats-Schedule", 10188, "message schedules is disabled"),
    (HEADER, 10227, "message stream source header is not allowed"),
)
NOTHING: Final[Mapping[bytes, bytes]] = {}


def parse_nats_headers(header: bytes) -> Mapping[bytes, bytes]:
    """Returns the headers whose names begin with `Nats-`, the first of each name."""
    if _PREFIX not in header:
        return NOTHING
    found: dict[bytes, bytes] = {}
    for line in header.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.startswith(_PREFIX):
            found.setdefault(name, value.strip())
    return found


class PublishHeaders(NamedTuple):
    """The headers that matter when the message is stored."""

    message_id: bytes = b""  #: empty for none
    life: int = 0  #: lifetime (ns), as `lifetime` returns it
    replaces: str = ""  #: roll-up, as `rollup` returns it


#: for messages without such headers
PLAIN: Final = PublishHeaders()


def check(headers: Mapping[bytes, bytes], config: StreamConfig, subject: bytes, contents: Contents) -> None:
    """Raises `RequestError` if the message's expectations of its stream do not hold."""
    _refuse(headers, _REFUSED_FIRST)
    if (expected := headers.get(_STREAM)) and expected != config.name.encode():
        raise RequestError(400, 10060, "expected stream does not match")
    if _LIFETIME in headers and not config.allow_msg_ttl:
        # The last check reports an invalid lifetime.
        with contextlib.suppress(_InvalidLifetimeError):
            if lifetime(headers):
                raise RequestError(400, 10166, "per-message TTL is disabled")
    if (text_of := headers.get(_LAST_OF_SUBJECT)) is not None:
        last = contents.last_of(headers.get(_OF_SUBJECT, subject))
        if _number(text_of) != last:
            raise wrong_last_sequence(last)
    elif _OF_SUBJECT in headers:
        raise RequestError(400, 10193, "missing sequence for expected last sequence per subject")
    if (text_of := headers.get(_LAST)) is not None and _number(text_of) != contents.last:
        raise wrong_last_sequence(contents.last)
    _refuse(headers, _REFUSED)


def _refuse(headers: Mapping[bytes, bytes], refused: Iterable[tuple[bytes, int, str]]) -> None:
    for name, number, text in refused:
        if name in headers:
            raise RequestError(400, number, text)


class _InvalidLifetimeError(RequestError):
    pass


def lifetime(headers: Mapping[bytes, bytes]) -> int:
    """Returns the lifetime (ns) of a message: 0 for the stream's, -1 for no limit. Raises `RequestError`."""
    text = headers.get(_LIFETIME, b"").decode(errors="replace")
    if not text:
        return 0
    if text == "never":
        return FOREVER
    try:
        seconds = int(text) if text.isdecimal() and len(text) < 10 else parse_duration(text) // _SECOND
    except (ValueError, OverflowError):
        seconds = 0
    if not 1 <= seconds < 1 << 32:
        raise _InvalidLifetimeError(400, 10165, "invalid per-message TTL")
    return seconds * _SECOND


def outliving_marker(header: bytes, parsed: PublishHeaders, config: StreamConfig) -> tuple[bytes, PublishHeaders]:
    """Raises the lifetime of a message, in its header block as well, to that of the marker that will follow it.

    With one message per subject, the marker is never followed by an older message, and nothing is raised.
    """
    least = config.subject_delete_marker_ttl // _SECOND
    if config.max_msgs_per_subject == 1 or not 0 < parsed.life < least * _SECOND:
        return header, parsed
    others = without(header, lambda line: line.startswith(_LIFETIME + b":"))
    return with_lines(others, b"%b: %d" % (_LIFETIME, least)), parsed._replace(life=least * _SECOND)


def marker(life: int) -> bytes:
    """Returns the header block of a delete marker, which replaces an expired last message for `life` ns."""
    text = format_go_duration(life).encode()
    return b"NATS/1.0\r\n%b: MaxAge\r\n%b: %b\r\n%b: sub\r\n\r\n" % (_MARKER, _LIFETIME, text, ROLLUP)


def check_last_id(headers: Mapping[bytes, bytes], last_id: bytes) -> None:
    """Raises `RequestError` if the last message has another id than expected."""
    expected = headers.get(_LAST_ID)
    if expected and expected != last_id:
        raise RequestError(400, 10070, f"wrong last msg ID: {last_id.decode(errors='replace')}")


def rollup(headers: Mapping[bytes, bytes], *, allowed: bool) -> str:
    """Returns which messages a roll-up replaces: `sub` for the subject's, `all`, or empty for none.

    Raises `RequestError` for another value, and if the stream does not allow roll-ups.
    """
    value = headers.get(ROLLUP)
    if not value:
        return ""
    if not allowed:
        raise RequestError(500, 10111, "rollup not permitted")
    text = value.decode(errors="replace")
    if text.lower() not in ("sub", "all"):
        raise RequestError(500, 10111, f'rollup value invalid: "{text[:100]}"')
    return text.lower()


def _number(text: bytes) -> int:
    """Returns -1, which is no sequence, for an invalid number."""
    return int(text) if text.isdigit() and len(text) < 20 else -1
