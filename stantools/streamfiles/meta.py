"""The configurations and states of a stream and its consumers, as a server stores them.

Facts: jetstream-migration.md sections 5.1 and 9.

Only fields that every server version knows are written: from 2.11 on a server takes a stream offline at its next
start if the file has an unknown field. Others, such as `metadata`, belong into the request of the restore.

The state of a consumer in the file `o.dat`:

    22, 2
    u ack_floor.consumer   u ack_floor.stream   u delivered.consumer   u delivered.stream
    u number of pending; if there are any: s base second, then for each
        u sequence - ack_floor.stream   u consumer sequence - ack_floor.consumer   s base - second of its time
    u number of redelivered; for each: u sequence - ack_floor.stream   u count

The positions of a stream in the sources that it copies, in the file `sources.db` (jetstream-server.md section 20):

    1, u64le number of sources, u64le sequence: the headers of later messages of the stream may hold later positions
    for each: u length, name filter destination; u sequence in the source; u length, name of a server's own consumer

u is a varint of seven bits per byte, s the same of a zigzag number.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import RefusedError, UsageError
from stantools.format.message_batch import MessageBatch
from stantools.notation import format_time
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.layout import ArchiveError, record_sizes
from stantools.streamfiles.stream_config import CONSUMER_MEMBERS, STREAM_MEMBERS, ConfigMember
from stantools.streamfiles.varints import VarintReader, put

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Fields of a stream in `meta.inf`, in their order, with the values for fields that a configuration lacks.
_STREAM_DEFAULTS: Final[Mapping[str, Any]] = {
    **{
        name: STREAM_MEMBERS[name].default
        for name in (
            "retention", "max_consumers", "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size",
            "discard", "storage", "num_replicas",
        )
    },
    "duplicate_window": 120_000_000_000,
}  # fmt: skip
STREAM_FIELDS: Final = (
    "name",
    "subjects",
    *_STREAM_DEFAULTS,
    "description",
    "placement",
    "allow_direct",
    "deny_delete",
    "deny_purge",
    "sealed",
    "allow_rollup_hdrs",
)

_CONSUMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "ack_wait": 30_000_000_000,
    "max_deliver": -1,
    "max_ack_pending": 1024,
    "replay_policy": "instant",
    "num_replicas": 0,
}
CONSUMER_FIELDS: Final = (
    "durable_name",
    *_CONSUMER_DEFAULTS,
    "description",
    "filter_subject",
    "deliver_subject",
    "deliver_group",
    "flow_control",
    "idle_heartbeat",
    "rate_limit_bps",
    "sample_freq",
    "max_waiting",
    "max_batch",
    "max_expires",
    "max_bytes",
    "inactive_threshold",
    "headers_only",
    "backoff",
)


def stream_meta(stream: str, config: Mapping[str, Any], created_ns: int) -> bytes:
    """Returns the `meta.inf` of a stream; fields outside `STREAM_FIELDS` are omitted.

    `created_ns` is in nanoseconds since 1970. Raises RefusedError for memory storage, because a server would make an
    empty stream of the archive without an error, and for a name or subject that is not UTF-8.
    """
    if config.get("storage", "file") != "file":
        raise RefusedError(
            f"stream {stream}: an archive cannot be restored to a stream with storage {config['storage']}",
            "choose file storage, or the way publish",
        )
    return _encode({"Created": format_time(created_ns)}, STREAM_FIELDS, {**_STREAM_DEFAULTS, **config, "name": stream})


def full_stream_meta(config: Mapping[str, Any], created_ns: int) -> bytes:
    """Returns the `meta.inf` of a stream with its whole configuration, which servers from 2.10 on read."""
    return _encode({"Created": format_time(created_ns)}, _stored(STREAM_MEMBERS), config)


def full_consumer_meta(name: str, config: Mapping[str, Any], created_ns: int) -> bytes:
    """Returns the `meta.inf` of a consumer with its whole configuration, which servers from 2.10 on read."""
    first = {"Created": format_time(created_ns), "Name": name}
    return _encode(first, _stored(CONSUMER_MEMBERS), config)


def consumer_meta(name: str, config: Mapping[str, Any], created_ns: int) -> bytes:
    """Returns the `meta.inf` of a durable consumer; fields outside `CONSUMER_FIELDS` are omitted."""
    values = {**_CONSUMER_DEFAULTS, **config, "durable_name": name}
    return _encode({"Created": format_time(created_ns), "Name": name}, CONSUMER_FIELDS, values)


def encode_config(members: Mapping[str, Any]) -> bytes:
    """Returns the `meta.inf` of all members of a configuration, `Created` included."""
    return _encode(members, (), members)


def meta_sum(data: bytes | bytearray, key: bytes) -> bytes:
    """Returns the `meta.sum` of a `meta.inf`; `key` is `stream_key` or `consumer_key`."""
    return kernels.hash64(data, key).to_bytes(highwayhash.HASH_SIZE, "little").hex().encode()


def _stored(members: Mapping[str, ConfigMember]) -> tuple[str, ...]:
    return tuple(name for name, each in members.items() if each.stored)


def _encode(first: Mapping[str, Any], fields: tuple[str, ...], values: Mapping[str, Any]) -> bytes:
    members = {**first, **{field: values[field] for field in fields if field in values}}
    try:
        return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as problem:
        raise RefusedError(
            f"the configuration of {values.get('name', values.get('durable_name'))!r} has text that is not UTF-8",
            "choose other names and subjects in the plan",
        ) from problem


@dataclass(frozen=True, slots=True)
class ArchiveState:
    messages: int = 0  #: number of messages
    bytes: int = 0  #: size of their records, as servers count
    #: Sequence of the first message; without messages the one after `last_seq`, 0 if none was ever used.
    first_seq: int = 0
    last_seq: int = 0  #: the last sequence ever used; its message may be missing
    first_ts: int = 0  #: time of the first message in nanoseconds since 1970, 0 without messages
    last_ts: int = 0  #: time of the last message

    def as_json(self) -> dict[str, Any]:
        """Returns the state in the form of the API, without `consumer_count`.

        A time of 0 is omitted: some servers report it as 1970, others as the year 1.
        """
        times = {"first_ts": self.first_ts, "last_ts": self.last_ts}
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            **{name: format_time(time) for name, time in times.items() if time},
        }


class StreamTally:
    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self.first_seq = self.last_seq = 0
        self.first_ts = self.last_ts = 0

    def add(self, sequences: NDArray[np.uint64], timestamps: NDArray[np.int64], size: int) -> None:
        if not len(sequences):
            return
        if not self.messages:
            self.first_seq, self.first_ts = int(sequences[0]), int(timestamps[0])
        self.last_seq, self.last_ts = int(sequences[-1]), int(timestamps[-1])
        self.messages += len(sequences)
        self.bytes += size

    def state(self, last: int) -> ArchiveState:
        """Returns the state of a stream that has used the sequences up to `last`."""
        last = max(last, self.last_seq)
        first = self.first_seq if self.messages else last + 1 if last else 0
        return ArchiveState(self.messages, self.bytes, first, last, self.first_ts, self.last_ts)


def measure(batches: Iterable[MessageBatch], *, origin: bool, last: int = 0) -> ArchiveState:
    """Returns the state of the archive of these batches, without building it.

    The batches hold all messages of the stream; with `origin` they get headers with channel, sequence and time.
    `last` is the last sequence ever used.
    """
    tally = StreamTally()
    for batch in batches:
        sizes, _ = record_sizes(batch, len(batch.channel), len(batch.subject), origin)
        tally.add(batch.stream_sequence, batch.timestamp, int(sizes.sum()))
    return tally.state(last)


_BEGIN: Final = b"\x16\x02"
_COPIED: Final = struct.Struct("<BQQ")
_COPIED_VERSION: Final = 1
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The position of a consumer. Sequences come in pairs: that of the delivery, and that in the stream."""

    ack_floor: tuple[int, int]  #: everything up to here is acknowledged
    delivered: tuple[int, int]  #: the last message sent
    #: unacknowledged deliveries by sequence in the stream: consumer sequence, and time of the delivery in nanoseconds
    #: since 1970 (stored in seconds)
    pending: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: number of redeliveries by sequence in the stream
    redelivered: Mapping[int, int] = field(default_factory=dict)

    def problem(self) -> str:
        """Returns the reason why a server would not accept it, empty if none."""
        for floor, delivered in zip(self.ack_floor, self.delivered, strict=True):
            if not 0 <= floor <= delivered:
                return f"the ack floor {floor} is not between 0 and the last delivery, {delivered}"
        floor, delivered = self.ack_floor[1], self.delivered[1]
        for sequence, (number, _) in self.pending.items():
            if not floor < sequence <= delivered:
                return f"{sequence} is pending, which is not within the ack floor {floor} and {delivered}"
            if not self.ack_floor[0] < number <= self.delivered[0]:
                return f"{sequence} is pending as delivery {number} of {self.delivered[0]}"
        for sequence, count in self.redelivered.items():
            if sequence <= floor or count < 0:
                return f"{sequence} was redelivered {count} times, the ack floor is {floor}"
        return ""


