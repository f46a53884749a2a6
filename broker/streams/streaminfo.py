"""The state, configuration and subjects of a stream in answers (jetstream-server.md section 5)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from broker.streams.requests import time_text
from broker.streams.streams_options import with_level
from stantools.nats.subjects import valid_pattern
from stantools.nats.subjecttree import STEP

if TYPE_CHECKING:
    from broker.streams.stream import Stream

#: limits of an answer: subjects, and bytes of their names
_MOST_SUBJECTS: Final = 100_000
_MOST_SUBJECT_BYTES: Final = 4 << 20
#: deleted sequences in an answer
_MOST_DELETED: Final = 250_000


def stream_state(stream: Stream) -> dict[str, Any]:
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
    state["consumer_count"] = len(stream.followers)
    return state


def add_deleted(state: dict[str, Any], stream: Stream) -> Iterator[None]:
    """Adds the deleted sequences, if any, to a state, in steps."""
    if "num_deleted" in state:
        gone: list[int] = []
        for some in stream.store.contents.deleted(_MOST_DELETED):
            gone += some
            yield
        state["deleted"] = gone


def stream_info(stream: Stream, now: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "config": with_level(stream.config.as_json(), stream.config.level),
        "created": time_text(stream.created),
        "state": stream_state(stream),
        "ts": time_text(now),
    }
    copies = [each.info(now) for each in stream.copy_positions.sources]
    if stream.config.mirror:
        found["mirror"] = copies[0]
    elif copies:
        found["sources"] = copies
    return found


def subject_counts(stream: Stream, pattern: bytes, offset: int) -> Generator[None, None, tuple[int, dict[str, int]]]:
    """Returns the number of matching subjects, and one page of them with their numbers of messages, in steps."""
    if not valid_pattern(pattern):
        return 0, {}
    entries = []
    for found in stream.store.contents.select((pattern,)):
        if found is None:
            yield
        else:
            entries.append(found)
    runs = []
    for begin in range(0, len(entries), STEP):
        runs.append(sorted(entries[begin : begin + STEP], key=attrgetter("name")))
        yield
    page: dict[str, int] = {}
    size = 0
    for row, entry in enumerate(merge(*runs, key=attrgetter("name"))):
        if row < offset or row >= offset + _MOST_SUBJECTS:
            if row >= offset:
                break
            continue
        if row % STEP == 0:
            yield
        page[entry.name.decode(errors="replace")] = entry.count
        size += len(entry.name)
        if size > _MOST_SUBJECT_BYTES:
            break
    return len(entries), page
