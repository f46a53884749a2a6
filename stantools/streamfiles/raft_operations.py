"""What the entries of a nats-server's Raft groups did: to a stream, to a consumer, to the assignments of a cluster.

Facts: jetstream-store.md section 12. An entry begins with a byte that names its operation.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stantools.store.ranges import Ranges
from stantools.streamfiles import kernels, s2
from stantools.streamfiles.indexes import read_deleted
from stantools.streamfiles.layout import MAX_SEQUENCE, ArchiveError
from stantools.streamfiles.meta import ConsumerState, decode_consumer
from stantools.streamfiles.raft_group import NORMAL, OLD_SNAPSHOT, RaftGroup
from stantools.streamfiles.varints import VarintReader

#: bytes of a message or an assignment after decompression
_MAX_CONTENT: Final = 256 << 20
_STATE: Final = b"\x2a\x01"
#: a list of deleted sequences as a map, or as a range
_MAP, _RANGE = 0x16, 0x21
_SECOND: Final = 1_000_000_000
_MESSAGE: Final = struct.Struct("<Qq")
#: what the content of an entry that is not as expected raises
_UNREADABLE: Final = (
    ArchiveError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class RaftOperation(enum.IntEnum):
    ASSIGN_STREAM = 0
    ASSIGN_CONSUMER = 1
    REMOVE_STREAM = 2
    REMOVE_CONSUMER = 3
    MESSAGE = 4
    PURGE = 5
    DELETE = 6
    DELIVERED = 7
    ACKED = 8
    ASSIGN_COMPRESSED_CONSUMER = 9
    SKIP = 10
    UPDATE_STREAM = 11
    COMPRESSED_MESSAGE = 14
    BATCH_MESSAGE = 16
    BATCH_COMMIT = 17


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    sequence: int
    time: int  #: nanoseconds since 1970
    subject: bytes
    headers: bytes  #: from `NATS/1.0` on; empty without
    payload: bytes


@dataclass
class LoggedStream:
    """The messages in a stream's log, and the deletions that it tells."""

    #: in the order of the log; their sequences count failed publishes that no snapshot tells
    messages: list[LoggedMessage] = field(default_factory=list)
    deleted: Ranges = field(default_factory=Ranges)
    last: int = 0
    told: int = 0  #: the last sequence up to which a snapshot tells every deletion


def logged_stream(group: RaftGroup) -> LoggedStream:
    """Returns what a stream's group knows of it."""
    found, single = LoggedStream(), list[int]()
    failed = 0
    if group.snapshot:
        failed = _apply_state(found, group.snapshot.data)
    batches: dict[bytes, list[LoggedMessage]] = {}
    for entry in group.entries:
        if entry.kind not in (NORMAL, OLD_SNAPSHOT) or not entry.data:
            continue
        if entry.kind == OLD_SNAPSHOT:
            _apply_state(found, entry.data)
            continue
        operation, data = entry.data[0], entry.data[1:]
        try:
            if operation in (RaftOperation.MESSAGE, RaftOperation.COMPRESSED_MESSAGE):
                _keep(found, _message(operation, data, failed))
            elif operation in (RaftOperation.BATCH_MESSAGE, RaftOperation.BATCH_COMMIT):
                size = int.from_bytes(data[:2], "little")
                name, rest = data[2 : 2 + size], VarintReader(data, 2 + size)
                rest.take()
                message = _message(data[rest.position], data[rest.position + 1 :], failed)
                batch = batches.setdefault(name, [])
                if message:
                    batch.append(message)
                if operation == RaftOperation.BATCH_COMMIT:
                    for each in batches.pop(name):
                        _keep(found, each)
            elif operation == RaftOperation.DELETE:
                sequence = json.loads(data).get("seq")
                if isinstance(sequence, int):
                    single.append(sequence)
            elif operation == RaftOperation.PURGE:
                _purge(found, json.loads(data))
        except _UNREADABLE:
            group.flaws.append(f"the entry at {entry.index} cannot be read")
    found.deleted = found.deleted | Ranges.of((each, each) for each in single if 0 < each <= MAX_SEQUENCE)
    return found


