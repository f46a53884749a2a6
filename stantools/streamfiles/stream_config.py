"""The configurations of streams and consumers: every member is declared once, in the order of nats-server.

Requests, answers and files of the broker, and comparisons of existing with wanted configurations use the declarations.
Facts: jetstream-server.md sections 4 and 9. Members have their names in the API; durations are in nanoseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stantools.options import Option, declared

#: Types of members, as error texts call them.
STRING, BOOL, INT, UINT = "string", "bool", "int64", "uint64"
STRINGS, INTS, OBJECT, OBJECTS, TIME = "[]string", "[]time.Duration", "struct", "[]struct", "time.Time"
MAP: Final = "map[string]string"
#: Units of numbers; others are counts.
NANOSECONDS, BYTES = "ns", "bytes"
_MAX_I32: Final = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class ConfigMember(Option):
    json_type: str
    always: bool = False  #: answers have it even with its default
    fixed: str = ""  #: name in the error text about an update that changes it, "" if an update may change it
    stored: bool = True  #: whether it is in `meta.inf`
    unit: str = ""
    unlimited: int | None = None  #: the value that means "no limit"
    since: tuple[int, int, int] = (0, 0, 0)  #: first nats-server that has it


def member(json_type: str, default: Any = None, *, factory: Callable[[], Any] | None = None, **more: Any) -> Any:
    """Returns a dataclass field with a member of a configuration; see `ConfigMember`."""
    empty = factory() if factory else default
    metadata = {Option: ConfigMember(help="", json_type=json_type, default=empty, **more)}
    if factory:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class StreamMembers:
    name: str = member(STRING, "", always=True)
    description: str = member(STRING, "")
    subjects: tuple[str, ...] = member(STRINGS, ())
    retention: str = member(STRING, "limits", choices=("limits", "interest", "workqueue"), always=True)
    max_consumers: int = member(INT, -1, always=True, unlimited=-1, most=_MAX_I32)
    max_msgs: int = member(INT, -1, always=True, unlimited=-1)
    max_bytes: int = member(INT, -1, always=True, unlimited=-1, unit=BYTES)
    max_age: int = member(INT, 0, always=True, unlimited=0, unit=NANOSECONDS)
    max_msgs_per_subject: int = member(INT, -1, always=True, unlimited=-1)
    max_msg_size: int = member(INT, -1, always=True, unlimited=-1, unit=BYTES, most=_MAX_I32)
    discard: str = member(STRING, "old", choices=("old", "new"), always=True)
    storage: str = member(STRING, "file", choices=("file", "memory"), always=True)
    num_replicas: int = member(INT, 1, always=True, least=1, most=5)
    no_ack: bool = member(BOOL, False)
    duplicate_window: int = member(INT, 0, unit=NANOSECONDS, least=100_000_000)
    placement: Mapping[str, Any] | None = member(OBJECT)
    mirror: Mapping[str, Any] | None = member(OBJECT)
    sources: tuple[Mapping[str, Any], ...] = member(OBJECTS, ())
    compression: str = member(STRING, "none", choices=("none", "s2"), always=True, since=(2, 10, 0))
    subject_transform: Mapping[str, Any] | None = member(OBJECT, since=(2, 10, 0))
    republish: Mapping[str, Any] | None = member(OBJECT)
    #: not stored: with it nats-server 2.10 loses all messages when it rebuilds its index
    first_seq: int = member(UINT, 0, stored=False, since=(2, 10, 0))
    allow_direct: bool = member(BOOL, False, always=True)
    mirror_direct: bool = member(BOOL, False, always=True)
    discard_new_per_subject: bool = member(BOOL, False)
    sealed: bool = member(BOOL, False, always=True)
    deny_delete: bool = member(BOOL, False, always=True)
    deny_purge: bool = member(BOOL, False, always=True)
    allow_rollup_hdrs: bool = member(BOOL, False, always=True)
    consumer_limits: Mapping[str, int] = member(OBJECT, factory=dict, always=True, since=(2, 10, 0))
    allow_msg_ttl: bool = member(BOOL, False, always=True, since=(2, 11, 0))
    subject_delete_marker_ttl: int = member(INT, 0, since=(2, 11, 0))
    metadata: Mapping[str, str] = member(MAP, factory=dict, since=(2, 10, 0))


@dataclass(frozen=True, slots=True)
class ConsumerMembers:
    durable_name: str = member(STRING, "")
    name: str = member(STRING, "")
    description: str = member(STRING, "")
    deliver_policy: str = member(
        STRING, "all", always=True, fixed="deliver policy",
        choices=("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"),
    )  # fmt: skip
    opt_start_seq: int = member(UINT, 0, fixed="start sequence")
    opt_start_time: int = member(TIME, 0, fixed="start time")
    ack_policy: str = member(STRING, "none", choices=("none", "all", "explicit"), always=True, fixed="ack policy")
    ack_wait: int = member(INT, 0, unit=NANOSECONDS, least=1)
    max_deliver: int = member(INT, 0, unlimited=-1, most=_MAX_I32)
    backoff: tuple[int, ...] = member(INTS, ())
    filter_subject: str = member(STRING, "")
    filter_subjects: tuple[str, ...] = member(STRINGS, ())
    replay_policy: str = member(STRING, "instant", choices=("instant", "original"), always=True, fixed="replay policy")
    rate_limit_bps: int = member(UINT, 0)
    sample_freq: str = member(STRING, "")
    max_waiting: int = member(INT, 0, least=1, most=_MAX_I32)
    max_ack_pending: int = member(INT, 0, unlimited=-1, most=_MAX_I32)
    flow_control: bool = member(BOOL, False, fixed="flow control")
    headers_only: bool = member(BOOL, False)
    max_batch: int = member(INT, 0)
    max_expires: int = member(INT, 0)
    max_bytes: int = member(INT, 0)
    deliver_subject: str = member(STRING, "")
    deliver_group: str = member(STRING, "")
    idle_heartbeat: int = member(INT, 0, fixed="heart beats", unit=NANOSECONDS)
    inactive_threshold: int = member(INT, 0, unit=NANOSECONDS)
    num_replicas: int = member(INT, 0, always=True, most=5)
    mem_storage: bool = member(BOOL, False, fixed="storage type")
    direct: bool = member(BOOL, False)
    metadata: Mapping[str, str] = member(MAP, factory=dict)
    pause_until: int = member(TIME, 0)
    priority_groups: tuple[str, ...] = member(STRINGS, ())
    #: empty for none
    priority_policy: str = member(STRING, "", choices=("none", "overflow", "pinned_client"))
    priority_timeout: int = member(INT, 0)


def members_of(owner: type) -> dict[str, ConfigMember]:
    """Returns the members that a class declares, by name, in order."""
    return {name: each for name, each in declared(owner) if isinstance(each, ConfigMember)}


STREAM_MEMBERS: Final = members_of(StreamMembers)
CONSUMER_MEMBERS: Final = members_of(ConsumerMembers)


def stream_setting(config: Mapping[str, Any], name: str) -> Any:
    """Returns a member of a stream's configuration; the default if it is missing or means "none"."""
    return config.get(name) or STREAM_MEMBERS[name].default


#: First nats-server with an option; older ones ignore it silently or refuse the request. The last ones are no members.
_SINCE: Final = {name: each.since for name, each in STREAM_MEMBERS.items()} | {
    "allow_atomic": (2, 12, 0),
    "allow_msg_counter": (2, 12, 0),
    "allow_msg_schedules": (2, 12, 0),
    "persist_mode": (2, 12, 0),
    "allow_batched": (2, 14, 0),
}


def unknown_options(config: Mapping[str, Any], version: tuple[int, int, int]) -> list[tuple[str, str]]:
    """Returns the options of a stream that a server lacks, each with the first version that has it.

    An unknown version (zeros) counts as a new one.
    """
    return [
        (name, ".".join(map(str, _SINCE[name][:2])))
        for name, value in config.items()
        if value and any(version) and version < _SINCE.get(name, (0, 0, 0))
    ]
