"""The differences between versions of nats-server when it starts on a JetStream directory, as one table.

A version is a row of switches; the rules ask for a switch, never for a version. The sections are those of
jetstream-store.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from stantools.errors import UsageError
from stantools.streamfiles.stream_config import CONSUMER_MEMBERS, STREAM_MEMBERS

if TYPE_CHECKING:
    from stantools.streamfiles.directory import StoredStream

_VERSION: Final = re.compile(r"(2\.[0-9]+)\.")
#: the first server that writes an index.db of a version
_WRITERS: Final = {1: "2.10", 2: "2.11", 3: "2.12", 4: "2.14"}
#: members of configurations by the version that knows them first; of others every version since 2.9 does
_STREAM_SINCE: Final = {
    "2.11": ("allow_msg_ttl", "subject_delete_marker_ttl"),
    "2.12": ("allow_msg_counter", "allow_atomic", "allow_msg_schedules", "persist_mode"),
    "2.14": ("allow_batched",),
}
_CONSUMER_SINCE: Final = {
    "2.11": ("pause_until", "priority_groups", "priority_policy", "priority_timeout"),
}


@dataclass(frozen=True)
class ServerRules:
    version: str
    index_version: int = 1  #: greatest version of index.db that it reads, 0 for none (5)
    tombstones: bool = True  #: it knows tombstones in blocks (4)
    api_level: int | None = None  #: greatest API level that a stream may require; None if it does not look (15)
    strict_members: bool = False  #: an unknown member takes a stream offline (15)
    exact_names: bool = False  #: only `N.blk` is a block, not `N.blk.tmp` (16.4)
    counts_twice: bool = True  #: a sequence that does not rise is counted again (3)
    misses_blocks: bool = False  #: every block that index.db lists has to be there (5)
    deletes_unopened: bool = False  #: the directory of a stream is deleted if a block cannot be opened (16.3)
    deletes_undecoded: bool = False  #: or if one cannot be read or decompressed (16.3)
    first_seq_purges: bool = True  #: a rebuild of a stream with `first_seq` purges it (17)
    panics_on_headers: bool = True  #: a headers bit on a record without room for headers ends the process (13)
    completes_purges: bool = False  #: `__new_msgs__` replaces `msgs` (20)
    lifetimes: bool = False  #: messages with a lifetime expire (7)
    schedules: bool = False  #: schedules that are due store their messages (7)
    batches: bool = False  #: batches that were not committed are removed (7)
    repeats_lookup: bool = False  #: a lookup that rebuilt a block is repeated (16.2)
    keeps_places: bool = False  #: a record whose sequence does not rise gets no place (16.2)
    #: A block is rebuilt if its first record, a sequence above its last, or an erased one contradict its state (16.2).
    checks_places: bool = False
    reads_last: bool = False  #: the last block is read at the start (16.2)
    replaces_empty: bool = True  #: a block that is begun for want of others is replaced by one with a tombstone (16.1)
    forgets_outdated: bool = True  #: an index is not remembered if the last block ends otherwise at a whole record (5)
    forgets_first: bool = True  #: an empty stream that remembers its last sequence has no first one (5)
    forgets_empty: bool = False  #: the messages of an empty block are given up at a lookup (16.2)
    reads_by_size: bool = True  #: bytes after the compressed content of a block do not matter (8)
    panics_on_header_length: bool = False  #: headers longer than their block end the process at a lookup (13)
    deletes_consumers: bool = False  #: a consumer with an unreadable o.dat is deleted (18)
    believes_consumers: bool = False  #: an unreadable o.dat counts as everything delivered (18)
    resets_consumers: bool = False  #: a consumer beyond the end of the stream returns to it (18)
    exits_on_snapshot: bool = False  #: a damaged snapshot of the meta group ends the process (21)
    applies_removals: bool = False  #: a node that was down removes streams that the cluster deleted meanwhile (21)
    limits_move_floors: bool = False  #: limits move the floors of consumers to the first message (14)

    def unknown_member(self, config: Iterable[str], *, consumer: bool = False) -> str:
        """Returns a member of a configuration that the version does not know, if it minds; else nothing."""
        if not self.strict_members:
            return ""
        since = _CONSUMER_SINCE if consumer else _STREAM_SINCE
        newer = {name: _order(version) for version, names in since.items() for name in names}
        known = {*(CONSUMER_MEMBERS if consumer else STREAM_MEMBERS), *newer, "Created", "Name", "template_owner"}
        for name in config:
            if name not in known or newer.get(name, (0,)) > _order(self.version):
                return name
        return ""


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


_2_9: Final = ServerRules("2.9", index_version=0, tombstones=False, first_seq_purges=False)
_2_10: Final = ServerRules("2.10", believes_consumers=True, limits_move_floors=True, panics_on_header_length=True)
_2_11: Final = replace(
    _2_10,
    version="2.11",
    index_version=2,
    api_level=1,
    strict_members=True,
    exact_names=True,
    counts_twice=False,
    replaces_empty=False,
    forgets_first=False,
    forgets_outdated=False,
    misses_blocks=True,
    applies_removals=True,
    deletes_unopened=True,
    first_seq_purges=False,
    lifetimes=True,
    believes_consumers=False,
    limits_move_floors=False,
    panics_on_header_length=False,
)
_2_12: Final = replace(
    _2_11,
    version="2.12",
    index_version=3,
    api_level=3,
    panics_on_headers=False,
    batches=True,
    schedules=True,
    forgets_empty=True,
    keeps_places=True,
    checks_places=True,
    deletes_consumers=True,
)
_2_14: Final = replace(
    _2_12,
    version="2.14",
    index_version=4,
    api_level=4,
    deletes_undecoded=True,
    completes_purges=True,
    repeats_lookup=True,
    reads_last=True,
    reads_by_size=False,
    deletes_consumers=False,
    resets_consumers=True,
    exits_on_snapshot=True,
)
_2_15: Final = replace(_2_14, version="2.15", api_level=5)

SERVER_RULES: Final = {each.version: each for each in (_2_9, _2_10, _2_11, _2_12, _2_14, _2_15)}
NEWEST: Final = _2_15


def writer_of(streams: Sequence[StoredStream]) -> ServerRules | None:
    """Returns the oldest version that can have written the newest of the files; None if nothing tells."""
    found: list[str] = []
    for stream in streams:
        known = stream.index
        if known is not None:
            found.append(_WRITERS.get(known.version, "2.9"))
        metadata = (stream.config or {}).get("metadata")
        if isinstance(metadata, dict) and (match := _VERSION.match(str(metadata.get("_nats.ver", "")))):
            found.append(match[1])
    known_versions = [each for each in found if each in SERVER_RULES]
    order = list(SERVER_RULES)
    return SERVER_RULES[max(known_versions, key=order.index)] if known_versions else None


def chosen_rules(streams: Sequence[StoredStream], version: str | None) -> list[ServerRules]:
    """Returns the rules of a version; without one, of the server that seems to have written the files, and the newest.

    Raises:
        UsageError: The version is unknown.
    """
    if version is not None and version not in SERVER_RULES:
        raise UsageError(
            f"{version} is no version of nats-server that is known here", f"choose {', '.join(SERVER_RULES)}"
        )
    if version:
        return [SERVER_RULES[version]]
    writer = writer_of(streams)
    return [writer, NEWEST] if writer and writer is not NEWEST else [NEWEST]
