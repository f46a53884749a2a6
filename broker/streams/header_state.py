"""The state of a stream from the headers of its messages: ids within the duplicate window, and lifetimes.

Facts: jetstream-server.md section 7.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from broker.streams.api_errors import RequestError
from broker.streams.publish_headers import FOREVER, MESSAGE_ID, lifetime, parse_nats_headers

if TYPE_CHECKING:
    from broker.stores.streams.interface import Stored, StreamStore
    from broker.streams.configuration import StreamConfig


class MessageIds:
    """Message ids within the duplicate window; `last` is that of the last message, empty if it had none."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self.last = b""

    def __bool__(self) -> bool:
        return bool(self._known)

    def note(self, ids: Sequence[bytes], sequence: int, time: int) -> None:
        """Adds the ids of messages stored at `time` with consecutive sequences.

        An id may be empty; there are none if no message has headers.
        """
        self.last = ids[-1] if ids else b""
        for number, message_id in enumerate(ids, sequence):
            if message_id:
                self._known[message_id] = (number, time)

    def find(self, message_id: bytes, oldest: int) -> int:
        """Returns the sequence of the message with this id, stored after `oldest`; 0 for none."""
        self.forget(oldest)
        found = self._known.get(message_id)
        return found[0] if found is not None else 0

    def forget(self, oldest: int) -> None:
        """Forgets the ids of messages stored at `oldest` or before."""
        while self._known and next(iter(self._known.values()))[1] <= oldest:
            self._known.popitem(last=False)


class MessageLifetimes:
    """Messages with a lifetime of their own; `forever` has the sequences of those without an age limit."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []
        self.forever: set[int] = set()

    def note(self, sequence: int, time: int, life: int) -> None:
        """Adds the lifetime of a message stored at `time`."""
        if life == FOREVER:
            self.forever.add(sequence)
        elif life:
            heapq.heappush(self._ends, (time + life, sequence))

    def __bool__(self) -> bool:
        return bool(self._ends)

    def ended(self, now: int) -> Iterator[int]:
        """Iterates over the sequences of expired messages, and forgets them."""
        while self._ends and self._ends[0][0] <= now:
            yield heapq.heappop(self._ends)[1]


class HeaderState(NamedTuple):
    ids: MessageIds
    lifetimes: MessageLifetimes


def read_header_state(store: StreamStore, config: StreamConfig, now: int) -> HeaderState:
    """Reads the state from the stored messages. Thread-safe if the store has no other user."""
    ids, lifetimes = MessageIds(), MessageLifetimes()
    contents = store.contents
    window_start = contents.first_since(now - config.duplicate_window)
    for message in stored_messages(store, contents.first if config.allow_msg_ttl else window_start):
        headers = parse_nats_headers(message.header)
        if message.sequence >= window_start:
            ids.note((headers.get(MESSAGE_ID, b""),), message.sequence, message.time)
        if config.allow_msg_ttl and headers:
            with contextlib.suppress(RequestError):
                lifetimes.note(message.sequence, message.time, lifetime(headers))
    if contents.locate(contents.last) is not None and (last := store.read(contents.last)) is not None:
        ids.last = parse_nats_headers(last.header).get(MESSAGE_ID, b"")  # also after the window
    return HeaderState(ids, lifetimes)


def stored_messages(store: StreamStore, sequence: int) -> Iterator[Stored]:
    """Iterates over the messages from a sequence on."""
    while found := store.contents.matching(None, sequence, 256):
        for each in found:
            message = store.read(each)
            if message is not None:
                yield message
        sequence = found[-1] + 1
