"""The base of all publishers of a replay: legs, ledgers, failures; publishing to subjects.

A replay runs in *legs*. A leg ends when all is sent, when the user stops it, or when the connection breaks; the next
leg starts after the confirmed messages. Within a leg messages are sent in order, in parts of batches, and ledgers
record confirmations.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from stantools.format.message_batch import MessageBatch
from stantools.migration.replay.replay_options import ReplayOptions
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import Ledger, ReplayPosition, ReplayState
from stantools.migration.replay.subjects import shown
from stantools.nats.connection import NatsConnection
from stantools.nats.errors import NatsError
from stantools.nats.publishing.publish_run import MAX_WINDOW, MAX_WINDOW_BYTES
from stantools.notation import counted
from stantools.streamfiles import headers

#: seconds without a confirmation after which a target counts as silent
SILENCE = 30.0
#: messages between two turns of other tasks
_YIELD_EVERY = 256


class MessageRefusedError(NatsError):
    """The target refuses a message; repeating it would not help."""


def _header_value(channel: bytes) -> bytes:
    """Returns a channel's name as text of a header; impossible characters become `%` and two hex digits."""
    value = headers.safe_value(channel)
    try:
        value.decode()
    except UnicodeDecodeError:
        return b"".join(bytes([byte]) if byte < 0x80 else b"%%%02X" % byte for byte in value)
    return value


class ReplayPublisher(ABC):
    def __init__(
        self, connection: NatsConnection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions
    ) -> None:
        self.connection = connection
        #: sent and confirmed messages; a channel's position is in the last one that has it
        self.ledgers = [Ledger(state.channels)]
        self.routes = plan.routes  #: channel -> destination
        self._options = options
        self._names = {channel: _header_value(channel) for channel in self.routes}
        self.say: Callable[[str], None] = lambda _: None  #: shows a message to the user
        self.again = 0  #: messages that the target had from an earlier attempt
        self._warnings: set[str] = set()
        self._failed: asyncio.Future[NatsError] | None = None
        self._progress = asyncio.Event()
        self._since_yield = 0

    @property
    def subjects(self) -> set[bytes]:
        return set(self.routes.values())

    @property
    def outstanding(self) -> int:
        return sum(ledger.outstanding for ledger in self.ledgers)

    @property
    def confirmed_count(self) -> int:
        return sum(ledger.confirmed for ledger in self.ledgers)

    def positions(self) -> dict[bytes, ReplayPosition]:
        """Returns the position of every channel, before its first unconfirmed message."""
        return {name: position for ledger in self.ledgers for name, position in ledger.positions().items()}

    def forget_outstanding(self) -> int:
        """Drops and counts messages after `positions`: they will be sent again."""
        return sum(ledger.forget_outstanding() for ledger in self.ledgers)

    async def begin(self, failed: asyncio.Future[NatsError], *, resumed: bool) -> None:
        """Begins a leg.

        `failed` comes from `NatsConnection.watch`. With `resumed` some messages may have reached the target before.
        """
        self._failed = failed
        await self._begin(resumed=resumed)

    @abstractmethod
    async def _begin(self, *, resumed: bool) -> None: ...

    @abstractmethod
    async def _send(self, batch: MessageBatch) -> None: ...

    async def tick(self) -> None:
        """Does periodic work; called a few times a second."""
        self.check()

    async def end(self) -> None:
        """Closes the session with the target, if there is one."""
        return

    def confirmed_streams(self) -> dict[str, int]:
        """Returns, for each stream, the sequence of its last message before any unconfirmed one."""
        return {}

    async def send(self, batch: MessageBatch) -> None:
        """Sends messages as soon as the window allows."""
        self.check()
        await self._send(batch)
        self._since_yield += len(batch)
        if self._since_yield >= _YIELD_EVERY:
            # the connection's tasks need a turn
            self._since_yield = 0
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Waits until all sent messages are confirmed."""
        await self._wait_until(lambda: not self.outstanding)

    def note(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            self.say(text)

    def check(self) -> None:
        """Raises the error that ended the leg, if any."""
        if self._failed is not None and self._failed.done():
            raise self._failed.result()

    def fail(self, error: NatsError) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(error)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for confirmations until a condition holds."""
        while True:
            self.check()
            if condition():
                return
            self._progress.clear()
            assert self._failed is not None
            news = asyncio.ensure_future(self._progress.wait())
            try:
                awaited = f"any of {counted(self.outstanding, 'message')}"
                await self.connection.wait_for(news, self._failed, SILENCE, awaited)
            finally:
                news.cancel()

    def refused_message(self, ledger: Ledger, number: int, reason: str, remedy: str) -> MessageRefusedError:
        channel, sequence = ledger.where(number)
        return MessageRefusedError(
            f"message {sequence} of channel {shown(channel)} was refused by {self.connection.url}: {reason}", remedy
        )

    def too_large(self, channel: bytes, sequence: int, size: int) -> MessageRefusedError:
        return MessageRefusedError(
            f"message {sequence} of channel {shown(channel)} has {counted(size, 'byte')} with its envelope; "
            f"{self.connection.url} accepts {self.connection.max_payload}",
            f"raise max_payload of the server, then continue; or exclude it: start over with --seq {sequence + 1}: for "
            "this channel",
        )


