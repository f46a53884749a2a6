"""Publishing to plain NATS subjects: what the server has read counts as confirmed.

Promise: every message reaches the server, in order. Who listens there gets it, nobody keeps it. When the connection
breaks or the process is killed, messages that were sent shortly before may be sent a second time, because nothing tells
which of them the server has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stantools.migration.batches import Batch
from stantools.migration.replay.ledger import Ledger
from stantools.migration.replay.publisher import SILENCE, Publisher, header_fields, header_text, rows
from stantools.migration.replay.subjects import shown
from stantools.migration.target.connection import Connection
from stantools.migration.target.errors import TargetError

#: Seconds of silence at most until what was sent is confirmed.
_FLUSH_EVERY = 0.2


class CorePublisher(Publisher):
    """Publishes to NATS subjects.

    Args:
        connection: To the server.
        ledger: Told what is sent and what is confirmed.
        routes: Channel -> where it goes.
        origin: Write headers with channel, sequence and timestamp.
    """

    window = 16384

    def __init__(
        self, connection: Connection, ledger: Ledger, routes: Mapping[bytes, bytes], *, origin: bool = False
    ) -> None:
        super().__init__(connection, ledger, routes)
        self._origin = origin
        self._headers = True
        self._flushing = asyncio.Lock()
        self._flushed_at = 0.0

    async def _begin(self, *, resumed: bool) -> None:
        self._headers = bool(self.connection.info.get("headers"))
        if self._origin and not self._headers:
            raise TargetError(
                f"{self.connection.url} knows no headers, which are to say where messages come from",
                "leave --origin-headers out, or use a server from 2.2 on",
            )
        # What the user may not do shows before the first message.
        await self.connection.flush(SILENCE)
        self.check()

    async def _send(self, batch: Batch, start: int, stop: int) -> None:
        subject, channel = shown(batch.subject), header_text(batch.channel)
        publish, most = self.connection.client.publish, self.connection.max_payload
        for row in rows(batch, start, stop):
            self.check()
            fields = header_fields(channel, row, origin=self._origin) if self._origin or row.reply else None
            if fields and not self._headers:
                fields = None
                self.note("the server knows no headers: reply subjects of messages are left out")
            size = len(row.data) + sum(len(name) + len(value.encode()) + 4 for name, value in (fields or {}).items())
            if size + (14 if fields else 0) > most:
                raise self.too_large(batch, row, size)
            await publish(subject, row.data, headers=fields)
            self.published += 1
        if self._full():
            await self._flush()

    async def settle(self) -> None:
        """Waits until the server has read everything.

        Raises:
            TargetError: The leg is over.
        """
        await self._flush()

    async def tick(self) -> None:
        """Has what was sent confirmed from time to time.

        Raises:
            TargetError: The leg is over.
        """
        self.check()
        now = asyncio.get_running_loop().time()
        if self.ledger.outstanding and now - self._flushed_at >= _FLUSH_EVERY and not self._flushing.locked():
            await self._flush()

    async def _flush(self) -> None:
        async with self._flushing:
            below = self.published
            await self.connection.flush(SILENCE)
            # The server's answer comes behind its errors.
            self.check()
            self.ledger.confirm_below(below)
            self._bytes_out = 0
            self._flushed_at = asyncio.get_running_loop().time()
