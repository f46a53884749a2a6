"""Wanted streams, compared with the server's version and the limits of the account.

An account has one set of limits, or one for each number of replicas (tiers `R1`, `R3`, …). Without tiers every
replica counts, with tiers each stream once. The limit of consumers holds for each stream. -1 is no limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stantools.migration.plan.migration_plan import RemarkLevel
from stantools.nats.subjects import overlap

_REST = ">"
#: reserved subjects of a server (jetstream-migration.md section 10), with the first version that reserves them
_RESERVED = (("$JS.API", (0, 0, 0)), ("$JS", (2, 10, 0)), ("$JSC", (2, 10, 0)), ("$SYS", (2, 10, 0)))
#: first version that refuses patterns with a part of the reserved subjects
_PATTERNS_REFUSED_SINCE = (2, 11, 0)
_NEWEST = (1 << 30, 0, 0)


def refused(subject: str, version: tuple[int, int, int]) -> str | None:
    """Returns why a server refuses a subject or pattern for a stream; None if it does not.

    An unknown version (zeros) counts as a new one.
    """
    tokens = subject.split(".")
    if not all(tokens) or any(character.isspace() for character in subject):
        return "is not a subject"
    if version == (0, 0, 0):
        version = _NEWEST
    if subject == _REST:
        # Servers before 2.10 accept it; the stream then also stores requests and answers of the API.
        return "matches all subjects, including requests and answers of the server itself"
    for prefix, since in _RESERVED:
        inside = subject.startswith(f"{prefix}.")
        touches = version >= _PATTERNS_REFUSED_SINCE and overlap(subject, f"{prefix}.{_REST}")
        if version >= since and (inside or touches):
            return f"lies under {prefix}.{_REST}, which is reserved by the server"
    return None


OLDEST_TRIED: Final = (2, 9, 10)
NEWEST_TRIED: Final = (2, 15, 1)


@dataclass(frozen=True, slots=True)
class Problem:
    code: str  #: kind, equal in all versions: `stream-exists`, `subject-taken`, …
    level: RemarkLevel  #: a problem makes the work fail, a warning does not
    stream: str  #: stream, "" for all
    detail: str
    remedy: str


def stream_exists(name: str, messages: int | str, last: int | str) -> Problem:
    detail = f"it already exists, with {messages} messages up to {last}"
    remedy = "use --replace to delete it first, --append-missing to add missing messages, or choose another name"
    return Problem("stream-exists", RemarkLevel.PROBLEM, name, detail, remedy)


@dataclass(frozen=True, slots=True)
class StreamDemand:
    config: Mapping[str, Any]  #: configuration for the API; always has `name`
    bytes: int = 0  #: estimated size, as the server counts it
    least_bytes: int = 0  #: certain part of the size
    largest_message: int = 0  #: bytes of the largest message with headers; 0 if unknown
    consumers: Sequence[Mapping[str, Any]] = ()  #: configurations of its consumers
    may_exist: bool = False  #: it may exist: it will be replaced or continued
    updated: bool = False  #: its settings change after filling

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def subjects(self) -> list[str]:
        """Its subjects; without any, a stream listens on its name."""
        return [str(subject) for subject in self.config.get("subjects") or [self.name]]

    @property
    def replicas(self) -> int:
        return int(self.config.get("num_replicas") or 1)

    @property
    def in_memory(self) -> bool:
        return self.config.get("storage") == "memory"


_LIMITS_OF = {
    False: ("storage", "max_storage", "storage_max_stream_bytes", "reserved_storage"),
    True: ("memory", "max_memory", "memory_max_stream_bytes", "reserved_memory"),
}
#: in memory -> field of an account's info with the used space
ROOM = {in_memory: names[0] for in_memory, names in _LIMITS_OF.items()}


def account_problems(
    account: Mapping[str, Any], demands: Sequence[StreamDemand], existing: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Compares the limits of an account with the demands.

    `account` is its info from the API; `existing` are infos of existing streams that will be replaced or continued.
    """
    tiers = account.get("tiers") or {}
    if not tiers:
        return _tier_problems("the account", account, demands, existing, every_replica=True)
    problems = []
    groups: dict[str, list[StreamDemand]] = defaultdict(list)
    for demand in demands:
        groups[f"R{demand.replicas}"].append(demand)
    for name, group in sorted(groups.items()):
        if name in tiers:
            problems += _tier_problems(f"tier {name} of the account", tiers[name], group, existing, every_replica=False)
            continue
        detail = f"the account has no limits for streams with {group[0].replicas} replicas, only {', '.join(tiers)}"
        problems += [
            Problem("replicas", RemarkLevel.PROBLEM, each.name, detail, "use that many replicas") for each in group
        ]
    return problems


