"""A stream whose index every server in question trusts: its start reads no block, and so it destroys none.

Facts: jetstream-store.md sections 5, 13 and 14. Nothing here loads numpy: a check before every start takes no time of a
healthy server. Anything unusual is left to the forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.inspection.stream_forecast.versions import ServerRules
from stantools.progress import Progress
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.layout import BLOCK_NAME, MESSAGES, PURGED, PURGING, ArchiveError
from stantools.streamfiles.lifetimes import LIFETIMES_FILE, SCHEDULES_FILE, read_timers

_UNUSUAL: Final = frozenset({PURGED, PURGING, "batches"})


def is_trusted(stream: StoredStream, rules: Iterable[ServerRules], now: int) -> bool:
    """Returns whether a start by each of some versions takes the state from the index, and removes nothing.

    `now` is the time of the start in nanoseconds since 1970.
    """
    config, known = stream.config, None
    if config is None or stream.encrypted or stream.path.name.startswith(".") or stream.names & _UNUSUAL:
        return False
    known = stream.index
    if stream.flaws or known is None or stream.index_doubt or config.get("name") != stream.path.name:
        return False
    if not all(1 <= known.version <= each.index_version for each in rules):
        return False
    numbers = {each.number for each in stream.blocks}
    foreign = any(".blk" in name and not BLOCK_NAME.fullmatch(name) for name in stream.message_names)
    if foreign or numbers != set(known.blocks) or known.size != sum(each.size for each in known.blocks.values()):
        return False
    limits: dict[str, int] = {}
    for name in ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "first_seq"):
        value = config.get(name) or 0
        if not isinstance(value, int):
            return False
        limits[name] = value
    if limits["first_seq"] > 0 or _exceeds(limits["max_msgs"], known.messages):
        return False
    if _exceeds(limits["max_bytes"], known.size):
        return False
    if _exceeds(limits["max_msgs_per_subject"], max(known.subject_counts, default=0)):
        return False
    if limits["max_age"] > 0 and known.messages and known.first_time <= now - limits["max_age"]:
        return False
    return not known.messages or all(
        not config.get(member) or _is_nothing_due(stream, file, now)
        for member, file in (("allow_msg_ttl", LIFETIMES_FILE), ("allow_msg_schedules", SCHEDULES_FILE))
    )


def _exceeds(limit: int, amount: int) -> bool:
    return 0 < limit < amount


def _is_nothing_due(stream: StoredStream, file: str, now: int) -> bool:
    """Returns whether an index of times covers the whole stream, and no time in it has come."""
    try:
        data = stream.read(f"{MESSAGES}/{file}")
        index = read_timers(data or b"", with_subjects=file == SCHEDULES_FILE)
    except NotPermittedError:
        raise
    except (ArchiveError, StoreUnreadableError):
        return False
    assert stream.index
    return index.end > stream.index.last and all(each.time > now for each in index.entries)


def has_whole_blocks(stream: StoredStream, progress: Progress) -> bool:
    """Returns whether every record of every block is good, so that no lookup of a message cuts one."""
    for block in stream.blocks:
        key = highwayhash.block_key(stream.name, block.number)
        try:
            with stream.mapped(block.path, sequential=True) as data:
                if kernels.end_of_records(data, key) != len(data):
                    return False
                progress(len(data))
        except NotPermittedError:
            raise
        except StoreUnreadableError:
            return False
    return True


def size_of(streams: Sequence[StoredStream]) -> int:
    return sum(block.size for stream in streams for block in stream.blocks)
