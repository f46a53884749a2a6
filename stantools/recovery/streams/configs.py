"""The configurations of salvaged streams and consumers, in the form of `meta.inf`.

The newest readable one counts. One flipped bit is found by the hash beside it. A configuration that is gone is rebuilt
from the messages. Members that the server does not know would take the stream offline from 2.11 on, and limits below
the salvaged messages would remove them at the next start: these are left out, and named.

Facts: jetstream-store.md sections 2, 10, 14, 15 and 24.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stantools.errors import StoreUnreadableError
from stantools.notation import format_time, parse_moment
from stantools.streamfiles import highwayhash
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import meta_sum
from stantools.streamfiles.sealing import AssetKey
from stantools.streamfiles.stream_config import CONSUMER_MEMBERS, STREAM_MEMBERS

#: the first version that reads a member; the others are read by all
_SINCE: Final[Mapping[str, tuple[int, int]]] = {
    "compression": (2, 10),
    "subject_transform": (2, 10),
    "consumer_limits": (2, 10),
    "metadata": (2, 10),
    "filter_subjects": (2, 10),
    "allow_msg_ttl": (2, 11),
    "subject_delete_marker_ttl": (2, 11),
    "pause_until": (2, 11),
    "priority_groups": (2, 11),
    "priority_policy": (2, 11),
    "priority_timeout": (2, 11),
    "allow_msg_schedules": (2, 12),
    "allow_msg_counter": (2, 12),
    "allow_atomic": (2, 12),
    "persist_mode": (2, 12),
    "allow_batched": (2, 14),
}
#: members of streams that the broker does not have
_MORE: Final = ("allow_msg_schedules", "allow_msg_counter", "allow_atomic", "persist_mode", "allow_batched")
_STREAM: Final = frozenset((*STREAM_MEMBERS, *_MORE, "Created", "template_owner"))
_CONSUMER: Final = frozenset((*CONSUMER_MEMBERS, "Created", "Name"))
_LEVEL: Final = "_nats.req.level"
#: the API level of each version
LEVELS: Final = {(2, 9): 0, (2, 10): 0, (2, 11): 1, (2, 12): 3, (2, 14): 4, (2, 15): 5}
#: Bytes of a configuration in which a flipped bit is searched.
_MAX_SEARCHED: Final = 1 << 14
#: Subjects that a rebuilt configuration lists one by one.
_MAX_LISTED: Final = 8
_UNNAMED_TIME: Final = 1
#: places of a bucket's name in subjects of key/value buckets and object stores
_BUCKETS: Final = {"$KV": 2, "$O": 2}
_CONSUMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "ack_wait": 30_000_000_000,
    "max_deliver": -1,
    "replay_policy": "instant",
    "max_waiting": 512,
    "max_ack_pending": 1000,
    "num_replicas": 0,
}


@dataclass
class SalvagedConfig:
    """A configuration for the new directory, and the changes in it."""

    members: dict[str, Any]
    rebuilt: bool = False  #: the old one is gone
    notes: list[str] = field(default_factory=list)

    @property
    def created_ns(self) -> int:
        try:
            return parse_moment(str(self.members.get("Created"))) or _UNNAMED_TIME
        except ValueError:
            return _UNNAMED_TIME


def mended(directory: StoredStream, folder: str = "") -> dict[str, Any] | None:
    """Returns a configuration of which one bit flipped, proven by its hash; None if there is none such."""
    consumer = folder.split("/")[1] if folder else ""
    content = mended_content(directory, folder)
    return _unsealed(content, directory.consumer_key(consumer) if consumer else directory.key) if content else None


def mended_content(directory: StoredStream, folder: str = "") -> bytes | None:
    """Returns the bytes of meta.inf without the one bit that flipped."""
    consumer = folder.split("/")[1] if folder else ""
    key = highwayhash.consumer_key(directory.name, consumer) if consumer else highwayhash.stream_key(directory.name)
    try:
        data, checksum = directory.read(f"{folder}meta.inf"), directory.read(f"{folder}meta.sum")
    except StoreUnreadableError:
        return None
    if not data or not checksum or len(data) > _MAX_SEARCHED or meta_sum(data, key) == checksum:
        return None
    content = bytearray(data)
    for place in range(len(content)):
        for bit in range(8):
            content[place] ^= 1 << bit
            if meta_sum(content, key) == checksum:
                return bytes(content)
            content[place] ^= 1 << bit
    return None


def _unsealed(data: bytes, key: AssetKey | None) -> dict[str, Any] | None:
    try:
        values = json.loads(key.unseal(data) if key else data)
    except (ArchiveError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _known(
    values: Mapping[str, Any], names: frozenset[str], version: tuple[int, int], notes: list[str]
) -> dict[str, Any]:
    kept = {}
    for name, value in values.items():
        if name not in names:
            notes.append(f"member {name!r} of the configuration is left out: no server knows it")
        elif _SINCE.get(name, (0, 0)) > version:
            notes.append(f"member {name!r} is left out: nats-server {version[0]}.{version[1]} does not know it")
        else:
            kept[name] = value
    metadata = kept.get("metadata")
    if isinstance(metadata, dict) and _LEVEL in metadata:
        level = str(metadata[_LEVEL])
        if not level.isdigit() or int(level) > LEVELS[version]:
            notes.append(f"the required API level {level} is left out: the server has {LEVELS[version]}")
            kept["metadata"] = {key: value for key, value in metadata.items() if key != _LEVEL}
    return kept


def stream_config(values: Mapping[str, Any], name: str, version: tuple[int, int], replicas: int) -> SalvagedConfig:
    """Returns the configuration of a stream, without what keeps a server from opening it."""
    notes: list[str] = []
    members = {**_known(values, _STREAM, version, notes), "name": name}
    members.pop("first_seq", None)  # with it 2.10 loses all messages when it rebuilds its index
    if values.get("name") != name:
        notes.append(f"the name in the configuration is {values.get('name')!r}; its records are those of {name}")
    if members.get("storage", "file") != "file":
        notes.append("its storage was memory; it becomes file storage")
        members["storage"] = "file"
    if members.get("num_replicas", 1) != replicas:
        notes.append(f"replicas: {replicas} instead of {members.get('num_replicas')}")
        members["num_replicas"] = replicas
    members.pop("template_owner", None)
    age, window = members.get("max_age", 0), members.get("duplicate_window", 0)
    if isinstance(age, int) and isinstance(window, int) and 0 < age < window:
        notes.append("duplicate_window is set to max_age: a server accepts no longer one")
        members["duplicate_window"] = age
    return SalvagedConfig(members, notes=notes)


def consumer_config(values: Mapping[str, Any], version: tuple[int, int], replicas: int) -> SalvagedConfig:
    """Returns the configuration of a consumer, without what keeps a server from opening it."""
    notes: list[str] = []
    members = _known(values, _CONSUMER, version, notes)
    count = members.get("num_replicas", 0)
    if isinstance(count, int) and count > replicas:
        notes.append(f"replicas: {replicas} instead of {count}")
        members["num_replicas"] = replicas
    return SalvagedConfig(members, notes=notes)


@dataclass(frozen=True, slots=True)
class StoredAmounts:
    """What the limits of a stream are compared with."""

    messages: int
    bytes: int
    first_time: int  #: of the oldest message, nanoseconds since 1970
    per_subject: int  #: messages of the most frequent subject
    first_expiry: int = 0  #: of the messages with a lifetime of their own, the first end; 0 for none


def lift_limits(config: SalvagedConfig, amounts: StoredAmounts) -> None:
    """Removes limits by which a server would remove salvaged messages when it starts."""
    members = config.members
    for name, amount in (
        ("max_msgs", amounts.messages),
        ("max_bytes", amounts.bytes),
        ("max_msgs_per_subject", amounts.per_subject),
    ):
        limit = members.get(name, -1)
        if isinstance(limit, int) and 0 < limit < amount:
            config.notes.append(f"{name} was {limit}, and is lifted: a start would remove salvaged messages")
            members[name] = -1
            if name == "max_msgs_per_subject":
                members.pop("discard_new_per_subject", None)
    age = members.get("max_age", 0)
    if isinstance(age, int) and age > 0 and amounts.messages and amounts.first_time + age < time.time_ns():
        config.notes.append(f"max_age was {age} ns, and is lifted: a start would remove salvaged messages")
        members["max_age"] = 0
    if 0 < amounts.first_expiry < time.time_ns() and members.get("allow_msg_ttl"):
        config.notes.append("allow_msg_ttl is off: lifetimes of messages are over, and a start would remove these")
        members["allow_msg_ttl"] = False
        members.pop("subject_delete_marker_ttl", None)


def rebuilt_stream(name: str, subjects: Iterable[bytes], first_time: int, taken: Iterable[str]) -> SalvagedConfig:
    """Returns a configuration for a stream whose own is gone; `taken` are subjects of other streams."""
    names = sorted({each.decode("utf-8", "replace") for each in subjects})
    wanted = _patterns(names)
    others = {each.split(".")[0] for each in taken}
    if len(names) <= _MAX_LISTED or {each.split(".")[0] for each in wanted} & others:
        wanted = names
    bucket = name.startswith(("KV_", "OBJ_"))
    if bucket:
        kind, rest = name.split("_", 1)
        wanted = [f"$KV.{rest}.>"] if kind == "KV" else [f"$O.{rest}.C.>", f"$O.{rest}.M.>"]
    config = {member: each.default for member, each in STREAM_MEMBERS.items() if each.always}
    config |= {"name": name, "subjects": wanted or [name], "duplicate_window": 120_000_000_000}
    if bucket:
        config |= {"discard": "new", "allow_rollup_hdrs": True, "allow_direct": True, "deny_delete": name[0] == "K"}
    note = f"its configuration is gone: rebuilt with the subjects {', '.join(config['subjects'])}, without limits"
    return SalvagedConfig({"Created": format_time(first_time or _UNNAMED_TIME), **config}, True, [note])


def _patterns(names: Iterable[str]) -> list[str]:
    found: dict[str, bool] = {}
    for each in names:
        tokens = each.split(".")
        depth = _BUCKETS.get(tokens[0], 1)
        head = ".".join(tokens[:depth])
        found[head] = found.get(head, False) or len(tokens) > depth
    return [f"{head}.>" if deeper else head for head, deeper in found.items()]


def rebuilt_consumer(name: str, created: str) -> SalvagedConfig:
    """Returns a configuration for a durable consumer whose own is gone."""
    members = {"Created": created, "Name": name, "durable_name": name, "name": name, **_CONSUMER_DEFAULTS}
    return SalvagedConfig(
        members, True, ["its configuration is gone: rebuilt as a durable pull consumer of all subjects"]
    )
