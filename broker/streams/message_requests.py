"""Single messages: get, direct get with batches, and delete (jetstream-server.md section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.stores.interface import StorageError
from broker.streams.api_errors import RequestError, bad_request, no_message
from broker.streams.headers import bare, status, with_lines
from broker.streams.requests import members, parse, time_text
from stantools.streamfiles.headers import located
from stantools.streamfiles.stream_config import BOOL, INT, STRING, STRINGS, TIME, UINT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

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
#: Members that select the first message of a direct get, and pairs that exclude each other.
_STARTS: Final = frozenset(("seq", "last_by_subj", "next_by_subj", "start_time", "multi_last"))
_CONFLICTS: Final = tuple(
    frozenset(pair)
    for pair in (
        ("seq", "last_by_subj"),
        ("seq", "start_time"),
        ("start_time", "last_by_subj"),
        ("last_by_subj", "next_by_subj"),
        ("last_by_subj", "batch"),
        ("last_by_subj", "multi_last"),
        ("next_by_subj", "multi_last"),
        ("up_to_seq", "up_to_time"),
    )
)
#: limits of a batch: messages, and bytes
_MOST_BATCH: Final = 1024
_MOST_BATCH_BYTES: Final = 4 << 20
_MISSING: Final = bare(status("404 Message Not Found"))
_BAD: Final = bare(status("408 Bad Request"))
_DELETE: Final[Mapping[str, str]] = {"seq": UINT, "no_erase": BOOL}


def stored_message(find: Callable[[], Stream], body: bytes) -> Generator[None, None, dict[str, Any]]:
    """Returns the requested message as a member of the answer.

    `find` returns the stream and is called only for a valid request. Raises `RequestError` for contradicting members
    and for an unknown stream or message.
    """
    import base64

    if not body:
        raise bad_request()
    wanted = members(parse(body), _GET, "JSApiMsgGetRequest", strict=True)
    no_header = wanted.pop("no_hdr", False)
    asked = {name for name, value in wanted.items() if value}
    if asked not in ({"seq"}, {"last_by_subj"}, {"next_by_subj"}, {"seq", "next_by_subj"}, {"start_time"}):
        raise bad_request()
    stream = find()
    message = stream.message((yield from _sequence(stream, wanted)))
    found: dict[str, Any] = {"subject": message.subject.decode(errors="replace"), "seq": message.sequence}
    if message.header and not no_header:
        found["hdrs"] = base64.b64encode(message.header).decode()
    if message.payload:
        found["data"] = base64.b64encode(message.payload).decode()
    found["time"] = time_text(message.time)
    return found


def _sequence(stream: Stream, wanted: Mapping[str, Any]) -> Generator[None, None, int]:
    if last := wanted.get("last_by_subj"):
        found = yield from stream.store.contents.find_last(last.encode())
    elif following := wanted.get("next_by_subj"):
        found = yield from stream.store.contents.find_next(following.encode(), wanted.get("seq", 0))
    elif "start_time" in wanted:
        found = stream.store.contents.first_since(wanted["start_time"])
    else:
        found = wanted.get("seq", 0)
    if not found:
        raise no_message()
    return found


def delete(find: Callable[[], Stream], body: bytes) -> Stream:
    """Deletes the message of a request. Returns the stream; raises `RequestError` if the message cannot be deleted."""
    if not body:
        raise bad_request()
    values = parse(body)
    if not values:
        raise bad_request()
    wanted = members(values, _DELETE, "JSApiMsgDeleteRequest", strict=True)
    stream = find()
    stream.delete_message(wanted.get("seq", 0), erase=not wanted.get("no_erase", False))
    return stream


def direct(stream: Stream, subject: bytes, body: bytes) -> Iterator[tuple[bytes, int] | None]:
    """Iterates over the answers to a direct get: messages, each with the size of its header block.

    None is a point where other requests may run. With a `subject` its last message is the answer; otherwise the body
    selects the messages.
    """
    try:
        if not subject:
            yield from _answers(stream, _read_request(body))
        elif body:
            yield _BAD
        else:
            sequence = yield from stream.store.contents.find_last(subject)
            yield stream.store.direct(sequence, stream.label) or _MISSING
    except _DirectGetStatusError as refused:
        yield bare(status(str(refused)))
    except (RequestError, StorageError):
        yield _MISSING


class _DirectGetStatusError(Exception):
    """The only answer to a direct get is a status."""


def _read_request(body: bytes) -> dict[str, Any]:
    if not body:
        raise _DirectGetStatusError("408 Empty Request")
    try:
        found = members(parse(body), _GET, "JSApiMsgGetRequest")
    except RequestError:
        raise _DirectGetStatusError("408 Malformed Request") from None
    wanted = {name: value for name, value in found.items() if value}
    if not _STARTS & set(wanted):
        raise _DirectGetStatusError("408 Empty Request")
    if any(pair <= set(wanted) for pair in _CONFLICTS):
        raise _DirectGetStatusError("408 Bad Request")
    return wanted


def last(stream: Stream, subject: bytes) -> tuple[bytes, int]:
    """Returns the last message of a subject without wildcards as the answer to a direct get."""
    entry = stream.store.contents.subjects.get(subject)
    try:
        return (stream.store.direct(entry.last, stream.label) if entry is not None else None) or _MISSING
    except StorageError:
        return _MISSING


def _answers(stream: Stream, wanted: Mapping[str, Any]) -> Iterator[tuple[bytes, int] | None]:
    if "multi_last" in wanted:
        found = yield from _last_sequences(stream, wanted)
        yield from _batch(stream, found, wanted)
    elif wanted.get("batch", 0) > 0:
        contents = stream.store.contents
        begin = contents.first_since(wanted["start_time"]) if "start_time" in wanted else wanted.get("seq", 0)
        pattern = wanted.get("next_by_subj")
        wanted_here = (yield from contents.make_filter((pattern.encode(),))) if pattern else None
        most = min(wanted["batch"], _MOST_BATCH)
        sequences: list[int] = []
        while len(sequences) < most and (more := contents.matching(wanted_here, begin, most - len(sequences))):
            sequences += more
            begin = more[-1] + 1
            yield None
        left = contents.count(wanted_here, begin)
        contents.release(wanted_here)
        if not sequences:
            raise no_message()
        yield from _batch(stream, (sequences, left, 0), wanted)
    else:
        message = stream.message((yield from _sequence(stream, wanted)))
        block = b"" if wanted.get("no_hdr") else _located(stream, message)
        yield block + message.payload, len(block)


def _located(stream: Stream, message: Stored) -> bytes:
    return located(message.header, stream.label, message.subject, message.sequence, message.time)


def _last_sequences(stream: Stream, wanted: Mapping[str, Any]) -> Generator[None, None, tuple[list[int], int, int]]:
    """Returns the last sequences of subjects, the number of further ones, and the last sequence examined."""
    contents = stream.store.contents
    end = wanted.get("up_to_seq", 0) or contents.last
    if "up_to_time" in wanted:
        end = contents.first_since(wanted["up_to_time"]) - 1
    patterns = [each.encode() for each in wanted["multi_last"]]
    begin = max(wanted.get("seq", 0), 1)
    sequences = []
    for entry in contents.select(patterns):
        if entry is None:
            yield
        elif (last := contents.last_before(end + 1, entry)) >= begin:
            sequences.append(last)
            if len(sequences) > _MOST_BATCH:
                raise _DirectGetStatusError("413 Too Many Results")
    sequences.sort()
    if not sequences:
        raise _DirectGetStatusError("404 No Results")
    most = wanted.get("batch", 0) if wanted.get("batch", 0) > 0 else len(sequences)
    return sequences[:most], max(len(sequences) - most, 0), end


def _batch(
    stream: Stream, found: tuple[list[int], int, int], wanted: Mapping[str, Any]
) -> Iterator[tuple[bytes, int] | None]:
    """Iterates over the messages of a batch and the status at its end."""
    sequences, left, end = found
    bytes_left = min(wanted.get("max_bytes", 0) or _MOST_BATCH_BYTES, _MOST_BATCH_BYTES)
    last = 0
    for row, sequence in enumerate(sequences):
        message = stream.store.read(sequence)
        if message is None:
            continue
        pending = left + len(sequences) - row - 1
        place = (b"Nats-Num-Pending: %d" % pending, b"Nats-Last-Sequence: %d" % last)
        block = with_lines(_located(stream, message), *place)
        yield block + message.payload, len(block)
        last = sequence
        bytes_left -= len(message.subject) + len(message.header) + len(message.payload)
        if bytes_left <= 0:
            left = pending
            break
        yield None
    headers = {"Nats_Num_Pending": left, "Nats_Last_Sequence": last}
    if end:
        headers["Nats_UpTo_Sequence"] = end
    yield bare(status("204 EOB", **headers))
