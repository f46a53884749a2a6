"""Puts streams and NATS together: what is published is stored and acknowledged, requests are answered.

Messages that one read brings are stored as one batch: they are added at once and flushed when everything that was
readable has been handed over. Acknowledgements follow the flush, and leave in one write for each connection. A request
is answered when all that was published before it is flushed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams.account import Account
from broker.streams.api import PREFIX, Api
from broker.streams.errors import ApiError, store_failed
from broker.streams.requests import dumps

if TYPE_CHECKING:
    from broker.streams.ports import Bus, Clock, Driver, Place
    from broker.streams.room import Limits
    from broker.streams.stream import Stream
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

_SECOND: Final = 1_000_000_000
_SYNC: Final = 120 * _SECOND


class StreamsServer:
    """The streams of a NATS server.

    Args:
        bus: NATS.
        place: Where streams are kept.
        clock: Tells the time.
        driver: Who calls `commit` and `run_timers`.
        limits: What streams may take.

    Attributes:
        account: The streams.
        api: Their API.
    """

    def __init__(self, bus: Bus, place: Place, clock: Clock, driver: Driver, limits: Limits) -> None:
        self._bus, self._place, self._clock, self._driver = bus, place, clock, driver
        self.account = Account(place, clock, limits)
        self.api = Api(self.account, clock, self._listen, self._forget)
        self._heard: dict[str, dict[str, object]] = {}
        #: Streams to be flushed, and the acknowledgements that wait for it.
        self._dirty: dict[Stream, None] = {}
        self._acks: list[tuple[Stream, bytes, bytes]] = []
        self._synced = clock.monotonic()

    def start(self) -> None:
        """Opens what is there, and listens.

        Raises:
            StorageError: A stream cannot be opened.
        """
        self.account.load()
        for stream in self.account.streams.values():
            self._listen(stream)
        self._bus.listen(PREFIX + b">", self._requested)
        self._look_after_later()

    def stop(self) -> None:
        """Closes all streams."""
        self.commit()
        for stream in self.account.streams.values():
            try:
                stream.store.close()
            except StorageError as error:
                NATS.error("Stream %r: %s", stream.name, error.message)
        self._place.close()

    @property
    def store_dir(self) -> str:
        """Where streams are kept."""
        return self._place.name

    def now(self) -> int:
        """Returns the time since 1970 in nanoseconds."""
        return self._clock.wall()

    # Subjects

    def _listen(self, stream: Stream) -> None:
        """Takes what is published to the subjects of a stream, as they are now."""
        heard = self._heard.setdefault(stream.name, {})
        for subject in [subject for subject in heard if subject not in stream.config.subjects]:
            self._bus.unlisten(heard.pop(subject))
        for subject in stream.config.subjects:
            if subject not in heard:
                heard[subject] = self._bus.listen(subject.encode(), partial(self._published, stream))
        self._driver.commit_soon()

    def _forget(self, stream: Stream) -> None:
        for subscription in self._heard.pop(stream.name, {}).values():
            self._bus.unlisten(subscription)
        self._dirty.pop(stream, None)

    # Messages

    def _published(self, stream: Stream, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        now = self._clock.wall()
        view = memoryview(buffer)
        acks, silent = self._acks, stream.config.no_ack
        name = dumps(stream.name)
        for start, size, reply, reply_size, header, at, length, _ in frames[begin:end].tolist():
            subject, payload = bytes(view[start : start + size]), bytes(view[at + header : at + length])
            try:
                sequence, known = stream.publish(subject, bytes(view[at : at + header]), payload, now)
                answer = b'{"stream":%b,"seq":%d%b}' % (name, sequence, b',"duplicate": true' if known else b"")
            except ApiError as error:
                answer = _refused(error, name)
            except StorageError as error:
                self._dirty[stream] = None
                self._failed(stream, error)
                answer = _refused(store_failed(error.message), name)
            if reply_size and not silent:
                acks.append((stream, bytes(view[reply : reply + reply_size]), answer))
        self._dirty[stream] = None
        self._driver.commit_soon()

    def commit(self) -> None:
        """Flushes what was published, and acknowledges it."""
        for stream in self._dirty:
            try:
                stream.store.flush()
            except StorageError as error:
                self._failed(stream, error)
        self._dirty.clear()
        acks, self._acks = self._acks, []
        for _, reply, answer in acks:
            self._bus.publish(reply, answer)

    def _failed(self, stream: Stream, error: StorageError) -> None:
        """Takes a stream back to what is certain; what was not acknowledged yet is refused."""
        NATS.error("Stream %r: %s", stream.name, error.message)
        refused = _refused(store_failed(error.message), dumps(stream.name))
        self._acks = [(each, reply, refused if each is stream else answer) for each, reply, answer in self._acks]
        self.account.reopen(stream)

    # Requests

    def _requested(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        self.commit()
        view = memoryview(buffer)
        for start, size, reply, reply_size, header, at, length, _ in frames[begin:end].tolist():
            subject, body = bytes(view[start : start + size]), bytes(view[at + header : at + length])
            found = self.api.answer(subject, bytes(view[at : at + header]), body)
            if found is not None and reply_size:
                self._bus.publish(bytes(view[reply : reply + reply_size]), found[1], header=found[0])

    # Time

    def _look_after_later(self) -> None:
        self._driver.wake_at(self._clock.monotonic() + _SECOND)

    def run_timers(self) -> None:
        """Takes out what is too old, and has files synced now and then."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        for stream in self.account.streams.values():
            if stream.failure:
                self.account.reopen(stream)
            elif stream.ages:
                stream.expire(wall)
                stream.forget_ids(wall)
                self._dirty[stream] = None
        if now - self._synced >= _SYNC:
            self._synced = now
            self._place.sync()
        self._look_after_later()
        if self._dirty:
            self.commit()


def _refused(error: ApiError, name: bytes) -> bytes:
    return b'{"error":%b,"stream":%b,"seq":0}' % (dumps(error.as_json()), name)
