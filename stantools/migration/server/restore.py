"""Restores a stream from an archive (jetstream-migration.md section 4), completely or not at all.

A server creates the stream when it has the whole archive (new versions do not even wait for its end mark), so an
earlier failure leaves nothing, except in a cluster (see `find`). Two cases remain. The final answer can be lost;
then the stream may or may not exist. And a server that finds a damaged record omits the rest of its block without an
error (jetstream-migration.md section 5.4); so the reported state is compared, and a stream that differs is deleted
again. In a cluster that loses a node during a restore, the stream can be complete while its consumers start from the
beginning; the caller's check of them decides likewise.

Only streams of this restore are deleted: the server has confirmed it, or, in a cluster, the name was free before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.server.transfer import DroppedError, Transfer, TransferFlow, transfer
from stantools.nats.errors import (
    ApiError,
    ConnectionLostError,
    NatsError,
    NoAnswerError,
    PermissionDeniedError,
)
from stantools.nats.jetstream import JetStream, read_answer
from stantools.notation import parse_moment

if TYPE_CHECKING:
    from stantools.store.mapping import Buffer


def state_differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Returns the differences between an expected and a reported state, in words.

    Only fields of `expected` are compared. In an empty stream only the last sequence counts: servers disagree on the
    first (jetstream-migration.md section 5.3).
    """
    names = ["messages", "last_seq", "consumer_count"]
    if expected.get("messages") or found.get("messages"):
        names += ["bytes", "last_ts"]
        if found.get("first_seq"):
            # 2.9 reports 0 until the next message, if a skip record has its own block.
            names += ["first_seq", "first_ts"]
    return [
        f"{name} is {found.get(name)} instead of {expected[name]}"
        for name in names
        if name in expected and not _same(name, expected[name], found.get(name))
    ]


def _same(name: str, expected: Any, found: Any) -> bool:
    if not name.endswith("_ts"):
        return bool(expected == found)
    try:
        return parse_moment(str(expected)) == parse_moment(str(found))
    except ValueError:
        return False


#: seconds for a single server to come back, or for a stream to appear whose restore was not answered
SETTLE_SECONDS: Final = 10.0
#: the same for a cluster, which may have to elect a leader
CLUSTER_SETTLE_SECONDS: Final = 60.0
_ASK_AGAIN_SECONDS = 0.5
_ASK_SECONDS = 3.0


def settle_seconds(js: JetStream) -> float:
    """Returns the seconds until the server's or cluster's state is settled."""
    return CLUSTER_SETTLE_SECONDS if js.connection.cluster else SETTLE_SECONDS


async def find(js: JetStream, stream: str, subjects: Iterable[str]) -> dict[str, Any] | None:
    """Returns the info of a stream, None if it does not exist.

    The info is empty if the name is taken but no server answers for it. `subjects` are those of the wanted stream.
    """
    info = await js.stream_info(stream)
    if info is not None or not js.connection.cluster:
        return info
    for subject in subjects:
        if stream in await js.stream_names(subject):
            return {}
    return None


async def find_in_time(js: JetStream, stream: str, subjects: Iterable[str]) -> dict[str, Any] | None:
    """As `find`, repeated while there is no leader or no connection."""
    deadline = asyncio.get_running_loop().time() + settle_seconds(js)
    while True:
        try:
            await js.connection.wait_connected(_ASK_SECONDS)
            return await find(js, stream, subjects)
        except (ApiError, ConnectionLostError, NoAnswerError) as problem:
            if not problem.retriable or js.connection.closed or _is_past(deadline):
                raise
            await asyncio.sleep(_ASK_AGAIN_SECONDS)


async def remove(js: JetStream, stream: str, subjects: Iterable[str]) -> None:
    """Deletes a stream and waits until it is gone."""
    deadline = asyncio.get_running_loop().time() + settle_seconds(js)
    while True:
        try:
            # A stream without leader is deleted as well, but without an answer.
            await js.delete_stream(stream, timeout=_ASK_SECONDS)
        except (ApiError, ConnectionLostError, NoAnswerError) as problem:
            if not problem.retriable or _is_past(deadline):
                raise
        if await find_in_time(js, stream, subjects) is None:
            return
        if _is_past(deadline):
            raise NoAnswerError(f"stream {stream} still exists", "delete it by hand")
        await asyncio.sleep(_ASK_AGAIN_SECONDS)


