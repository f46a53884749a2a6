"""Requests to the API, a few milliseconds at a time, so that none delays other clients.

A request is *work*: an iterator that does a little at each step. It begins at once unless an unfinished request must
precede it, and mostly ends in the same call. Longer requests run in rotation, and the loop reads from clients in
between.

    waiting     an earlier request of the same client, or one that changes the same stream, has not ended
    at work     it runs in rotation
    ended       it has answered, or it changes nothing and its answer has no subscriber any more

A request that changes a stream waits for all earlier ones that change it. Requests that only read may see a stream
in the middle of a change; publishing, expiry and acknowledgements continue meanwhile. A request for a stream deleted
meanwhile ends with the "not found" answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

from broker.log import NATS

#: Limits of waiting requests, in number and bytes, as in nats-server; more are refused.
_MOST_WAITING: Final = 10_000
_MOST_BYTES: Final = 64 << 20


class QueuedRequest:
    """A request.

    `client` is derived from the reply subject; it is None for the server itself, whose requests wait for no client.
    `stream` is empty for a request that changes none. `listened` returns whether the answer has a subscriber.
    """

    __slots__ = ("changes", "listened", "places", "size", "steps")

    def __init__(
        self, client: bytes | None, stream: bytes, size: int, steps: Iterator[None], listened: Callable[[], bool]
    ) -> None:
        #: Queues in which it waits: that of its client and that of its stream.
        self.places = [*([(b"c", client)] if client is not None else []), *([(b"s", stream)] if stream else [])]
        self.size, self.steps, self.listened = size, steps, listened
        self.changes = bool(stream)  #: whether it changes a stream


class RequestQueue:
    """Requests in the order of their answers; `slices` counts interruptions."""

    def __init__(self) -> None:
        self._lines: dict[tuple[bytes, bytes], deque[QueuedRequest]] = {}
        self._at_work: deque[QueuedRequest] = deque()
        self._count = self._bytes = 0
        self.slices = 0

    @property
    def busy(self) -> bool:
        """Whether requests are at work."""
        return bool(self._at_work)

    @property
    def full(self) -> bool:
        """Whether more requests must be refused."""
        return self._count >= _MOST_WAITING or self._bytes >= _MOST_BYTES

    def put(self, request: QueuedRequest, deadline: float) -> None:
        """Adds a request, and runs it until `deadline` (`perf_counter`) if it need not wait."""
        free = not any(place in self._lines for place in request.places)
        if free and perf_counter() < deadline and self._step(request, deadline):
            return
        self._count += 1
        self._bytes += request.size
        for place in request.places:
            self._lines.setdefault(place, deque()).append(request)
        if free:
            self._at_work.append(request)

    def run(self, deadline: float) -> None:
        """Runs the requests at work until `deadline` (`perf_counter`), at least one step."""
        while self._at_work:
            request = self._at_work.popleft()
            share = perf_counter() + max((deadline - perf_counter()) / (1 + len(self._at_work)), 0.001)
            unheard = not request.changes and not request.listened()
            if unheard or self._step(request, min(share, deadline)):
                self._end(request)
            else:
                self._at_work.append(request)
            if perf_counter() > deadline:
                break

    def clear(self) -> None:
        for line in (self._at_work, *self._lines.values()):
            for request in line:
                _close(request)
        self._lines.clear()
        self._at_work.clear()
        self._count = self._bytes = 0

    def _step(self, request: QueuedRequest, deadline: float) -> bool:
        """Runs a request until `deadline`. Returns whether it has ended."""
        try:
            for _ in request.steps:
                if perf_counter() > deadline:
                    self.slices += 1
                    return False
        except Exception as problem:
            # An error of the broker itself must end this request only.
            NATS.error("Internal error: %r", problem)
            NATS.debug("Details", exc_info=True)
        return True

    def _end(self, request: QueuedRequest) -> None:
        """Starts the requests that waited for this one."""
        _close(request)
        self._count -= 1
        self._bytes -= request.size
        following = []
        for place in request.places:
            line = self._lines[place]
            line.popleft()
            if line:
                following.append(line[0])
            else:
                del self._lines[place]
        for each in dict.fromkeys(following):
            if all(self._lines[place][0] is each for place in each.places):
                self._at_work.append(each)


def _close(request: QueuedRequest) -> None:
    close = getattr(request.steps, "close", None)
    if close is not None:
        close()
