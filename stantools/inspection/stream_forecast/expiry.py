"""Messages that a server removes when it starts: beyond the limits of their stream, or as their time is over.

A start removes messages older than `max_age`, whatever lifetime a message has. Timers, which fire within the first
seconds, remove messages whose own lifetime is over; where a stream has delete markers, they do the work of `max_age` as
well, spare messages that never expire, and store a marker for each subject without messages. The times are those of the
indexes `thw.db` and `sched.db`, as far as these go, and are believed; those of later messages are in their headers.
Facts: jetstream-store.md sections 7, 14 and 23.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.notation import format_go_duration
from stantools.store.mapping import Buffer
from stantools.store.ranges import Ranges
from stantools.streamfiles.damage import Gap, scan
from stantools.streamfiles.layout import MESSAGES, ArchiveError, record_size
from stantools.streamfiles.lifetimes import (
    FOREVER,
    LIFETIMES_FILE,
    SCHEDULES_FILE,
    TimerIndex,
    ends_subject,
    lifetime_of,
    read_timers,
    schedule_of,
    scheduled_headers,
)

if TYPE_CHECKING:
    from stantools.inspection.stream_forecast.blocks import ServerBlock
    from stantools.inspection.stream_forecast.recovery import RecoveredStream

_HIGHEST: Final = 2**64 - 1
_UNLIMITED: Final = 1 << 63
_TOMBSTONE_SIZE: Final = 30
#: the length of a time in the headers of a scheduled message
_NEXT_TIME: Final = b"2006-01-02T15:04:05Z"
_LINES: Final = {LIFETIMES_FILE: "TTL state", SCHEDULES_FILE: "Message scheduling state"}


class _TimedMessage(NamedTuple):
    sequence: int
    time: int
    subject: bytes
    headers: bytes
    size: int  #: of its payload


def apply_limits(store: RecoveredStream) -> None:
    if store.config.get("discard", "old") == "old":
        messages, size = _limit(store, "max_msgs"), _limit(store, "max_bytes")
        if store.state.messages > messages or store.state.bytes > size:
            _remove_head(store, messages, size)
    _expire_at_start(store)
    if (per_subject := _limit(store, "max_msgs_per_subject")) < _UNLIMITED:
        _limit_subjects(store, per_subject)


def _limit(store: RecoveredStream, name: str) -> int:
    value = store.config.get(name)
    return value if isinstance(value, int) and value > 0 else _UNLIMITED


def _remove_head(store: RecoveredStream, messages: int, size: int) -> None:
    for block in list(store.blocks):
        count, surplus = store.state.messages - messages, store.state.bytes - size
        if count <= 0 and surplus <= 0:
            return
        records = store.records(block)
        rows = (records.flags == 0) & block.live.select(records.sequence)
        ends = np.cumsum(records.length[rows])
        wanted = max(count, int(np.searchsorted(ends, surplus)) + 1 if surplus > 0 else 0)
        if chosen := Ranges.from_sequences(records.sequence[rows][:wanted]):
            store.remove_from(block, chosen)


def _limit_subjects(store: RecoveredStream, limit: int) -> None:
    """Removes the oldest messages of subjects that have too many."""
    counts: dict[int, int] = {}
    for block in reversed(list(store.blocks)):
        records = store.records(block)
        rows = np.flatnonzero((records.flags == 0) & block.live.select(records.sequence))
        beyond = []
        for row in rows[::-1]:
            subject = int(records.subject[row])
            counts[subject] = counts.get(subject, 0) + 1
            if counts[subject] > limit:
                beyond.append(int(records.sequence[row]))
        if beyond:
            store.remove_from(block, Ranges.of((each, each) for each in beyond))


def _expire_at_start(store: RecoveredStream) -> None:
    """Removes messages older than `max_age`: whole blocks first, then the head of the next one."""
    if (oldest := _oldest(store)) is None or _marks(store):
        return
    last: tuple[int, int] | None = None
    for block in list(store.blocks):
        records = store.records(block)
        rows = (records.flags == 0) & block.live.select(records.sequence)
        times = records.timestamp[rows]
        if not len(times) or int(times[0]) > oldest:
            break
        fresh = np.flatnonzero(times > oldest)
        count = int(fresh[0]) if len(fresh) else len(times)
        chosen = Ranges.from_sequences(records.sequence[rows][:count])
        size = int(records.length[rows][:count].sum())
        store.limited = True
        store.beyond_limits.append(chosen - _lasting(store, block, chosen))
        store.state.messages -= count
        store.state.bytes -= size
        block.remove(chosen, size)
        if len(fresh):
            break
        if block is store.blocks[-1]:
            last = block.last, block.last_time
        store.drop(block)
    store.select_first()
    if last and not store.blocks:
        store.last_number = 0
        store.begin_block(*last)


def expire_after_start(store: RecoveredStream) -> None:
    """Removes and adds messages as the timers of a server do in its first seconds."""
    if store.rules.lifetimes and store.config.get("allow_msg_ttl"):
        _LifetimeExpiry(store).run()
    if store.rules.schedules and store.config.get("allow_msg_schedules"):
        _fire_schedules(store)


def _oldest(store: RecoveredStream) -> int | None:
    """Returns the time of the last message that is too old; None without a limit of age."""
    age = store.config.get("max_age")
    return store.now - age if isinstance(age, int) and age > 0 else None


def _marks(store: RecoveredStream) -> bool:
    """Returns whether the server stores delete markers."""
    return store.rules.lifetimes and bool(store.config.get("subject_delete_marker_ttl"))


def _lasting(store: RecoveredStream, block: ServerBlock, chosen: Ranges) -> Ranges:
    """Returns the messages that were stored never to expire."""
    if not store.config.get("allow_msg_ttl"):
        return Ranges()
    return _set_of(each.sequence for each in _messages(store, block, chosen) if lifetime_of(each.headers) == FOREVER)


def _set_of(sequences: Iterator[int]) -> Ranges:
    return Ranges.from_sequences(np.fromiter(sequences, np.uint64))


def _messages(store: RecoveredStream, block: ServerBlock, wanted: Ranges) -> Iterator[_TimedMessage]:
    """Yields messages of a block up to its first damage."""
    wanted = wanted & block.live
    if not wanted or block.spoiled:
        return
    try:
        with store.content(block) as data:
            for rows in scan(data, store.key_of(block)):
                if isinstance(rows, Gap):
                    return
                for row in np.flatnonzero((rows.flags == 0) & wanted.select(rows.sequence)).tolist():
                    yield _TimedMessage(
                        int(rows.sequence[row]),
                        int(rows.timestamp[row]),
                        _text(data, int(rows.subject_start[row]), int(rows.subject_size[row])),
                        _text(data, int(rows.header_start[row]), int(rows.header_size[row])),
                        int(rows.data_size[row]),
                    )
    except NotPermittedError:
        raise
    except (ArchiveError, StoreUnreadableError):
        return


def _text(data: Buffer | bytes, start: int, size: int) -> bytes:
    return bytes(data[start : start + size])


def _timers(store: RecoveredStream, file: str) -> TimerIndex:
    """Reads an index of times as the server does; a damaged one is removed."""
    stream, known = store.stream, TimerIndex(0, [], 0)
    name = f"Filestore [{stream.name}]"
    try:
        if (data := stream.read(f"{MESSAGES}/{file}")) is not None and not store.moved:
            known = read_timers(data, with_subjects=file == SCHEDULES_FILE)
    except ArchiveError as problem:
        store.warn(f"{name} Error decoding {_LINES[file]}: {problem.message}")
        store.changes.remove(store.folder / file)
    begin = max(known.end, store.state.first)
    if store.state.messages and begin <= store.state.last:
        store.warn(
            f"{name} {_LINES[file]} is outdated; attempting to recover using linear scan "
            f"(seq {begin} to {store.state.last})"
        )
    return known


class _LifetimeExpiry:
    """Messages whose lifetime is over, and the markers that replace them."""

    def __init__(self, store: RecoveredStream) -> None:
        self.store = store
        self._oldest = (_oldest(store) if _marks(store) else None) or 0
        self._subjects: set[bytes] = set()  #: of removed messages

    def run(self) -> None:
        store = self.store
        known = _timers(store, LIFETIMES_FILE)
        listed = _set_of(each.sequence for each in known.entries if each.time <= store.now)
        unlisted = Ranges.of([(known.end, _HIGHEST)]) if known.end <= store.state.last else Ranges()
        wanted = listed | unlisted | (Ranges.of([(0, _HIGHEST)]) if self._oldest else Ranges())
        aging, size = True, 0
        for block in list(store.blocks):
            over, gone = list[int](), list[int]()
            for each in _messages(store, block, wanted):
                lifetime = lifetime_of(each.headers)
                aging = aging and each.time <= self._oldest
                due = 0 < lifetime <= store.now - each.time or (aging and lifetime != FOREVER)
                if due and (each.sequence in listed or each.sequence in unlisted or aging):
                    over.append(each.sequence)
                elif each.sequence in listed:
                    gone.append(each.sequence)
                else:
                    continue
                (self._subjects.discard if ends_subject(each.headers) else self._subjects.add)(each.subject)
            size += _TOMBSTONE_SIZE * self._remove(block, over, gone)
        if self._subjects and _marks(store):
            size += self._mark()
        _grow(store, size)

    def _remove(self, block: ServerBlock, over: list[int], gone: list[int]) -> int:
        """Removes messages of a block; returns the number of tombstones that last."""
        store, chosen = self.store, Ranges.of((each, each) for each in sorted((*over, *gone)))
        if not chosen:
            return 0
        store.beyond_limits.append(Ranges.of((each, each) for each in over))
        store.removed.append(Ranges.of((each, each) for each in gone))
        own = block is store.blocks[-1]
        store.remove_from(block, chosen, limits=False)
        return 0 if own and block not in store.blocks else chosen.count()

    def _mark(self) -> int:
        """Stores a marker for each subject of which every message is gone; returns their size."""
        store = self.store
        for block in store.blocks:
            for each in _messages(store, block, block.live):
                self._subjects.discard(each.subject)
        life = format_go_duration(int(store.config["subject_delete_marker_ttl"])).encode()
        headers = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: %b\r\nNats-Rollup: sub\r\n\r\n" % life
        sizes = [record_size(each, headers, b"") for each in self._subjects]
        _add(store, sizes)
        return sum(sizes)


def _fire_schedules(store: RecoveredStream) -> None:
    """Stores the messages of schedules that are due, and removes schedules that end."""
    known = _timers(store, SCHEDULES_FILE)
    listed = _set_of(each.sequence for each in known.entries if each.time <= store.now)
    unlisted = Ranges.of([(known.end, _HIGHEST)]) if known.end <= store.state.last else Ranges()
    sizes, tombstones = list[int](), 0
    for block in list(store.blocks):
        ended = []
        for each in _messages(store, block, listed | unlisted):
            schedule = schedule_of(each.headers, each.time)
            if schedule is None or not (each.sequence in listed or (schedule.due or _HIGHEST) <= store.now):
                continue
            headers = scheduled_headers(each.headers, each.subject, b"purge" if schedule.once else _NEXT_TIME)
            sizes.append(record_size(schedule.target, headers, b"") + each.size)
            if schedule.once:
                ended.append(each.sequence)
        if ended:
            gone = Ranges.of((each, each) for each in ended)
            store.fired.append(gone)
            tombstones += len(ended)
            store.remove_from(block, gone, limits=False)
    _add(store, sizes)
    _grow(store, sum(sizes) + _TOMBSTONE_SIZE * tombstones)


def _add(store: RecoveredStream, sizes: list[int]) -> None:
    """Adds messages after the last one, with records of some sizes."""
    if not sizes:
        return
    state = store.state
    first = state.last + 1
    if not state.messages:
        state.first = first
    state.last += len(sizes)
    state.messages += len(sizes)
    state.bytes += sum(sizes)
    store.added = store.added | Ranges.of([(first, state.last)])


def _grow(store: RecoveredStream, size: int) -> None:
    """Records bytes appended to the last block."""
    if size and store.blocks:
        block = store.blocks[-1]
        store.changes.write(store.path(block), block.size + size)
