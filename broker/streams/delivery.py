"""How messages get to clients: for each consumer a `ConsumerDelivery`, of one of two kinds, that sends what is next.

Facts: jetstream-server.md sections 11 to 13.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams.headers import size_line, with_lines
from stantools.nats.frames import PAYLOAD_SIZE, REPLY_SIZE, SUBJECT_SIZE
from stantools.nats.kernels import put_acknowledgements

if TYPE_CHECKING:
    from broker.streams.consumer import Consumer
    from broker.streams.ports import StreamsPort

#: Messages and bytes that one consumer is sent before the others have their turn, and as how many one by itself counts.
MOST: Final = 1024
ALONE: Final = 4
MOST_BYTES: Final = 1 << 20
#: Fewer messages than these are sent one by one.
_FEW: Final = 4
#: Bytes that the numbers in the subject of an acknowledgement may take, with the points between them.
_NUMBERS: Final = 5 * 21
#: How long to wait (ns) for a client that does not keep up.
CONGESTED: Final = 20_000_000
_SECOND: Final = 1_000_000_000


class ConsumerDelivery(ABC):
    """Sends the messages of a consumer.

    Args:
        bus: NATS.
        now: Nanoseconds since 1970.

    Attributes:
        consumer: The consumer.
    """

    def __init__(self, consumer: Consumer, bus: StreamsPort, now: int) -> None:
        self.consumer, self._bus = consumer, bus
        self.alarm = 0  #: when (ns since 1970) `run` is called at the latest; 0 for no time
        self.used = now  #: when it was last asked for messages, or could send some
        self._names = b"%b.%b" % (consumer.stream.name.encode(), consumer.name.encode())
        self._ack = b"$JS.ACK.%b." % self._names
        #: Nothing is sent before this time: the rate is limited, a receiver is slow, or the pace is the original one.
        self._not_before = 0
        self._last: tuple[int, int] | None = None
        self._lines: tuple[bytes, ...] = ()  #: what the headers of messages get besides

    @abstractmethod
    def run(self, now: int) -> bool:
        """Sends what is due. Returns whether there is more to be sent at once."""

    @abstractmethod
    def next_event(self) -> int:
        """Returns when (ns since 1970) it has something to do by itself; 0 for never."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Answers those who wait that there will be nothing more."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests that wait."""

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether somebody waits for messages, as far as is known."""

    @abstractmethod
    def is_used(self, now: int) -> bool:
        """Returns whether somebody waits for messages."""

    def expires(self) -> int:
        """Returns when (ns since 1970) nobody will have used it for too long; 0 for never."""
        threshold = self.consumer.config.inactive_threshold
        return self.used + threshold if threshold > 0 else 0

    def _paced(self, now: int, time: int) -> bool:
        """Returns whether a message of some time has to wait, as it did when it was stored."""
        if self.consumer.config.replay_policy == "original" and time <= self.consumer.created:
            if self._last is not None:
                due = self._last[0] + time - self._last[1]
                if due > now:
                    self._not_before = due
                    return True
            self._last = (now, time)
        return False

    def _pass_on(self, to: bytes, group: bytes, now: int, room: int | None, short: bytes) -> int:
        """Sends the next message.

        Args:
            to: Where to.
            group: To one of this queue group; empty for all.
            now: Nanoseconds since 1970.
            room: Bytes that it may have; None for any.
            short: How the subject of its acknowledgement begins if it is one of the preview; empty otherwise.

        Returns:
            Its bytes; 0 if there is none for now, -1 if it is too large.
        """
        consumer = self.consumer
        while True:
            found = consumer.next(now)
            if found is None:
                return 0
            sequence, count = found
            try:
                message = consumer.stream.store.read(sequence)
            except StorageError as error:
                # It stays in the stream, where others may look at it.
                NATS.error("Consumer %r of %r skips it: %s", consumer.name, consumer.stream.name, error.message)
                message = None
            if message is not None:
                break
            consumer.pass_over(sequence, count)
        if self._paced(now, message.time):
            return 0
        header, payload = message.header, message.payload
        if consumer.config.headers_only:
            header = with_lines(header, size_line(payload))
            payload = b""
        if self._lines:
            header = with_lines(header, *self._lines)
        left = consumer.num_pending - (count == 1)
        number = consumer.delivered[0] + 1
        if short:
            ack = b"%b.%b.%d.%d.%d" % (short, self._names, count, sequence, number)
        else:
            ack = b"%b%d.%d.%d.%d.%d" % (self._ack, count, sequence, number, message.time, left)
        size = len(message.subject) + len(ack) + len(header) + len(payload)
        if room is not None and size > room:
            return -1
        consumer.sent(sequence, count, now)
        self._bus.deliver(to, message.subject, payload, ack, header, group)
        if consumer.config.ack_policy == "none":
            consumer.stream.done((sequence,))
        if consumer.config.rate_limit_bps:
            self._not_before = now + size * 8 * _SECOND // consumer.config.rate_limit_bps
        return size

    def _pass_on_all(
        self, to: bytes, group: bytes, now: int, most: int, room: int, *, over: bool = False
    ) -> tuple[int, int]:
        """Sends the next messages, if there are several and none needs anything but the subject of its acknowledgement.

        Args:
            to: Where to.
            group: To one of this queue group; empty for all.
            now: Nanoseconds since 1970.
            most: How many at most.
            room: Bytes that they may have.
            over: The last one may have more.

        Returns:
            How many were sent, and their bytes; none if the next one is to be sent by itself.
        """
        consumer, config = self.consumer, self.consumer.config
        if (
            min(most, consumer.num_pending) < _FEW
            or group
            or self._lines
            or config.headers_only
            or config.rate_limit_bps
            or config.replay_policy != "instant"
        ):
            return 0, 0
        sequences = consumer.upcoming(now, most)
        if len(sequences) < _FEW or not self._bus.takes_rows(to):
            return 0, 0
        table = consumer.stream.store.table(sequences, len(self._ack) + _NUMBERS)
        if table is None:
            return 0, 0
        buffer, end, frames, times = table
        numbers = np.array(sequences[: len(frames)], np.int64)
        put_acknowledgements(
            buffer, end, frames, self._ack, numbers, times, consumer.delivered[0] + 1, consumer.num_pending - 1
        )
        sizes = np.cumsum(frames[:, SUBJECT_SIZE] + frames[:, REPLY_SIZE] + frames[:, PAYLOAD_SIZE], dtype=np.int64)
        count = min(int(np.searchsorted(sizes, room, "right")) + over, len(sizes))
        if not count:
            return 0, 0
        consumer.sent_all(sequences[:count], now)
        self._bus.deliver_rows(to, buffer, frames[:count])
        if config.ack_policy == "none":
            consumer.stream.done(sequences[:count])
        return count, int(sizes[count - 1])

    def _held_up(self, to: bytes, now: int) -> bool:
        """Returns whether nothing can be sent now."""
        if self._not_before > now:
            return True
        self._not_before = 0
        if self._bus.congested(to):
            self._not_before = now + CONGESTED
            return True
        return False

    def _soonest(self, *times: int) -> int:
        """Returns the earliest of some times; 0 is none."""
        return min((each for each in (*times, self.consumer.due, self._not_before) if each), default=0)

    def _portion(self, sent: int, size: int) -> bool:
        """Returns whether it is the others' turn."""
        return sent >= MOST or size >= MOST_BYTES