def encode_consumer(state: ConsumerState) -> bytes:
    """Returns the bytes of `o.dat`; UsageError if the state contradicts itself."""
    problem = state.problem()
    if problem:
        raise UsageError(f"a consumer's state is not possible: {problem}", "correct its position in the plan")
    out = bytearray(_BEGIN)
    for number in (*state.ack_floor, *state.delivered, len(state.pending)):
        put(out, number)
    number_floor, floor = state.ack_floor
    try:
        if state.pending:
            out += kernels.encode_pending(dict(state.pending), floor, number_floor)
        put(out, len(state.redelivered))
        out += kernels.encode_redelivered(dict(state.redelivered), floor)
    except OverflowError:
        raise UsageError("a consumer's state is not possible: it has numbers of more than 64 bits") from None
    return bytes(out)


def decode_consumer(data: bytes) -> ConsumerState:
    """Reads the bytes of `o.dat`; ArchiveError if they are not such a state."""
    state, end = _decode(data, whole=True)
    if end != len(data):
        raise ArchiveError(f"a consumer's state ends at byte {end} of {len(data)}")
    if problem := state.problem():
        raise ArchiveError(f"a consumer's state is not possible: {problem}")
    return state


def decode_damaged(data: bytes) -> ConsumerState:
    """Reads a damaged state as far as it goes; ArchiveError if its positions cannot be read.

    A message that is pending was delivered, whatever the position says.
    """
    state, end = _decode(_BEGIN + data[len(_BEGIN) :], whole=False)
    if data[: len(_BEGIN)] != _BEGIN and end != len(data):
        raise ArchiveError(f"a consumer's state begins with {data[:2].hex()!r} instead of {_BEGIN.hex()!r}")
    floor, pending = state.ack_floor, state.pending
    delivered = (
        max([state.delivered[0], *(number for number, _ in pending.values())]),
        max([state.delivered[1], *pending]),
    )
    if problem := ConsumerState(floor, delivered).problem():
        raise ArchiveError(f"a consumer's state is not possible: {problem}")
    waiting = {
        sequence: (number, time)
        for sequence, (number, time) in pending.items()
        if floor[1] < sequence and floor[0] < number
    }
    redelivered = {sequence: count for sequence, count in state.redelivered.items() if floor[1] < sequence}
    return ConsumerState(floor, delivered, waiting, redelivered)


