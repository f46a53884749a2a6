"""Reading a stream from end to end, as fast as the server sends it (jetstream-api.md sections 6, 7 and 9).

It uses an ephemeral pull consumer without acknowledgements, with at least one batch requested in advance. When the
connection breaks, the server's leader changes or a delivery is missing, a new consumer continues after the last
message received.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from stantools.nats.errors import ApiError, ConnectionLostError, NatsError, NoAnswerError
from stantools.nats.inbox import Inbox, Received
from stantools.nats.jetstream import JetStream

_SECOND = 1_000_000_000
#: maximum of one request; two requests are pending at a time
_BATCH_MESSAGES = 5000
_BATCH_BYTES = 8 << 20
#: seconds that the server holds a request without messages
_EXPIRES = 5
#: seconds between its heartbeats, and seconds that the client waits for a sign of life
_HEARTBEATS = 1
_SILENCE = 5
#: Older servers walk through a gap one sequence after the other, some 150 million per second, and send nothing
#: meanwhile.
_SKIPS_GAPS = (2, 10, 0)
_QUIET_SECONDS_IN_GAPS = 60
#: seconds after which the server removes an unused consumer
_INACTIVE = 60
#: attempts without a message in between
_ATTEMPTS = 5
_PAUSE = 0.5
#: seconds to wait for a reconnection
_RECONNECT = 60.0

_REQUEST_TIMEOUT, _NO_MESSAGES, _CONFLICT, _UNAVAILABLE, _HEARTBEAT = 408, 404, 409, 503, 100
#: conflicts that end only the request
_NO_ROOM, _COMPLETED = b"Message Size Exceeds MaxBytes", b"Batch Completed"


class _ConsumerGoneError(Exception):
    """The consumer is useless: start a new one after the last message."""


class Readback:
    """Reads one stream, from after the sequence `after` to the last sequence of `state` (of `STREAM.INFO`)."""

    def __init__(self, js: JetStream, stream: str, state: dict[str, Any], *, after: int = 0) -> None:
        self._js = js
        self._connection = js.connection
        self._stream = stream
        self._last = int(state["last_seq"])
        self._remaining = -1 if after else int(state["messages"])
        average = int(state["bytes"]) // max(int(state["messages"]), 1)
        self._batch = max(1, min(_BATCH_MESSAGES, _BATCH_BYTES // 2 // max(average, 1)))
        # A request's limit counts headers and subjects as well; no message of a client exceeds it.
        self._batch_bytes = max(_BATCH_BYTES, js.connection.max_payload + (1 << 16))
        self._quiet_seconds = _SILENCE if js.connection.version >= _SKIPS_GAPS else _QUIET_SECONDS_IN_GAPS
        self._consumer = ""
        self._last_sequence = after  # last stream sequence received
        self._last_delivery = 0  # last consumer sequence received
        self._requested = 0  # number of requested messages not received yet
        # requests that ended since the last message: by time, or by their limit of bytes
        self._expired = self._exceeded = 0

    async def batches(self) -> AsyncGenerator[Received, None]:
        """Yields all messages in rising order; NatsError if the server refuses, or does not deliver."""
        attempts = 0
        while self._remaining:
            at = self._last_sequence
            try:
                # Closed at once when the reader stops, not at garbage collection: the consumer must be removed before
                # the connection is closed.
                async with contextlib.aclosing(self._attempt()) as received:
                    async for batch in received:
                        yield batch
                return
            except (_ConsumerGoneError, ConnectionLostError, NoAnswerError, ApiError) as problem:
                if isinstance(problem, ApiError) and problem.code != _UNAVAILABLE:
                    raise
                attempts = 1 if self._last_sequence > at else attempts + 1
                if attempts > _ATTEMPTS:
                    raise NatsError(
                        f"{self._connection.url}: stream {self._stream} cannot be read beyond sequence "
                        f"{self._last_sequence}: {problem}",
                        "see the server's log; check that the stream is healthy and has a leader",
                    ) from problem
            await self._connection.wait_connected(_RECONNECT)
            await asyncio.sleep(_PAUSE * (attempts - 1))

    async def _attempt(self) -> AsyncGenerator[Received, None]:
        """Reads with a new inbox and a new consumer, while they work."""
        inbox = self._connection.open_inbox(self._connection.new_inbox())
        self._consumer = ""
        try:
            await self._create()
            async with contextlib.aclosing(self._deliveries(inbox)) as received:
                async for batch in received:
                    yield batch
        finally:
            # a consumer that cannot be removed here is removed by the server after a while
            with contextlib.suppress(NatsError):
                if self._consumer and self._connection.connected:
                    await self._js.consumer_delete(self._stream, self._consumer)
            self._connection.close_inbox(inbox)

    async def _create(self) -> None:
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence" if self._last_sequence else "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE * _SECOND,
        }
        if self._last_sequence:
            config["opt_start_seq"] = self._last_sequence + 1
        self._last_delivery = self._requested = self._expired = self._exceeded = 0
        creating = asyncio.ensure_future(self._js.consumer_create(self._stream, config))
        try:
            info = await asyncio.shield(creating)
        except asyncio.CancelledError:
            # only the answer has the name of the consumer to remove
            with contextlib.suppress(NatsError):
                self._consumer = str((await creating)["name"])
            raise
        self._consumer = str(info["name"])
        if not int(info.get("num_pending", 1)):
            self._remaining = 0

    async def _deliveries(self, inbox: Inbox) -> AsyncGenerator[Received, None]:
        quiet = 0
        while self._remaining and self._last_sequence < self._last:
            self._request(inbox)
            try:
                received = await inbox.receive(_SILENCE)
            except TimeoutError:
                quiet += _SILENCE
                if quiet >= self._quiet_seconds:
                    raise _ConsumerGoneError(f"nothing came for {quiet} s, not even a heartbeat") from None
                self._requested = 0  # the request is over, although the server did not report it
                continue
            quiet = 0
            statuses = received.columns.sequence == 0
            if statuses.any():
                rows = np.flatnonzero(statuses).tolist()
                messages = received.select(~statuses)
                if len(messages):
                    yield self._check_order(messages)
                for row in rows:
                    await self._note_status(received, row)
            else:
                yield self._check_order(received)

    def _request(self, inbox: Inbox) -> None:
        while self._requested <= self._batch:
            # A message larger than the limit of a request is requested single, without a limit.
            single = self._exceeded > 1
            body = {"batch": self._batch, "max_bytes": self._batch_bytes} if not single else {"batch": 1}
            body |= {"expires": _EXPIRES * _SECOND, "idle_heartbeat": _HEARTBEATS * _SECOND}
            subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            self._connection.publish(subject.encode(), json.dumps(body).encode(), inbox.subject)
            self._requested += body["batch"]
            if single:
                return

    def _check_order(self, received: Received) -> Received:
        """Checks that no delivery is missing, and updates the position."""
        columns = received.columns
        count = len(columns)
        first, last = int(columns.consumer_sequence[0]), int(columns.consumer_sequence[-1])
        if (first, last) != (self._last_delivery + 1, self._last_delivery + count):
            raise _ConsumerGoneError(f"delivery {self._last_delivery + 1} of the consumer is missing")
        self._last_delivery += count
        self._requested -= count
        self._expired = self._exceeded = 0
        self._last_sequence = int(columns.sequence[-1])
        self._remaining = self._remaining - count if self._remaining > 0 else self._remaining
        if not int(columns.pending[-1]):
            self._remaining = 0
        if self._last_sequence > self._last:
            received = received.select(columns.sequence <= np.uint64(self._last))
        return received

    async def _note_status(self, received: Received, row: int) -> None:
        """Handles a status message: the request is over, or the consumer is lost."""
        status, header = int(received.columns.status[row]), received.header(row)
        if status == _HEARTBEAT:
            return
        text = header.partition(b"\r\n")[0].removeprefix(b"NATS/1.0 ")
        if status in (_REQUEST_TIMEOUT, _NO_MESSAGES):
            self._requested = max(0, self._requested - _pending(header, self._batch))
            self._expired += 1
            if self._expired > 1 and await self._is_over():
                self._remaining = 0
            return
        if status == _CONFLICT and text.endswith((_NO_ROOM, _COMPLETED)):
            self._requested = max(0, self._requested - _pending(header, self._batch))
            self._exceeded += text.endswith(_NO_ROOM)
            return
        if status in (_CONFLICT, _UNAVAILABLE):
            raise _ConsumerGoneError(text.decode("ascii", "replace"))
        raise NatsError(
            f"{self._connection.url}: stream {self._stream} cannot be read: {text.decode('ascii', 'replace')}",
            "see the server's log",
        )

    async def _is_over(self) -> bool:
        """Asks the server whether messages are left.

        Servers up to 2.9 count sequences that are missing between two blocks as pending (jetstream-migration.md
        section 5.3), so only the delivered position counts.
        """
        info = await self._js.consumer_info(self._stream, self._consumer)
        if info is None:
            raise _ConsumerGoneError("the consumer is gone")
        if not int(info.get("num_pending", 0)):
            return True
        if self._expired > _ATTEMPTS:
            return True
        return int(info["delivered"]["stream_seq"]) >= self._last


def _pending(header: bytes, default: int) -> int:
    """Returns how many messages of an ended request were still undelivered."""
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"Nats-Pending-Messages" and value.strip().isdigit():
            return int(value)
    return default
