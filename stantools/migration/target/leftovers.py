"""What a failed restore leaves behind, and how to get rid of it.

A single server makes the stream at the end, or not at all. In a cluster the name is given to the new stream as soon
as the request is accepted: if the server that restores it dies, an empty stream remains, which may take half a minute
to show up, because a new leader has to be found first. Until then some requests are not answered, and the stream's
info may say that there is none while its name is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from stantools.migration.target.errors import ApiError, ConnectionLostError, NoAnswerError

if TYPE_CHECKING:
    from stantools.migration.target.jetstream import JetStream

#: Seconds in which a single server must come back, or a stream show up whose restore was not answered.
SETTLE_SECONDS: Final = 10.0
#: The same for a cluster, which may have to find a new leader.
CLUSTER_SETTLE_SECONDS: Final = 60.0
_POLL_SECONDS = 0.5
_ASK_SECONDS = 3.0
_NO_LEADER = 10008
_OFFLINE = 10118


def is_passing(problem: Exception) -> bool:
    """Tells whether a failure may well be over at the next attempt: no connection, no answer, no leader."""
    if isinstance(problem, ApiError):
        return problem.err_code in (_NO_LEADER, _OFFLINE)
    return isinstance(problem, ConnectionLostError | NoAnswerError)


def settle_seconds(js: JetStream) -> float:
    """How long it may take until the system knows what is left."""
    return CLUSTER_SETTLE_SECONDS if js.connection.cluster else SETTLE_SECONDS


async def find(js: JetStream, stream: str, subjects: Iterable[str]) -> dict[str, Any] | None:
    """Asks for a stream.

    Args:
        js: Where.
        stream: Its name.
        subjects: Subjects that it has, or would have.

    Returns:
        Its info; an empty object if its name is taken, but nobody can say more; None if there is none.

    Raises:
        TargetError: It cannot be found out.
    """
    info = await js.stream_info(stream)
    if info is not None or not js.connection.cluster:
        return info
    for subject in subjects:
        if stream in await js.streams_on(subject):
            return {}
    return None


async def find_in_time(js: JetStream, stream: str, subjects: Iterable[str]) -> dict[str, Any] | None:
    """Does as `find` does, again and again as long as the system has no leader or the connection is lost."""
    deadline = asyncio.get_running_loop().time() + settle_seconds(js)
    while True:
        try:
            await js.connection.wait_connected(_ASK_SECONDS)
            return await find(js, stream, subjects)
        except (ApiError, ConnectionLostError, NoAnswerError) as problem:
            if not is_passing(problem) or js.connection.client.is_closed or _over(deadline):
                raise
            await asyncio.sleep(_POLL_SECONDS)


async def remove(js: JetStream, stream: str, subjects: Iterable[str]) -> None:
    """Deletes a stream, and makes sure that it is gone.

    Raises:
        TargetError: It could not be deleted.
    """
    deadline = asyncio.get_running_loop().time() + settle_seconds(js)
    while True:
        try:
            # A stream without a leader is deleted, too, but nobody answers.
            await js.delete_stream(stream, timeout=_ASK_SECONDS)
        except (ApiError, ConnectionLostError, NoAnswerError) as problem:
            if not is_passing(problem) or _over(deadline):
                raise
        if await find_in_time(js, stream, subjects) is None:
            return
        if _over(deadline):
            raise NoAnswerError(f"stream {stream} is there still", "delete it by hand")
        await asyncio.sleep(_POLL_SECONDS)


def _over(deadline: float) -> bool:
    return asyncio.get_running_loop().time() > deadline