def _is_past(deadline: float) -> bool:
    return asyncio.get_running_loop().time() > deadline


_FLOW: Final = TransferFlow()
_NAME_IN_USE = 10130
#: seconds to wait for the acceptance of a request; in a cluster it may go to a server that has just died and never be
#: answered, so that an early clean-up and retry is better
_REQUEST_SECONDS = 10.0
_POLL_SECONDS = 0.25
#: seconds between two checks of a cluster's restore, and longest time in doubt
_LOOK_SECONDS = 5.0
_DOUBTS = 3

# restores of this process: (system, prefix, stream)
_active: set[tuple[str, str, str]] = set()


class RestoreError(NatsError):
    """A failed restore; the message gives the cause, and the state of the stream."""

    def __init__(self, stream: str, problem: StantoolsError, left: str, state: str) -> None:
        super().__init__(f"stream {stream} could not be restored: {problem.message}; {state}", problem.remedy)
        self.exit_code = problem.exit_code
        self.stream = stream
        self.left = left  #: `nothing`, `stream` (it exists and is wrong) or `unknown`
        self.retriable = problem.retriable or isinstance(problem, (DroppedError, PositionsLostError))


class PositionsLostError(NatsError):
    """A cluster has restored a stream without the positions of its consumers."""


async def restore(
    js: JetStream,
    stream: str,
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    pieces: Iterable[Buffer],
    *,
    flow: TransferFlow = _FLOW,
    limits_apply: bool = False,
    begun: bool = False,
    consumer_differences: Callable[[], Awaitable[str]] | None = None,
) -> dict[str, Any]:
    """Restores one stream with its consumers and returns its state, as reported by the server.

    `config` is the configuration of the request, which may have more fields than the archive. `state` is the
    expected one: `messages`, `bytes`, `first_seq`, `last_seq`, `first_ts`, `last_ts`, `consumer_count`. `pieces` of
    any size are read in another thread; each has to be valid until the next one. With `limits_apply` the limits
    remove messages at once, so that only the last sequence is compared. With `begun` an earlier restore may have
    left an empty name in a cluster, which is deleted first. `consumer_differences` returns how the consumers of the
    restored stream differ in a cluster, "" if they do not.

    Raises RefusedError if the stream exists or is being restored by this process, ApiError if the request was
    refused and nothing is left, RestoreError for a later failure.
    """
    job = _Restore(js, stream, config, {"last_seq": state["last_seq"]} if limits_apply else state)
    with _exclusive(js, stream):
        subject = await job.begin(state, begun=begun)
        sending = None
        try:
            async with transfer(js.connection, job.operation, subject, flow) as sending:
                await sending.send_all(pieces)
                answer = await job.finish(sending)
        except StantoolsError as problem:
            return await job.after_failure(problem, complete=sending is not None and sending.complete)
        found = await job.check(dict(answer.get("state") or {}))
        if consumer_differences and js.connection.cluster:
            await job.check_consumers(consumer_differences)
        return found


@contextlib.contextmanager
def _exclusive(js: JetStream, stream: str) -> Iterator[None]:
    """Prevents two restores of one stream, both of which the server would accept."""
    info = js.connection.info
    key = (str(js.connection.cluster or info.get("server_id")), js.prefix, stream)
    if key in _active:
        raise RefusedError(f"stream {stream} is being restored already", "wait until that has ended")
    _active.add(key)
    try:
        yield
    finally:
        _active.discard(key)


