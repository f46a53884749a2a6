"""The limits of an account against what is to be made in it.

An account has one set of limits, or one for each number of replicas (tiers `R1`, `R3`, …). Without tiers every replica
counts; with them it does not. The limit of consumers holds for each stream. -1 is no limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stantools.migration.target.problems import Problem, Severity, StreamDemand

_LIMITS_OF = {
    False: ("storage", "max_storage", "storage_max_stream_bytes", "reserved_storage"),
    True: ("memory", "max_memory", "memory_max_stream_bytes", "reserved_memory"),
}
#: Whether in memory -> what there has to be room in, as infos of accounts call it.
ROOM = {in_memory: names[0] for in_memory, names in _LIMITS_OF.items()}


def account_problems(
    account: Mapping[str, Any], demands: Sequence[StreamDemand], there: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Compares the limits of an account with what is to be made.

    Args:
        account: The account's info as the API gives it.
        demands: The streams.
        there: Infos of those that are there already and will be replaced or gone on with.
    """
    tiers = account.get("tiers") or {}
    if not tiers:
        return _tier_problems("the account", account, demands, there, every_replica=True)
    problems = []
    groups: dict[str, list[StreamDemand]] = defaultdict(list)
    for demand in demands:
        groups[f"R{demand.replicas}"].append(demand)
    for name, group in sorted(groups.items()):
        if name in tiers:
            problems += _tier_problems(f"tier {name} of the account", tiers[name], group, there, every_replica=False)
            continue
        detail = f"the account has no limits for streams with {group[0].replicas} replicas, only {', '.join(tiers)}"
        problems += [Problem("replicas", Severity.ERROR, each.name, detail, "ask for as many") for each in group]
    return problems


def _tier_problems(
    where: str,
    tier: Mapping[str, Any],
    demands: Sequence[StreamDemand],
    there: Mapping[str, Mapping[str, Any]],
    *,
    every_replica: bool,
) -> list[Problem]:
    limits: Mapping[str, Any] = tier.get("limits") or {}
    problems = []
    new = [demand for demand in demands if demand.name not in there]
    used, allowed = int(tier.get("streams", 0)), _limit(limits, "max_streams")
    if allowed is not None and used + len(new) > allowed:
        detail = f"{where} may have {allowed} streams and has {used}; {len(new)} more are wanted"
        problems.append(Problem("too-many-streams", Severity.ERROR, "", detail, "raise max_streams of the account"))
    for in_memory in (False, True):
        some = [demand for demand in demands if demand.in_memory is in_memory]
        if some:
            problems += _storage_problems(where, tier, limits, some, there, every_replica)
    for demand in demands:
        problems += _demand_problems(where, limits, demand)
    return problems


def _storage_problems(
    where: str,
    tier: Mapping[str, Any],
    limits: Mapping[str, Any],
    demands: Sequence[StreamDemand],
    there: Mapping[str, Mapping[str, Any]],
    every_replica: bool,
) -> list[Problem]:
    kind, name, _, reserved = _LIMITS_OF[demands[0].in_memory]
    allowed = _limit(limits, name)
    if allowed is None:
        return []
    used = max(int(tier.get(kind, 0)), reserved_bytes(tier, reserved) or 0)
    wanted = wanted_bytes(demands, there, every_replica=every_replica)
    if used + wanted <= allowed:
        return []
    detail = f"{where} may use {allowed} bytes of {kind} and uses {used}; {wanted} more are needed"
    return [Problem(kind, Severity.ERROR, "", detail, f"raise {name} of the account, or remove something")]


def reserved_bytes(tier: Mapping[str, Any], name: str) -> int | None:
    """Returns what streams have reserved, None where the server is too old to tell.

    Servers 2.10 count a stream without max_bytes as -1, and may tell that as 2**64 - 1.
    """
    value = tier.get(name)
    if value is None:
        return None
    return max(0, int(value) - (1 << 64 if int(value) >= 1 << 63 else 0))


def wanted_bytes(
    demands: Iterable[StreamDemand],
    there: Mapping[str, Mapping[str, Any]],
    *,
    every_replica: bool = False,
    least: bool = False,
) -> int:
    """Returns how many bytes streams need, beyond those that are there already and will be replaced or gone on with.

    Args:
        demands: The streams.
        there: Infos of those that are there.
        every_replica: Count every replica.
        least: Count what is certain; else what is estimated.
    """
    return sum(
        (max(each.least_bytes if least else each.bytes, _max_bytes(each)) - _bytes_there(there.get(each.name)))
        * (each.replicas if every_replica else 1)
        for each in demands
    )


def _demand_problems(where: str, limits: Mapping[str, Any], demand: StreamDemand) -> Iterable[Problem]:
    def problem(code: str, detail: str, remedy: str) -> Problem:
        return Problem(code, Severity.ERROR, demand.name, detail, remedy)

    _, _, name, _ = _LIMITS_OF[demand.in_memory]
    max_bytes, allowed = _max_bytes(demand), _limit(limits, name)
    if max_bytes <= 0 and limits.get("max_bytes_required"):
        yield problem(
            "max-bytes-required",
            f"{where} demands max_bytes for every stream",
            f"set max_bytes of the stream, to {demand.bytes} or more",
        )
    if allowed and max_bytes > allowed:
        yield problem(
            "max-bytes-too-large",
            f"its max_bytes of {max_bytes} is over the {allowed} that {where} allows for a stream",
            "lower max_bytes, or raise the limit of the account",
        )
    consumers = _limit(limits, "max_consumers")
    if consumers and len(demand.consumers) > consumers:
        yield problem(
            "too-many-consumers",
            f"it has {len(demand.consumers)} consumers, and {where} allows {consumers} for a stream",
            "raise max_consumers of the account, or leave some out",
        )
    pending = _limit(limits, "max_ack_pending")
    if pending:
        over = [each for each in demand.consumers if int(each.get("max_ack_pending") or 0) > pending]
        for config in over:
            yield problem(
                "max-ack-pending",
                f"consumer {config.get('durable_name') or config.get('name')} has max_ack_pending "
                f"{config['max_ack_pending']}, and {where} allows {pending}",
                "lower it, or raise max_ack_pending of the account",
            )


def _limit(limits: Mapping[str, Any], name: str) -> int | None:
    value = int(limits.get(name, -1))
    return None if value < 0 else value


def _max_bytes(demand: StreamDemand) -> int:
    return max(0, int(demand.config.get("max_bytes") or 0))


def _bytes_there(info: Mapping[str, Any] | None) -> int:
    if not info:
        return 0
    state, config = info.get("state") or {}, info.get("config") or {}
    return max(int(state.get("bytes", 0)), int(config.get("max_bytes") or 0))
