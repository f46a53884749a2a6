"""Who gets what is remembered, and is always what a look at all subscriptions would find."""

from __future__ import annotations

import re
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.nats.client import NatsSubscription
from broker.nats.client_router import ClientRouter
from broker.nats.connection import ClientConnection
from broker.nats.fair_scheduler import FairScheduler, Mailbox
from broker.nats.nats_options import NatsOptions
from broker.nats.nats_server import NatsServer
from broker.nats.recipients import MessageRecipients
from broker.nats.subscriptions import Subscriptions
from stantools.nats.frames import frame_table, rows
from stantools.nats.interest import finished
from stantools.nats.kernels import parse_publishes
from stantools.nats.subjects import matches

HEADS = (b"a.", b"a.b.", b"a.b.c.", b"x.", b"")
LASTS = (b"1", b"2", b"3", b"c", b"*", b"")
PATTERNS = (
    b"a.*",
    b"a.b.*",
    b"a.*.*",
    b"a.*.2",
    b"a.b.>",
    b"*.b.1",
    b"a.b.2",
    b">",
    b"*",
    b"a.*.c.*",
    b"x.1",
    b"a.b.*.1",
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), st.sampled_from(PATTERNS), st.sampled_from((b"", b"", b"", b"q"))),
        st.tuples(st.just("unsubscribe"), st.integers(0, 9), st.none()),
        *[st.tuples(st.just("publish"), st.sampled_from(HEADS), st.sampled_from(LASTS))] * 4,
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(steps)
def test_routes_are_what_subscriptions_say(todo: list[Any]) -> None:
    table = Subscriptions()
    client = connection()
    here: list[NatsSubscription] = []
    for number, (step, one, other) in enumerate(todo):
        match step:
            case "subscribe":
                here.append(NatsSubscription(client, b"%d" % number, one, other))
                table.add(here[-1])
            case "unsubscribe" if one < len(here):
                table.remove(here.pop(one))
            case "publish":
                subject = one + other
                # Each subject comes for the first time, and those like it were there before.
                route = table.route(subject)
                fit = bool(subject) and not subject.startswith(b".") and not subject.endswith(b".")
                found = [each for each in here if fit and matches(each.subject, subject)]
                assert {id(each) for each in route.plain} == {id(each) for each in found if not each.queue}
                assert {id(s) for group in route.queues for s in group} == {id(each) for each in found if each.queue}


def test_answers_to_many_subjects_of_one_client_are_looked_up_once() -> None:
    table = Subscriptions()
    client = connection()
    table.add(NatsSubscription(client, b"1", b"_INBOX.me.*"))
    routes = {id(table.route(b"_INBOX.me.%d" % i)) for i in range(2, 100)}
    searched = table.statistics(0).num_cache
    assert len(routes) <= 3 and searched == 1
    table.add(NatsSubscription(client, b"2", b"_INBOX.me.7"))
    assert len(table.route(b"_INBOX.me.7").plain) == 2 and len(table.route(b"_INBOX.me.8").plain) == 1
    table.add(NatsSubscription(client, b"3", b"_INBOX.*.8"))
    assert len(table.route(b"_INBOX.me.8").plain) == 2 and len(table.route(b"_INBOX.me.9").plain) == 1


def router_of(table: Subscriptions) -> ClientRouter:
    return ClientRouter(MessageRecipients(table), Mailbox(FairScheduler(lambda: None)))


def connection() -> ClientConnection:
    """A connection that collects its output and never writes it."""
    nats = NatsServer(NatsOptions())
    server: Any = SimpleNamespace(
        dirty=lambda _: None,
        tracing=False,
        options=nats.options,
        subscriptions=nats.subscriptions,
        authenticator=nats.authenticator,
    )
    return ClientConnection(1, server=server, read_coalescer=nats.read_coalescer)


class Receiver:
    """A client with a connection, and with handlers in this process."""

    def __init__(self) -> None:
        self.client = connection()
        self._handled: list[tuple[bytes, bytes]] = []

    def handle(self, sid: bytes, buffer: Any, frames: Any, begin: int, end: int) -> None:
        self._handled += [(sid, subject) for subject, _, _, _ in rows(buffer, frames, begin, end)]

    def received(self) -> list[tuple[bytes, bytes]]:
        """Returns the subscriptions and subjects of the messages since the last call, and forgets them."""
        sent = re.findall(rb"MSG (\S+) (\S+) \d+\r\n", b"".join(self.client.out))
        got = [*self._handled, *((sid, subject) for subject, sid in sent)]
        self.client.out.clear()
        self._handled.clear()
        return got


