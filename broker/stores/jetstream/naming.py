"""What the streams of a cluster id are called, and how they are configured (high-availability.md sections C.1, C.8)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stantools.nats.stream_names import safe_name, stream_name, subject_problem

if TYPE_CHECKING:
    from stantools.store.limits import ChannelLimits

#: How long a server remembers ids of messages; what was sent twice is known by its sequence anyway.
_DUPLICATES: Final = 1_000_000_000
#: A ceiling only: the broker counts bytes as it always does, and removes what is too much.
_MORE_BYTES: Final = 3, 2
_LEAST_BYTES: Final = 1 << 20
#: What has to be as it is when the broker made the stream. If one of the others is not, the broker sets it again.
_FIXED: Final = ("subjects", "retention", "storage", "mirror", "sources", "sealed", "subject_transform", "republish")
_SET: Final = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size", "discard", "num_replicas")
_NONE: Final[Mapping[str, Any]] = {"max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}


@dataclass(frozen=True, slots=True)
class Names:
    """The names that belong to a cluster id."""

    cluster_id: str
    replicas: int = 1  #: of each stream

    @property
    def channels(self) -> str:
        """What the subjects of channels begin with; the channel's name follows."""
        return f"stan.{self.cluster_id}."

    @property
    def records(self) -> str:
        """What the subjects of the state's records begin with."""
        return f"_stanjs.{self.cluster_id}."

    @property
    def state(self) -> str:
        """The stream of clients and subscriptions."""
        return f"{safe_name(self.cluster_id)}-state"

    def stream(self, channel: bytes) -> str:
        """Returns the name of a channel's stream."""
        return stream_name(os.fsdecode(channel), f"{safe_name(self.cluster_id)}_")

    def subject(self, channel: bytes) -> bytes:
        """Returns the subject of a channel's messages."""
        return self.channels.encode() + channel

    def problem(self, channel: bytes) -> str:
        """Returns why there can be no stream for a channel; nothing if there can."""
        try:
            return subject_problem(self.subject(channel).decode())
        except UnicodeDecodeError:
            return f"{channel!r} is not UTF-8"

    def state_config(self) -> dict[str, Any]:
        """Returns the configuration of the stream of the state."""
        return {**self._config(self.state, self.records + ">"), "max_msgs_per_subject": 1}

    def channel_config(self, channel: bytes, limits: ChannelLimits) -> dict[str, Any]:
        """Returns the configuration of a channel's stream."""
        config = self._config(self.stream(channel), self.subject(channel).decode())
        if limits.max_msgs > 0:
            config["max_msgs"] = limits.max_msgs
        if limits.max_bytes > 0:
            more, of = _MORE_BYTES
            config["max_bytes"] = max(limits.max_bytes * more // of, _LEAST_BYTES)
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


def wrong(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Returns what is not as it was made, and cannot be set right; nothing if all is well."""
    for name in _FIXED:
        is_there, should_be = there.get(name) or None, wanted.get(name) or None
        if is_there != should_be:
            return f"its {name} is {is_there or 'not set'}, expected {should_be or 'none'}"
    return ""


def differs(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Returns whether there is something to be set right."""
    return any((there.get(name) or _NONE.get(name)) != (wanted.get(name) or _NONE.get(name)) for name in _SET)
