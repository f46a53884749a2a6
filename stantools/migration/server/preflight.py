"""Checks of a server for wanted streams, before anything is created there.

All requests are free of side effects. Permission for a request with side effects is tested with invalid JSON: a
server that permits it answers that it is malformed. Space is tested with a request that the server cannot fulfil.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stantools.migration.plan.migration_plan import RemarkLevel
from stantools.migration.server.demands import (
    NEWEST_TRIED,
    OLDEST_TRIED,
    ROOM,
    Problem,
    StreamDemand,
    account_problems,
    refused,
    reserved_bytes,
    stream_exists,
    wanted_bytes,
)
from stantools.nats.connect_options import DEFAULT_API_PREFIX
from stantools.nats.errors import (
    ApiError,
    NatsError,
    NoResponderError,
    PermissionDeniedError,
    is_full,
)
from stantools.nats.jetstream import DISABLED, JetStream
from stantools.nats.subjects import SubjectOwners
from stantools.streamfiles.stream_config import unknown_options

if TYPE_CHECKING:
    from stantools.nats.connection import NatsConnection

__all__ = ["Problem", "StreamAccess", "StreamDemand", "preflight"]

#: concurrent requests
_AT_A_TIME = 32
_PROBE = b"?"


class StreamAccess(enum.Enum):
    """How streams will be made, which determines permissions and limits."""

    RESTORE = "restore"
    PUBLISH = "publish"


async def preflight(
    js: JetStream, demands: Sequence[StreamDemand], access: StreamAccess = StreamAccess.RESTORE, *, verify: bool = True
) -> list[Problem]:
    """Returns all problems that would stop the work, errors first; otherwise in the order of the streams.

    `verify`: the streams will be compared afterwards, which needs more permissions. Raises NatsError without an
    answer.
    """
    problems = _server_problems(js.connection)
    account = await _account(js, problems)
    if account is None:
        return problems
    taken = await _existing_streams(js, demands, problems)
    if account:
        problems += account_problems(account, demands, taken)
    problems += await _server_room(js, demands, account, taken)
    for demand in demands:
        problems += _stream_problems(js.connection, demand, access)
    problems += _overlaps_among(demands)
    problems += await _overlaps_with_others(js, demands, taken)
    problems += [problem async for problem in _permissions(js, demands, access, verify)]
    return sorted(problems, key=lambda problem: problem.level is not RemarkLevel.PROBLEM)


def _server_problems(connection: NatsConnection) -> list[Problem]:
    version = connection.version
    text = str(connection.info.get("version", "none"))
    tried = f"tested versions are {'.'.join(map(str, OLDEST_TRIED))} to {'.'.join(map(str, NEWEST_TRIED))}"
    if version == (0, 0, 0):
        detail = f"the server's version {text!r} cannot be read; {tried}"
        return [Problem("version-unknown", RemarkLevel.WARNING, "", detail, "try it with a small channel first")]
    if version < (2, 2, 0):
        detail = f"the server has version {text}, whose JetStream is too old"
        return [Problem("version-too-old", RemarkLevel.PROBLEM, "", detail, "use version 2.9 or newer")]
    if version < OLDEST_TRIED or version[:2] > NEWEST_TRIED[:2]:
        detail = f"the server has version {text}; {tried}"
        return [Problem("version-untried", RemarkLevel.WARNING, "", detail, "try it with a small channel first")]
    return []


async def _account(js: JetStream, problems: list[Problem]) -> dict[str, Any] | None:
    """Returns the account's limits; empty if hidden, None without JetStream."""
    try:
        return await js.account()
    except PermissionDeniedError as problem:
        problems.append(_cannot_ask("the limits of the account", problem))
        return {}
    except NoResponderError as problem:
        detail = problem.message
        if not js.connection.info.get("jetstream"):
            detail = f"JetStream is not enabled on the server at {js.connection.url}"
        problems.append(Problem("jetstream-off", RemarkLevel.PROBLEM, "", detail, problem.remedy))
        return None
    except ApiError as problem:
        if problem.err_code not in DISABLED:
            raise
        problems.append(Problem("jetstream-off", RemarkLevel.PROBLEM, "", problem.description, problem.remedy))
        return None