class _Restore:
    def __init__(self, js: JetStream, stream: str, config: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        self.operation = f"STREAM.RESTORE.{stream}"
        self._js = js
        self._stream = stream
        self._config = config
        self._subjects = [str(subject) for subject in config.get("subjects") or [stream]]
        self._expected = expected
        self._was_free = False

    async def begin(self, state: Mapping[str, Any], *, begun: bool) -> str:
        """Requests the restore; returns the subject for the archive."""
        js = self._js
        timeout = max(_REQUEST_SECONDS, js.connection.options.timeout)
        if js.connection.cluster:
            await self._check_name(begun=begun)
        try:
            answer = await js.api(self.operation, {"config": dict(self._config), "state": dict(state)}, timeout=timeout)
        except NatsError as problem:
            if isinstance(problem, ApiError) and problem.err_code == _NAME_IN_USE:
                raise self._is_there(problem.remedy) from problem
            if not problem.retriable:
                raise
            # It may have been accepted nevertheless.
            await self.after_failure(problem, complete=False)
            raise
        subject = answer.get("deliver_subject")
        if not isinstance(subject, str) or not subject:
            raise NatsError(f"the answer to {self.operation} names no subject for the archive", "see its log")
        return subject

    async def _check_name(self, *, begun: bool) -> None:
        """Checks that the name is free, which later tells the owner of the stream."""
        try:
            info = await find_in_time(self._js, self._stream, self._subjects)
        except PermissionDeniedError:
            return
        if info is not None and begun and not (info.get("state") or {}).get("last_seq"):
            await remove(self._js, self._stream, self._subjects)
        elif info is not None:
            raise self._is_there("choose another name for the stream, or remove the one that is there")
        self._was_free = True

    def _is_there(self, remedy: str) -> RefusedError:
        return RefusedError(f"stream {self._stream} already exists", remedy)

    async def finish(self, transfer: Transfer) -> dict[str, Any]:
        """Ends the archive and waits for the answer; in a cluster only while a server can give it."""
        answer = asyncio.ensure_future(transfer.end())
        try:
            doubts = 0
            while self._was_free and doubts < _DOUBTS:
                await asyncio.wait({answer}, timeout=_LOOK_SECONDS)
                if answer.done():
                    break
                try:  # during a restore the name is taken, without leader and state
                    active = await find(self._js, self._stream, self._subjects) == {}
                except NatsError:
                    active = False
                doubts = 0 if active else doubts + 1
            if not answer.done() and doubts == _DOUBTS:
                transfer.fail(NoAnswerError("the server that restored the stream is gone", "see the cluster's state"))
            return read_answer(self.operation, await answer)
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def after_failure(self, problem: StantoolsError, *, complete: bool) -> dict[str, Any]:
        """Finds the remains of the stream, and removes them if they are ours and wrong."""
        lost = complete and problem.retriable
        deadline = asyncio.get_running_loop().time() + settle_seconds(self._js)
        try:
            info = await find_in_time(self._js, self._stream, self._subjects)
            while lost and asyncio.get_running_loop().time() < deadline and self._differs(info):
                await asyncio.sleep(_POLL_SECONDS)
                info = await find_in_time(self._js, self._stream, self._subjects)
        except NatsError as other:
            said = f"its remains could not be determined: {other.message}"
            raise RestoreError(self._stream, problem, "unknown", said) from problem
        if info is None and lost:
            said = "it does not exist, unless the server is still unpacking it"
            raise RestoreError(self._stream, problem, "unknown", said) from problem
        if info is None:
            said = "nothing of it is left on the server"
            raise RestoreError(self._stream, problem, "nothing", said) from problem
        differences = self._differs(info)
        if lost and not differences:
            return dict(info["state"])
        if self._was_free:
            raise await self._remove(problem, "its remains were deleted") from problem
        said = f"a stream of this name exists and was not touched: its {', '.join(differences) or 'state is right'}"
        raise RestoreError(self._stream, problem, "stream", said) from problem

    async def check(self, found: dict[str, Any]) -> dict[str, Any]:
        """Returns the reported state if it is right; else deletes the stream."""
        differences = state_differences(self._expected, found)
        if not differences:
            return found
        problem = NatsError(
            f"the server restored it incompletely: {', '.join(differences)}",
            "run the command again; if it happens again, see the server's log and the stream's limits",
        )
        raise await self._remove(problem, "it was deleted again")

    async def check_consumers(self, differences: Callable[[], Awaitable[str]]) -> None:
        """Deletes the stream if its consumers have lost their positions."""
        if wrong := await differences():
            problem = PositionsLostError(
                f"the cluster restored the messages without the positions of consumers: {wrong}",
                "run the command again when all nodes of the cluster are there",
            )
            raise await self._remove(problem, "it was deleted again") from problem

    def _differs(self, info: dict[str, Any] | None) -> list[str]:
        if not info:
            return ["state is not known"]
        return state_differences(self._expected, dict(info.get("state") or {}))

    async def _remove(self, problem: StantoolsError, state: str) -> RestoreError:
        try:
            await remove(self._js, self._stream, self._subjects)
        except NatsError as other:
            state = f"it still exists and must be deleted by hand: {other.message}"
            return RestoreError(self._stream, problem, "stream", state)
        return RestoreError(self._stream, problem, "nothing", state)
