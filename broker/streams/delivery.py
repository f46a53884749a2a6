"""Delivery of messages to clients. Each consumer has a `ConsumerDelivery` of one of two kinds, pull or push.

Facts: jetstream-server.md sections 11 to 13.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams.consumer import earliest
from broker.streams.headers import size_line, with_lines
from stantools.nats.frames import PAYLOAD_SIZE, REPLY_SIZE, SUBJECT_SIZE
from stantools.nats.kernels import put_acknowledgements

if TYPE_CHECKING:
    from broker.streams.consumer import Consumer
    from broker.streams.ports import StreamsPort

#: Messages and bytes sent for one consumer before others run; a message sent singly counts as `ALONE` messages.
MOST: Final = 1024
ALONE: Final = 4
MOST_BYTES: Final = 1 << 20
#: Fewer messages are sent one by one.
_FEW: Final = 4
#: bytes of the numbers in the subject of an acknowledgement, with their dots
_NUMBERS: Final = 5 * 21
#: nanoseconds until the next attempt for a client with a full buffer
CONGESTED: Final = 20_000_000
_SECOND: Final = 1_000_000_000


class ConsumerDelivery(ABC):
    def __init__(self, consumer: Consumer, bus: StreamsPort, now: int) -> None:
        self.consumer, self._bus = consumer, bus
        self.alarm = 0  #: latest time (ns since 1970) of the next `run`; 0 for none
        self.used = now  #: time of the last request or delivery
        self._names = b"%b.%b" % (consumer.stream.name.encode(), consumer.name.encode())
        self._ack = b"$JS.ACK.%b." % self._names
        #: Nothing is sent before this time, because of the rate limit, a slow client or the original pace.
        self._not_before = 0
        self._last: tuple[int, int] | None = None
        self._lines: tuple[bytes, ...] = ()  #: additional header lines of each message

    @abstractmethod
    def run(self, now: int) -> bool:
        """Sends the messages that are due. Returns whether more can be sent at once."""

    @abstractmethod
    def next_event(self) -> int:
        """Returns the time (ns since 1970) of its next timed event; 0 for none."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Ends all waiting requests with a status."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Number of waiting requests."""

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether a client waits for messages, as far as is known without a look at the subscriptions."""

    @abstractmethod
    def is_used(self, now: int) -> bool:
        """Returns whether a client waits for messages."""

    def expires(self) -> int:
        """Returns the time (ns since 1970) at which the consumer becomes inactive; 0 for never."""
        threshold = self.consumer.config.inactive_threshold
        return self.used + threshold if threshold > 0 else 0

    def _waits_for_pace(self, now: int, time: int) -> bool:
        """Returns whether the message must wait for the original pace; `time` is its time in the stream."""
        if self.consumer.config.replay_policy == "original" and time <= self.consumer.created:
            if self._last is not None:
                due = self._last[0] + time - self._last[1]
                if due > now:
                    self._not_before = due
                    return True
            self._last = (now, time)
        return False

    def _send_next(self, to: bytes, group: bytes, now: int, bytes_left: int | None, short: bytes) -> int:
        """Sends the next message. Returns its size; 0 if there is none now, -1 if it exceeds `bytes_left` bytes.

        `short` is the prefix of the acknowledgement's subject for the preview, else empty.
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
                # The message stays in the stream for inspection.
                NATS.error("Consumer %r of %r skips it: %s", consumer.name, consumer.stream.name, error.message)
                message = None
            if message is not None:
                break
            consumer.skip(sequence, count)
        if self._waits_for_pace(now, message.time):
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
        if bytes_left is not None and size > bytes_left:
            return -1
        if count > 1:
            consumer.sent_again(sequence, count, now)
        else:
            consumer.sent((sequence,), now)
        self._bus.deliver(to, message.subject, payload, ack, header, group)
        if consumer.config.ack_policy == "none":
            consumer.stream.done((sequence,))
        if consumer.config.rate_limit_bps:
            self._not_before = now + size * 8 * _SECOND // consumer.config.rate_limit_bps
        return size

    def _send_table(
        self, to: bytes, group: bytes, now: int, most: int, bytes_left: int, *, over: bool = False
    ) -> tuple[int, int]:
        """Sends the next messages as one table. Returns their number and bytes.

        Nothing is sent if there are few or the messages need more than the subject of an acknowledgement. With
        `over` the last message may exceed `bytes_left`.
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
        count = min(int(np.searchsorted(sizes, bytes_left, "right")) + over, len(sizes))
        if not count:
            return 0, 0
        consumer.sent(sequences[:count], now)
        self._bus.deliver_rows(to, buffer, frames[:count])
        if config.ack_policy == "none":
            consumer.stream.done(sequences[:count])
        return count, int(sizes[count - 1])

    def _is_blocked(self, to: bytes, now: int) -> bool:
        """Returns whether nothing can be sent now."""
        if self._not_before > now:
            return True
        self._not_before = 0
        if self._bus.congested(to):
            self._not_before = now + CONGESTED
            return True
        return False

    def _earliest(self, *times: int) -> int:
        """Returns the earliest of some times and those of the consumer, where 0 stands for none."""
        return earliest(*times, self.consumer.due, self._not_before)

    def _exceeds_share(self, sent: int, size: int) -> bool:
        """Returns whether other consumers are to run now."""
        return sent >= MOST or size >= MOST_BYTES
