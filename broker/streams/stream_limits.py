"""The limits of a stream: which new messages they refuse, and which messages they delete.

A single message is a batch of one. A batch that a limit refuses may have messages that fit: the caller then publishes
one after the other.

Facts: jetstream-server.md sections 5 to 8.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from broker.streams import publish_headers
from broker.streams.api_errors import RequestError, store_failed
from broker.streams.header_state import stored_messages
from stantools.streamfiles.layout import MAX_RECORD_SIZE, MAX_SUBJECT_SIZE
from stantools.streamfiles.lifetimes import ends_subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.stores.streams.interface import StreamStore
    from broker.stores.streams.subject_filter import SubjectRows
    from broker.streams.configuration import StreamConfig
    from broker.streams.copy_positions import CopyPositions
    from broker.streams.followers import Followers
    from broker.streams.header_state import MessageIds, MessageLifetimes
    from broker.streams.quota import StorageQuota

#: messages deleted one by one, and messages deleted in one step
SMALL_STEP: Final = 16
STEP: Final = 512
MAX_SEQUENCE: Final = (1 << 62) - 1


class LimitedStream(Protocol):
    """A stream as its limits and purges see it (`broker.streams.stream.Stream`)."""

    quota: StorageQuota
    config: StreamConfig
    store: StreamStore
    followers: Followers
    copy_positions: CopyPositions
    message_ids: MessageIds
    lifetimes: MessageLifetimes
    unflushed: bool
    deleted: bool
    rolling_up: Iterator[None] | None

    def count(self) -> None: ...

    def remove(self, sequence: int) -> bool: ...

    def is_unwanted(self, subject: bytes) -> bool: ...

    def check_not_deleted(self) -> None: ...


def check(
    stream: LimitedStream,
    messages: int,
    size: int,
    largest: int,
    subject_size: int,
    header_size: int,
    subject: bytes = b"",
    *,
    replaces: bool = False,
) -> None:
    """Raises `RequestError` if new messages cannot be stored.

    `size` is the bytes of all, `largest` the bytes of the largest one, as the store counts them; `subject_size` and
    `header_size` are those of the longest subject and header block. Only a single message has a `subject`, and may be a
    roll-up, which `replaces` others: streams with a limit per subject and another one check each message.
    """
    config = stream.config
    if (
        largest > MAX_RECORD_SIZE
        or subject_size > MAX_SUBJECT_SIZE
        or stream.store.contents.last > MAX_SEQUENCE - messages
    ):
        raise store_failed("message is too large to be stored")
    if header_size > publish_headers.MOST_HEADERS:
        raise RequestError(400, 10097, "header size exceeds maximum allowed of 64k")
    stream.quota.check(config.storage, size)
    if config.discard == "new":
        full = _exceeded_limit(stream, messages, size, subject, replaces=replaces)
        if full and not stream.is_unwanted(subject):
            raise store_failed(full)


def _exceeded_limit(stream: LimitedStream, messages: int, size: int, subject: bytes, *, replaces: bool) -> str:
    """Returns which limit messages exceed in a stream that refuses new ones; empty for none."""
    config, contents = stream.config, stream.store.contents
    too_large = 0 < config.max_bytes < contents.bytes + size
    if config.max_msgs_per_subject > 0:
        entry = contents.subjects.get(subject)
        if entry is not None and entry.count >= config.max_msgs_per_subject:
            if config.discard_new_per_subject and not replaces:
                return "maximum messages per subject exceeded"
            # The oldest message of the subject is replaced.
            found = contents.locate(contents.first_of(entry))
            return "maximum bytes exceeded" if too_large and found and found[0].sizes[found[1]] < size else ""
    if 0 < config.max_msgs < contents.messages + messages:
        return "maximum messages exceeded"
    return "maximum bytes exceeded" if too_large else ""


def enforce(stream: LimitedStream, subjects: list[SubjectRows]) -> None:
    """Deletes messages over the limits; `subjects` have too many messages."""
    if subjects:
        drop_firsts(stream, subjects, stream.config.max_msgs_per_subject)
    _enforce_totals(stream)


def enforce_all(stream: LimitedStream) -> Iterator[None]:
    """Deletes messages over the limits after a change of configuration, in steps."""
    contents = stream.store.contents
    _enforce_totals(stream)
    subjects = list(contents.subjects.values()) if stream.config.max_msgs_per_subject > 0 else []
    for begin in range(0, len(subjects), STEP):
        found = part = subjects[begin : begin + STEP]
        while found:
            if found := over(stream, part)[:SMALL_STEP]:
                most = max(each.count for each in found) - SMALL_STEP
                drop_firsts(stream, found, max(stream.config.max_msgs_per_subject, most))
            yield
            if stream.deleted or contents is not stream.store.contents:
                return
    _enforce_totals(stream)
    stream.count()


def over(stream: LimitedStream, subjects: Iterable[SubjectRows]) -> list[SubjectRows]:
    """Returns the subjects that have too many messages."""
    most = stream.config.max_msgs_per_subject
    return [each for each in subjects if 0 < most < each.count]


def drop_firsts(stream: LimitedStream, subjects: list[SubjectRows], most: int) -> None:
    """Deletes the oldest messages of subjects that have more than `most`, which is at least 1."""
    if stream.copy_positions.marks and any(_has_mark(stream, each, most) for each in subjects):
        stream.copy_positions.save(stream.store)
    stream.unflushed = True
    gone = stream.store.drop_firsts(subjects, most)
    for follower in stream.followers:
        for sequence, number in gone:
            follower.removed(sequence, number)


def _has_mark(stream: LimitedStream, entry: SubjectRows, most: int) -> bool:
    """Returns whether one of the messages of a subject before the last `most` is the mark of a copy."""
    contents = stream.store.contents
    start, left = contents.first_of(entry), entry.count - most
    while left > 0:
        found = contents.matching(entry, start, left)
        if not stream.copy_positions.marks.isdisjoint(found):
            return True
        start, left = found[-1] + 1, left - len(found)
    return False


def _enforce_totals(stream: LimitedStream) -> None:
    config, store = stream.config, stream.store
    contents = store.contents
    # A stream that refuses new messages keeps its messages, even after its limits were lowered.
    if config.discard == "old" and (0 < config.max_msgs < contents.messages or 0 < config.max_bytes < contents.bytes):
        sequence, messages, size = contents.first, contents.messages, contents.bytes
        while messages and (0 < config.max_msgs < messages or 0 < config.max_bytes < size):
            found = contents.locate(sequence)
            if found is not None:
                messages, size = messages - 1, size - found[0].sizes[found[1]]
            sequence += 1
        if sequence - contents.first <= SMALL_STEP:
            while contents.first < sequence and contents.messages:
                stream.remove(contents.first)
        else:
            stream.copy_positions.save_below(stream.store, sequence)
            store.purge_below(sequence)
            stream.followers.shrunk(sequence)


def expire(stream: LimitedStream, now: int) -> bool:
    """Deletes expired messages and forgets ids older than the duplicate window.

    Returns whether more may be expired: one call deletes a limited number.
    """
    more = False
    contents, config = stream.store.contents, stream.config
    stream.message_ids.forget(now - config.duplicate_window)
    gone: list[bytes] = []
    for count, sequence in enumerate(islice(stream.lifetimes.ended(now), STEP), 1):
        more = count == STEP
        message = stream.store.read(sequence)
        if message is not None:
            stream.remove(sequence)
            if message.subject not in contents.subjects and not ends_subject(message.header):
                gone.append(message.subject)
    if config.max_age and contents.messages and contents.first_time <= now - config.max_age:
        end = contents.first_since(now - config.max_age + 1)
        some = [] if stream.lifetimes.forever else contents.matching(None, contents.first, STEP)
        if some and some[-1] + 1 < end:
            end, more = some[-1] + 1, True
        if config.subject_delete_marker_ttl:
            # The expired messages show which subjects may end.
            there = filter(None, map(contents.locate, some))
            names = dict.fromkeys(contents.subject_at(*place) for place in there) if some else contents.subjects
            ending = [name for name in names if _ends_unmarked(stream, contents.subjects[name], end)]
            gone += sorted(ending, key=lambda name: contents.subjects[name].last)
        stream.copy_positions.save_below(stream.store, end)
        if stream.lifetimes.forever:
            _expire_others(stream, end)
        else:
            stream.store.purge_below(end)
        stream.followers.shrunk(end)
    life = config.subject_delete_marker_ttl
    for subject in gone if life else ():
        if subject not in contents.subjects:
            stream.lifetimes.note(stream.store.append(now, subject, publish_headers.marker(life), b""), now, life)
            stream.message_ids.last = b""
    stream.count()
    return more


def _ends_unmarked(stream: LimitedStream, entry: SubjectRows, end: int) -> bool:
    """Returns whether all messages of a subject are below a sequence, and a marker follows the last one."""
    message = stream.store.read(entry.last) if entry.last < end else None
    return message is not None and not ends_subject(message.header)


def _expire_others(stream: LimitedStream, end: int) -> None:
    """Deletes the messages below a sequence, except messages that never expire."""
    kept = stream.lifetimes.forever = {
        each for each in stream.lifetimes.forever if stream.store.contents.locate(each) is not None
    }
    for message in stored_messages(stream.store, stream.store.contents.first):
        if message.sequence >= end:
            break
        if message.sequence not in kept:
            stream.store.remove(message.sequence)
