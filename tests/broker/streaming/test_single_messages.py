"""Messages that come alone to their channels are stored, delivered and acknowledged as all others are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker import log
from broker.streaming.commits import CommitState
from broker.streaming.ports import Role
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import ChannelLimits, StoreLimits
from tests.broker.streaming.journal import Journal
from tests.broker.streaming.world import World

CHANNELS = [b"a", b"b", b"c"]
numbers = st.integers(0, 5)
step = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 3), min_size=1, max_size=5)),
    st.tuples(st.just("publish"), st.permutations([0, 1, 2])),
    st.tuples(st.just("subscribe"), st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["", "d", "q"]))),
    st.tuples(st.just("ack"), st.lists(numbers, min_size=1, max_size=4)),
    st.tuples(st.just("ack each"), st.lists(numbers, min_size=1, max_size=4, unique=True)),
    st.tuples(st.just("full"), numbers),
    st.tuples(st.just("connected"), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([0.01, 0.6, 1.2])),
    st.tuples(st.just("close"), numbers),
    st.tuples(st.just("empty"), st.integers(0, 2)),
)


class Play:
    """A server, its clients, and what they see."""

    def __init__(self, max_msgs: int, pause: float, *, singles: bool = True) -> None:
        limits = StoreLimits(channel=ChannelLimits(max_msgs=max_msgs))
        self.store = Journal(limits, singles=singles)
        self.world = World(store=self.store, io_sleep_time=round(pause * 1e9))
        self.world.connect()
        self.world.bus.deliverable = 500
        self.inboxes: list[bytes] = []
        self.ack_inboxes: list[tuple[bytes, bytes]] = []
        self.replies = 0
        self.published = 0

    def do(self, what: str, value: Any) -> None:
        world, bus = self.world, self.world.bus
        if what == "publish":
            batch = []
            for number in value:
                self.published += 1
                self.replies += 1
                # The last one is too large.
                channel, size = CHANNELS[number % 3], 1000 if number == 3 else 0
                data = b"%d" % self.published + bytes(size)
                message = world.message(channel, data, guid=b"g%d" % self.published)
                batch.append((world.subjects.publish + b"." + channel, message, b"reply.%d" % (self.replies % 4)))
            bus.feed(batch)
            world.settle()
        elif what == "subscribe":
            number, in_flight, kind = value
            inbox = b"inbox.%d" % len(self.inboxes)
            more: dict[str, Any] = {"inbox": inbox, "max_in_flight": in_flight, "ack_wait_in_secs": 1}
            if kind == "d":
                more["durable_name"] = b"durable.%d" % number
            elif kind == "q":
                more["q_group"] = b"group"
            bus.connected = True
            subscriber = world.subscribe(CHANNELS[number], **more)
            if not subscriber.error:
                self.inboxes.append(inbox)
                self.ack_inboxes.append((CHANNELS[number], subscriber.ack_inbox))
        elif what in ("ack", "ack each"):
            batch = []
            for number in value:
                if self.ack_inboxes and self.pending(number % len(self.ack_inboxes)):
                    number %= len(self.ack_inboxes)
                    channel, ack_inbox = self.ack_inboxes[number]
                    sequence = min(self.pending(number))
                    batch.append((ack_inbox, protocol.Ack(subject=channel, sequence=sequence).SerializeToString(), b""))
            if what == "ack":
                bus.feed(batch)
            else:
                bus.feed_each(list(dict.fromkeys(batch)))
            world.settle()
        elif what == "full" and self.inboxes:
            bus.full ^= {self.inboxes[value % len(self.inboxes)]}
        elif what == "connected":
            bus.connected = value
        elif what == "time":
            world.advance(value)
        elif what == "close" and self.ack_inboxes:
            number = value % len(self.ack_inboxes)
            channel, ack_inbox = self.ack_inboxes[number]
            request = pb.UnsubscribeRequest(client_id=b"me", subject=channel, inbox=ack_inbox)
            world.ask(world.subjects.sub_close, request.SerializeToString())
        elif what == "empty" and (channel := world.channel(CHANNELS[value])) is not None:
            # Its messages are too old, all but what comes now.
            channel.messages._remove(channel.messages.count, channel.messages.bytes)

    def subscription(self, number: int) -> Any:
        channel, ack_inbox = self.ack_inboxes[number]
        return self.world.channel(channel).by_ack_inbox.get(ack_inbox)

    def pending(self, number: int) -> dict[int, int]:
        found = self.subscription(number)
        return found.pending if found is not None else {}

    def seen(self) -> Any:
        sent: dict[bytes, list[bytes]] = {}
        for each in self.world.bus.sent:
            if each.subject.startswith((b"inbox.", b"reply.")):
                sent.setdefault(each.subject, []).append(each.payload)
        channels = [channel for name in CHANNELS if (channel := self.world.channel(name)) is not None]
        states = [
            (each.pending, each.last_sent, each.stalled, each.counts, each.timer and each.timer.time)
            for channel in channels
            for each in channel.subscriptions()
        ]
        messages = [
            (m.first, m.last, m.count, m.bytes, channel.visible, channel.last_activity, channel.timestamp)
            for channel in channels
            for m in (channel.messages,)
        ]
        kept = [[bytes(payload) for payload in c.messages.read(1, 1000)] for c in channels]
        if self.world.server._commits.state is CommitState.SLEEPING:
            # A store applies limits to a single message at once, to a batch at the commit.
            messages = kept = []
        journals = [self.store.records(channel.name) for channel in channels]
        return sent, states, messages, kept, journals, self.world.server.statistics


@settings(max_examples=200, deadline=None)
@given(st.lists(step, max_size=25), st.sampled_from([0, 1, 3]), st.sampled_from([0, 0, 0.1]))
@example([("subscribe", (0, 1, "")), ("publish", [0, 1]), ("publish", [0]), ("ack each", [0])], 0, 0)
@example([("subscribe", (0, 1, "")), ("publish", [0]), ("publish", [0]), ("publish", [0, 0]), ("time", 1.2)], 0, 0.1)
@example([("subscribe", (0, 3, "")), ("subscribe", (0, 3, "")), ("full", 0), ("publish", [0]), ("full", 0)], 0, 0)
@example([("subscribe", (0, 3, "d")), ("connected", False), ("publish", [0, 1, 2]), ("connected", True)], 0, 0)
@example([("subscribe", (0, 3, "")), ("publish", [0]), ("empty", 0), ("publish", [0]), ("time", 1.2)], 0, 0.1)
@example([("publish", [0]), ("subscribe", (0, 1, "")), ("publish", [0, 1, 2]), ("time", 1.2)], 1, 0.1)
def test_nobody_can_tell(plan: list[tuple[str, Any]], max_msgs: int, pause: float) -> None:
    def play(*, singles: bool) -> list[Any]:
        story, found = Play(max_msgs, pause, singles=singles), []
        for what, value in plan:
            story.do(what, value)
            found.append(story.seen())
        story.world.server.stop()
        return [*found, story.seen()]

    assert play(singles=True) == play(singles=False)


@pytest.mark.parametrize("level", [logging.INFO, log.TRACE])
def test_what_comes_alone(level: int) -> None:
    log.STREAMING.setLevel(level)
    try:
        story = Play(0, 0)
        for number in range(3):
            story.do("subscribe", (number, 1, ""))
        sent: list[int] = []
        publish = story.world.bus.publish_each

        def publish_each(role: Role, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
            sent.append(len(messages))
            return publish(role, messages)

        with mock.patch.object(story.world.bus, "publish_each", publish_each):
            story.do("publish", [0, 1, 2])
            story.do("publish", [0])
        # The second message waits until the first is acknowledged.
        assert sent == ([3] if level == logging.INFO else [])
        assert [len(story.world.channel(name).messages._list._singles) for name in CHANNELS] == (
            [2, 1, 1] if level == logging.INFO else [0, 0, 0]
        )
        story.do("ack each", [0, 1, 2])
        assert [story.pending(number) and min(story.pending(number)) for number in range(3)] == [2, {}, {}]
    finally:
        log.STREAMING.setLevel(logging.NOTSET)


def test_a_sequence_that_is_no_record(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be encoded is refused; what came with it is stored."""
    story = Play(0, 0)
    story.do("publish", [0, 1])
    channel = story.world.channel(b"a")
    channel.messages.last = channel.visible = (1 << 64) - 2
    assert story.world.publish(b"a", b"x") != [b""]
    story.world.channel(b"a").messages.last = channel.visible = (1 << 64) - 2
    story.do("publish", [0, 1])
    assert story.world.channel(b"b").messages.last == 2
    assert "Error processing message for subject a" in caplog.text