async def _existing_streams(
    js: JetStream, demands: Sequence[StreamDemand], problems: list[Problem]
) -> dict[str, dict[str, Any]]:
    """Returns the infos of existing streams with wanted names."""
    try:
        names = set(await js.stream_names())
        infos = {name: await js.stream_info(name) for name in sorted({each.name for each in demands} & names)}
    except PermissionDeniedError as problem:
        problems.append(_cannot_ask("the list of streams", problem))
        return {}
    for demand in demands:
        if demand.name in infos and not demand.may_exist:
            state = (infos[demand.name] or {}).get("state", {})
            problems.append(stream_exists(demand.name, state.get("messages", "?"), state.get("last_seq", "?")))
    return {name: info or {} for name, info in infos.items()}


async def _server_room(
    js: JetStream,
    demands: Sequence[StreamDemand],
    account: Mapping[str, Any],
    existing: Mapping[str, Mapping[str, Any]],
) -> list[Problem]:
    """Checks the space of a single server (`max_file` and `max_mem` of its configuration).

    It reports this to no client, but compares max_bytes of a stream with its unreserved space, and only then refuses
    five replicas, which need a cluster (2.9.10 to 2.15.1): the request never succeeds. Unreserved use by other
    accounts and the space on disk stay unknown. Limits of the account are compared separately; there every replica
    counts, which would change the answer.
    """
    connection = js.connection
    if connection.cluster or not connection.info.get("jetstream") or js.prefix != DEFAULT_API_PREFIX or not demands:
        return []
    problems = []
    for in_memory, kind in ROOM.items():
        some = [each for each in demands if each.in_memory is in_memory]
        wanted, least = wanted_bytes(some, existing), wanted_bytes(some, existing, minimum=True)
        reserved = reserved_bytes(account, f"reserved_{kind}")
        # not reserved on the server, but not free either
        used = 0 if reserved is None else max(0, int(account.get(kind, 0)) - reserved)
        limited = account.get("tiers") or int((account.get("limits") or {}).get(f"max_{kind}", -1)) >= 0
        if limited or wanted <= 0 or await _fits(js, demands[0].name, in_memory, used + wanted):
            continue
        room, too_much = 0, used + wanted
        while too_much - room > max(wanted // 256, 1):
            middle = (room + too_much) // 2
            fits = await _fits(js, demands[0].name, in_memory, middle)
            room, too_much = (middle, too_much) if fits else (room, middle)
        left = max(0, room - used)
        detail = (
            f"the server at {connection.url} has room for about {left} bytes of {kind}; about {wanted} bytes are needed"
        )
        remedy = f"raise {'max_mem' if in_memory else 'max_file'} in the server's configuration, or remove something"
        problems.append(Problem(kind, RemarkLevel.PROBLEM if left < least else RemarkLevel.WARNING, "", detail, remedy))
    return problems


async def _fits(js: JetStream, name: str, in_memory: bool, size: int) -> bool:
    """Requests a stream that cannot be made; returns False if the error is lack of space."""
    config = {"name": name, "subjects": [name], "retention": "limits", "storage": "memory" if in_memory else "file"}
    try:
        await js.api(f"STREAM.CREATE.{name}", {**config, "num_replicas": 5, "max_bytes": size})
    except ApiError as problem:
        return not is_full(problem)
    except NatsError:
        return True  # without permission, lack of space shows during the work
    raise NatsError(f"{js.connection.url}: made stream {name} with 5 replicas on a single server", "delete it")


def _stream_problems(connection: NatsConnection, demand: StreamDemand, access: StreamAccess) -> list[Problem]:
    problems = []
    restoring = access is StreamAccess.RESTORE

    def found(code: str, detail: str, remedy: str, level: RemarkLevel = RemarkLevel.PROBLEM) -> None:
        problems.append(Problem(code, level, demand.name, detail, remedy))

    for subject in demand.subjects:
        reason = refused(subject, connection.version)
        if reason:
            found(
                "subject-refused", f"the subject {subject} {reason}", "give its channel another subject, with a prefix"
            )
    if demand.replicas > 1 and not connection.cluster:
        found("replicas", f"{demand.replicas} replicas need a cluster, and this is a single server", "ask for 1")
    known = len(set(connection.info.get("connect_urls") or ()))
    if connection.cluster and demand.replicas > known > 0:
        detail = f"{demand.replicas} replicas are wanted, but only {known} servers of the cluster are known"
        found("replicas", detail, "check the cluster, or use fewer replicas", RemarkLevel.WARNING)
    if restoring and demand.config.get("storage") == "memory":
        found("memory", "a stream in memory cannot be restored from an archive", "store it in files, or publish")
    limit = int(demand.config.get("max_msg_size") or -1)
    if 0 <= limit < demand.largest_message:
        detail = f"its largest message has {demand.largest_message} bytes, over its max_msg_size of {limit}"
        found("message-too-large", detail, "raise max_msg_size, or remove it")
    if demand.largest_message > connection.max_payload:
        detail = f"its largest message has {demand.largest_message} bytes, over max_payload {connection.max_payload}"
        if restoring:
            found(
                "message-too-large", f"{detail}: clients may not receive it", "raise max_payload", RemarkLevel.WARNING
            )
        else:
            found("message-too-large", detail, "raise max_payload on the server, or restore from an archive")
    for name, since in unknown_options(demand.config, connection.version):
        detail = f"the server does not know the option {name}, which came with version {since}"
        found("unknown-option", detail, "remove it, or use a newer server")
    return problems


def _overlaps_among(demands: Sequence[StreamDemand]) -> list[Problem]:
    problems, taken = [], SubjectOwners()
    for demand in demands:
        for subject in demand.subjects:
            others = dict.fromkeys(owner for _, owner in taken.add(subject, demand.name) if owner != demand.name)
            problems += [_overlap_problem(demand.name, subject, other) for other in others]
    return problems


async def _overlaps_with_others(
    js: JetStream, demands: Sequence[StreamDemand], taken: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    slots = asyncio.Semaphore(_AT_A_TIME)
    replaced = {demand.name for demand in demands if demand.may_exist} & set(taken)

    async def look(demand: StreamDemand, subject: str) -> list[Problem]:
        async with slots:
            others = await js.stream_names(subject)
        return [
            _overlap_problem(demand.name, subject, other) for other in others if other not in {demand.name, *replaced}
        ]

    try:
        found = await asyncio.gather(*(look(each, subject) for each in demands for subject in each.subjects))
    except PermissionDeniedError:
        return []  # reported before: the request that lists streams is the same
    return [problem for some in found for problem in some]


def _overlap_problem(stream: str, subject: str, other: str) -> Problem:
    detail = f"its subject {subject} overlaps a subject of stream {other}"
    return Problem(
        "subject-taken", RemarkLevel.PROBLEM, stream, detail, "choose another subject, for instance with a prefix"
    )


async def _permissions(
    js: JetStream, demands: Sequence[StreamDemand], access: StreamAccess, verify: bool
) -> AsyncIterator[Problem]:
    """Tests the permissions that can be tested without side effects, with the first stream."""
    if not demands:
        return
    name = demands[0].name
    operations = [f"STREAM.RESTORE.{name}"] if access is StreamAccess.RESTORE else [f"STREAM.CREATE.{name}"]
    if access is StreamAccess.PUBLISH and any(demand.consumers for demand in demands):
        operations.append(f"CONSUMER.CREATE.{name}.probe")
    if updated := [demand.name for demand in demands if demand.updated]:
        operations.append(f"STREAM.UPDATE.{updated[0]}")
    needed = len(operations)
    if verify:
        operations += [f"STREAM.INFO.{name}", f"CONSUMER.CREATE.{name}"]
    for number, operation in enumerate(operations):
        level = RemarkLevel.PROBLEM if number < needed else RemarkLevel.WARNING
        try:
            await js.connection.request(f"{js.prefix}.{operation}", _PROBE)
        except PermissionDeniedError as problem:
            yield Problem("no-permission", level, "", problem.message, problem.remedy)
        except NatsError as problem:
            yield Problem("no-answer", RemarkLevel.WARNING, "", problem.message, problem.remedy)
    if access is StreamAccess.RESTORE:
        subject = f"$JS.SNAPSHOT.RESTORE.{name}.probe"
        with js.connection.watch(subject) as failed:
            js.connection.publish(subject.encode())
            await js.connection.flush()
            denied = failed.result() if failed.done() else None
        if isinstance(denied, PermissionDeniedError):
            yield Problem("no-permission", RemarkLevel.PROBLEM, "", denied.message, denied.remedy)


def _cannot_ask(request: str, problem: NatsError) -> Problem:
    detail = f"{request} cannot be read: {problem.message}"
    return Problem("cannot-ask", RemarkLevel.WARNING, "", detail, "problems with it will show during the work")
