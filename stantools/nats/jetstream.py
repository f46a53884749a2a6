"""The JetStream API (jetstream-api.md): streams, consumers, account. Answers are the server's own JSON objects.

Read-only requests are repeated once if the connection breaks meanwhile. Requests that change something are not: the
caller must find out whether they were executed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from stantools.nats import encoding
from stantools.nats.errors import (
    ApiError,
    ConnectionLostError,
    NatsError,
    NoAnswerError,
    NoResponderError,
)

if TYPE_CHECKING:
    from stantools.nats.connection import NatsConnection

STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
MESSAGE_NOT_FOUND: Final = 10037
#: JetStream is off: for the account, on the server
DISABLED: Final = frozenset({10039, 10076})
#: default timeout in seconds of changes; a cluster may need it
CHANGE_SECONDS: Final = 30.0
#: concurrent requests of `ask_many`: servers reject more than some thousands
_MAX_CONCURRENT: Final = 256
#: Seconds between two collections of answers, longer as they come more slowly: handling each alone would cost too much
#: here.
_ANSWER_INTERVALS: Final = (0.0005, 0.016)
_FEW: Final = 16
#: an answer without a payload is the server's own: there is no subscriber
_NO_RESPONDER: Final = b'{"error":{"code":503,"err_code":0,"description":"nobody listens"}}'
#: from this version on the consumer's name is part of the subject that creates it
_NAMED_CONSUMERS = (2, 9, 0)


class JetStream:
    """The JetStream of a connection's account; `change` is the minimum timeout in seconds of changes."""

    def __init__(self, connection: NatsConnection, *, change: float = CHANGE_SECONDS) -> None:
        self.connection = connection
        self._change_seconds = change
        self.prefix = connection.options.prefix

    async def api(
        self, operation: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None, asks: bool = False
    ) -> dict[str, Any]:
        """Sends one request, for instance `STREAM.INFO.ORDERS`, and returns the answer, which holds no error.

        `asks` marks a read-only request, which may be sent twice. Raises ApiError if the server refused,
        NoAnswerError (JetStream may be off), and the errors of `NatsConnection.request`.
        """
        payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        subject = f"{self.prefix}.{operation}"
        try:
            answer = await self.connection.request(subject, payload, timeout)
        except ConnectionLostError:
            if not asks:
                raise
            answer = await self.connection.request(subject, payload, timeout)
        except NoResponderError as problem:
            raise NoResponderError(problem.message, _NO_ANSWER_REMEDY) from None
        except NoAnswerError as problem:
            raise NoAnswerError(problem.message, f"{problem.remedy}; {_NO_ANSWER_REMEDY}") from None
        return read_answer(operation, answer)

    async def ask_many(
        self, operation: str, bodies: Sequence[Mapping[str, Any]], *, ignore: frozenset[int] = frozenset()
    ) -> list[dict[str, Any] | None]:
        """Sends many requests of one kind, some hundreds at a time: sequentially they would take minutes.

        Returns the answers in order, None for the error codes (`err_code`) in `ignore`. Errors as of `api`; other
        requests may have been executed then.
        """
        connection, timeout = self.connection, self.connection.options.timeout
        subject = f"{self.prefix}.{operation}"
        answers: dict[int, bytes] = {}
        answer = connection.new_inbox() + b"."
        inbox = connection.open_inbox(answer + b"*")
        try:
            with connection.watch(subject) as failed:
                sent, gather = 0, _ANSWER_INTERVALS[0]
                while len(answers) < len(bodies):
                    frames = []
                    while sent < min(len(bodies), len(answers) + _MAX_CONCURRENT):
                        data = json.dumps(bodies[sent], separators=(",", ":")).encode()
                        frames.append(encoding.publish(subject.encode(), data, answer + b"%d" % sent))
                        sent += 1
                    await connection.write(b"".join(frames))
                    received = await connection.receive(inbox, failed, timeout, subject)
                    for row in range(len(received)):
                        number = int(received.subject(row).rpartition(b".")[2])
                        answers.setdefault(number, received.data(row) or _NO_RESPONDER)
                    if sent - len(answers) > _MAX_CONCURRENT // 2:
                        few = len(received) < _FEW
                        gather = min(2 * gather, _ANSWER_INTERVALS[1]) if few else max(gather / 2, _ANSWER_INTERVALS[0])
                        await asyncio.sleep(gather)
        finally:
            connection.close_inbox(inbox)
        return [_read_one(operation, answers[number], ignore) for number in range(len(bodies))]

    async def account(self) -> dict[str, Any]:
        return await self.api("INFO", asks=True)

    # Streams.

    async def stream_info(self, name: str) -> dict[str, Any] | None:
        """Returns configuration and state of a stream, None if there is none."""
        try:
            return await self.api(f"STREAM.INFO.{name}", asks=True)
        except ApiError as problem:
            if problem.err_code == STREAM_NOT_FOUND:
                return None
            raise

    async def stream_names(self, subject: str | None = None) -> list[str]:
        """Returns the names of all streams, or of those with a subject that overlaps the given one."""
        query = {} if subject is None else {"subject": subject}
        names: list[str] = []
        while True:
            answer = await self.api("STREAM.NAMES", {**query, "offset": len(names)}, asks=True)
            page = answer.get("streams") or []
            names.extend(map(str, page))
            if not page or len(names) >= int(answer.get("total", 0)):
                return names

    async def create_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Creates a stream; no effect if it exists with the same configuration. Returns its info."""
        return await self._change(f"STREAM.CREATE.{config['name']}", config)

    async def update_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return await self._change(f"STREAM.UPDATE.{config['name']}", config)

    async def delete_stream(self, name: str, *, timeout: float | None = None) -> bool:
        """Deletes a stream with its messages; returns whether it existed. `timeout` None: that of changes."""
        try:
            await self._change(f"STREAM.DELETE.{name}", timeout=timeout)
        except ApiError as problem:
            if problem.err_code == STREAM_NOT_FOUND:
                return False
            raise
        return True

    async def purge_stream(self, name: str, *, below: int | None = None) -> int:
        """Removes messages from a stream, those below a sequence or all; returns their number.

        On an empty stream, `below` becomes the sequence of the next message.
        """
        answer = await self._change(f"STREAM.PURGE.{name}", None if below is None else {"seq": below})
        return int(answer.get("purged", 0))

    async def delete_message(self, stream: str, sequence: int, *, erase: bool = False) -> None:
        """Deletes a message; its sequence stays empty. `erase` also overwrites it on disk."""
        await self._change(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": not erase})

    async def message(self, stream: str, query: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns one message (`subject`, `seq`, `time`, base64 `data` and `hdrs`), None if there is none."""
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", query, asks=True)
        except ApiError as problem:
            if problem.err_code == MESSAGE_NOT_FOUND:
                return None
            raise
        message = answer.get("message")
        return message if isinstance(message, dict) else None

    # Consumers.

    async def consumer_create(self, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Creates a consumer, or changes one where that is allowed. Returns its info.

        `name` or `durable_name` in `config` names it; without both the server chooses a name.
        """
        name = config.get("name") or config.get("durable_name")
        version = self.connection.version
        body: dict[str, Any] = {"stream_name": stream, "config": dict(config)}
        if name is None:
            operation = f"CONSUMER.CREATE.{stream}"
        elif (0, 0, 0) < version < _NAMED_CONSUMERS:
            operation = f"CONSUMER.DURABLE.CREATE.{stream}.{name}"
        else:
            operation = f"CONSUMER.CREATE.{stream}.{name}"
            subject = config.get("filter_subject")
            if subject and subject != ">":
                operation += f".{subject}"
        return await self._change(operation, body)

    async def consumer_info(self, stream: str, name: str) -> dict[str, Any] | None:
        """Returns configuration and state of a consumer, None if it or its stream does not exist."""
        try:
            return await self.api(f"CONSUMER.INFO.{stream}.{name}", asks=True)
        except ApiError as problem:
            if problem.err_code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise

    async def consumer_delete(self, stream: str, name: str) -> bool:
        try:
            await self._change(f"CONSUMER.DELETE.{stream}.{name}")
        except ApiError as problem:
            if problem.err_code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return False
            raise
        return True

    async def _change(
        self, operation: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        if timeout is None:
            timeout = max(self._change_seconds, self.connection.options.timeout)
        return await self.api(operation, body, timeout=timeout)


def _read_one(operation: str, answer: bytes, ignore: frozenset[int]) -> dict[str, Any] | None:
    try:
        return read_answer(operation, answer)
    except ApiError as problem:
        if problem.err_code in ignore:
            return None
        raise


_NO_ANSWER_REMEDY = "check that JetStream is enabled, and the JetStream domain and API prefix"


def read_answer(operation: str, payload: bytes) -> dict[str, Any]:
    """Parses an answer of the API; ApiError if it is an error, NatsError if it cannot be understood."""
    try:
        answer = json.loads(payload)
        if not isinstance(answer, dict):
            raise ValueError
        error = answer.get("error")
        if error is None:
            return answer
        raise ApiError(
            operation,
            int(error.get("code", 0)),
            int(error.get("err_code", 0)),
            str(error.get("description") or "no reason given"),
        )
    except (ValueError, TypeError, AttributeError):
        raise NatsError(
            f"the answer to {operation} is not an answer of the JetStream API: {payload[:80]!r}",
            "check which service answers on that subject",
        ) from None