HERE = (b"a.b.>", b"a.>", b"x.>", b"x.y.>", b"a.b.c.>")
THERE = (b"a.b.c", b"a.*", b"x.y.1", b"*.b.>", b"x.y.*.2", b">")
TAILS = st.lists(st.sampled_from((b"1", b"2", b"b", b"c", b"y", b"*")), min_size=1, max_size=4).map(b".".join)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("here"), st.sampled_from(HERE)),
            st.tuples(st.just("there"), st.sampled_from(THERE)),
            st.tuples(st.just("leave"), st.integers(0, 5)),
            *[
                st.tuples(
                    st.just("publish"),
                    st.lists(st.tuples(st.sampled_from((b"a.", b"a.b.", b"x.y.", b"z.", b"a..")), TAILS), max_size=20),
                )
            ]
            * 3,
        ),
        max_size=20,
    ),
    st.integers(1, 9),
)
def test_messages_to_subjects_that_come_once_go_to_all_who_want_them(todo: list[Any], pace: int) -> None:
    table, origin = Subscriptions(), connection()
    router, receiver = router_of(table), Receiver()
    frames = frame_table(64)
    present: list[NatsSubscription] = []
    for number, (step, what) in enumerate(todo):
        if step == "publish":
            subjects = [head + tail for head, tail in what]
            data = b"".join(b"PUB %b 2\r\nhi\r\n" % each for each in subjects)
            count, _, _, spans, _ = parse_publishes(data, 0, len(data), frames, table.table(None).routes, 99, 99)
            receiver.received()
            if count:
                taken = router.publish(origin, table.table(None), data, frames, spans, perf_counter() + 99)
                assert taken == (count, None)
            expected = [
                (each.sid, subject)
                for subject in subjects
                for each in present
                if b".." not in subject and matches(each.subject, subject)
            ]
            got = receiver.received()
            assert sorted(got) == sorted(expected)
            for each in present:
                # Each gets its messages in the order in which they were published.
                own = [subject for sid, subject in got if sid == each.sid]
                assert own == [subject for sid, subject in expected if sid == each.sid]
        elif step == "leave":
            if what < len(present):
                table.remove(present.pop(what))
        else:
            sid = b"%d" % number
            handler = partial(receiver.handle, sid) if step == "here" else None
            present.append(NatsSubscription(receiver.client, sid, what, b"", handler, pace=pace))
            table.add(present[-1])


def known(table: Subscriptions, subject: bytes) -> NatsSubscription | None:
    """The only one who gets a subject, as the parser knows it."""
    number = table.table(None).routes.get(subject)
    return table.routes[number].only if number > 0 else None


def test_subjects_that_begin_alike_are_looked_up_once() -> None:
    table, receiver = Subscriptions(), Receiver()
    acks, api, keys, bucket = (
        NatsSubscription(receiver.client, subject, subject, b"", print)
        for subject in (b"$JS.ACK.>", b"$JS.API.>", b"$JS.API.GET.*.>", b"$KV.b.>")
    )
    api.but = keys.subject
    for each in (acks, api, keys, bucket):
        table.add(each)
    for subject in (
        b"$JS.ACK.s.c.1",
        b"$JS.API.X.Y",
        b"$JS.API.GET.s.x",
        b"$JS.API.GET.s",
        b"$KV.b.1",
        b"no.1",
        b"no.2",
    ):
        finished(table.look_up(subject, False))
    assert known(table, b"$JS.ACK.1") is known(table, b"$JS.ACK.s.c.2") is acks
    assert known(table, b"$JS.API.X.2") is api and known(table, b"$JS.API.GET.s.a.b") is keys
    assert known(table, b"$KV.b.2") is bucket
    unknown = (b"$JS.API.2", b"$JS.API.GET.t.a", b"$KV.b.", b"$KV.b", b"$KV.b..x", b"$KV.b.x\x0b", b"$KV.c.1", b"no.1")
    assert not any(known(table, subject) for subject in unknown)
    other = NatsSubscription(receiver.client, b"other", b"$JS.*.s.>")
    table.add(other)
    assert known(table, b"$JS.ACK.1") is None and known(table, b"$KV.b.2") is bucket
    finished(table.look_up(b"$JS.ACK.s.c.1", False))
    assert known(table, b"$JS.ACK.s.c.1") is None
    table.remove(other)
    finished(table.look_up(b"$JS.ACK.s.c.1", False))
    assert known(table, b"$JS.ACK.s.c.2") is acks
    table.remove(acks)
    assert known(table, b"$JS.ACK.s.c.2") is None
    one = NatsSubscription(receiver.client, b"one", b"$KV.b.1")
    table.add(one)
    for subject in (b"$KV.b.1", b"$KV.b.2", b"$KV.b.2"):
        finished(table.look_up(subject, False))
    assert known(table, b"$KV.b.1") is known(table, b"$KV.b.3") is None


def test_what_most_patterns_say_is_remembered_one_by_one() -> None:
    table, receiver = Subscriptions(), Receiver()
    for number in range(200):
        subject = b"s%d.>" % number
        table.add(NatsSubscription(receiver.client, subject, subject, b"", print))
    for number in range(200):
        finished(table.look_up(b"s%d.x" % number, False))
    found = [known(table, b"s%d.y" % number) for number in range(200)]
    assert [each.sid for each in found if each] == [b"s%d.>" % number for number in range(64)]


@pytest.mark.parametrize("pattern", [b"a.>", b"a.2", b"*.2"])
@pytest.mark.parametrize("times", [1, 3])
def test_who_subscribes_while_a_read_is_handled_gets_the_rest_of_it(pattern: bytes, times: int) -> None:
    table, receiver = Subscriptions(), Receiver()
    router, frames = router_of(table), frame_table(8)

    def ask(*_: Any) -> None:
        table.add(NatsSubscription(receiver.client, b"new", pattern))

    for sid, subject, handler in ((b"old", b"a.>", None), (b"ask", b"api.>", ask)):
        table.add(NatsSubscription(receiver.client, sid, subject, b"", handler))
    if times == 3:
        # Subjects with a receiver of their own below it are remembered one by one.
        table.add(NatsSubscription(receiver.client, b"other", b"a.*.x"))

    def publish(data: bytes) -> None:
        _, _, _, spans, _ = parse_publishes(data, 0, len(data), frames, table.table(None).routes, 99, 99)
        if times == 1:
            assert b"api" not in data or [number > 0 for number, _, _ in spans] == [True, True]
        router.publish(connection(), table.table(None), data, frames, spans, perf_counter() + 99)

    finished(table.look_up(b"api.2", False))
    for _ in range(times):
        publish(b"PUB a.2 0\r\n\r\n")
    receiver.received()
    publish(b"PUB api.1 0\r\n\r\nPUB a.2 0\r\n\r\n")
    assert sorted(receiver.received()) == [(b"new", b"a.2"), (b"old", b"a.2")]
