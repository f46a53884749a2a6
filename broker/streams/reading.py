"""Single messages: get, direct get with batches, and delete (jetstream-server.md section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.streams.errors import ApiError, bad_request, no_message
from broker.streams.requests import BOOL, INT, STRING, STRINGS, TIME, UINT, members, parse, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.stores.streams.interface import Stored
    from broker.streams.stream import Stream

_GET: Final[Mapping[str, str]] = {
    "seq": UINT,
    "last_by_subj": STRING,
    "next_by_subj": STRING,
    "start_time": TIME,
    "batch": INT,
    "max_bytes": INT,
    "multi_last": STRINGS,
    "up_to_seq": UINT,
    "up_to_time": TIME,
    "no_hdr": BOOL,
}
_DELETE: Final[Mapping[str, str]] = {"seq": UINT, "no_erase": BOOL}
_LINE: Final = b"NATS/1.0"
_END: Final = b"\r\n\r\n"


def stored_message(stream: Stream, body: bytes) -> dict[str, Any]:
    """Returns the message that a request asks for, as answers have it.

    Raises:
        ApiError: The request contradicts itself, or there is no such message.
    """
    import base64

    wanted = members(parse(body), _GET, "JSApiMsgGetRequest", strict=True)
    no_header = wanted.pop("no_hdr", False)
    asked = {name for name, value in wanted.items() if value}
    if asked not in ({"seq"}, {"last_by_subj"}, {"next_by_subj"}, {"seq", "next_by_subj"}, {"start_time"}):
        raise bad_request()
    message = stream.message(_sequence(stream, wanted))
    found: dict[str, Any] = {"subject": message.subject.decode(errors="replace"), "seq": message.sequence}
    if message.header and not no_header:
        found["hdrs"] = base64.b64encode(message.header).decode()
    if message.payload:
        found["data"] = base64.b64encode(message.payload).decode()
    found["time"] = time_text(message.time)
    return found


def _sequence(stream: Stream, wanted: Mapping[str, Any]) -> int:
    if last := wanted.get("last_by_subj"):
        found = stream.last_of(last.encode())
    elif following := wanted.get("next_by_subj"):
        found = stream.next_of(following.encode(), wanted.get("seq", 0))
    elif "start_time" in wanted:
        found = stream.store.contents.first_since(wanted["start_time"])
    else:
        found = wanted.get("seq", 0)
    if not found:
        raise no_message()
    return found


def delete(stream: Stream, body: bytes) -> None:
    """Deletes the message that a request names.

    Raises:
        ApiError: It names none, or that cannot be deleted.
    """
    if not body:
        raise bad_request()
    values = parse(body)
    if not values:
        raise bad_request()
    wanted = members(values, _DELETE, "JSApiMsgDeleteRequest", strict=True)
    stream.delete_message(wanted.get("seq", 0), erase=not wanted.get("no_erase", False))


def status(line: str) -> bytes:
    """Returns a header block that has a status only."""
    return b"%b %b%b" % (_LINE, line.encode(), _END)


def direct(stream: Stream, subject: str, body: bytes) -> tuple[bytes, bytes]:
    """Returns header block and payload of the answer to a direct get of one message.

    Args:
        stream: The stream.
        subject: The last message of this subject is asked for; empty: the body says which one.
        body: The request.
    """
    if subject and body:
        return status("408 Bad Request"), b""
    if not subject and not body:
        return status("408 Empty Request"), b""
    try:
        wanted = {"last_by_subj": subject} if subject else members(parse(body), _GET, "JSApiMsgGetRequest")
    except ApiError:
        return status("408 Malformed Request"), b""
    bare = bool(wanted.pop("no_hdr", False))
    asked = {name for name, value in wanted.items() if value}
    if not asked:
        return status("408 Empty Request"), b""
    if asked not in ({"seq"}, {"last_by_subj"}, {"next_by_subj"}, {"seq", "next_by_subj"}, {"start_time"}):
        return status("408 Bad Request"), b""
    try:
        message = stream.message(_sequence(stream, wanted))
    except ApiError:
        return status("404 Message Not Found"), b""
    return (b"" if bare else with_origin(stream, message)), message.payload


def with_origin(stream: Stream, message: Stored) -> bytes:
    """Returns the header block of a message with where it comes from at its end."""
    lines = b"\r\n".join(_origin(stream, message))
    if message.header.endswith(_END):
        return b"%b\r\n%b%b" % (message.header[: -len(_END)], lines, _END)
    return b"%b\r\n%b%b" % (_LINE, lines, _END)


def _origin(stream: Stream, message: Stored) -> Iterator[bytes]:
    yield b"Nats-Stream: " + stream.name.encode()
    yield b"Nats-Subject: " + message.subject
    yield b"Nats-Sequence: %d" % message.sequence
    yield b"Nats-Time-Stamp: " + time_text(message.time).encode()
