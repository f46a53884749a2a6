"""Configurations of streams: members, defaults, checks, and permitted changes.

Facts: jetstream-server.md sections 4 and 5. Options of later versions are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.reserved import RESERVED
from broker.streams.api_errors import RequestError, adjusted, invalid_config, invalid_mapping
from broker.streams.requests import members, read_config, valid_name
from broker.streams.stream_source import MAPPING, SourceOrigin, read_origin
from broker.streams.subject_mapping import FUNCTION, MOST_DESTINATION, MappingError, SubjectMapping
from stantools.nats.subjects import overlap, valid_pattern
from stantools.nats.subjecttree import PatternTree, first_overlap, grow
from stantools.streamfiles.stream_config import BOOL, INT, STREAM_MEMBERS, StreamMembers

_SECOND: Final = 1_000_000_000
_WINDOW: Final = 120 * _SECOND
_LEAST: Final = 100_000_000
_MOST_NAME: Final = 255
_MOST_TEXT: Final = 4096
_MOST_METADATA: Final = 131072
_MOST_REPLICAS: Final = 5
#: Limits of a configuration: subjects, tree branches compared in the search for overlaps, sources, and mappings.
_MOST_SUBJECTS: Final = 10_000
_MOST_BRANCHES: Final = 200_000
_MOST_SOURCES: Final = 1000
_MOST_TRANSFORMS: Final = 1000
_NAME: Final = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
_REPUBLISH: Final[Mapping[str, str]] = {**MAPPING, "headers_only": BOOL}
#: Options of later versions, and the values that mean "not used".
_UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "allow_msg_counter": (False, None),
    "allow_atomic": (False, None),
    "allow_batched": (False, None),
    "allow_msg_schedules": (False, None),
    "persist_mode": ("", "default", None),
}
_CONSUMER_LIMITS: Final[Mapping[str, str]] = {"inactive_threshold": INT, "max_ack_pending": INT}
#: subjects of the server itself
_SERVER_SUBJECTS: Final = ("$JS.>", "$JSC.>", "$NRG.>")


@dataclass(frozen=True, slots=True)
class StreamConfig(StreamMembers):
    """The configuration of a stream."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> StreamConfig:
        """Returns the configuration of a request, with defaults, before any check.

        Raises `RequestError` for a member of a wrong type, an unknown member, or an unsupported option.
        """
        for name, nothing in _UNSUPPORTED.items():
            if values.get(name) not in nothing:
                raise invalid_config(f"{name} is not supported by this server")
        known = {name: value for name, value in values.items() if name not in _UNSUPPORTED}
        found = read_config(known, STREAM_MEMBERS, "StreamConfigRequest")
        _check_many(found)
        if "mirror" in found:
            found["mirror"] = read_origin(found["mirror"])
        found["sources"] = tuple(read_origin(each) for each in found.get("sources", ()))
        copies = bool(found.get("mirror") or found["sources"])
        found["subjects"] = tuple(found.get("subjects", ())) or (() if copies else (found.get("name", ""),))
        limits = members(found.get("consumer_limits", {}), _CONSUMER_LIMITS, "consumer_limits", strict=True)
        found["consumer_limits"] = {name: value for name, value in limits.items() if value}
        for name, kinds in (("subject_transform", MAPPING), ("republish", _REPUBLISH)):
            if name in found:
                found[name] = {"src": "", "dest": "", **members(found[name], kinds, name, strict=True)}
        if found.get("republish"):
            found["republish"]["src"] = found["republish"]["src"] or ">"
        metadata = found.get("metadata", {})
        found["metadata"] = {name: value for name, value in metadata.items() if not name.startswith("_nats.")}
        for name in ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"):
            found[name] = found[name] if found.get(name, 0) > 0 else -1
        found["num_replicas"] = found.get("num_replicas") or 1
        age = found.get("max_age", 0)
        window = 0 if copies else min(age, _WINDOW) if age > 0 else _WINDOW
        found["duplicate_window"] = found.get("duplicate_window") or window
        if found.get("subject_delete_marker_ttl", 0) > 0:
            if not found.get("allow_rollup_hdrs"):
                found |= {"allow_rollup_hdrs": True, "deny_purge": False}
            found["allow_msg_ttl"] = True
        return cls(**{"name": "", **found})

    def as_json(self) -> dict[str, Any]:
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, each in STREAM_MEMBERS.items()
            if (value := getattr(self, name)) or each.always
        }

    def check_as_sent(self, sent: Mapping[str, Any]) -> None:
        """Raises `RequestError` if a default contradicts the configuration of a pedantic request."""
        for name in ("max_msgs_per_subject", "max_msgs", "max_bytes", "max_msg_size"):
            if (sent.get(name) or 0) < -1:
                raise adjusted(f"{name} must be set to -1")
        if not sent.get("duplicate_window") and not self.origins and 0 < self.max_age < _WINDOW:
            raise adjusted("duplicate window cannot be bigger than max age")
        if self.subject_delete_marker_ttl > 0:
            for name, what in (("allow_msg_ttl", "message TTLs"), ("allow_rollup_hdrs", "roll-ups")):
                if not sent.get(name):
                    raise invalid_config(f"subject delete marker cannot be set if {what} are disabled")
        if self.republish and not sent["republish"].get("src"):
            raise adjusted("republish source can not be empty")

    def check(self, *, stored: bool = False) -> None:
        """Raises `RequestError` for the first problem of the configuration by itself.

        With `stored`, for a stream on disk, a republish destination among the server's subjects is accepted: such
        messages are dropped anyway.
        """
        if not valid_name(self.name):
            raise invalid_config(_NAME)
        if len(self.name.encode()) > _MOST_NAME:
            raise invalid_config("stream name is too long, maximum allowed is 255")
        if len(self.description.encode()) > _MOST_TEXT:
            raise invalid_config("stream description is too long, maximum allowed is 4096")
        if sum(len(key.encode()) + len(value.encode()) for key, value in self.metadata.items()) > _MOST_METADATA:
            raise invalid_config(f"stream metadata exceeds maximum size of {_MOST_METADATA} bytes")
        if self.num_replicas > _MOST_REPLICAS:
            raise invalid_config(f"maximum replicas is {_MOST_REPLICAS}")
        if self.num_replicas < 0:
            raise RequestError(400, 10133, "replicas count cannot be negative")
        for problem in self._problems():
            raise invalid_config(problem)
        self._check_origins()
        self._check_subjects()
        self._check_mappings()
        # The result of a mapping is known only at publish time; a reserved subject is dropped then.
        if self.republish and self.republish["dest"].encode() in RESERVED and not stored:
            raise invalid_config("stream configuration for republish destination is a subject of servers")

    def _problems(self) -> Iterator[str]:
        if self.max_age < 0:
            yield "max age can not be negative"
        if 0 < self.max_age < _LEAST:
            yield "max age needs to be >= 100ms"
        if self.duplicate_window < 0:
            yield "duplicates window can not be negative"
        if 0 < self.max_age < self.duplicate_window:
            yield "duplicates window can not be larger then max age"
        if self.duplicate_window < _LEAST and (self.duplicate_window or not self.origins):
            yield "duplicates window needs to be >= 100ms"
        if self.deny_purge and self.allow_rollup_hdrs:
            yield "roll-ups require the purge permission"
        if self.discard_new_per_subject and self.discard != "new":
            yield "discard new per subject requires discard new policy to be set"
        if self.discard_new_per_subject and self.max_msgs_per_subject <= 0:
            yield "discard new per subject requires max msgs per subject > 0"
        if self.subject_delete_marker_ttl < 0:
            yield "subject delete marker TTL must not be negative"
        if 0 < self.subject_delete_marker_ttl < _SECOND:
            yield "subject delete marker TTL must be at least 1 second"
        if self.mirror_direct and not self.mirror:
            yield "stream has no mirror but does have mirror direct"

    @property
    def level(self) -> int:
        """Level of the API that it needs."""
        return int(self.allow_msg_ttl)

    @property
    def origins(self) -> tuple[Mapping[str, Any], ...]:
        """Its mirror, or its sources."""
        return (self.mirror,) if self.mirror else self.sources

    def _check_origins(self) -> None:
        if self.mirror:
            if self.first_seq:
                raise RequestError(400, 10143, "stream mirrors can not have first sequence configured")
            if self.subjects:
                raise RequestError(400, 10034, "stream mirrors can not contain subjects")
            if self.sources:
                raise RequestError(400, 10031, "stream mirrors can not also contain other sources")
        keys = [SourceOrigin(each, mirror=bool(self.mirror)).key for each in self.origins]
        if len(set(keys)) < len(keys):
            raise RequestError(400, 10140, "duplicate source configuration detected")

    def _check_subjects(self) -> None:
        if len(self.subjects) > _MOST_SUBJECTS:
            raise invalid_config(f"too many subjects, maximum allowed is {_MOST_SUBJECTS}")
        for subject in self.subjects:
            if not valid_pattern(subject.encode()):
                raise invalid_config("invalid subject")
        if not self.no_ack:
            # Only these can be among the server's own subjects.
            for subject in [each for each in self.subjects if each[0] in "$_*>"]:
                if subject == ">":
                    raise invalid_config("capturing all subjects requires no-ack to be true")
                if any(overlap(subject, own) for own in _SERVER_SUBJECTS) and not subject.startswith("$JS.EVENT."):
                    raise invalid_config("subjects that overlap with jetstream api require no-ack to be true")
                # The broker itself answers the clients of channels on these subjects.
                channels = overlap(subject, "_STAN.>")
                if channels or (overlap(subject, "$SYS.>") and not subject.startswith("$SYS.ACCOUNT.")):
                    raise invalid_config("subjects that overlap with system api require no-ack to be true")

    def check_overlaps(self) -> Generator[None, None, PatternTree[bytes]]:
        """Returns the subjects as a tree, in steps; raises `RequestError` if two of them overlap."""
        if twice := [subject for subject, count in Counter(self.subjects).items() if count > 1]:
            raise invalid_config(f'subject "{twice[0]}" overlaps with "{twice[0]}"')
        try:
            tree = yield from grow((pattern, pattern) for pattern in map(str.encode, self.subjects))
            found = yield from first_overlap(tree, _MOST_BRANCHES)
        except OverflowError:
            raise invalid_config("too many subjects with wildcards to be compared") from None
        if found is not None:
            one, other = sorted(found, key=[each.encode() for each in self.subjects].index)
            raise invalid_config(f'subject "{one.decode()}" overlaps with "{other.decode()}"')
        return tree

    def _check_mappings(self) -> None:
        if echo := self.republish:
            source, target = echo["src"], echo["dest"]
            pattern = FUNCTION.sub("*", target[:MOST_DESTINATION])
            if target and any(overlap(pattern, subject) for subject in self.subjects):
                raise invalid_config("stream configuration for republish destination forms a cycle")
            try:
                SubjectMapping(source, target)
            except MappingError:
                text = f"stream configuration for republish with transform from '{source}' to '{target}' not valid"
                raise invalid_config(text) from None
        if self.subject_transform:
            try:
                SubjectMapping(self.subject_transform["src"], self.subject_transform["dest"])
            except MappingError as error:
                raise invalid_mapping(error, "stream transform", 10155, 10156) from None

    def changed_to(self, new: StreamConfig) -> StreamConfig:
        """Returns the configuration after an update; raises `RequestError` for a change that is not permitted."""
        if new.storage != self.storage:
            raise invalid_config("stream configuration update can not change storage type")
        if new.retention != self.retention and "workqueue" in (new.retention, self.retention):
            raise invalid_config("stream configuration update can not change retention policy to/from workqueue")
        if self.sealed and not new.sealed:
            raise invalid_config("stream configuration update can not unseal a sealed stream")
        if self.deny_delete and not new.deny_delete:
            raise invalid_config("stream configuration update can not cancel deny message deletes")
        if self.deny_purge and not new.deny_purge:
            raise invalid_config("stream configuration update can not cancel deny purge")
        if new.mirror and new.mirror != self.mirror:
            raise RequestError(400, 10055, "stream mirror configuration can not be updated")
        if self.allow_msg_ttl and not new.allow_msg_ttl:
            raise invalid_config("message TTL status can not be disabled")
        if new.num_replicas > 1:
            raise RequestError(500, 10074, "replicas > 1 not supported in non-clustered mode")
        if new.sealed:
            new = replace(
                new, discard="new", deny_delete=True, deny_purge=True, max_age=0, allow_rollup_hdrs=False,
            )  # fmt: skip
        return new


def _check_many(found: Mapping[str, Any]) -> None:
    """Refuses too many sources and too many mappings of subjects."""
    origins = [*found.get("sources", ()), *([found["mirror"]] if found.get("mirror") else [])]
    if len(origins) > _MOST_SOURCES:
        raise invalid_config(f"too many sources, maximum allowed is {_MOST_SOURCES}")
    transforms = (each.get("subject_transforms") for each in origins)
    if sum(len(each) for each in transforms if isinstance(each, list)) > _MOST_TRANSFORMS:
        raise invalid_config(f"too many subject transforms, maximum allowed is {_MOST_TRANSFORMS}")
