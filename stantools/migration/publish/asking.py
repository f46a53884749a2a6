"""Many requests to the JetStream API at once: one deletion a filler would take minutes, one after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from stantools.migration.publish.receiving import receive
from stantools.migration.publish.writing import send_frames
from stantools.migration.target.errors import ApiError
from stantools.migration.target.jetstream import read_answer
from stantools.nats.receive import open_inbox

if TYPE_CHECKING:
    from stantools.migration.target.jetstream import JetStream

#: Requests that wait for their answers at the same time: servers turn away what is beyond some thousands.
_AT_ONCE: Final = 256
#: Seconds in which answers gather, the more of them the slower they come: one at a time they would cost too much here.
_GATHER: Final = (0.0005, 0.016)
_FEW: Final = 16
#: An answer without a payload is the server's own: there is nobody who could answer.
_NOBODY: Final = b'{"error":{"code":503,"err_code":0,"description":"nobody listens"}}'


async def ask_many(
    js: JetStream, operation: str, bodies: Sequence[Mapping[str, Any]], *, ignore: frozenset[int] = frozenset()
) -> list[dict[str, Any] | None]:
    """Sends requests of one kind, some hundreds at a time.

    Args:
        js: Where to.
        operation: What comes after the prefix.
        bodies: The requests.
        ignore: Error codes (`err_code`) that are no failure.

    Returns:
        The answers in order, None where it was one of the errors to ignore.

    Raises:
        ApiError: The server refused one; the others may have been carried out.
        NoAnswerError: No answer came for a while.
        PermissionDeniedError: The user may not send them.
        ConnectionLostError, InterruptedConnectionError: The connection broke.
    """
    if not bodies:
        return []
    connection, timeout = js.connection, js.connection.options.timeout
    subject = f"{js.prefix}.{operation}"
    answers: dict[int, bytes] = {}
    inbox = await open_inbox(connection.client, f"{connection.client.new_inbox()}.*")
    start = subject.encode(), inbox.subject[:-1].encode()
    try:
        with connection.watch(subject) as failed:
            sent, gather = 0, _GATHER[0]
            while len(answers) < len(bodies):
                frames = []
                while sent < min(len(bodies), len(answers) + _AT_ONCE):
                    data = json.dumps(bodies[sent], separators=(",", ":")).encode()
                    frames.append(b"PUB %b %b%d %d\r\n%b\r\n" % (*start, sent, len(data), data))
                    sent += 1
                await send_frames(connection.client, b"".join(frames))
                received = await receive(connection, inbox, failed, timeout, subject)
                for row in range(len(received)):
                    number = int(received.subject(row).rpartition(b".")[2])
                    answers.setdefault(number, received.data(row) or _NOBODY)
                if sent - len(answers) > _AT_ONCE // 2:
                    gather = min(2 * gather, _GATHER[1]) if len(received) < _FEW else max(gather / 2, _GATHER[0])
                    await asyncio.sleep(gather)
    finally:
        await inbox.close()
    return [_read(operation, answers[number], ignore) for number in range(len(bodies))]


def _read(operation: str, answer: bytes, ignore: frozenset[int]) -> dict[str, Any] | None:
    try:
        return read_answer(operation, answer)
    except ApiError as problem:
        if problem.err_code in ignore:
            return None
        raise
