"""All consumers: they are created, changed and removed here, run when they have messages, and stored.

Facts: jetstream-server.md sections 9, 10 and 14.
"""

from __future__ import annotations

import heapq
import secrets
import string
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams.acks import AckKind, AckTarget, Verb
from broker.streams.api_errors import RequestError, store_failed
from broker.streams.consumer import Consumer, ConsumerStart, find_start
from broker.streams.consumerconfig import ConsumerConfig
from broker.streams.delivery import ConsumerDelivery
from broker.streams.headers import status
from broker.streams.pull_delivery import PullDelivery
from broker.streams.push_delivery import PushDelivery
from broker.streams.requests import members, time_text, valid_name
from broker.streams.streams_options import PREVIEW
from stantools.nats.subjects import is_literal, overlap
from stantools.nats.subjecttree import tree_of
from stantools.streamfiles.stream_config import BOOL, OBJECT, STRING

if TYPE_CHECKING:
    from broker.ports import Clock
    from broker.streams.advisories import Advisories
    from broker.streams.ports import StreamsPort
    from broker.streams.stream import Stream

_REQUEST: Final[Mapping[str, str]] = {"stream_name": STRING, "config": OBJECT, "action": STRING, "pedantic": BOOL}
_LETTERS: Final = string.ascii_letters + string.digits
_NAME_SIZE: Final = 8
#: shortest time (ns) until an alarm
_MIN_ALARM_DELAY: Final = 2_000_000
#: time (ns) between two checks: states are stored, unused consumers removed
CHECK_INTERVAL: Final = 1_000_000_000
_END: Final = object()


