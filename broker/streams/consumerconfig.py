"""Configurations of consumers: members, defaults, checks, and permitted changes.

Facts: jetstream-server.md sections 9 and 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.reserved import RESERVED
from broker.streams.api_errors import RequestError, adjusted
from broker.streams.configuration import StreamConfig
from broker.streams.requests import read_config, time_text
from stantools.nats.subjects import is_literal, overlap, valid_pattern
from stantools.nats.subjecttree import overlap_each_other
from stantools.streamfiles.stream_config import CONSUMER_MEMBERS, ConsumerMembers

_SECOND: Final = 1_000_000_000
_LEAST_HEARTBEAT: Final = 100_000_000
_LEAST_EXPIRES: Final = 1_000_000
_ACK_WAIT: Final = 30 * _SECOND
_ACK_PENDING: Final = 1000
_WAITING: Final = 512
_INACTIVE: Final = 5 * _SECOND
_PINNED: Final = 120 * _SECOND
_MOST_NAME: Final = 255
_MOST_TEXT: Final = 4096
_MOST_METADATA: Final = 128 << 10
#: Limits of a configuration: filters, and tree branches compared in the search for overlaps.
_MOST_FILTERS: Final = 1000
_MOST_BRANCHES: Final = 200_000
#: the members that an update may not change, in the order in which real servers compare them
_FIXED: Final = (
    *("deliver_policy", "mem_storage", "opt_start_seq", "opt_start_time", "ack_policy", "replay_policy"),
    *("idle_heartbeat", "flow_control"),
)
_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,18}")
_GROUP: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ConsumerMembers):
    """The configuration of a consumer."""

    @classmethod
    def read(cls, values: Mapping[str, Any], stream: StreamConfig) -> ConsumerConfig:
        """Returns the configuration of a request, with defaults, before any check.

        Raises `RequestError` for an unknown member or one of a wrong type.
        """
        found = read_config(values, CONSUMER_MEMBERS, "ConsumerConfig")
        for name in ("backoff", "filter_subjects", "priority_groups"):
            found[name] = tuple(found.get(name, ()))
        if found.get("priority_policy") == "none":
            del found["priority_policy"]
        metadata = found.get("metadata", {})
        found["metadata"] = {name: value for name, value in metadata.items() if not name.startswith("_nats.")}
        return cls(**found)._completed(stream)

    def _completed(self, stream: StreamConfig) -> ConsumerConfig:
        acks = self.ack_policy != "none"
        limits = stream.consumer_limits
        changes: dict[str, Any] = {"max_deliver": self.max_deliver if self.max_deliver > 0 else -1}
        if self.backoff:
            changes["ack_wait"] = self.backoff[0]
        elif acks:
            changes["ack_wait"] = self.ack_wait or _ACK_WAIT
        # As in nats-server, the stream's limit applies to consumers without acknowledgements, and refuses such push
        # consumers.
        changes["max_ack_pending"] = self.max_ack_pending or limits.get("max_ack_pending", _ACK_PENDING if acks else 0)
        if not self.deliver_subject:
            changes["max_waiting"] = self.max_waiting or _WAITING
        if not self.inactive_threshold:
            changes["inactive_threshold"] = limits.get("inactive_threshold", 0 if self.durable_name else _INACTIVE)
        if self.durable_name and not self.name:
            changes["name"] = self.durable_name
        if self.priority_policy == "pinned_client" and self.priority_timeout <= 0:
            changes["priority_timeout"] = _PINNED
        return replace(self, **changes)

    @property
    def push(self) -> bool:
        return bool(self.deliver_subject)

    @property
    def level(self) -> int:
        """Level of the API that it needs."""
        return int(bool(self.pause_until or self.priority_policy))

    @property
    def filters(self) -> tuple[bytes, ...]:
        """Patterns of subjects; empty for all subjects."""
        return tuple(each.encode() for each in (self.filter_subjects or (self.filter_subject,)) if each)

    def as_json(self) -> dict[str, Any]:
        found = {
            name: list(value) if isinstance(value, tuple) else value
            for name, each in CONSUMER_MEMBERS.items()
            if (value := getattr(self, name)) or each.always
        }
        for name, time in (("opt_start_time", self.opt_start_time), ("pause_until", self.pause_until)):
            if time:
                found[name] = time_text(time)
        return found

    def check_as_sent(self, sent: Mapping[str, Any], stream: StreamConfig) -> None:
        """Raises `RequestError` if a default contradicts the configuration of a pedantic request."""
        for name in ("max_waiting", "max_batch", "max_expires", "max_bytes", "inactive_threshold"):
            if (sent.get(name) or 0) < 0:
                raise adjusted(f"{name} must not be negative")
        if (sent.get("max_deliver") or 0) < -1:
            raise adjusted("max_deliver must be set to -1")
        if self.backoff and sent.get("ack_wait") != self.backoff[0]:
            raise adjusted("first backoff value has to equal batch AckWait")
        for name in ("max_ack_pending", "inactive_threshold"):
            if stream.consumer_limits.get(name) and not sent.get(name):
                raise adjusted(f"{name} must be set if it's configured in stream limits")

    def check(self, stream: StreamConfig) -> None:
        """Raises `RequestError` for the first problem of the configuration by itself or together with its stream's."""
        for number, text in self._problems(stream):
            raise RequestError(500 if number in (10074, 10012) else 400, number, text)

    def check_policies(self, stream: StreamConfig) -> None:
        """Raises `RequestError` if a new consumer of a work queue has other policies than it must have."""
        if stream.retention == "workqueue":
            if self.ack_policy != "explicit":
                raise RequestError(400, 10098, "workqueue stream requires explicit ack")
            if self.deliver_policy != "all":
                raise RequestError(400, 10101, "consumer must be deliver all on workqueue stream")

    def _problems(self, stream: StreamConfig) -> Iterator[tuple[int, str]]:
        if len(self.name.encode()) > _MOST_NAME:
            yield 10102, "consumer name is too long, maximum allowed is 255"
        if self.num_replicas > 1:
            yield 10074, "replicas > 1 not supported in non-clustered mode"
        if any(each < 0 for each in self.backoff):
            yield 10184, "consumer backoff needs to be positive"
        if self.ack_wait < 0:
            yield 10183, "consumer ack wait needs to be positive"
        if 0 < self.max_deliver < len(self.backoff):
            yield 10116, "max deliver is required to be > length of backoff values"
        if len(self.description.encode()) > _MOST_TEXT:
            yield 10107, "consumer description is too long, maximum allowed is 4096"
        yield from self._push_problems(stream) if self.push else self._pull_problems(stream)
        most = stream.consumer_limits.get("max_ack_pending", 0)
        if 0 < most < self.max_ack_pending:
            yield 10121, f"consumer max ack pending exceeds system limit of {most}"
        most = stream.consumer_limits.get("inactive_threshold", 0)
        if 0 < most < self.inactive_threshold:
            yield 10153, f"consumer inactive threshold exceeds system limit of {most / _SECOND:g}s"
        if self.direct:
            yield (
                (10091, "consumer direct requires an ephemeral consumer")
                if self.push and self.durable_name
                else (
                    10090,
                    "consumer direct requires a push based consumer",
                )
            )
        yield from self._filter_problems()
        yield from self._start_problems()
        if self.sample_freq:
            text = self.sample_freq.removesuffix("%")
            if not _DIGITS.fullmatch(text):
                reason = f'strconv.Atoi: parsing "{text[:40]}": invalid syntax'
                yield 10095, f"failed to parse consumer sampling configuration: {reason}"
        if self.flow_control and not self.idle_heartbeat:
            yield 10108, "consumer with flow control also needs heartbeats"
        if self.durable_name and self.name != self.durable_name:
            yield 10132, "Consumer Durable and Name have to be equal if both are provided"
        if sum(len(key.encode()) + len(value.encode()) for key, value in self.metadata.items()) > _MOST_METADATA:
            yield 10135, "consumer metadata exceeds maximum size of 128KB"
        yield from self._priority_problems()

    def _push_problems(self, stream: StreamConfig) -> Iterator[tuple[int, str]]:
        subject = self.deliver_subject.encode()
        if valid_pattern(subject) and not is_literal(subject):
            yield 10079, "consumer deliver subject has wildcards"
        if not valid_pattern(subject):
            yield 10112, "invalid push consumer deliver subject"
        if subject in RESERVED:
            yield 10112, "invalid push consumer deliver subject: servers listen there"
        if any(overlap(self.deliver_subject, each) for each in stream.subjects):
            yield 10081, "consumer deliver subject forms a cycle"
        if self.max_waiting:
            yield 10080, "consumer in push mode can not set max waiting"
        if self.ack_policy == "none" and self.max_ack_pending > 0:
            yield 10082, "consumer requires ack policy for max ack pending"
        if self.idle_heartbeat and self.idle_heartbeat < _LEAST_HEARTBEAT:
            yield 10083, "consumer idle heartbeat needs to be >= 100ms"

    def _pull_problems(self, stream: StreamConfig) -> Iterator[tuple[int, str]]:
        if stream.retention == "workqueue" and self.ack_policy == "none":
            yield 10084, "consumer in pull mode requires explicit ack policy on workqueue stream"
        if self.rate_limit_bps:
            yield 10086, "consumer in pull mode can not have rate limit set"
        if self.idle_heartbeat:
            yield 10088, "consumer idle heartbeat requires a push based consumer"
        if self.flow_control:
            yield 10089, "consumer flow control requires a push based consumer"
        if self.max_waiting < 0:
            yield 10087, "consumer max waiting needs to be positive"
        if self.max_batch < 0:
            yield 10114, "consumer max request batch needs to be > 0"
        if self.max_expires and self.max_expires < _LEAST_EXPIRES:
            yield 10115, "consumer max request expires needs to be >= 1ms"

    def _priority_problems(self) -> Iterator[tuple[int, str]]:
        if not self.priority_policy:
            if self.priority_groups:
                yield 10196, "consumer can not have priority groups when policy is none"
            if self.priority_timeout:
                yield 10197, "PinnedTTL cannot be set when PriorityPolicy is none"
            return
        if self.push:
            yield 10178, "priority groups can not be used with push consumers"
        if not self.priority_groups:
            yield 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set"
        for group in self.priority_groups:
            if not group:
                yield 10161, "Group name cannot be an empty string"
            if not _GROUP.fullmatch(group):
                what = "must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"
                yield 10162, f"Valid priority group name {what}"

    def _filter_problems(self) -> Iterator[tuple[int, str]]:
        if self.filter_subject and self.filter_subjects:
            yield 10136, "consumer cannot have both FilterSubject and FilterSubjects specified"
        if not all(self.filter_subjects):
            yield 10139, "consumer filter in FilterSubjects cannot be empty"
        if len(self.filter_subjects) > _MOST_FILTERS or self._filters_overlap():
            yield 10138, "consumer subject filters cannot overlap"
        if not all(map(valid_pattern, self.filters)):
            yield 10093, "consumer filter subject is not a valid subset of the interest subjects"

    def _filters_overlap(self) -> bool:
        filters = self.filters
        return len(set(filters)) < len(filters) or overlap_each_other(filter(valid_pattern, filters), _MOST_BRANCHES)

    def _start_problems(self) -> Iterator[tuple[int, str]]:
        what = self.deliver_policy.replace("_", " ")
        conflict = f"consumer delivery policy is deliver {what}, but optional"
        if self.deliver_policy == "by_start_sequence":
            if not self.opt_start_seq:
                yield (
                    10094,
                    "consumer delivery policy is deliver by start sequence, but optional start sequence is not set",
                )
            if self.opt_start_time:
                yield (
                    10094,
                    "consumer delivery policy is deliver by start sequence, but optional start time is also set",
                )
        elif self.deliver_policy == "by_start_time":
            if not self.opt_start_time:
                yield 10094, "consumer delivery policy is deliver by start time, but optional start time is not set"
            if self.opt_start_seq:
                yield (
                    10094,
                    "consumer delivery policy is deliver by start time, but optional start sequence is also set",
                )
        else:
            if self.opt_start_seq:
                yield 10094, f"{conflict} start sequence is also set"
            if self.opt_start_time:
                yield 10094, f"{conflict} start time is also set"
            if self.deliver_policy == "last_per_subject" and not self.filters:
                yield 10094, f"{conflict} filter subject is not set"

    def check_change(self, new: ConsumerConfig) -> None:
        """Raises `RequestError` if an update to `new` changes a fixed member."""
        for name in _FIXED:
            if getattr(self, name) != getattr(new, name):
                raise RequestError(500, 10012, f"{CONSUMER_MEMBERS[name].fixed} can not be updated")
        if self.push != new.push:
            one, other = ("push", "pull") if self.push else ("pull", "push")
            raise RequestError(500, 10012, f"can not update {one} consumer to {other} based")
        if self.max_waiting != new.max_waiting:
            raise RequestError(500, 10012, "max waiting can not be updated")
