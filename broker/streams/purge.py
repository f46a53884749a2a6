"""Purges of a stream: deletions of all messages, or of messages that match a pattern, in steps.

A roll-up is a message that replaces the earlier ones of its subject or of the stream: it purges them.

Facts: jetstream-server.md sections 5 and 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.streams.api_errors import RequestError, sealed, store_failed
from broker.streams.stream_limits import MAX_SEQUENCE, SMALL_STEP, STEP, drop_firsts
from stantools.nats.subjects import is_literal, valid_pattern

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from broker.stores.streams.subject_filter import SubjectFilter
    from broker.streams.stream_limits import LimitedStream


def purge(
    stream: LimitedStream, patterns: tuple[()] | tuple[bytes], below: int, keep: int
) -> Generator[None, None, int]:
    """Deletes messages in steps, and returns their number. Messages stored meanwhile stay.

    The messages must match the pattern, if there is one, and be `below` a sequence, if that is not 0; the last
    `keep` of them stay. Raises `RequestError` if the configuration does not permit it.
    """
    if stream.config.sealed:
        raise sealed()
    if stream.config.deny_purge:
        raise RequestError(500, 10110, "stream purge not permitted")
    contents = stream.store.contents
    if patterns and not all(map(valid_pattern, patterns)):
        return 0
    end = contents.last + 1
    wanted = yield from contents.make_filter(patterns)
    try:
        if keep:
            below = _first_kept(stream, wanted, keep)
            if below <= contents.first:
                stream.followers.purged(stream.store.contents, b"".join(patterns))
                return 0
        if wanted is None and (not below or below > contents.last):
            before = contents.messages
            if stream.copy_positions.marks:
                stream.copy_positions.save(stream.store)
            stream.store.purge_all(min(max(below, contents.last + 1), MAX_SEQUENCE))
            stream.followers.shrunk(contents.first)
            stream.count()
        else:
            before = yield from _purge_below(stream, wanted, below or end)
        stream.followers.purged(stream.store.contents, b"".join(patterns))
        return before
    finally:
        contents.release(wanted)


def _purge_below(stream: LimitedStream, wanted: SubjectFilter | None, below: int) -> Generator[None, None, int]:
    """Deletes matching messages below a sequence, in steps. Returns their number."""
    contents = stream.store.contents
    gone, start = 0, contents.first
    try:
        while found := contents.matching(wanted, start, STEP):
            start = found[-1] + 1
            before, part = contents.messages, min(start, below)
            stream.copy_positions.save_below(stream.store, part)
            if wanted is None:
                stream.store.purge_below(part)
            else:
                stream.store.purge_matching(wanted, part)
            gone += before - contents.messages
            if start >= below:
                break
            yield
            stream.check_not_deleted()
            if contents is not stream.store.contents:
                raise store_failed("the stream was opened again meanwhile")
    finally:
        stream.followers.shrunk(min(start, below))
        stream.count()
        stream.unflushed = True
    return gone


def _first_kept(stream: LimitedStream, wanted: SubjectFilter | None, keep: int) -> int:
    """Returns the sequence below which matching messages are deleted if the last `keep` of them stay."""
    for segment, rows in reversed(list(stream.store.contents.rows(wanted))):
        if len(rows) >= keep:
            return int(rows[-keep]) + segment.first
        keep -= len(rows)
    return 0


def roll_up(stream: LimitedStream, what: str, subject: bytes, sequence: int) -> None:
    """Deletes the messages that a message replaces: a few at once, the rest by `rolling_up`."""
    contents = stream.store.contents
    if what == "sub" and is_literal(subject):
        entry = contents.subjects.get(subject)
        if entry is not None and entry.count <= SMALL_STEP:
            drop_firsts(stream, [entry], 1)
            stream.followers.purged(contents, subject)
            return
    wanted = contents.filter((subject,)) if what == "sub" else None
    work = _roll_up_all(stream, wanted, subject if what == "sub" else b"", sequence)
    if next(work, stream) is not stream:
        stream.rolling_up = work


def _roll_up_all(stream: LimitedStream, wanted: SubjectFilter | None, pattern: bytes, sequence: int) -> Iterator[None]:
    contents = stream.store.contents
    try:
        yield from _purge_below(stream, wanted, sequence)
        stream.followers.purged(stream.store.contents, pattern)
    finally:
        contents.release(wanted)
