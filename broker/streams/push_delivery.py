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
        self._in_transit = self._asked_at = 0
        self._flow_request = b""
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
        self.consumer.give_up(now)
        active = self.is_used(now)
        if active != self.active:
            self.active = active
            self._beat = now + self.consumer.config.idle_heartbeat
            self._flow_request = b""
            self._in_transit = 0
        if not active:
            return False
        self.used = now
        sent = size = 0
        while not self._exceeds_share(sent, size):
            if self._is_blocked(self._to, now) or (self._flow_request and self._in_transit > self._window):
                break
            count, bytes_sent = 0, 0
            if not self.short:
                bytes_left = min(MOST_BYTES - size, self._window_left)
                count, bytes_sent = self._send_table(self._to, self._group, now, MOST - sent, bytes_left, over=True)
            if not count:
                count, bytes_sent = ALONE, self._send_next(self._to, self._group, now, None, self.short)
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
            number, sequence = self.consumer.delivered
            stalled = {"Nats_Consumer_Stalled": self._flow_request.decode()} if self._flow_request else {}
            header = status("100 Idle Heartbeat", Nats_Last_Consumer=number, Nats_Last_Stream=sequence, **stalled)
            self._bus.deliver(self._to, self._to, b"", b"", header, self._group)
            self._beat = now + self.consumer.config.idle_heartbeat
        return False

    @property
    def _window_left(self) -> int:
        """Bytes until the next flow control request, or until delivery must wait for its answer."""
        if not self.consumer.config.flow_control:
            return MOST_BYTES
        return (self._window if self._flow_request else self._window // 2) - self._in_transit

    def _ask(self, size: int) -> None:
        """Sends a flow control request once half of the window is in transit."""
        if not self.consumer.config.flow_control:
            return
        self._in_transit += size
        if self._in_transit > self._window // 2 and not self._flow_request:
            self._flow_request = self._flow + secrets.token_hex(2).encode()
            self._asked_at = self._in_transit
            header = status("100 FlowControl Request")
            self._bus.deliver(self._to, self._to, b"", self._flow_request, header, self._group)

    def answered(self, subject: bytes) -> None:
        """Takes the answer to a flow control request: all messages sent before the request have arrived."""
        if subject == self._flow_request:
            self._flow_request = b""
            self._in_transit -= self._asked_at
            self._window = min(2 * self._window, _WIDEST_WINDOW)

    def next_event(self) -> int:
        """Returns the time of the next heartbeat or message; 0 for none."""
        if not self.active:
            return self.consumer.end_due
        return self._earliest(self._beat if self.consumer.config.idle_heartbeat else 0)

    def close(self, reason: str) -> None:
        """Does nothing: a subscriber gets no notice."""
