"""The streams in which a broker keeps the channels of a cluster id, its clients and its subscriptions.

Facts: high-availability.md sections C.1, C.4 and C.8. Each channel is a stream, with the channel's sequences. All
other state is in records of one more stream, of which the last one of each subject counts:

    server                      the server's identity, a ServerInfo
    client.<id>                 a client, a ClientInfo
    chan.<channel>              a channel, and whether its stream was made
    sub.<channel>.<number>      a subscription, or all members of a queue group; see `encode_members`

A record without content is a deletion.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.format.proto import store_pb2 as pb
from stantools.nats.stream_names import safe_name, stream_name, subject_problem
from stantools.store.sublog import StoredSubscription
from stantools.streamfiles.stream_config import stream_setting

if TYPE_CHECKING:
    from stantools.store.limits import ChannelLimits

SERVER: Final = b"server"
CLIENT: Final = b"client."
CHANNEL: Final = b"chan."
SUBSCRIPTION: Final = b"sub."
#: content of a channel's record before and after its stream is made
BEGUN: Final = b"begun"
MADE: Final = b"made"

#: Time in which a server detects duplicate ids; repeated messages are also detected by their sequence.
_DUPLICATES: Final = 1_000_000_000
#: Only a ceiling: the broker counts bytes in its own way, and removes messages beyond the limit.
_BYTES_MARGIN: Final = 3, 2
_MIN_BYTES: Final = 1 << 20
#: Fields that must be as the broker made the stream. It corrects other fields.
_FIXED: Final = ("subjects", "retention", "storage", "mirror", "sources", "sealed", "subject_transform", "republish")
_SET: Final = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size", "discard", "num_replicas")


@dataclass(frozen=True, slots=True)
class StreamNames:
    cluster_id: str
    replicas: int = 1  #: replicas of each stream

    @property
    def channels(self) -> str:
        """Prefix of the subjects of channels, before the channel's name."""
        return f"stan.{self.cluster_id}."

    @property
    def prefix(self) -> str:
        return f"{safe_name(self.cluster_id)}_"

    @property
    def records(self) -> str:
        return f"_stanjs.{self.cluster_id}."

    @property
    def state(self) -> str:
        return f"{safe_name(self.cluster_id)}-state"

    def stream(self, channel: bytes) -> str:
        return stream_name(os.fsdecode(channel), self.prefix)

    def subject(self, channel: bytes) -> bytes:
        return self.channels.encode() + channel

    def problem(self, channel: bytes) -> str:
        """Returns the reason why there can be no stream for a channel; empty if none."""
        try:
            return subject_problem(self.subject(channel).decode())
        except UnicodeDecodeError:
            return f"{channel!r} is not UTF-8"

    def state_config(self) -> dict[str, Any]:
        return {**self._config(self.state, self.records + ">"), "max_msgs_per_subject": 1}

    def channel_config(self, channel: bytes, limits: ChannelLimits) -> dict[str, Any]:
        config = self._config(self.stream(channel), self.subject(channel).decode())
        if limits.max_msgs > 0:
            config["max_msgs"] = limits.max_msgs
        if limits.max_bytes > 0:
            more, of = _BYTES_MARGIN
            config["max_bytes"] = max(limits.max_bytes * more // of, _MIN_BYTES)
        if limits.max_age_ns > 0:
            config["max_age"] = limits.max_age_ns
            config["duplicate_window"] = min(_DUPLICATES, limits.max_age_ns)
        return config

    def _config(self, name: str, subject: str) -> dict[str, Any]:
        return {
            "name": name,
            "subjects": [subject],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "duplicate_window": _DUPLICATES,
            "num_replicas": self.replicas,
            "allow_direct": True,
            "description": f"NATS Streaming, cluster ID {self.cluster_id}; only its broker writes here",
        }


def wrong(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Returns a difference from the wanted configuration that cannot be corrected; empty if none."""
    for name in _FIXED:
        is_there, should_be = stream_setting(config, name), stream_setting(wanted, name)
        if is_there != should_be:
            return f"its {name} is {is_there or 'not set'}, expected {should_be or 'none'}"
    return ""


def differs(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Returns whether there is a difference to correct."""
    return any(stream_setting(config, name) != stream_setting(wanted, name) for name in _SET)


#: The start of a record: its version, its last sequence, and the number of members.
_HEAD: Final = struct.Struct("<BQI")
_MEMBER: Final = struct.Struct("<IIQ")
_VERSION: Final = 1


def encode_members(members: Sequence[StoredSubscription], last: int, largest: int) -> bytes:
    """Returns a record of subscriptions.

    `last` is the last sequence that was sent to any of them. If the record would exceed `largest` bytes, it covers
    the state up to a lower sequence only, and later messages are redelivered. Raises ValueError if there are too
    many members for one record.
    """
    while True:
        parts = [_HEAD.pack(_VERSION, last, len(members))]
        count = 0
        for member in members:
            pending = np.fromiter(member.pending, np.uint64, len(member.pending))
            pending.sort()
            pending = pending[: int(pending.searchsorted(np.uint64(last), "right"))]
            state = member.state.SerializeToString()
            count += len(pending)
            parts.append(_MEMBER.pack(len(state), len(pending), int(pending[0]) if len(pending) else 0))
            parts.append(state)
            parts.append(np.diff(pending).astype("<u4").tobytes())
        record = zlib.compress(b"".join(parts), 1)
        if len(record) <= largest:
            return record
        if not count:
            raise ValueError("too many members of a queue group for one record")
        everything = sorted(sequence for member in members for sequence in member.pending if sequence <= last)
        last = everything[len(everything) // 2] - 1


def decode_members(record: bytes) -> list[StoredSubscription]:
    """Reads a record of subscriptions, all with the last sequence that was sent to any of them."""
    try:
        data = zlib.decompress(record)
        version, last, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"it has version {version}")
        at, members = _HEAD.size, []
        for _ in range(count):
            size, pending, first = _MEMBER.unpack_from(data, at)
            at += _MEMBER.size
            state = pb.SubState.FromString(data[at : at + size])
            at += size
            state.last_sent = last
            steps = np.frombuffer(data, "<u4", max(pending - 1, 0), at)
            at += 4 * len(steps)
            sequences = np.concatenate((np.array([first], np.uint64), steps.astype(np.uint64))).cumsum(dtype=np.uint64)
            members.append(StoredSubscription(state, set(sequences.tolist()) if pending else set()))
    except (zlib.error, struct.error) as problem:
        raise ValueError(str(problem)) from problem
    return members