class ConsumerRegistry:
    """The consumers of all streams.

    `wake` is called when `run` has work. `short` has the prefixes of acknowledgement subjects by dialect of the
    preview; empty without the preview.
    """

    def __init__(
        self,
        bus: StreamsPort,
        clock: Clock,
        advisories: Advisories,
        wake: Callable[[], None],
        short: Mapping[str, bytes],
    ) -> None:
        self._bus, self._clock, self._advisories, self._wake = bus, clock, advisories, wake
        self._short = short
        self._by_stream: dict[Stream, dict[str, Consumer]] = {}
        self._deliveries: dict[Consumer, ConsumerDelivery] = {}
        #: push deliveries by their subject
        self._by_subject: dict[bytes, dict[ConsumerDelivery, None]] = {}
        self._ready: dict[ConsumerDelivery, None] = {}
        self._alarms: list[tuple[int, int, ConsumerDelivery]] = []
        #: work that deletes the messages no consumer needs, by stream
        self._cleanups: dict[Stream, Iterator[None]] = {}
        bus.watch(self._interest_changed)

    @property
    def count(self) -> int:
        return len(self._deliveries)

    @property
    def busy(self) -> bool:
        """Whether `run` may have work."""
        return bool(self._ready or self._cleanups)

    def of(self, stream: Stream) -> Mapping[str, Consumer]:
        """Returns the consumers of a stream by name."""
        return self._by_stream.get(stream, {})

    # Creation and removal

    def load(self, stream: Stream) -> Iterator[None]:
        """Opens the stored consumers of a stream, in steps."""
        for values, created, state in stream.store.consumers():
            try:
                name = values.pop("name", "") or values.get("durable_name", "")
                config = ConsumerConfig.read({**values, "name": name}, stream.config)
                config.check(stream.config)
                config.check_policies(stream.config)
            except RequestError as error:
                NATS.error("  Consumer %r of %r is left alone: %s", values.get("name"), stream.name, error.text)
                continue
            wanted = yield from stream.store.contents.make_filter(config.filters)
            start = yield from find_start(stream, config)
            consumer = self._add(stream, config, created, start)
            stream.store.contents.release(wanted)
            if state is not None:
                consumer.restore(state)
            yield
        self._schedule_cleanup(stream, delivered=True)

    def create(self, stream: Stream, config: ConsumerConfig, action: str) -> Generator[None, None, Consumer]:
        """Creates or changes a consumer, in steps; raises `RequestError` if that is not possible."""
        config.check(stream.config)
        if not config.name:
            config = replace(config, name=self._new_name(stream))
        known = self.of(stream).get(config.name)
        if known is not None:
            return (yield from self._change(known, config, action))
        if action == "update":
            raise RequestError(400, 10149, "consumer does not exist")
        if 0 < stream.config.max_consumers <= len(self.of(stream)):
            raise RequestError(400, 10026, "maximum consumers limit reached")
        config.check_policies(stream.config)
        self._check_unique(stream, config)
        contents = None
        while contents is not stream.store.contents:
            contents = stream.store.contents
            wanted = yield from contents.make_filter(config.filters)
            try:
                start = yield from find_start(stream, config)
                stream.check_not_deleted()
                if contents is stream.store.contents:
                    # The filter exists already, so this is quick.
                    consumer = self._add(stream, config, self._clock.wall(), start)
            finally:
                contents.release(wanted)
        try:
            if not config.mem_storage:
                # After damage to its configuration, a consumer continues from its stored state.
                state = stream.store.kept_state(config.name, config.as_json())
                if state is not None:
                    consumer.restore(state)
                # A restart could compute another start, so the state is stored as well.
                stream.store.keep_consumer(config.name, config.as_json(), consumer.created, consumer.state())
        except StorageError as error:
            # The stored files stay, as far as they were written.
            self._detach(consumer)
            raise store_failed(error.message) from error
        self._advisories.consumer(consumer, "create")
        return consumer

    def _add(self, stream: Stream, config: ConsumerConfig, created: int, start: ConsumerStart) -> Consumer:
        def about(name: str, answer: dict[str, Any]) -> None:
            self._advisories.about(consumer, name, answer)

        consumer = Consumer(stream, config, created, about, start)
        self._by_stream.setdefault(stream, {})[config.name] = consumer
        stream.followers.append(consumer)
        self._start(consumer)
        return consumer

    def _start(self, consumer: Consumer) -> ConsumerDelivery:
        now = self._clock.wall()
        kind = PushDelivery if consumer.config.push else PullDelivery
        delivery = self._deliveries[consumer] = kind(consumer, self._bus, now)
        if isinstance(delivery, PushDelivery):
            self._by_subject.setdefault(consumer.config.deliver_subject.encode(), {})[delivery] = None
        self._set_dialect(delivery)
        self.schedule(delivery)
        return delivery

    def _set_dialect(self, delivery: ConsumerDelivery) -> None:
        """Sets the dialect of a push consumer's messages: that of the client that created the consumer."""
        if isinstance(delivery, PushDelivery):
            delivery.short = self._short.get(delivery.consumer.config.metadata.get(PREVIEW, ""), b"")

    def _stop(self, consumer: Consumer) -> ConsumerDelivery:
        delivery = self._deliveries.pop(consumer)
        self._ready.pop(delivery, None)
        delivery.alarm = 0
        subject = consumer.config.deliver_subject.encode()
        if isinstance(delivery, PushDelivery):
            self._by_subject[subject].pop(delivery, None)
            if not self._by_subject[subject]:
                del self._by_subject[subject]
        return delivery

    def _change(self, consumer: Consumer, config: ConsumerConfig, action: str) -> Generator[None, None, Consumer]:
        old = consumer.config
        # Only a pause request ends a pause.
        config = replace(config, pause_until=config.pause_until or old.pause_until)
        if action == "create" and (config != old or not old.durable_name):
            raise RequestError(400, 10148, "consumer already exists")
        if config == old:
            return consumer
        self._check_unique(consumer.stream, config)
        delivery = self._deliveries[consumer]
        moved = old.deliver_subject != config.deliver_subject
        if old.push and config.push and moved and delivery.is_used(self._clock.wall()):
            raise RequestError(400, 10013, "consumer name already in use")
        old.check_change(config)
        if not config.mem_storage:
            consumer.stream.store.keep_consumer(config.name, config.as_json(), consumer.created)
        contents = consumer.stream.store.contents
        wanted = yield from contents.make_filter(config.filters)
        try:
            consumer.stream.check_not_deleted()
            if consumer not in self._deliveries:
                raise RequestError(404, 10014, "consumer not found")
            if moved:
                self._stop(consumer)
            consumer.reconfigure(config, self._clock.wall())
        finally:
            contents.release(wanted)
        if moved:
            self._start(consumer)
        else:
            self._set_dialect(delivery)
            self.schedule(delivery)
        if old.filters != config.filters:
            # The consumer may need less now; it needed no message up to its acknowledgement floor.
            self._schedule_cleanup(consumer.stream, consumer.floor[1])
        return consumer

    def pause(self, consumer: Consumer, until: int) -> dict[str, Any]:
        """Pauses a consumer until a time (ns since 1970); a past one ends the pause.

        Returns the members of the answer; raises `StorageError` if the configuration cannot be stored.
        """
        config = replace(consumer.config, pause_until=until)
        if not config.mem_storage:
            consumer.stream.store.keep_consumer(config.name, config.as_json(), consumer.created)
        changed, consumer.config = consumer.config.pause_until != until, config
        self.schedule(self._deliveries[consumer])
        answer = {"paused": False, "pause_until": time_text(until), **consumer.pause(self._clock.wall())}
        if changed:
            self._advisories.about(
                consumer, "consumer_pause", {name: answer[name] for name in ("paused", "pause_until")}
            )
        return answer

    def _check_unique(self, stream: Stream, config: ConsumerConfig) -> None:
        if stream.config.retention != "workqueue":
            return
        for name, other in self.of(stream).items():
            if name == config.name:
                continue
            if not config.filters:
                raise RequestError(400, 10099, "multiple non-filtered consumers not allowed on workqueue stream")
            if not other.config.filters:
                raise RequestError(400, 10100, "filtered consumer not unique on workqueue stream")
            pairs = tree_of(config.filters).overlaps(tree_of(other.config.filters))
            if next((pair for pair in pairs if pair is not None), None) is not None:
                raise RequestError(400, 10100, "filtered consumer not unique on workqueue stream")

    def _new_name(self, stream: Stream) -> str:
        while True:
            name = "".join(secrets.choice(_LETTERS) for _ in range(_NAME_SIZE))
            if name not in self.of(stream):
                return name

    def remove(self, consumer: Consumer) -> None:
        """Removes a consumer, with its files."""
        stream = consumer.stream
        self._detach(consumer)
        try:
            stream.store.forget_consumer(consumer.name)
        except StorageError as error:
            NATS.error("Consumer %r of %r: %s", consumer.name, stream.name, error.message)
        self._advisories.consumer(consumer, "delete")

    def _detach(self, consumer: Consumer) -> None:
        stream = consumer.stream
        self._stop(consumer).close("409 Consumer Deleted")
        del self._by_stream[stream][consumer.name]
        stream.followers.remove(consumer)
        consumer.release()
        # The consumer needed no message up to its acknowledgement floor.
        self._schedule_cleanup(stream, consumer.floor[1])

    def remove_all(self, stream: Stream) -> None:
        """Removes the consumers of a deleted stream."""
        self._cleanups.pop(stream, None)
        for consumer in self._by_stream.pop(stream, {}).values():
            self._stop(consumer).close("409 Consumer Deleted")
            self._advisories.consumer(consumer, "delete")
        stream.followers.clear()

    def _schedule_cleanup(self, stream: Stream, first: int = 0, *, delivered: bool = False) -> None:
        """Schedules the deletion of messages that no consumer needs now, as `Stream.remove_unneeded`."""
        if stream.config.retention == "interest":
            before = self._cleanups.get(stream, iter(()))
            self._cleanups[stream] = chain(before, stream.remove_unneeded(first, delivered=delivered))
            self._wake()

    def info(self, consumer: Consumer) -> dict[str, Any]:
        """Returns the members of an answer about a consumer."""
        now = self._clock.wall()
        delivery = self._deliveries[consumer]
        found = {**consumer.info(now), "num_waiting": delivery.waiting}
        if consumer.config.push and delivery.is_used(now):
            found["push_bound"] = True
        if consumer.config.priority_policy and isinstance(delivery, PullDelivery):
            found["priority_groups"] = [delivery.priorities.info()]
        return found

    def unpin(self, consumer: Consumer, group: str) -> None:
        """Unpins the client of a priority group; raises `RequestError` if there is no such group."""
        if group not in consumer.config.priority_groups:
            raise RequestError(400, 10160, "Provided priority group does not exist for this consumer")
        delivery = self._deliveries[consumer]
        if isinstance(delivery, PullDelivery):
            delivery.priorities.unpin("admin")
            self.schedule(delivery)

    def schedule(self, delivery: ConsumerDelivery) -> None:
        """Schedules a delivery that may have something to send."""
        self._ready[delivery] = None
        self._wake()

    def stream_changed(self, stream: Stream) -> None:
        """Schedules the deliveries of a stream, which may have new messages."""
        for consumer in self.of(stream).values():
            delivery = self._deliveries[consumer]
            if delivery.wanted:
                self._ready[delivery] = None

    def run(self, deadline: float) -> list[Stream]:
        """Sends messages until `deadline` (`perf_counter`). Returns the streams that changed."""
        now = self._clock.wall()
        changed: dict[Stream, None] = {}
        while self._ready:
            delivery = next(iter(self._ready))
            del self._ready[delivery]
            if delivery.consumer not in self._deliveries:
                continue
            if delivery.run(now):
                self._ready[delivery] = None
            self._set_alarm(delivery, now)
            if delivery.consumer.stream.unflushed:
                changed[delivery.consumer.stream] = None
            if self._ready and perf_counter() > deadline:
                break
        while self._cleanups and perf_counter() < deadline:
            stream, work = next(iter(self._cleanups.items()))
            changed[stream] = None
            if next(work, _END) is _END:
                del self._cleanups[stream]
        if self._ready or self._cleanups:
            self._wake()
        return list(changed)

    def ask(self, consumer: Consumer, reply: bytes, body: bytes, short: bytes = b"") -> None:
        """Adds a pull request; `short` is that of `PullDelivery.ask`."""
        delivery = self._deliveries[consumer]
        if isinstance(delivery, PullDelivery):
            delivery.ask(reply, body, self._clock.wall(), short)
            self.schedule(delivery)
        elif not short:
            self._bus.publish(reply, b"", header=status("409 Consumer is push based"))

    def acknowledged(self, consumer: Consumer, verb: Verb, reply: bytes, place: AckTarget) -> bool:
        """Applies an acknowledgement. Returns whether it gets an answer."""
        now, sequence, number = self._clock.wall(), place.sequence, place.number
        delivery = self._deliveries[consumer]
        about = partial(self._advisories.about_message, consumer, sequence, number)
        deliveries = consumer.redeliveries.get(sequence, 0) + 1
        match verb.kind:
            case AckKind.ACK | AckKind.TERM if sequence > consumer.delivered[1]:
                return False
            case AckKind.ACK | AckKind.NEXT:
                self.done(consumer, sequence, number, now)
            case AckKind.TERM:
                done = consumer.acknowledge(sequence, number, now)
                consumer.stream.done(done)
                if done:
                    about("terminated", deliveries, reason=verb.text)
            case AckKind.NAK:
                if consumer.refuse(sequence, verb.delay, now):
                    about("nak", deliveries)
            case AckKind.PROGRESS:
                consumer.in_progress(sequence, now)
        if verb.kind is AckKind.NEXT and reply:
            self.ask(consumer, reply, verb.text.encode(), place.short)
        self.schedule(delivery)
        return verb.kind is not AckKind.NEXT and not place.short

    def done(self, consumer: Consumer, sequence: int, number: int, now: int) -> None:
        """Applies a plain acknowledgement, which gets no answer."""
        if sequence > consumer.delivered[1]:
            return
        waiting = consumer.pending.get(sequence)
        since = now - waiting.time if waiting is not None else 0
        deliveries = consumer.redeliveries.get(sequence, 0) + 1
        done = consumer.acknowledge(sequence, number, now)
        consumer.stream.done(done)
        if done and waiting is not None:
            self._advisories.sampled(consumer, sequence, number, since, deliveries)
        self.schedule(self._deliveries[consumer])

    def flow_answered(self, consumer: Consumer, subject: bytes) -> None:
        """Applies an answer to a flow control request."""
        delivery = self._deliveries[consumer]
        if isinstance(delivery, PushDelivery):
            delivery.answered(subject)
            self.schedule(delivery)

    def _set_alarm(self, delivery: ConsumerDelivery, now: int) -> None:
        due = delivery.next_event()
        if due:
            due = max(due, now + _MIN_ALARM_DELAY)
            if not delivery.alarm or due < delivery.alarm or delivery.alarm <= now:
                delivery.alarm = due
                heapq.heappush(self._alarms, (due, id(delivery), delivery))

    def run_alarms(self) -> None:
        """Schedules the deliveries whose alarms are due."""
        now = self._clock.wall()
        while self._alarms and self._alarms[0][0] <= now:
            due, _, delivery = heapq.heappop(self._alarms)
            if delivery.alarm == due:
                delivery.alarm = 0
                self._ready[delivery] = None

    @property
    def due(self) -> int:
        """Time (ns since 1970) of the next alarm, possibly past; 0 for none."""
        return self._alarms[0][0] if self._alarms else 0

    def run_checks(self) -> Iterator[None]:
        """Removes consumers that have been unused for too long, and stores the states of the others, in steps."""
        now = self._clock.wall()
        for consumer, delivery in list(self._deliveries.items()):
            if consumer not in self._deliveries:
                continue
            if 0 < delivery.expires() <= now:
                if delivery.is_used(now):
                    delivery.used = now
                else:
                    self.remove(consumer)
                    continue
            self.store_state(consumer)
            yield

    def store_states(self) -> None:
        """Stores all states and ends all deliveries."""
        for consumer, delivery in self._deliveries.items():
            self.store_state(consumer)
            delivery.close("409 Server Shutdown")

    def store_state(self, consumer: Consumer) -> None:
        """Stores the state of a consumer if it has changed."""
        if consumer.changed and not consumer.config.mem_storage:
            try:
                consumer.stream.store.keep_state(consumer.name, consumer.state())
                consumer.changed = False
            except StorageError as error:
                NATS.error("Consumer %r of %r: %s", consumer.name, consumer.stream.name, error.message)

    def _interest_changed(self, pattern: bytes) -> None:
        """Schedules the deliveries to subjects whose subscribers have changed."""
        if is_literal(pattern):
            found = self._by_subject.get(pattern, {})
            if found:
                self._ready.update(found)
                self._wake()
        elif self._by_subject:
            for subject, deliveries in self._by_subject.items():
                if overlap(pattern, subject):
                    self._ready.update(deliveries)
            self._wake()


