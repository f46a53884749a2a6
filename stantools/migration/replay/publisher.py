"""Where messages are published again, and what every way has in common: the window of messages on their way, failing.

A replay runs in *legs*. A leg ends when everything is sent, when the user stops it, or when the connection breaks; then
the next leg begins at what is confirmed. Within a leg messages are sent in order, in parts of batches, and the ledger
keeps account of what is confirmed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from stantools.migration.replay.options import ReplayOptions
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import Ledger, ReplayState
from stantools.migration.replay.subjects import shown
from stantools.nats import encoding
from stantools.nats.connection import Connection
from stantools.nats.errors import NatsError
from stantools.notation import counted
from stantools.streamfiles import headers
from stantools.streamfiles.batch import Batch

#: Seconds without any confirmation after which a target counts as silent.
SILENCE = 30.0
#: What may be on its way: messages, bytes of payload.
WINDOW = 4096
WINDOW_BYTES = 16 << 20
#: Messages after which other tasks get their turn.
_YIELD_EVERY = 256


class MessageRefusedError(NatsError):
    """The target does not take a message. Sending it again would not help."""


def origin_fields(channel: str, sequence: int, timestamp: int) -> dict[str, str]:
    """Returns the headers that say where a message comes from, as migrated ones have them (`streamfiles.headers`)."""
    return {headers.CHANNEL: channel, headers.SEQUENCE: str(sequence), headers.TIMESTAMP: str(timestamp)}


def header_text(value: bytes) -> str:
    """Returns bytes as the text of a header; what cannot be in one is written as percent and two digits."""
    value = headers.safe_value(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in value)


class Publisher(ABC):
    """Publishes the messages of one replay.

    Args:
        connection: To the server.
        plan: All that is to be replayed.
        state: How far an earlier run has brought it.
        options: What users say of it.
    """

    #: Keeps what is on its way small enough: half of it must be confirmed before more is sent.
    window = WINDOW

    def __init__(self, connection: Connection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions) -> None:
        self.connection = connection
        self.ledger = Ledger(state.channels)  #: told what is sent and what is confirmed
        self.routes = plan.routes  #: channel -> where it goes
        self._options = options
        self._texts = {channel: header_text(channel) for channel in self.routes}
        self.say: Callable[[str], None] = lambda _: None  #: shows the user a message
        self.again = 0  #: messages that the target had already, from an earlier attempt
        self.published = 0  #: the number behind the last message that was handed over to the connection
        self._said: set[str] = set()
        self._failed: asyncio.Future[NatsError] | None = None
        self._progress = asyncio.Event()
        self._bytes_out = 0
        self._unyielded = 0

    @property
    def subjects(self) -> set[bytes]:
        """All subjects of the replay."""
        return set(self.routes.values())

    async def begin(self, failed: asyncio.Future[NatsError], *, resumed: bool) -> None:
        """Begins a leg.

        Args:
            failed: From `Connection.watch`: what makes this leg useless.
            resumed: Some of what is to be sent may have reached the target already.

        Raises:
            NatsError: Nothing can be published.
        """
        self._failed = failed
        self._bytes_out = 0
        await self._begin(resumed=resumed)

    @abstractmethod
    async def _begin(self, *, resumed: bool) -> None:
        """Does what has to be done before the first message of a leg."""

    @abstractmethod
    async def _send(self, batch: Batch) -> None:
        """Sends some messages, and counts `published` up with each."""

    async def tick(self) -> None:
        """Does what is due without messages; called a few times a second.

        Raises:
            NatsError: The leg is over.
        """
        self.check()

    async def end(self) -> None:
        """Takes leave of the target, at the end of a replay.

        Raises:
            NatsError: It went wrong; nothing is lost by that.
        """
        return

    def confirmed_streams(self) -> dict[str, int]:
        """Returns, of each stream, a sequence behind which nothing is that is confirmed without a hole."""
        return {}

    async def send(self, batch: Batch) -> None:
        """Sends some messages, once there is room in the window.

        Raises:
            NatsError: The leg is over.
        """
        self.check()
        if self._full():
            await self._until(lambda: self.ledger.outstanding <= self.window // 2)
            self._bytes_out = 0
        columns = batch.columns
        self.published = self.ledger.add(batch.channel, columns.sequence.tolist(), columns.timestamp.tolist())
        self._bytes_out += int(columns.data_size.sum())
        try:
            await self._send(batch)
        except NatsError:
            self.ledger.withdraw(self.published)
            raise
        self._unyielded += len(batch)
        if self._unyielded >= _YIELD_EVERY:
            # The connection's own tasks get their turn.
            self._unyielded = 0
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Waits until everything that was sent is confirmed.

        Raises:
            NatsError: The leg is over.
        """
        await self._until(lambda: not self.ledger.outstanding)
        self._bytes_out = 0

    def note(self, text: str) -> None:
        """Warns the user, once."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def check(self) -> None:
        """Raises what has ended the leg, if it is over."""
        if self._failed is not None and self._failed.done():
            raise self._failed.result()

    def fail(self, error: NatsError) -> None:
        """Ends the leg."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(error)

    def confirmed(self, number: int) -> bool:
        """Notes a confirmation; see `Ledger.confirm`."""
        self._progress.set()
        return self.ledger.confirm(number)

    def _full(self) -> bool:
        if self.ledger.outstanding >= self.window:
            return True
        return self._bytes_out >= WINDOW_BYTES and self.ledger.outstanding > 0

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits for confirmations until something holds."""
        while True:
            self.check()
            if condition():
                return
            self._progress.clear()
            assert self._failed is not None
            news = asyncio.ensure_future(self._progress.wait())
            try:
                await self.connection.wait_for(news, self._failed, SILENCE, self._awaited())
            finally:
                news.cancel()

    def _awaited(self) -> str:
        return f"any of {counted(self.ledger.outstanding, 'message')}"

    def refused_message(self, number: int, reason: str, remedy: str) -> MessageRefusedError:
        """Returns the error for a message that the target does not take."""
        channel, sequence = self.ledger.where(number)
        return MessageRefusedError(
            f"message {sequence} of channel {shown(channel)} was refused by {self.connection.url}: {reason}", remedy
        )

    def too_large(self, batch: Batch, sequence: int, size: int) -> MessageRefusedError:
        """Returns the error for a message that is larger than the server takes."""
        return MessageRefusedError(
            f"message {sequence} of channel {shown(batch.channel)} has {counted(size, 'byte')} with its envelope, "
            f"{self.connection.url} takes {self.connection.max_payload}",
            f"raise max_payload of the server, then go on; or leave it out: start over with --seq {sequence + 1}: for "
            "this channel",
        )


#: Seconds of silence at most until what was sent is confirmed.
_FLUSH_EVERY = 0.2


class CorePublisher(Publisher):
    """Publishes to plain NATS subjects: what the server has read counts as confirmed.

    Promise: every message reaches the server, in order. Who listens there gets it, nobody keeps it. When the connection
    breaks or the process is killed, messages that were sent shortly before may be sent a second time, because nothing
    says which of them the server has read.
    """

    window = 16384

    def __init__(self, connection: Connection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions) -> None:
        super().__init__(connection, plan, state, options)
        self._headers = True
        self._flushing = asyncio.Lock()
        self._flushed_at = 0.0

    async def _begin(self, *, resumed: bool) -> None:
        self._headers = bool(self.connection.info.get("headers"))
        if self._options.origin_headers and not self._headers:
            raise NatsError(
                f"{self.connection.url} knows no headers, which are to say where messages come from",
                "leave --origin-headers out, or use a server from 2.2 on",
            )
        # What the user may not do shows before the first message.
        await self.connection.flush(SILENCE)
        self.check()

    async def _send(self, batch: Batch) -> None:
        subject, channel = batch.subject, self._texts[batch.channel]
        publish, most, origin = self.connection.publish, self.connection.max_payload, self._options.origin_headers
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
