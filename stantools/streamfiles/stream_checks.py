"""Checks of a stream's directory beside its blocks: configuration, consumers, indexes of lifetimes, foreign files.

Facts: jetstream-store.md sections 1, 2, 7, 11, 15, 18 and 20.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FileFlaw, FlawKind
from stantools.streamfiles.layout import BLOCK_NAME, INDEX, MESSAGES, NEW_BLOCK_NAME, PURGED, PURGING, ArchiveError
from stantools.streamfiles.lifetimes import LIFETIMES_FILE, SCHEDULES_FILE, read_timers
from stantools.streamfiles.stream_config import CONSUMER_MEMBERS, STREAM_MEMBERS
from stantools.streamfiles.survey import StreamSurvey

#: highest level of the API that a configuration can require: that of 2.15
_MAX_LEVEL: Final = 5
#: members of newer servers that nothing else here uses
_NEWER_MEMBERS: Final = {
    *("Created", "template_owner", "allow_atomic", "allow_msg_counter", "allow_msg_schedules", "persist_mode"),
    "allow_batched",
}
_STREAM_NAMES: Final = {"meta.inf", "meta.sum", "meta.key", MESSAGES, "obs", "sources.db", "batches", PURGED, PURGING}
_CONSUMER_NAMES: Final = {"meta.inf", "meta.sum", "meta.key", "o.dat"}
_MESSAGE_NAMES: Final = re.compile(r"[1-9][0-9]{0,9}\.(?:blk|key|idx|fss)|index\.db|thw\.db|sched\.db")
_LIKE_BLOCK: Final = re.compile(r"([1-9][0-9]{0,9})\.blk.+")
_TEMPORARY: Final = re.compile(r".*\.(?:tmp|new)")
_TIMERS: Final = {LIFETIMES_FILE: "allow_msg_ttl", SCHEDULES_FILE: "allow_msg_schedules"}


def check_stream(survey: StreamSurvey) -> Iterator[FileFlaw]:
    """Yields the flaws that are in neither the survey nor the directory."""
    stream = survey.directory
    yield from _names(stream)
    if stream.config is not None:
        yield from _configuration(stream.config, stream.name)
    if not stream.encrypted or stream.key:
        yield from _timers(stream, survey.last)
    yield from _consumers(survey)


def _names(stream: StoredStream) -> Iterator[FileFlaw]:
    if stream.path.name.startswith("."):
        yield FileFlaw(FlawKind.DELETION, "", "its name begins with a dot: a server had begun to delete it")
    if stream.names & {"meta.inf", "obs"} and MESSAGES not in stream.names:
        if PURGED in stream.names:
            yield FileFlaw(FlawKind.PURGE, PURGED, f"there is no {MESSAGES}: a purge had begun")
        else:
            yield FileFlaw(FlawKind.BLOCK_MISSING, MESSAGES, "the directory of the messages is not there")
    elif PURGED in stream.names:
        yield FileFlaw(FlawKind.LEFTOVER, PURGED, "messages of a purge that were not removed yet")
    if PURGING in stream.names:
        if any(BLOCK_NAME.fullmatch(each.name) for each in (stream.path / PURGING).iterdir()):
            yield FileFlaw(FlawKind.PURGE, PURGING, f"blocks that a purge puts into the place of {MESSAGES}")
        else:
            yield FileFlaw(FlawKind.LEFTOVER, PURGING, "a purge had begun, without a block")
    yield from _others("", stream.names - _STREAM_NAMES)
    yield from _others(f"{MESSAGES}/", (each for each in stream.message_names if not _MESSAGE_NAMES.fullmatch(each)))
    for consumer in stream.consumers:
        names = {each.name for each in (stream.path / "obs" / consumer.name).iterdir()}
        yield from _others(f"obs/{consumer.name}/", names - _CONSUMER_NAMES)


def _others(folder: str, names: Iterable[str]) -> Iterator[FileFlaw]:
    for name in sorted(names):
        if NEW_BLOCK_NAME.fullmatch(name) or _TEMPORARY.fullmatch(name):
            yield FileFlaw(FlawKind.LEFTOVER, f"{folder}{name}", "a file that was being written to replace another")
        elif folder == f"{MESSAGES}/" and (match := _LIKE_BLOCK.fullmatch(name)):
            yield FileFlaw(FlawKind.LEFTOVER, f"{folder}{name}", f"2.10 takes it for block {match[1]}")
        else:
            yield FileFlaw(FlawKind.FOREIGN_FILE, f"{folder}{name}", "no server writes it")


def _configuration(config: Mapping[str, Any], name: str) -> Iterator[FileFlaw]:
    inner = config.get("name")
    if inner != name:
        yield FileFlaw(FlawKind.META_NAME, "meta.inf", f"it names the stream {inner!r}, its directory {name!r}")
    if unknown := sorted(config.keys() - STREAM_MEMBERS.keys() - _NEWER_MEMBERS):
        yield FileFlaw(FlawKind.META_UNKNOWN, "meta.inf", f"no server up to 2.15 knows {', '.join(unknown)}")
    if (level := _level(config)) > _MAX_LEVEL:
        detail = f"it requires level {level} of the API, 2.15 has {_MAX_LEVEL}"
        yield FileFlaw(FlawKind.META_LEVEL, "meta.inf", detail)
    age, window = config.get("max_age", 0), config.get("duplicate_window", 0)
    if isinstance(age, int) and isinstance(window, int) and 0 < age < window:
        yield FileFlaw(FlawKind.META_CONFIG, "meta.inf", "its duplicate window is longer than the maximum age")


def _level(config: Mapping[str, Any]) -> int:
    metadata = config.get("metadata")
    level = metadata.get("_nats.req.level") if isinstance(metadata, dict) else None
    return int(level) if isinstance(level, str) and level.isascii() and level.isdigit() and len(level) < 10 else 0


def _timers(stream: StoredStream, last: int) -> Iterator[FileFlaw]:
    for name, member in _TIMERS.items():
        file = f"{MESSAGES}/{name}"
        try:
            data = stream.read(file)
            if data is None:
                if (stream.config or {}).get(member) and INDEX in stream.message_names and last:
                    yield FileFlaw(FlawKind.TIMER_INDEX, file, "it is missing")
                continue
            index = read_timers(data, with_subjects=name == SCHEDULES_FILE)
            if index.rest:
                raise ArchiveError(f"its {len(index.entries)} entries end {index.rest} bytes before its end")
            if (sequence := max((each.sequence for each in index.entries), default=0)) > last:
                raise ArchiveError(f"it names message {sequence}, the stream ends at {last}")
            if index.end != last + 1:
                raise ArchiveError(f"it covers the messages up to {index.end - 1}, the stream ends at {last}")
        except NotPermittedError:
            raise
        except (ArchiveError, StoreUnreadableError) as problem:
            yield FileFlaw(FlawKind.TIMER_INDEX, file, problem.message)


def _consumers(survey: StreamSurvey) -> Iterator[FileFlaw]:
    stream, last = survey.directory, survey.last
    locked = stream.encrypted and stream.key is None
    for consumer in stream.consumers:
        folder, config = f"obs/{consumer.name}/", consumer.config
        if config is not None and (unknown := sorted(config.keys() - CONSUMER_MEMBERS.keys() - {"Created", "Name"})):
            detail = f"no server up to 2.15 knows {', '.join(unknown)}"
            yield FileFlaw(FlawKind.META_UNKNOWN, f"{folder}meta.inf", detail, consumer=consumer.name)
        if consumer.state and consumer.state.delivered[1] > last and not locked:
            delivered = consumer.state.delivered[1]
            detail = f"it was sent message {delivered}, the stream ends at {last}"
            yield FileFlaw(
                FlawKind.CONSUMER_AHEAD, f"{folder}o.dat", detail, sequence=delivered, consumer=consumer.name
            )
    retention = (stream.config or {}).get("retention")
    if retention in ("interest", "workqueue") and survey.intact and not stream.consumers:
        yield FileFlaw(FlawKind.CONSUMERS_LOST, "obs", f"a stream of retention {retention} has messages, no consumer")