def read_request(stream: Stream, tokens: list[str], durable: bool, values: Mapping[str, Any]) -> tuple[Any, str]:
    """Reads a request to create a consumer. Returns the configuration and the action.

    `tokens` are the subject tokens after the stream: the name, and perhaps a filter. `durable` requests have the old
    form of the subject. Raises `RequestError` if the parts of the request contradict each other.
    """
    wanted = members(values, _REQUEST, "CreateConsumerRequest")
    if wanted.get("stream_name", "") != stream.name:
        raise RequestError(400, 10056, "stream name in subject does not match request")
    action = wanted.get("action", "")
    if action not in ("", "create", "update"):
        raise RequestError(400, 10025, "invalid JSON: unknown consumer action")
    raw = wanted.get("config")
    if raw is None:
        raise RequestError(400, 10078, "consumer config required")
    config = ConsumerConfig.read(raw, stream.config)
    if wanted.get("pedantic"):
        config.check_as_sent(raw, stream.config)
    name = tokens[0] if tokens else ""
    if durable:
        if not config.durable_name:
            raise RequestError(400, 10018, "consumer expected to be durable but a durable name was not set")
        if config.durable_name != name:
            raise RequestError(400, 10017, "consumer name in subject does not match durable name in request")
    elif name:
        if config.durable_name not in ("", name):
            raise RequestError(400, 10017, "consumer name in subject does not match durable name in request")
    elif config.durable_name:
        raise RequestError(400, 10020, "consumer expected to be ephemeral but a durable name was set in request")
    if name:
        # The name in the body does not count.
        config = replace(config, name=name)
    if "/" in config.name or "\\" in config.name:
        raise RequestError(400, 10127, "Consumer name can not contain path separators")
    if config.name and not valid_name(config.name):
        if config.durable_name:
            raise RequestError(400, 10103, "durable name can not contain '.', '*', '>'")
        raise RequestError(500, 10052, r"consumer name can not contain '.', '*', '>', '\', '/'")
    if len(tokens) > 1:
        if config.filter_subjects:
            raise RequestError(400, 10137, "consumer with multiple subject filters cannot use subject based API")
        if config.filter_subject != tokens[1]:
            raise RequestError(400, 10131, "Consumer create request did not match filtered subject from create subject")
    return config, action
