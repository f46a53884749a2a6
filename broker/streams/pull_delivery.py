"""Delivery to pull consumers: waiting requests, and the statuses that end them.

Facts: jetstream-server.md section 12.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.streams.consumer import earliest
from broker.streams.delivery import ALONE, MOST, MOST_BYTES, ConsumerDelivery
from broker.streams.headers import status
from broker.streams.pullrequests import Priorities, PullRequest, PullStatusError
from stantools.notation import format_go_duration

if TYPE_CHECKING:
    from broker.streams.consumer import Consumer
    from broker.streams.ports import StreamsPort

#: waiting requests of a consumer, whatever its configuration allows
_MOST_WAITING: Final = 16384
#: waiting requests among which a table of messages is divided
_MOST_TOGETHER: Final = 16


class PullDelivery(ConsumerDelivery):
    def __init__(self, consumer: Consumer, bus: StreamsPort, now: int) -> None:
        super().__init__(consumer, bus, now)
        self.priorities = Priorities(consumer)  #: order of the requests by the priority policy
        self._requests: OrderedDict[PullRequest, None] = OrderedDict()
        #: Number of requests that end when no message is left, and the time of the next check of requests.
        self._no_wait_requests = self._next_check = 0

    @property
    def waiting(self) -> int:
        """Number of requests with a subscriber."""
        self._drop_unsubscribed()
        return len(self._requests)

    @property
    def wanted(self) -> bool:
        """Whether requests wait."""
        return bool(self._requests)

    def is_used(self, now: int) -> bool:
        """Returns whether a request waits, or a message awaits its acknowledgement."""
        return bool(self._requests) or bool(self.consumer.pending)

    def ask(self, reply: bytes, body: bytes, now: int, short: bytes = b"") -> None:
        """Adds a pull request. `short` is the prefix of the preview's acknowledgement subjects, else empty."""
        self.used = now
        request = PullRequest(reply, short=short)
        try:
            request = PullRequest.read(reply, body, now, short)
            self._admit(request, now)
        except PullStatusError as refused:
            self._send_status(request, status(str(refused)))
        else:
            self._requests[request] = None
            self._no_wait_requests += request.no_wait
            self._schedule_check(request)

    def _schedule_check(self, request: PullRequest) -> None:
        for time in (request.expires, request.beat):
            if time and (not self._next_check or time < self._next_check):
                self._next_check = time

    def _admit(self, request: PullRequest, now: int) -> None:
        config = self.consumer.config
        if 0 < config.max_batch < request.batch:
            raise PullStatusError(f"409 Exceeded MaxRequestBatch of {config.max_batch}")
        if request.expires and 0 < config.max_expires < request.expires - now:
            raise PullStatusError(f"409 Exceeded MaxRequestExpires of {format_go_duration(config.max_expires)}")
        if request.bytes_left is not None and 0 < config.max_bytes < request.bytes_left:
            raise PullStatusError(f"409 Exceeded MaxRequestMaxBytes of {config.max_bytes}")
        self.priorities.admit(request, now)
        if request.no_wait and not request.expires:
            if self.consumer.next(now) is None:
                if not self.consumer.full or not self.consumer.num_pending:
                    raise PullStatusError("404 No Messages")
            elif self._requests and not config.priority_policy:
                there = self.consumer.num_pending + len(self.consumer.pending)
                if sum(each.batch for each in self._requests) >= there:
                    raise PullStatusError("408 Requests Pending")
        most = min(config.max_waiting, _MOST_WAITING)
        if len(self._requests) >= most:
            self._drop_unsubscribed()
            if len(self._requests) >= most:
                if request.heartbeat:
                    raise PullStatusError("")
                raise PullStatusError("409 Exceeded MaxWaiting")

    def _drop_unsubscribed(self) -> None:
        """Drops the requests without a subscriber."""
        for request in [each for each in self._requests if not self._bus.interested(each.reply)]:
            self._forget(request)

    def _forget(self, request: PullRequest) -> None:
        del self._requests[request]
        self._no_wait_requests -= request.no_wait

    def run(self, now: int) -> bool:
        """Sends the available messages to the waiting requests."""
        self.consumer.give_up(now)
        if 0 < self._next_check <= now:
            self._expire(now)
        if grouped := bool(self.consumer.config.priority_policy):
            self.priorities.expire(now)
        else:
            self._lines = ()
        sent = size = 0
        while self._requests and not self._exceeds_share(sent, size):
            request = self._next_request(now) if grouped else next(iter(self._requests))
            if request is None:
                break
            if not self._bus.interested(request.reply):
                self._forget(request)
                continue
            if self._is_blocked(request.reply, now):
                return False
            if not grouped:
                count, bytes_sent = self._send_shared(request, now, MOST - sent)
                if count:
                    sent, size = sent + count, size + bytes_sent
                    continue
            bytes_sent = self._send_next(request.reply, b"", now, request.bytes_left, request.short)
            if not bytes_sent:
                break
            if bytes_sent < 0:
                self._end(request, "409 Message Size Exceeds MaxBytes")
                continue
            sent, size = sent + ALONE, size + bytes_sent
            self._serve(request, 1, bytes_sent, now)
        else:
            if self._requests:
                return True
        if self._no_wait_requests and not self.consumer.full and self._not_before <= now:
            for request in [each for each in self._requests if each.no_wait and (each.served or not each.expires)]:
                self._forget(request)
                self._send_status(request, status("404 No Messages"))
        return False

    def _next_request(self, now: int) -> PullRequest | None:
        """Returns the request for the next message by the priority policy; None if there is no message or request."""
        if self.consumer.next(now) is None:
            return None
        for request in list(self.priorities.candidates(self._requests)):
            if not self._bus.interested(request.reply) or self.priorities.take(request, now):
                self._lines = self.priorities.lines
                return request
            self._end(request, "423 Nats-Wrong-Pin-Id")
        return None

    def _send_shared(self, request: PullRequest, now: int, most: int) -> tuple[int, int]:
        """Sends the next messages if all waiting requests have one reply subject. Returns their number and bytes."""
        waiting = list(islice(self._requests, _MOST_TOGETHER + 1))
        if len(waiting) == 1:
            bytes_left = MOST_BYTES if request.bytes_left is None else request.bytes_left
        elif len(waiting) > _MOST_TOGETHER or any(
            each.bytes_left is not None or each.reply != request.reply for each in waiting
        ):
            return 0, 0
        else:
            bytes_left = MOST_BYTES
        most = min(most, sum(each.batch for each in waiting))
        if any(each.short for each in waiting):
            return 0, 0
        count, size = self._send_table(request.reply, b"", now, most, bytes_left)
        if len(waiting) == 1 and count:
            self._serve(request, count, size, now)
            return count, size
        left = count
        while left:
            # Requests take messages in rotation; several rounds count at once while none of the requests ends in them.
            turn = list(self._requests)[:left]
            times = max(1, min(left // len(self._requests), min(each.batch for each in turn)))
            for each in turn:
                self._serve(each, times, 0, now)
            left -= times * len(turn)
        return count, size

    def _serve(self, request: PullRequest, count: int, size: int, now: int) -> None:
        self.used = now
        request.batch -= count
        request.served = True
        if request.heartbeat:
            request.beat = now + request.heartbeat
        if request.bytes_left is not None:
            request.bytes_left -= size
        if request.bytes_left == 0 or (not request.batch and request.bytes_left):
            self._end(request, "409 Batch Completed")
            return
        if request.batch:
            self._requests.move_to_end(request)
        else:
            self._forget(request)

    def _expire(self, now: int) -> None:
        self._next_check = 0
        for request in list(self._requests):
            if request.expires and request.expires <= now:
                self._end(request, "408 Request Timeout")
                continue
            if request.heartbeat and request.beat <= now:
                number, sequence = self.consumer.delivered
                beat = status("100 Idle Heartbeat", Nats_Last_Consumer=number, Nats_Last_Stream=sequence)
                self._send_status(request, beat)
                request.beat = now + request.heartbeat
            self._schedule_check(request)

    def _end(self, request: PullRequest, line: str) -> None:
        self._forget(request)
        left = {
            "Nats_Pending_Messages": request.batch - request.short_of,
            "Nats_Pending_Bytes": request.bytes_left or 0,
        }
        self._send_status(request, status(line, **left))

    def _send_status(self, request: PullRequest, header: bytes) -> None:
        if request.reply and not request.short and header != status(""):
            self._bus.publish(request.reply, b"", header=header)

    def next_event(self) -> int:
        """Returns the time of the next end of a request, heartbeat or message; 0 for none."""
        pinned = self.priorities.expires if self.consumer.config.priority_policy else 0
        if self._requests:
            return self._earliest(self._next_check, pinned)
        return earliest(pinned, self.consumer.end_due)

    def close(self, reason: str) -> None:
        for request in self._requests:
            self._send_status(request, status(reason))
        self._requests.clear()
        self._no_wait_requests = 0
