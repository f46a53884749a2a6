"""Publishing to plain NATS subjects: what the server has read counts as confirmed.

Promise: every message reaches the server, in order. Who listens there gets it, nobody keeps it. When the connection
breaks or the process is killed, messages that were sent shortly before may be sent a second time, because nothing tells
which of them the server has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stantools.migration import headers
from stantools.migration.batches import Batch
from stantools.migration.replay.publisher import SILENCE, Publisher, header_text, origin_fields
from stantools.migration.replay.state import Ledger
from stantools.nats import encoding
from stantools.nats.connection import Connection
from stantools.nats.errors import NatsError

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
            raise NatsError(
                f"{self.connection.url} knows no headers, which are to say where messages come from",
                "leave --origin-headers out, or use a server from 2.2 on",
            )
        # What the user may not do shows before the first message.
        await self.connection.flush(SILENCE)
        self.check()

    async def _send(self, batch: Batch) -> None:
        subject, channel = batch.subject, self._texts[batch.channel]
        publish, most, origin = self.connection.publish, self.connection.max_payload, self._origin
        for sequence, timestamp, reply, data in batch.messages():
            self.check()
            fields = origin_fields(channel, sequence, timestamp) if origin else {}
            if reply and self._headers:
                fields[headers.REPLY] = header_text(reply)
            elif reply:
                self.note("the server knows no headers: reply subjects of messages are left out")
            header = encoding.header_block(fields)
            if (size := len(header) + len(data)) > most:
                raise self.too_large(batch, sequence, size)
            publish(subject, data, header=header)
            self.published += 1
        await self.connection.drain()
        if self._full():
            await self._flush()

    async def settle(self) -> None:
        """Waits until the server has read everything.

        Raises:
            NatsError: The leg is over.
        """
        await self._flush()

    async def tick(self) -> None:
        """Has what was sent confirmed from time to time.

        Raises:
            NatsError: The leg is over.
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
