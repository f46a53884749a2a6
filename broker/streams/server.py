"""Connects streams with NATS: published messages are stored and acknowledged, requests are answered.

The messages of one read are stored as one batch: they are appended together, and flushed once all readable messages
are appended. Acknowledgements follow the flush, in one write per connection. A request is answered once all messages
published before it are flushed.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams import acks
from broker.streams.account import Account
from broker.streams.advisories import Advisories
from broker.streams.api import BEYOND, DIRECT, PREFIX, Api, changed_stream
from broker.streams.api_errors import RequestError, store_failed
from broker.streams.consumers import CHECK_INTERVAL, ConsumerRegistry
from broker.streams.headers import status
from broker.streams.mirroring import StreamCopies
from broker.streams.preview import DIALECTS, PreviewApi
from broker.streams.pubacks import PubAcks, publish_ack
from broker.streams.requestqueue import QueuedRequest, RequestQueue
from broker.streams.requests import dumps
from broker.streams.stream_limits import expire
from broker.streams.stream_source import SourceOrigin
from broker.streams.streams_options import beyond
from broker.streams.transfers import Transfers
from stantools.nats.frames import rows
from stantools.nats.subjects import is_literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.ports import Clock, RuleDriver
    from broker.stores.streams.interface import StreamStore
    from broker.streams.configuration import StreamConfig
    from broker.streams.consumer import Consumer
    from broker.streams.ports import StreamsPort, StreamStorage
    from broker.streams.quota import QuotaLimits
    from broker.streams.stream import Stream
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

_SYNC_INTERVAL: Final = 120_000_000_000
#: smallest number of messages that are stored as one batch
_MIN_BATCH: Final = 2
#: time (ns) without messages after which a single message is stored at once
_MIN_PAUSE: Final = 20_000
#: seconds that requests, consumers or copies run before others do
_TIME_SLICE: Final = 0.004
#: requests for the last message of a subject, such as the value of a key; other requests may ask for many messages
_LAST_MESSAGE_REQUESTS: Final = DIRECT + b"*.>"
_NEXT: Final = PREFIX + b"CONSUMER.MSG.NEXT."
_CHANGES: Final = (PREFIX + b"STREAM.", PREFIX + b"CONSUMER.")
_FLOW: Final = b"$JS.FC."


class StreamsServer:
    """The streams of a NATS server.

    With `preview`, clients of the JetStream preview are answered as well. `driver` must call `commit` and
    `run_timers`.
    """

    def __init__(
        self,
        bus: StreamsPort,
        place: StreamStorage,
        clock: Clock,
        driver: RuleDriver,
        limits: QuotaLimits,
        *,
        preview: bool = False,
    ) -> None:
        self._bus, self._place, self._clock, self._driver = bus, place, clock, driver
        self.account = Account(place, clock, limits)
        advisories = Advisories(bus, clock)
        short = {name: dialect.acks for name, dialect in DIALECTS.items()} if preview else {}
        self.consumers = ConsumerRegistry(bus, clock, advisories, driver.commit_soon, short)
        self.transfers = Transfers(bus, place, clock, driver, self.account, self._start_stream, self._queue_work)
        self.copies = StreamCopies(self.account.streams, clock, driver.commit_soon, self._failed)
        self.api = Api(self.account, self.consumers, self.transfers, clock, advisories, self._subscribe, self._forget)
        self._preview = PreviewApi(self.api, self.account, self.consumers, bus) if preview else None
        self._subscriptions: dict[str, dict[str, object]] = {}
        #: streams to flush
        self._dirty: dict[Stream, None] = {}
        self._acks = PubAcks(bus, preview=preview)
        self.requests = RequestQueue()
        self._synced_at = self._checked_at = clock.monotonic()
        self._published_at = 0
        self._wake_time = 0
        self._stopped = self._checking = False
        self._closing_stream = ""  # name of the stream that `stop` is writing

    def start(self) -> None:
        """Opens the stored streams and subscribes to their subjects."""
        self.account.load()
        for stream in self.account.streams.values():
            for _ in self._start_stream(stream):
                pass
        self._bus.listen(PREFIX + b">", self._requested, but=_LAST_MESSAGE_REQUESTS)
        self._bus.listen(_LAST_MESSAGE_REQUESTS, self._last_messages_requested, gathered=True)
        self._bus.listen(acks.PREFIX + b">", self._acknowledged)
        self._bus.listen(_FLOW + b">", self._flow_answered)
        if self._preview is not None:
            self._bus.listen(DIALECTS["P0"].acks + b".>", self._acknowledged)
            for pattern, call in self._preview.calls.items():
                self._bus.listen(pattern, partial(self._preview_requested, call))
        self._wake_later(self._checked_at + CHECK_INTERVAL)

    def unwritten(self) -> list[str]:
        """Returns the stream that `stop` is writing, if there is one. Thread-safe."""
        return [f'stream "{self._closing_stream}"'] if self._closing_stream else []

    def stop(self) -> None:
        if self._stopped:
            return
        self.requests.clear()
        self.commit()
        self._stopped = True
        self.transfers.close()
        # Flushed data survives the end of the process, so all streams are flushed before the first slow sync.
        for stream in self.account.streams.values():
            self._closing_stream = stream.name
            try:
                stream.store.flush()
            except StorageError as error:
                NATS.error("Stream %r: %s", stream.name, error.message)
        self.consumers.store_states()
        for stream in self.account.streams.values():
            self._closing_stream = stream.name
            try:
                stream.close()
            except StorageError as error:
                NATS.error("Stream %r: %s", stream.name, error.message)
        self._closing_stream = ""
        self._place.close()

    @property
    def store_dir(self) -> str:
        return self._place.name

    def now(self) -> int:
        """Returns the time in nanoseconds since 1970."""
        return self._clock.wall()

    def _subscribe(self, stream: Stream) -> Iterator[None]:
        """Subscribes to the configured subjects of a stream and starts its copies, in steps."""
        subscriptions = self._subscriptions.setdefault(stream.name, {})
        wanted = dict.fromkeys(stream.config.subjects)
        for subject in [subject for subject in subscriptions if subject not in wanted]:
            self._bus.unlisten(subscriptions.pop(subject))
            yield
        for subject in wanted:
            if subject not in subscriptions:
                subscriptions[subject] = self._bus.listen(
                    subject.encode(), partial(self._published, stream), gathered=True
                )
                yield
        yield from self._start_copies(stream)
        self._driver.commit_soon()

    def _start_copies(self, stream: Stream) -> Iterator[None]:
        """Finds the positions of a stream's configured copies, and starts them, in steps."""
        filters = []
        for origin in stream.config.origins:
            # The filter is made in steps here; the copy then finds it ready.
            other = self.account.streams.get(origin["name"])
            if other is not None:
                contents = other.store.contents
                patterns = SourceOrigin(origin, mirror=bool(stream.config.mirror)).patterns
                filters.append((contents, (yield from contents.make_filter(patterns))))
        if not stream.deleted:
            yield from self.copies.adopt(stream)
        for contents, found in filters:
            contents.release(found)

    def _start_stream(self, stream: Stream) -> Iterator[None]:
        """Completes a stream that was opened: copies, limits, consumers, subscriptions."""
        # Messages over the limits may be the only ones that show the positions of copies, so those are read first.
        yield from self._start_copies(stream)
        try:
            yield from self.account.trim(stream)
        except StorageError as error:
            self._failed(stream, error)
        yield from self.consumers.load(stream)
        yield from self._subscribe(stream)

    def _forget(self, stream: Stream) -> None:
        self.consumers.remove_all(stream)
        for subscription in self._subscriptions.pop(stream.name, {}).values():
            self._bus.unlisten(subscription)
        self._dirty.pop(stream, None)
        self.copies.forget(stream)

    def lend(self, config: StreamConfig, created: int, store: StreamStore) -> Stream:
        """Adds a stream whose messages another component stores; messages published to its subjects are not stored.

        Raises `RequestError` if the name or the subjects are taken.
        """
        stream = self.account.lend(config, created, store)
        for _ in self.consumers.load(stream):
            pass
        for _ in self.copies.adopt(stream):
            pass
        return stream

    def take_back(self, stream: Stream) -> None:
        """Removes a stream that `lend` has added, with its consumers."""
        self.account.drop(stream)
        self._forget(stream)
        try:
            stream.store.delete()
        except StorageError as error:
            NATS.error("Stream %r: %s", stream.name, error.message)

    def changed(self, stream: Stream) -> None:
        """Schedules a flush of a stream that has changed; then its consumers and copies run."""
        self._dirty[stream] = None
        self._driver.commit_soon()

    def _published(self, stream: Stream, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        now = self._clock.wall()
        # A single message after a pause does not wait for others.
        pause = now - self._published_at
        self._published_at = now
        silent = stream.config.no_ack
        at_once = end - begin == 1 and not self._dirty and pause > _MIN_PAUSE
        if not at_once:
            self.changed(stream)
            if end - begin >= _MIN_BATCH and self._publish_rows(stream, buffer, frames, begin, end, now):
                return
        for subject, reply, header, payload in rows(buffer, frames, begin, end):
            try:
                sequence, known = stream.publish(subject, header, payload, now, defer_limits=at_once)
                if at_once:
                    stream.flush()
                answer = publish_ack(stream, sequence, known=known)
            except (RequestError, StorageError) as error:
                answer = self._refusal(stream, error)
            to = b"" if silent else reply
            if stream.rolling_up is not None:
                self._queue_work(stream.name, self._roll_up(stream, stream.rest_of_roll_up(), to, answer))
            elif to and at_once:
                self._acks.answer(stream, to, answer)
                self._bus.send_now()
            elif to:
                self._acks.add(stream, to, answer)
        if at_once:
            self._complete_single(stream)

    def _publish_rows(self, stream: Stream, buffer: Buffer, frames: Frames, begin: int, end: int, now: int) -> bool:
        """Stores messages together; returns False if none is stored and they must be published one by one."""
        try:
            first = stream.publish_rows(buffer, frames, begin, end, now)
        except StorageError as error:
            refused = self._refusal(stream, error)
            for _, to, _, _ in rows(buffer, frames, begin, end):
                if to and not stream.config.no_ack:
                    self._acks.add(stream, to, refused)
            return True
        if first and not stream.config.no_ack:
            self._acks.add_rows(stream, buffer, frames, begin, end, first)
        return first > 0

    def _complete_single(self, stream: Stream) -> None:
        """Enforces limits after the acknowledgement of a message that was stored at once."""
        try:
            stream.trim()
        except StorageError as error:
            self._failed(stream, error)
        if stream.republished or stream.followers or self.copies.feeds(stream):
            self.changed(stream)

    def _roll_up(self, stream: Stream, work: Iterator[None], to: bytes, answer: bytes) -> Iterator[None]:
        """Deletes the messages that a message replaces, and answers that message."""
        try:
            yield from work
        except (RequestError, StorageError) as error:
            answer = self._refusal(stream, error)
        if to:
            self._acks.add(stream, to, answer)
        if not stream.deleted:
            self.changed(stream)

    def _refusal(self, stream: Stream, error: RequestError | StorageError) -> bytes:
        """Returns the answer for a message that is not stored; a failed write refuses all unanswered messages."""
        if isinstance(error, StorageError):
            self._failed(stream, error)
            error = store_failed(error.message)
        return _publish_error(error, stream.json_name)

    def commit(self) -> None:
        """Flushes and acknowledges published messages, then runs requests, consumers and copies."""
        if self._stopped:
            return
        self._flush()
        if self.requests.busy:
            self.requests.run(perf_counter() + _TIME_SLICE)
            if self.requests.busy:
                self._driver.commit_soon()
        self.consumers.run_alarms()
        if self.consumers.busy:
            self._dirty.update(dict.fromkeys(self.consumers.run(perf_counter() + _TIME_SLICE)))
        if self.copies.busy:
            self._dirty.update(dict.fromkeys(self.copies.run(perf_counter() + _TIME_SLICE)))
        if self._dirty:
            self._flush()
        self._dirty.update(dict.fromkeys(self.copies.settle()))
        self.transfers.run()
        due = self.consumers.due
        if due:
            self._wake_later(self._clock.monotonic() + max(due - self._clock.wall(), 0))

    def _flush(self) -> None:
        for stream in self._dirty:
            try:
                stream.flush()
            except StorageError as error:
                self._failed(stream, error)
            self.consumers.stream_changed(stream)
            self.copies.changed(stream)
        flushed, self._dirty = self._dirty, {}
        self._acks.send()
        for stream in flushed:
            republished, stream.republished = stream.republished, []
            for to, header, payload in republished:
                self._bus.publish(to, payload, header=header)

    def _failed(self, stream: Stream, error: StorageError) -> None:
        """Opens a stream again with its flushed messages, and refuses the messages that are not acknowledged yet."""
        NATS.error("Stream %r: %s", stream.name, error.message)
        refused = _publish_error(store_failed(error.message), stream.json_name)
        self._acks.refuse(stream, refused)
        stream.republished.clear()
        self._reopen(stream)

    def _reopen(self, stream: Stream) -> None:
        self.account.reopen(stream)
        self.copies.renew(stream)

    def _requested(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        deadline = self._begin_requests()
        for subject, reply, header, body in rows(buffer, frames, begin, end):
            if subject.startswith(_NEXT) and not self.requests.busy:
                self._pull_requested(subject[len(_NEXT) :], reply, header, body)
            else:
                self._queue(subject, reply, header, body, deadline)
        self._driver.commit_soon()

    def _last_messages_requested(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        deadline = self._begin_requests()
        for subject, reply, header, body in rows(buffer, frames, begin, end):
            if not body and not self.requests.busy and is_literal(subject):
                # Nearly all requests ask for the value of a key. Each takes some microseconds.
                found = self.api.last(subject[len(DIRECT) :], header)
                if reply:
                    self._bus.answer(reply, *found)
            else:
                self._queue(subject, reply, header, body, deadline)
        if end - begin == 1:
            self._bus.send_now()
        if self.requests.busy:
            self._driver.commit_soon()

    def _begin_requests(self) -> float:
        """Flushes published messages; returns the deadline (`perf_counter`) for answers to requests."""
        if self._dirty:
            self._flush()
        return perf_counter() + _TIME_SLICE

    def _queue(self, subject: bytes, reply: bytes, header: bytes, body: bytes, deadline: float) -> None:
        if self.requests.full:
            if reply and subject.startswith((DIRECT, _NEXT)):
                self._bus.publish(reply, b"", header=status("503"))
            elif reply:
                self._bus.publish(reply, self.api.refusal(subject))
            return
        stream = changed_stream(subject[len(PREFIX) :])
        # The reply subjects of one client differ in the last token only.
        client = reply[: reply.rfind(b".") + 1] or reply
        size = len(subject) + len(reply) + len(header) + len(body)
        steps = self._answer(subject, reply, header, body)
        listened = partial(self._bus.reaches, reply)
        self.requests.put(QueuedRequest(client, stream, size, steps, listened), deadline)

    def _queue_work(self, stream: str, work: Iterator[None]) -> None:
        """Queues work that changes a stream; it runs in steps."""
        self.requests.put(QueuedRequest(None, stream.encode(), 0, work, lambda: True), 0)
        self._driver.commit_soon()

    def _answer(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> Iterator[None]:
        """Answers a request, in steps."""
        if subject.startswith(DIRECT):
            for found in self.api.direct(subject[len(DIRECT) :], header, body):
                if found is None:
                    yield
                elif reply:
                    self._bus.answer(reply, *found)
        elif subject.startswith(_NEXT):
            self._pull_requested(subject[len(_NEXT) :], reply, header, body)
        else:
            answer = yield from self.api.answer(subject, header, body)
            if reply and answer:
                self._bus.publish(reply, answer)
            if subject.startswith(_CHANGES):
                self._schedule_flushes()

    def _schedule_flushes(self) -> None:
        """Schedules a flush of the streams that a request has changed."""
        for stream in self.account.streams.values():
            if stream.unflushed:
                self._dirty[stream] = None

    def _preview_requested(
        self, call: Callable[[bytes, bytes, bytes], bytes], buffer: Buffer, frames: Frames, begin: int, end: int
    ) -> None:
        self._flush()
        for subject, reply, _, body in rows(buffer, frames, begin, end):
            answer = call(subject, reply, body)
            if reply and answer:
                self._bus.publish(reply, answer)
        self._schedule_flushes()
        self._driver.commit_soon()

    def _pull_requested(self, rest: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        if reply and header and beyond(header):
            self._bus.publish(reply, b"", header=BEYOND)
        elif reply:
            stream, _, name = rest.decode(errors="replace").partition(".")
            consumer = self._consumer(stream, name)
            if consumer is not None:
                self.consumers.ask(consumer, reply, body)
            else:
                self._bus.publish(reply, b"", header=status("503"))

    def _consumer(self, stream: str, name: str) -> Consumer | None:
        found = self.account.streams.get(stream)
        return self.consumers.of(found).get(name) if found is not None else None

    def _acknowledged(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        now = self._clock.wall()
        names, known = (b"", b""), None
        for subject, reply, _, payload in rows(buffer, frames, begin, end):
            numbers = acks.numbers(subject) if not reply and payload in acks.DONE else None
            if numbers is not None:
                # Nearly all acknowledgements are plain ones without a reply subject.
                if numbers[:2] != names:
                    names = numbers[:2]
                    known = self._consumer(*(each.decode(errors="replace") for each in names))
                if known is not None and known.config.ack_policy != "none":
                    self.consumers.done(known, numbers[2], numbers[3], now)
                    if known.stream.unflushed:
                        self._dirty[known.stream] = None
                continue
            place = acks.place(subject, preview=self._preview is not None)
            consumer = self._consumer(place.stream, place.consumer) if place is not None else None
            if place is None or consumer is None or consumer.config.ack_policy == "none":
                if reply and not (place and place.short):
                    self._bus.publish(reply, b"", header=status("503"))
                continue
            verb = acks.verb(payload)
            answered = self.consumers.acknowledged(consumer, verb, reply, place)
            if consumer.stream.unflushed:
                self._dirty[consumer.stream] = None
            if reply and answered:
                self._acks.add(consumer.stream, reply, b"")
        self._driver.commit_soon()

    def _flow_answered(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        for subject, _, _, _ in rows(buffer, frames, begin, end):
            tokens = subject[len(_FLOW) :].decode(errors="replace").split(".")
            consumer = self._consumer(tokens[0], tokens[1]) if len(tokens) > 1 else None
            if consumer is not None:
                self.consumers.flow_answered(consumer, subject)

    def _wake_later(self, time: int) -> None:
        """Schedules `run_timers` for a time (monotonic ns), or earlier."""
        if not self._wake_time or time < self._wake_time:
            self._wake_time = time
            self._driver.wake_at(time)

    def run_timers(self) -> None:
        if self._stopped:
            return
        now = self._clock.monotonic()
        self._wake_time = 0
        if now - self._checked_at >= CHECK_INTERVAL:
            self._checked_at = now
            self._run_checks(now)
        self._wake_later(self._checked_at + CHECK_INTERVAL)
        self.commit()

    def _run_checks(self, now: int) -> None:
        """Expires messages, and schedules the storing of states and the sync of files."""
        wall = self._clock.wall()
        for stream in self.account.streams.values():
            if stream.failure:
                self._reopen(stream)
            elif stream.may_expire:
                if expire(stream, wall):
                    self._queue_work(stream.name, self._expire(stream))
                self._dirty[stream] = None
        if now - self._synced_at >= _SYNC_INTERVAL:
            self._synced_at = now
            self._place.sync()
        if not self._checking:
            self._checking = True
            looking = self._check_consumers()
            self.requests.put(QueuedRequest(None, b"", 0, looking, lambda: True), perf_counter() + _TIME_SLICE)
        self.copies.run_checks()
        self.transfers.run_checks()

    def _expire(self, stream: Stream) -> Iterator[None]:
        """Deletes the other expired messages of a stream."""
        try:
            while not stream.deleted and expire(stream, self._clock.wall()):
                self._dirty[stream] = None
                yield
        except StorageError as error:
            self._failed(stream, error)

    def _check_consumers(self) -> Iterator[None]:
        try:
            yield from self.consumers.run_checks()
        finally:
            self._checking = False


def _publish_error(error: RequestError, name: bytes) -> bytes:
    return b'{"error":%b,"stream":%b,"seq":0}' % (dumps(error.as_json()), name)
