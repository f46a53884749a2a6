"""What answers say of a stream: its state, its configuration, its subjects (jetstream-server.md section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.streams.options import with_level
from broker.streams.requests import time_text
from stantools.nats.subjects import valid_pattern

if TYPE_CHECKING:
    from broker.streams.stream import Stream

#: Subjects of an answer, and bytes of their names.
_MOST_SUBJECTS: Final = 100_000
_MOST_SUBJECT_BYTES: Final = 4 << 20
#: Deleted sequences of an answer.
_MOST_DELETED: Final = 250_000


def stream_state(stream: Stream, *, deleted: bool = False) -> dict[str, Any]:
    """Returns the state of a stream, with the sequences that are gone if they are asked for."""
    contents = stream.store.contents
    used = contents.messages or contents.last
    state: dict[str, Any] = {
        "messages": contents.messages,
        "bytes": contents.bytes,
        "first_seq": contents.first if used else 0,
        "first_ts": time_text(contents.first_time),
        "last_seq": contents.last,
        "last_ts": time_text(contents.last_time),
    }
    if contents.subjects:
        state["num_subjects"] = len(contents.subjects)
    if contents.messages and (missing := contents.last - contents.first + 1 - contents.messages):
        state["num_deleted"] = missing
        if deleted:
            state["deleted"] = contents.deleted(_MOST_DELETED)
    state["consumer_count"] = len(stream.followers)
    return state


def stream_info(stream: Stream, now: int) -> dict[str, Any]:
    """Returns what there is to say of a stream."""
    found: dict[str, Any] = {
        "config": with_level(stream.config.as_json(), stream.config.level),
        "created": time_text(stream.created),
        "state": stream_state(stream),
        "ts": time_text(now),
    }
    copies = [each.info(now) for each in stream.copies]
    if stream.config.mirror:
        found["mirror"] = copies[0]
    elif copies:
        found["sources"] = copies
    return found


def subject_counts(stream: Stream, pattern: bytes, offset: int) -> tuple[int, dict[str, int]]:
    """Returns how many subjects match, and a page of them with the messages that each has."""
    if not valid_pattern(pattern):
        return 0, {}
    entries = sorted(stream.store.contents.selected((pattern,)), key=lambda entry: entry.name)
    page: dict[str, int] = {}
    size = 0
    for entry in entries[offset : offset + _MOST_SUBJECTS]:
        page[entry.name.decode(errors="replace")] = entry.count
        size += len(entry.name)
        if size > _MOST_SUBJECT_BYTES:
            break
    return len(entries), page
