"""Who gets what is remembered, and is always what a look at all subscriptions would find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.nats.client import NatsSubscription
from broker.nats.subscriptions import Subscriptions
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
    client: Any = SimpleNamespace(subscriptions={}, permit=None)
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
    client: Any = SimpleNamespace(subscriptions={}, permit=None)
    table.add(NatsSubscription(client, b"1", b"_INBOX.me.*"))
    routes = {id(table.route(b"_INBOX.me.%d" % i)) for i in range(2, 100)}
    searched = table.statistics(0).num_cache
    assert len(routes) <= 3 and searched == 1
    table.add(NatsSubscription(client, b"2", b"_INBOX.me.7"))
    assert len(table.route(b"_INBOX.me.7").plain) == 2 and len(table.route(b"_INBOX.me.8").plain) == 1
    table.add(NatsSubscription(client, b"3", b"_INBOX.*.8"))
    assert len(table.route(b"_INBOX.me.8").plain) == 2 and len(table.route(b"_INBOX.me.9").plain) == 1
