"""What streams have of a replay that was interrupted: asked before anything is sent a second time.

Every message of a replay carries an id, `<run>:<channel>:<sequence>`. Those that a stream has behind the last confirmed
one were stored without our learning of it. And a server that was killed may have lost messages that it had
acknowledged, because it does not write each to disk at once.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from stantools.migration.target.errors import ApiError
from stantools.migration.target.jetstream import MESSAGE_NOT_FOUND, JetStream

MESSAGE_ID = "Nats-Msg-Id"
#: Requests to the API at a time.
AT_ONCE = 16
#: A longer stretch of a stream is gone through in parts, at the same time.
_STRETCH = 512


class Afterwards:
    """Asks streams for the messages of one run.

    Args:
        jetstream: The API.
        run: Names the run.
    """

    def __init__(self, jetstream: JetStream, run: str) -> None:
        self._jetstream = jetstream
        self._begin = f"{run}:"
        self._limit = asyncio.Semaphore(AT_ONCE)

    def name(self, channel: str, sequence: int) -> str:
        """Returns the id of a message."""
        return f"{self._begin}{channel}:{sequence}"

    async def ids(self, stream: str, subject: str, behind: int, last: int) -> set[str]:
        """Returns the ids of the messages of this run on a subject.

        Args:
            stream: The stream.
            subject: The subject.
            behind: Only messages with higher sequences in the stream.
            last: Only messages up to this sequence.

        Raises:
            TargetError: The stream cannot be asked.
        """
        step = max(_STRETCH, -(-(last - behind) // AT_ONCE))
        parts = [(low, min(low + step, last)) for low in range(behind, last, step)]
        found = await asyncio.gather(*(self._ids(stream, subject, low, high) for low, high in parts))
        return set().union(*found)

    async def _ids(self, stream: str, subject: str, behind: int, last: int) -> set[str]:
        found: set[str] = set()
        async with self._limit:
            while behind < last:
                message = await self._message(stream, {"seq": behind + 1, "next_by_subj": subject})
                sequence = int(message.get("seq", 0))
                if not behind < sequence <= last:
                    break
                behind = sequence
                name = message_id(message)
                if name.startswith(self._begin):
                    found.add(name)
        return found

    async def last(self, stream: str, subject: str, channel: str) -> int | None:
        """Returns the sequence, in its channel, of the last message on a subject that only this channel goes to.

        Returns:
            0 if there is no message; None if the last one is not of this run.

        Raises:
            TargetError: The stream cannot be asked.
        """
        message = await self._message(stream, {"last_by_subj": subject})
        if not message:
            return 0
        begin, _, sequence = message_id(message).rpartition(":")
        return int(sequence) if f"{begin}:" == f"{self._begin}{channel}:" and sequence.isdigit() else None

    async def _message(self, stream: str, query: dict[str, Any]) -> dict[str, Any]:
        """Returns one message, empty if there is none."""
        try:
            answer = await self._jetstream.api(f"STREAM.MSG.GET.{stream}", query, asks=True)
        except ApiError as problem:
            if problem.err_code == MESSAGE_NOT_FOUND:
                return {}
            raise
        message = answer.get("message")
        return message if isinstance(message, dict) else {}


def message_id(message: dict[str, Any]) -> str:
    """Returns the id of a message as the API gives it, empty if it has none."""
    for line in base64.b64decode(message.get("hdrs") or b"").split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon and name.lower() == MESSAGE_ID.lower().encode():
            return value.strip().decode("utf-8", "replace")
    return ""