def _decode(data: bytes, *, whole: bool) -> tuple[ConsumerState, int]:
    """Returns a state and the end of its bytes; unless `whole`, lists may be cut."""
    if data[:2] != _BEGIN:
        raise ArchiveError(f"a consumer's state begins with {data[:2].hex()!r} instead of {_BEGIN.hex()!r}")
    numbers = VarintReader(data, len(_BEGIN), "a consumer's state")
    floor = (numbers.take(), numbers.take())
    delivered = (numbers.take(), numbers.take())
    pending: dict[int, tuple[int, int]] = {}
    redelivered: dict[int, int] = {}
    try:
        count = numbers.take()
        base = numbers.signed() if count else 0
        for _ in range(numbers.bounded(count, 3) if whole else count):
            sequence, number = floor[1] + numbers.take(), floor[0] + numbers.take()
            pending[sequence] = (number, (base - numbers.signed()) * _SECOND)
        count = numbers.take()
        for _ in range(numbers.bounded(count, 2) if whole else count):
            sequence = floor[1] + numbers.take()
            redelivered[sequence] = numbers.take()
    except ArchiveError:
        if whole:
            raise
    return ConsumerState(floor, delivered, pending, redelivered), numbers.position


@dataclass(frozen=True, slots=True)
class CopiedState:
    """The positions of a stream in the sources that it copies."""

    end: int  #: the stream's next sequence at that time
    positions: Mapping[bytes, int]  #: the last copied sequence, by name, filter and destination of a source


def encode_copied(state: CopiedState) -> bytes:
    out = bytearray(_COPIED.pack(_COPIED_VERSION, len(state.positions), state.end))
    for key, position in state.positions.items():
        put(out, len(key))
        out += key
        put(out, position)
        put(out, 0)
    return bytes(out)


def decode_copied(data: bytes) -> CopiedState:
    """Reads the bytes of `sources.db`; ArchiveError if they are not such a state."""
    if len(data) < _COPIED.size or data[0] != _COPIED_VERSION:
        raise ArchiveError(f"the state of the sources begins with {data[:1].hex()!r} instead of '01'")
    _, count, end = _COPIED.unpack_from(data)
    numbers = VarintReader(data, _COPIED.size, "the state of the sources")
    positions: dict[bytes, int] = {}
    for _ in range(numbers.bounded(count, 3)):
        key = numbers.raw(numbers.take())
        positions[key] = numbers.take()
        numbers.raw(numbers.take())
    if numbers.position != len(data):
        raise ArchiveError(f"the state of the sources ends at byte {numbers.position} of {len(data)}")
    return CopiedState(end, positions)