def _keep(found: LoggedStream, message: LoggedMessage | None) -> None:
    if message and 0 < message.sequence <= MAX_SEQUENCE:
        found.messages.append(message)
        found.last = max(found.last, message.sequence)


def _message(operation: int, data: bytes, failed: int) -> LoggedMessage | None:
    if operation == RaftOperation.COMPRESSED_MESSAGE:
        data, whole = kernels.decompress_s2(data, _MAX_CONTENT)
        if not whole:
            return None
    elif operation != RaftOperation.MESSAGE:
        return None
    before, time = _MESSAGE.unpack_from(data)
    at, texts = _MESSAGE.size, []
    for width in (2, 2, 2, 4):
        size = int.from_bytes(data[at : at + width], "little")
        at += width
        if size > len(data) - at:
            return None
        texts.append(data[at : at + size])
        at += size
    subject, _, headers, payload = texts
    return LoggedMessage(before + 1 - failed, time, subject, headers, payload)


def _apply_state(found: LoggedStream, data: bytes) -> int:
    """Takes the deletions from a stream's snapshot; returns the number of failed publishes before it."""
    try:
        if data[:2] != _STATE:
            return 0
        numbers = VarintReader(data, 2, "a snapshot")
        _, _, first, last, failed, deleted = (numbers.take() for _ in range(6))
        gone = [Ranges.of([(0, min(first, last + 1) - 1)])] if first else []
        while deleted and numbers.position < len(data):
            kind = data[numbers.position]
            if kind == _MAP:
                gone.append(Ranges.from_sequences(read_deleted(numbers).astype(np.uint64)))
            elif kind == _RANGE:
                numbers.raw(1)
                begin, count = numbers.take(), numbers.take()
                gone.append(Ranges.of([(begin, begin + count - 1)]))
            else:
                raise ArchiveError(f"a snapshot has deletions of kind {kind}")
    except (ArchiveError, IndexError, OverflowError):
        return 0
    found.deleted = Ranges.union([found.deleted, *gone])
    found.last, found.told = max(found.last, last), max(found.told, last)
    return failed


def _purge(found: LoggedStream, values: Any) -> None:
    request = values.get("request") or {}
    last = values.get("last_seq")
    end = last if isinstance(last, int) and last > 0 else found.last
    if isinstance(before := request.get("seq"), int) and before > 0:
        end = min(end, before - 1)
    pattern, keep = request.get("filter"), request.get("keep") or 0
    if not pattern and not keep:
        found.deleted = found.deleted | Ranges.of([(0, end)])
        return
    fits = [
        each.sequence
        for each in found.messages
        if each.sequence <= end and (not pattern or covers(pattern, each.subject.decode("utf-8", "replace")))
    ]
    gone = sorted(fits)[: len(fits) - keep] if keep else fits
    found.deleted = found.deleted | Ranges.of((each, each) for each in gone)


def covers(pattern: str, subject: str) -> bool:
    """Returns whether a subject fits a pattern with wildcards."""
    tokens, parts = subject.split("."), pattern.split(".")
    for at, part in enumerate(parts):
        if part == ">":
            return at < len(tokens)
        if at >= len(tokens) or part not in ("*", tokens[at]):
            return False
    return len(parts) == len(tokens)


# Consumers


