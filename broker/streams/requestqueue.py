"""Requests to the API, answered a few milliseconds at a time, so that none holds up other clients.

A request is *work*: an iterator that does a little at each step. It begins at once if nothing that it must not overtake
is still at work, and mostly ends there. What takes longer gets turns, as the others that are at work do, between which
the loop reads what has come.

    waiting     a request before it has not ended that has the same client, or changes the same stream
    at work     it gets turns
    ended       it has answered, or nobody listens any more who could get the answer of a request that changes nothing

A request that changes a stream waits for all that came before it and change that stream. Questions see a stream in the
middle of a change: what is published to it, expires or is acknowledged goes on meanwhile. A request that finds its
stream deleted ends with the answer that there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

from broker.log import NATS

#: Requests that may wait, and bytes of them, as with a real server; more are refused.
_MOST_WAITING: Final = 10_000
_MOST_BYTES: Final = 64 << 20


class QueuedRequest:
    """A request.

    Args:
        client: The client, as far as the subject for the answer says so; None for the server itself, which waits for
            none.
        stream: The stream that it changes; empty if it changes none.
        size: Its bytes.
        steps: What is to be done.
        listened: Returns whether somebody still listens who gets the answer.
    """

    __slots__ = ("changes", "listened", "places", "size", "steps")

    def __init__(
        self, client: bytes | None, stream: bytes, size: int, steps: Iterator[None], listened: Callable[[], bool]
    ) -> None:
        #: What it waits for: the requests before it from the same client, and to the same stream.
        self.places = [*([(b"c", client)] if client is not None else []), *([(b"s", stream)] if stream else [])]
        self.size, self.steps, self.listened = size, steps, listened
        self.changes = bool(stream)  #: it changes a stream


class RequestQueue:
    """Requests in the order in which they are answered.

    Attributes:
        slices: How often a request was interrupted so far.
    """

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
        """Whether as many requests as may be wait."""
        return self._count >= _MOST_WAITING or self._bytes >= _MOST_BYTES

    def put(self, request: QueuedRequest, deadline: float) -> None:
        """Answers a request, at once if its turn is over by a time (`perf_counter`) and it need not wait."""
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
        """Gives turns to the requests at work until a time (`perf_counter`), one step at least."""
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
        """Drops all requests."""
        for line in (self._at_work, *self._lines.values()):
            for request in line:
                _close(request)
        self._lines.clear()
        self._at_work.clear()
        self._count = self._bytes = 0

    def _step(self, request: QueuedRequest, deadline: float) -> bool:
        """Goes on until a time. Returns whether the request has ended."""
        try:
            for _ in request.steps:
                if perf_counter() > deadline:
                    self.slices += 1
                    return False
        except Exception as problem:
            # A mistake of ours must not cost more than this request.
            NATS.error("Internal error: %r", problem)
            NATS.debug("Details", exc_info=True)
        return True

    def _end(self, request: QueuedRequest) -> None:
        """Lets those begin that have waited for a request."""
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
