"""All consumers: made, changed and removed, driven when there is something for them, kept for the next start.

Facts: jetstream-server.md sections 9, 10 and 14.
"""

from __future__ import annotations

import heapq
import secrets
import string
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
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
from broker.streams.requests import BOOL, OBJECT, STRING, members, time_text, valid_name
from broker.streams.streams_options import PREVIEW
from stantools.nats.subjects import is_literal, overlap
from stantools.nats.subjecttree import tree_of

if TYPE_CHECKING:
    from broker.ports import Clock
    from broker.streams.advisories import Advisories
    from broker.streams.ports import StreamsPort
    from broker.streams.stream import Stream

_REQUEST: Final[Mapping[str, str]] = {"stream_name": STRING, "config": OBJECT, "action": STRING, "pedantic": BOOL}
_LETTERS: Final = string.ascii_letters + string.digits
_NAME_SIZE: Final = 8
#: The soonest (ns) that an alarm goes off.
_SOON: Final = 2_000_000
#: How often (ns) states are kept and unused consumers looked for.
LOOK: Final = 1_000_000_000
_END: Final = object()


class ConsumerRegistry:
    """The consumers of all streams.

    Args:
        bus: NATS.
        clock: The time.
        advisories: Where events are published.
        wake: Called when something is to be sent: `run` is to be called soon.
        short: How subjects of acknowledgements begin, by dialect of the preview; none if that is not offered.
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
        #: Those that send to a subject.
        self._by_subject: dict[bytes, dict[ConsumerDelivery, None]] = {}
        self._ready: dict[ConsumerDelivery, None] = {}
        self._alarms: list[tuple[int, int, ConsumerDelivery]] = []
        #: Streams whose messages are being looked at, for what nobody needs any more.
        self._reviews: dict[Stream, Iterator[None]] = {}
        bus.watch(self._interest_changed)

    @property
    def count(self) -> int:
        """How many consumers there are."""
        return len(self._deliveries)

    @property
    def busy(self) -> bool:
        """Whether there may be something for `run`."""
        return bool(self._ready or self._reviews)

    def of(self, stream: Stream) -> Mapping[str, Consumer]:
        """Returns the consumers of a stream, by name."""
        return self._by_stream.get(stream, {})

    # Made and removed

    def load(self, stream: Stream) -> Iterator[None]:
        """Opens the consumers of a stream that are there, as work that can be interrupted."""
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
        self._review(stream, stream.given)

    def create(self, stream: Stream, config: ConsumerConfig, action: str) -> Generator[None, None, Consumer]:
        """Makes a consumer, or changes one, as work that can be interrupted.

        Raises:
            ApiError: That is not possible.
        """
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
                stream.check_there()
                if contents is stream.store.contents:
                    # The filter is there, so this is quick.
                    consumer = self._add(stream, config, self._clock.wall(), start)
            finally:
                contents.release(wanted)
        try:
            if not config.mem_storage:
                # Its configuration may have been damaged: then it is where it was.
                state = stream.store.kept_state(config.name, config.as_json())
                if state is not None:
                    consumer.restore(state)
                # Where it begins may depend on what is there now.
                stream.store.keep_consumer(config.name, config.as_json(), consumer.created, consumer.state())
        except StorageError as error:
            # What may be kept of it stays.
            self._take_out(consumer)
            raise store_failed(error.message) from error
        self._advisories.consumer(consumer, "create")
        return consumer

    def _add(self, stream: Stream, config: ConsumerConfig, created: int, start: ConsumerStart) -> Consumer:
        def about(name: str, said: dict[str, Any]) -> None:
            self._advisories.about(consumer, name, said)

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
        self._say_as_made(delivery)
        self.touch(delivery)
        return delivery

    def _say_as_made(self, delivery: ConsumerDelivery) -> None:
        """Has messages that nobody asks for say what those expect who made the consumer."""
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
        # Only a request of its own ends a pause.
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
            consumer.stream.check_there()
            if consumer not in self._deliveries:
                raise RequestError(404, 10014, "consumer not found")
            if moved:
                self._stop(consumer)
            consumer.reconfigure(config)
        finally:
            contents.release(wanted)
        if moved:
            self._start(consumer)
        else:
            self._say_as_made(delivery)
            self.touch(delivery)
        self._review(consumer.stream, consumer.stream.store.contents.last)
        return consumer

    def pause(self, consumer: Consumer, until: int) -> dict[str, Any]:
        """Pauses a consumer until a time (ns since 1970), or lets it go on. Returns what the answer says.

        Raises:
            StorageError: That cannot be kept.
        """
        config = replace(consumer.config, pause_until=until)
        if not config.mem_storage:
            consumer.stream.store.keep_consumer(config.name, config.as_json(), consumer.created)
        changed, consumer.config = consumer.config.pause_until != until, config
        self.touch(self._deliveries[consumer])
        said = {"paused": False, "pause_until": time_text(until), **consumer.pause(self._clock.wall())}
        if changed:
            self._advisories.about(consumer, "consumer_pause", {name: said[name] for name in ("paused", "pause_until")})
        return said

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
        """Takes a consumer away, with what is kept of it."""
        stream = consumer.stream
        self._take_out(consumer)
        try:
            stream.store.forget_consumer(consumer.name)
        except StorageError as error:
            NATS.error("Consumer %r of %r: %s", consumer.name, stream.name, error.message)
        self._advisories.consumer(consumer, "delete")

    def _take_out(self, consumer: Consumer) -> None:
        stream = consumer.stream
        self._stop(consumer).close("409 Consumer Deleted")
        del self._by_stream[stream][consumer.name]
        stream.followers.remove(consumer)
        consumer.release()
        # It needed nothing below its floor.
        self._review(stream, stream.store.contents.last, consumer.floor[1])

    def remove_all(self, stream: Stream) -> None:
        """Removes the consumers of a stream that was deleted."""
        self._reviews.pop(stream, None)
        for consumer in self._by_stream.pop(stream, {}).values():
            self._stop(consumer).close("409 Consumer Deleted")
            self._advisories.consumer(consumer, "delete")
        stream.followers.clear()

    def _review(self, stream: Stream, last: int, first: int = 0) -> None:
        """Looks for what no consumer needs any more, between two sequences: consumers are others now."""
        if stream.config.retention == "interest":
            self._reviews[stream] = stream.review(last, first)
            self._wake()

    def info(self, consumer: Consumer) -> dict[str, Any]:
        """Returns what answers say of a consumer."""
        now = self._clock.wall()
        delivery = self._deliveries[consumer]
        found = {**consumer.info(now), "num_waiting": delivery.waiting}
        if consumer.config.push and delivery.is_used(now):
            found["push_bound"] = True
        if consumer.config.priority_policy and isinstance(delivery, PullDelivery):
            found["priority_groups"] = [delivery.priorities.info()]
        return found

    def unpin(self, consumer: Consumer, group: str) -> None:
        """Lets the client go that alone gets messages; the next that asks takes its place.

        Raises:
            ApiError: There is no such group.
        """
        if group not in consumer.config.priority_groups:
            raise RequestError(400, 10160, "Provided priority group does not exist for this consumer")
        delivery = self._deliveries[consumer]
        if isinstance(delivery, PullDelivery):
            delivery.priorities.unpin("admin")
            self.touch(delivery)

    # Messages

    def touch(self, delivery: ConsumerDelivery) -> None:
        """There may be something to be sent."""
        self._ready[delivery] = None
        self._wake()

    def stream_changed(self, stream: Stream) -> None:
        """A stream may have messages for its consumers."""
        for consumer in self.of(stream).values():
            delivery = self._deliveries[consumer]
            if delivery.wanted:
                self._ready[delivery] = None

    def run(self, deadline: float) -> list[Stream]:
        """Sends what there is, until it is the others' turn.

        Args:
            deadline: When (`perf_counter`) that is.

        Returns:
            The streams that have changed by it.
        """
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
        while self._reviews and perf_counter() < deadline:
            stream, review = next(iter(self._reviews.items()))
            changed[stream] = None
            if next(review, _END) is _END:
                del self._reviews[stream]
        if self._ready or self._reviews:
            self._wake()
        return list(changed)

    def ask(self, consumer: Consumer, reply: bytes, body: bytes, short: bytes = b"") -> None:
        """Takes a request for messages; what is in `short` is as with `PullDelivery.ask`."""
        delivery = self._deliveries[consumer]
        if isinstance(delivery, PullDelivery):
            delivery.ask(reply, body, self._clock.wall(), short)
            self.touch(delivery)
        elif not short:
            self._bus.publish(reply, b"", header=status("409 Consumer is push based"))

    def acknowledged(self, consumer: Consumer, verb: Verb, reply: bytes, place: AckTarget) -> bool:
        """Takes an acknowledgement. Returns whether it is answered."""
        now, sequence, number = self._clock.wall(), place.sequence, place.number
        delivery = self._deliveries[consumer]
        about = partial(self._advisories.about_message, consumer, sequence, number)
        deliveries = consumer.repeats.get(sequence, 0) + 1
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
        self.touch(delivery)
        return verb.kind is not AckKind.NEXT and not place.short

    def done(self, consumer: Consumer, sequence: int, number: int, now: int) -> None:
        """A message of a consumer is done with, as one says who wants no answer."""
        if sequence > consumer.delivered[1]:
            return
        waiting = consumer.pending.get(sequence)
        since = now - waiting.time if waiting is not None else 0
        deliveries = consumer.repeats.get(sequence, 0) + 1
        done = consumer.acknowledge(sequence, number, now)
        consumer.stream.done(done)
        if done and waiting is not None:
            self._advisories.sampled(consumer, sequence, number, since, deliveries)
        self.touch(self._deliveries[consumer])

    def flow_answered(self, consumer: Consumer, subject: bytes) -> None:
        """Takes an answer to a flow control request."""
        delivery = self._deliveries[consumer]
        if isinstance(delivery, PushDelivery):
            delivery.answered(subject)
            self.touch(delivery)

    # Time

    def _set_alarm(self, delivery: ConsumerDelivery, now: int) -> None:
        due = delivery.next_event()
        if due:
            due = max(due, now + _SOON)
            if not delivery.alarm or due < delivery.alarm or delivery.alarm <= now:
                delivery.alarm = due
                heapq.heappush(self._alarms, (due, id(delivery), delivery))

    def ring(self) -> None:
        """Resumes those whose time has come."""
        now = self._clock.wall()
        while self._alarms and self._alarms[0][0] <= now:
            due, _, delivery = heapq.heappop(self._alarms)
            if delivery.alarm == due:
                delivery.alarm = 0
                self._ready[delivery] = None

    @property
    def due(self) -> int:
        """When (nanoseconds since 1970) the next one must go on, which may be past; 0 for never."""
        return self._alarms[0][0] if self._alarms else 0

    def look_after(self) -> Iterator[None]:
        """Removes consumers that nobody has used for too long, and keeps the states of the others, step by step."""
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
            self.keep(consumer)
            yield

    def keep_all(self) -> None:
        """Keeps the states of all."""
        for consumer, delivery in self._deliveries.items():
            self.keep(consumer)
            delivery.close("409 Server Shutdown")

    def keep(self, consumer: Consumer) -> None:
        """Keeps the state of a consumer, if it has changed."""
        if consumer.changed and not consumer.config.mem_storage:
            try:
                consumer.stream.store.keep_state(consumer.name, consumer.state())
                consumer.changed = False
            except StorageError as error:
                NATS.error("Consumer %r of %r: %s", consumer.name, consumer.stream.name, error.message)

    def _interest_changed(self, pattern: bytes) -> None:
        """Somebody has subscribed, or does no more."""
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
    """Returns configuration and action of a request to make a consumer.

    Args:
        stream: The stream.
        tokens: What follows it in the subject: a name, and perhaps a filter.
        durable: It is a request for a durable consumer, in the old form.
        values: The body.

    Raises:
        ApiError: The request contradicts itself.
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
        # Its name in the body does not count.
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