def logged_consumer(group: RaftGroup, ack_policy: str) -> ConsumerState | None:
    """Returns the position of a consumer by its group; None if it knows none."""
    state: ConsumerState | None = None
    begin = 0
    if group.snapshot:
        try:
            state, begin = decode_consumer(group.snapshot.data), group.snapshot.index
        except ArchiveError as problem:
            group.flaws.append(problem.message)
    floor, delivered = (state.ack_floor, state.delivered) if state else ((0, 0), (0, 0))
    pending, redelivered = (dict(state.pending), dict(state.redelivered)) if state else ({}, {})
    used = state is not None
    for entry in group.entries:
        if entry.index <= begin or entry.kind != NORMAL or not entry.data:
            continue
        numbers = VarintReader(entry.data, 1, "an entry")
        try:
            if entry.data[0] == RaftOperation.DELIVERED:
                number, sequence, count, time = numbers.take(), numbers.take(), numbers.take(), numbers.signed()
                used = True
                delivered = max(delivered[0], number), max(delivered[1], sequence)
                if ack_policy == "none":
                    floor = delivered
                    continue
                pending[sequence] = number, time // _SECOND * _SECOND
                if count > 1:
                    redelivered[sequence] = count - 1
            elif entry.data[0] == RaftOperation.ACKED:
                number, sequence = numbers.take(), numbers.take()
                gone = [each for each in pending if each <= sequence] if ack_policy == "all" else [sequence]
                for each in gone:
                    pending.pop(each, None)
                    redelivered.pop(each, None)
                if pending:
                    first = min(pending)
                    floor = max(floor[0], min(each for each, _ in pending.values()) - 1), max(floor[1], first - 1)
                else:
                    floor = delivered
            elif entry.data[0] == RaftOperation.SKIP:
                sequence = int.from_bytes(entry.data[1:9], "little")
                floor, delivered = (floor[0], max(sequence, 1) - 1), (delivered[0], max(sequence, 1) - 1)
        except ArchiveError:
            group.flaws.append(f"the entry at {entry.index} cannot be read")
    if not used:
        return None
    found = ConsumerState(floor, delivered, pending, redelivered)
    return None if found.problem() else found


# Assignments


@dataclass
class AssignedStream:
    config: Mapping[str, Any]  #: with `Created`
    consumers: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def assignments(group: RaftGroup) -> dict[tuple[str, str], AssignedStream]:
    """Returns the streams that a cluster's meta group assigns, by account and name."""
    found: dict[tuple[str, str], AssignedStream] = {}
    begin = 0
    if group.snapshot and (values := _list(group.snapshot.data)) is not None:
        begin = group.snapshot.index
        for each in values:
            _assign(found, each)
            consumers = each.get("Consumers") or each.get("consumers")
            for consumer in consumers if isinstance(consumers, list) else ():
                if isinstance(consumer, dict):
                    _assign_consumer(found, {"client": each.get("client"), **consumer})
    for entry in group.entries:
        if entry.index <= begin or entry.kind != NORMAL or not entry.data:
            continue
        operation, data = entry.data[0], entry.data[1:]
        if operation == RaftOperation.ASSIGN_COMPRESSED_CONSUMER:
            data = bytes(s2.unframe_leniently(data, 0, len(data), _MAX_CONTENT)[0])
        try:
            values = json.loads(data) if operation <= RaftOperation.UPDATE_STREAM else None
        except (ValueError, RecursionError):
            continue
        if not isinstance(values, dict):
            continue
        if operation in (RaftOperation.ASSIGN_STREAM, RaftOperation.UPDATE_STREAM):
            _assign(found, values)
        elif operation in (RaftOperation.ASSIGN_CONSUMER, RaftOperation.ASSIGN_COMPRESSED_CONSUMER):
            _assign_consumer(found, values)
        elif operation == RaftOperation.REMOVE_STREAM:
            config = values.get("stream")
            found.pop(_key(values, config.get("name") if isinstance(config, dict) else config), None)
        elif operation == RaftOperation.REMOVE_CONSUMER and (stream := found.get(_key(values, values.get("stream")))):
            stream.consumers.pop(str(values.get("name")), None)
    return found


def _list(data: bytes) -> list[dict[str, Any]] | None:
    content, _ = kernels.decompress_s2(data, _MAX_CONTENT)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else None


def _key(values: Mapping[str, Any], name: Any) -> tuple[str, str]:
    client = values.get("client")
    return str((client.get("acc") if isinstance(client, dict) else None) or "$G"), str(name)


def _assign(found: dict[tuple[str, str], AssignedStream], values: Mapping[str, Any]) -> None:
    config = values.get("stream")
    if not isinstance(config, dict):
        return
    key = _key(values, config.get("name"))
    known = found.get(key)
    members = {"Created": values.get("created"), **config}
    found[key] = AssignedStream(members, known.consumers if known else {})


def _assign_consumer(found: dict[tuple[str, str], AssignedStream], values: Mapping[str, Any]) -> None:
    stream, config = found.get(_key(values, values.get("stream"))), values.get("consumer") or values.get("config")
    name = values.get("name")
    if stream is not None and isinstance(config, dict) and isinstance(name, str):
        stream.consumers[name] = {"Created": values.get("created"), "Name": name, **config}
