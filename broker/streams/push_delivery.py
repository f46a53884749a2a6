"""Delivery to push consumers: heartbeats, flow control, queue groups.

Facts: jetstream-server.md section 13.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from broker.streams.delivery import ALONE, MOST, MOST_BYTES, ConsumerDelivery
from broker.streams.headers import status

if TYPE_CHECKING:
    from broker.streams.consumer import Consumer
    from broker.streams.ports import StreamsPort

#: unacknowledged bytes under flow control: first limit, and largest limit
_FIRST_WINDOW: Final = (32 << 20) // 16
_WIDEST_WINDOW: Final = 32 << 20


class PushDelivery(ConsumerDelivery):
    def __init__(self, consumer: Consumer, bus: StreamsPort, now: int) -> None:
        super().__init__(consumer, bus, now)
        self._to = consumer.config.deliver_subject.encode()
        self._group = consumer.config.deliver_group.encode()
        self._flow = b"$JS.FC.%b.%b." % (consumer.stream.name.encode(), consumer.name.encode())
        self._window = _FIRST_WINDOW
        self._on_the_way = self._asked_at = 0
        self._question = b""
        self._beat = 0
        self.active = False  #: whether the deliver subject has a subscriber
        self.short = b""  #: prefix of the preview's acknowledgement subjects; empty for current consumers

    @property
    def waiting(self) -> int:
        """Always 0: a push consumer has no requests."""
        return 0

    @property
    def wanted(self) -> bool:
        """Whether the deliver subject had a subscriber at the last check."""
        return self.active

    def is_used(self, now: int) -> bool:
        return self._bus.interested(self._to, self._group)

    def run(self, now: int) -> bool:
        """Sends the available messages."""
        active = self.is_used(now)
        if active != self.active:
            self.active = active
            self._beat = now + self.consumer.config.idle_heartbeat
            self._question = b""
            self._on_the_way = 0
        if not active:
            return False
        self.used = now
        sent = size = 0
        while not self._portion(sent, size):
            if self._held_up(self._to, now) or (self._question and self._on_the_way > self._window):
                break
            count, bytes_sent = 0, 0
            if not self.short:
                room = min(MOST_BYTES - size, self._until_asked)
                count, bytes_sent = self._pass_on_all(self._to, self._group, now, MOST - sent, room, over=True)
            if not count:
                count, bytes_sent = ALONE, self._pass_on(self._to, self._group, now, None, self.short)
            if not bytes_sent:
                break
            sent, size = sent + count, size + bytes_sent
            self._ask(bytes_sent)
        else:
            self._beat = now + self.consumer.config.idle_heartbeat
            return True
        if sent:
            self._beat = now + self.consumer.config.idle_heartbeat
        elif self.consumer.config.idle_heartbeat and self._beat <= now:
            self._say_that_it_lives(now)
        return False

    @property
    def _until_asked(self) -> int:
        """Bytes until the next flow control request, or until delivery must wait for its answer."""
        if not self.consumer.config.flow_control:
            return MOST_BYTES
        return (self._window if self._question else self._window // 2) - self._on_the_way

    def _ask(self, size: int) -> None:
        """Sends a flow control request once half of the window is in transit."""
        if not self.consumer.config.flow_control:
            return
        self._on_the_way += size
        if self._on_the_way > self._window // 2 and not self._question:
            self._question = self._flow + secrets.token_hex(2).encode()
            self._asked_at = self._on_the_way
            header = status("100 FlowControl Request")
            self._bus.deliver(self._to, self._to, b"", self._question, header, self._group)

    def answered(self, subject: bytes) -> None:
        """Takes the answer to a flow control request: all messages sent before the request have arrived."""
        if subject == self._question:
            self._question = b""
            self._on_the_way -= self._asked_at
            self._window = min(2 * self._window, _WIDEST_WINDOW)

    def _say_that_it_lives(self, now: int) -> None:
        number, sequence = self.consumer.delivered
        stalled = {"Nats_Consumer_Stalled": self._question.decode()} if self._question else {}
        header = status("100 Idle Heartbeat", Nats_Last_Consumer=number, Nats_Last_Stream=sequence, **stalled)
        self._bus.deliver(self._to, self._to, b"", b"", header, self._group)
        self._beat = now + self.consumer.config.idle_heartbeat

    def next_event(self) -> int:
        """Returns the time of the next heartbeat or message; 0 for none."""
        if not self.active:
            return 0
        return self._soonest(self._beat if self.consumer.config.idle_heartbeat else 0)

    def close(self, reason: str) -> None:
        """Does nothing: a subscriber gets no notice."""