class NumberedPublisher(ReplayPublisher):
    """Numbers all messages together, in one ledger."""

    #: messages; half of the window must be confirmed before more is sent
    window = MAX_WINDOW

    def __init__(
        self, connection: NatsConnection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions
    ) -> None:
        super().__init__(connection, plan, state, options)
        (self.ledger,) = self.ledgers
        self.published = 0  #: number of the next message; all before it were given to the connection
        self._bytes_out = 0

    async def begin(self, failed: asyncio.Future[NatsError], *, resumed: bool) -> None:
        self._bytes_out = 0
        await super().begin(failed, resumed=resumed)

    async def _send(self, batch: MessageBatch) -> None:
        if self._full():
            await self._wait_until(lambda: self.outstanding <= self.window // 2)
            self._bytes_out = 0
        self.published = self.ledger.add(batch.channel, batch.sequence.tolist(), batch.timestamp.tolist())
        self._bytes_out += int(batch.data_size.sum())
        try:
            await self._send_numbered(batch)
        except NatsError:
            self.ledger.withdraw(self.published)
            raise

    @abstractmethod
    async def _send_numbered(self, batch: MessageBatch) -> None:
        """Sends messages; increments `published` with each."""

    async def settle(self) -> None:
        await super().settle()
        self._bytes_out = 0

    def confirmed(self, number: int) -> bool:
        """Records a confirmation; see `Ledger.confirm`."""
        self._progress.set()
        return self.ledger.confirm(number)

    def _full(self) -> bool:
        if self.outstanding >= self.window:
            return True
        return self._bytes_out >= MAX_WINDOW_BYTES and self.outstanding > 0


#: longest silence, in seconds, before confirmation is requested
_FLUSH_EVERY = 0.2


class CorePublisher(NumberedPublisher):
    """Publishes to NATS subjects; a message is confirmed when the server has read it.

    Promise: every message reaches the server, in order. Only current subscribers receive it. When the connection
    breaks or the process is killed, recently sent messages may be repeated, as it is unknown which of them the
    server has read.
    """

    window = 16384

    def __init__(
        self, connection: NatsConnection, plan: ReplayPlan, state: ReplayState, options: ReplayOptions
    ) -> None:
        super().__init__(connection, plan, state, options)
        self._headers = True
        self._flushing = asyncio.Lock()
        self._flushed_at = 0.0

    async def _begin(self, *, resumed: bool) -> None:
        self._headers = bool(self.connection.info.get("headers"))
        if self._options.origin_headers and not self._headers:
            raise NatsError(
                f"{self.connection.url} does not support headers, which --origin-headers needs",
                "remove --origin-headers, or use a server 2.2 or newer",
            )
        # missing permissions show before the first message
        await self.connection.flush(SILENCE)
        self.check()

    async def _send_numbered(self, batch: MessageBatch) -> None:
        subject, channel = batch.subject, self._names[batch.channel]
        publish, most, origin = self.connection.publish, self.connection.max_payload, self._options.origin_headers
        for sequence, timestamp, reply, data in batch.messages():
            self.check()
            if reply and not self._headers:
                self.note("the server does not support headers: reply subjects of messages are omitted")
                reply = b""
            header = headers.header_block(channel, sequence, timestamp, reply, origin=origin)
            if (size := len(header) + len(data)) > most:
                raise self.too_large(batch.channel, sequence, size)
            publish(subject, data, header=header)
            self.published += 1
        await self.connection.drain()
        if self._full():
            await self._flush()

    async def settle(self) -> None:
        """Waits until the server has read everything."""
        await self._flush()

    async def tick(self) -> None:
        """Requests confirmation of sent messages from time to time."""
        self.check()
        now = asyncio.get_running_loop().time()
        if self.ledger.outstanding and now - self._flushed_at >= _FLUSH_EVERY and not self._flushing.locked():
            await self._flush()

    async def _flush(self) -> None:
        async with self._flushing:
            below = self.published
            await self.connection.flush(SILENCE)
            # The server's answer comes after its errors.
            self.check()
            self.ledger.confirm_below(below)
            self._bytes_out = 0
            self._flushed_at = asyncio.get_running_loop().time()