def _tier_problems(
    place: str,
    tier: Mapping[str, Any],
    demands: Sequence[StreamDemand],
    existing: Mapping[str, Mapping[str, Any]],
    *,
    every_replica: bool,
) -> list[Problem]:
    limits: Mapping[str, Any] = tier.get("limits") or {}
    problems = []
    new = [demand for demand in demands if demand.name not in existing]
    used, allowed = int(tier.get("streams", 0)), _limit(limits, "max_streams")
    if allowed is not None and used + len(new) > allowed:
        detail = f"{place} may have {allowed} streams and has {used}; {len(new)} more are needed"
        problems.append(
            Problem("too-many-streams", RemarkLevel.PROBLEM, "", detail, "raise max_streams of the account")
        )
    for in_memory in (False, True):
        some = [demand for demand in demands if demand.in_memory is in_memory]
        if some:
            problems += _storage_problems(place, tier, limits, some, existing, every_replica)
    for demand in demands:
        problems += _demand_problems(place, limits, demand)
    return problems


def _storage_problems(
    place: str,
    tier: Mapping[str, Any],
    limits: Mapping[str, Any],
    demands: Sequence[StreamDemand],
    existing: Mapping[str, Mapping[str, Any]],
    every_replica: bool,
) -> list[Problem]:
    kind, name, _, reserved = _LIMITS_OF[demands[0].in_memory]
    allowed = _limit(limits, name)
    if allowed is None:
        return []
    used = max(int(tier.get(kind, 0)), reserved_bytes(tier, reserved) or 0)
    wanted = wanted_bytes(demands, existing, every_replica=every_replica)
    if used + wanted <= allowed:
        return []
    detail = f"{place} may use {allowed} bytes of {kind} and uses {used}; {wanted} more are needed"
    return [Problem(kind, RemarkLevel.PROBLEM, "", detail, f"raise {name} of the account, or remove something")]


def reserved_bytes(tier: Mapping[str, Any], name: str) -> int | None:
    """Returns the bytes reserved by streams; None if the server is too old to report them.

    Servers 2.10 count a stream without max_bytes as -1, and may report that as 2**64 - 1.
    """
    value = tier.get(name)
    if value is None:
        return None
    return max(0, int(value) - (1 << 64 if int(value) >= 1 << 63 else 0))


def wanted_bytes(
    demands: Iterable[StreamDemand],
    existing: Mapping[str, Mapping[str, Any]],
    *,
    every_replica: bool = False,
    minimum: bool = False,
) -> int:
    """Returns the bytes needed beyond existing streams that will be replaced or continued.

    With `every_replica` each replica counts. `minimum` counts certain bytes instead of estimated ones.
    """
    return sum(
        (max(each.least_bytes if minimum else each.bytes, _max_bytes(each)) - _existing_bytes(existing.get(each.name)))
        * (each.replicas if every_replica else 1)
        for each in demands
    )


def _demand_problems(place: str, limits: Mapping[str, Any], demand: StreamDemand) -> Iterable[Problem]:
    def problem(code: str, detail: str, remedy: str) -> Problem:
        return Problem(code, RemarkLevel.PROBLEM, demand.name, detail, remedy)

    _, _, name, _ = _LIMITS_OF[demand.in_memory]
    max_bytes, allowed = _max_bytes(demand), _limit(limits, name)
    if max_bytes <= 0 and limits.get("max_bytes_required"):
        yield problem(
            "max-bytes-required",
            f"{place} demands max_bytes for every stream",
            f"set max_bytes of the stream, to {demand.bytes} or more",
        )
    if allowed and max_bytes > allowed:
        yield problem(
            "max-bytes-too-large",
            f"its max_bytes of {max_bytes} is over the {allowed} that {place} allows for a stream",
            "lower max_bytes, or raise the limit of the account",
        )
    consumers = _limit(limits, "max_consumers")
    if consumers and len(demand.consumers) > consumers:
        yield problem(
            "too-many-consumers",
            f"it has {len(demand.consumers)} consumers, and {place} allows {consumers} for a stream",
            "raise max_consumers of the account, or remove some consumers",
        )
    pending = _limit(limits, "max_ack_pending")
    if pending:
        over = [each for each in demand.consumers if int(each.get("max_ack_pending") or 0) > pending]
        for config in over:
            yield problem(
                "max-ack-pending",
                f"consumer {config.get('durable_name') or config.get('name')} has max_ack_pending "
                f"{config['max_ack_pending']}, and {place} allows {pending}",
                "lower it, or raise max_ack_pending of the account",
            )


def _limit(limits: Mapping[str, Any], name: str) -> int | None:
    value = int(limits.get(name, -1))
    return None if value < 0 else value


def _max_bytes(demand: StreamDemand) -> int:
    return max(0, int(demand.config.get("max_bytes") or 0))


def _existing_bytes(info: Mapping[str, Any] | None) -> int:
    if not info:
        return 0
    state, config = info.get("state") or {}, info.get("config") or {}
    return max(int(state.get("bytes", 0)), int(config.get("max_bytes") or 0))
