"""Waiting for what comes to an inbox, or for what makes waiting useless."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from stantools.migration.target.errors import NoAnswerError

if TYPE_CHECKING:
    from stantools.migration.target.connection import Connection
    from stantools.migration.target.errors import TargetError
    from stantools.nats.assembler import Received
    from stantools.nats.receive import Inbox


async def receive(
    connection: Connection, inbox: Inbox, failed: asyncio.Future[TargetError], timeout: float, what: str
) -> Received:
    """Returns what has come to an inbox since the last call, and waits for something if nothing has.

    Args:
        connection: Whose inbox it is.
        inbox: The inbox.
        failed: From `Connection.watch`.
        timeout: Seconds to wait.
        what: What is waited for, for the message.

    Raises:
        NoAnswerError: Nothing came.
        TargetError: What `failed` says.
        InterruptedConnectionError: The connection broke.
    """
    if failed.done():
        raise failed.result()
    coming = asyncio.ensure_future(inbox.receive(timeout))
    # Its end must have been looked at, or asyncio complains about it later.
    coming.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait(cast("set[asyncio.Future[Any]]", {coming, failed}), return_when=asyncio.FIRST_COMPLETED)
    if not coming.done():
        coming.cancel()
        raise failed.result()
    try:
        return coming.result()
    except TimeoutError:
        raise NoAnswerError(
            f"{connection.url} did not answer {what} within {timeout:g} s",
            "see the server's log, or allow more time with --timeout",
        ) from None
