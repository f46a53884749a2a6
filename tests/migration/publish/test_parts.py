"""The parts without a server: gaps, header blocks, configurations, which failures are retriable."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.publish import settings as configurations
from stantools.migration.publish.resume import ExpectedMessage, extent, gaps, missing, wanted_messages
from stantools.migration.tasks import Retry
from stantools.nats.errors import ApiError, ConnectionLostError, NoAnswerError, PermissionDeniedError
from stantools.streamfiles import headers
from tests.migration.publish.conftest import FakeSource, Item

sources = st.builds(
    lambda listed, more, rows: FakeSource(
        [Item(each, data=b"x" * (each % 5)) for each in sorted(listed)], max(listed, default=0) + more, batch_rows=rows
    ),
    st.sets(st.integers(1, 60), max_size=30),
    st.integers(0, 5),
    st.integers(1, 7),
)


@pytest.mark.parametrize("origin", [True, False])
@pytest.mark.parametrize("published", [True, False])
def test_only_an_equal_message_is_met(origin: bool, published: bool) -> None:
    def stored(subject: bytes = b"s", own: int = 5, time: int = 1000, reply: bytes = b"r", data: bytes = b"d") -> Any:
        block = headers.header_block(b"c", own, time, reply, origin=origin)
        return subject, headers.guarded(block, headers.identity(b"c", 2), own, 6) if published else block, data

    wanted = ExpectedMessage(7, b"s", b"c", 5, 1000, b"r", b"d")
    assert wanted.is_met(stored(), 2)
    assert wanted.is_met(stored(), 3) is not published
    changes = [{"subject": b"t"}, {"data": b"e"}, {"reply": b""}, {"reply": b"q"}]
    for change in changes + [{"time": 1001}] * origin + [{"own": 6}] * (origin or published):
        assert not wanted.is_met(stored(**change), 2), change
    assert not wanted.is_met(None, 2)
    assert ExpectedMessage(7).is_met(None, 2) and not ExpectedMessage(7).is_met(stored(), 2)


@settings(max_examples=200, deadline=None)
@given(sources, st.integers(0, 70), st.integers(0, 20), st.integers(1, 30), st.integers(0, 40))
def test_extents(source: FakeSource, until: int, kept: int, last: int, last_bytes: int) -> None:
    until = min(until, source.last)
    there = [item for item in source.items if item.sequence <= until]
    have = {item.sequence for item in source.items}
    lacking = [n for n in range(source.first, until + 1) if n not in have] if source.count else []
    if source.count:
        ranges = list(gaps(source.read(), source.first - 1, source.last))
        assert [n for a, b in ranges for n in range(a, b + 1)] == [
            n for n in range(source.first, source.last + 1) if n not in have
        ]
        assert all(b + 1 < c for (_, b), (c, _) in pairwise(ranges))
        assert missing(source) == sum(b - a + 1 for a, b in ranges)
    found = extent(source, until, kept, last, last_bytes)
    assert found.messages == len(there)
    assert [n for a, b in found.gaps for n in range(a, b + 1)] == (lacking[-kept:] if kept else [])
    # The last message belongs to the last ones, however large it is; the others as long as they are small and near.
    reach = max(until - last, source.first - 1, 0)
    size = 0
    for number, item in enumerate(reversed(there)):
        size += len(item.data)
        if number and size > last_bytes:
            reach = max(reach, item.sequence)
            break
    assert found.reach == reach


@settings(max_examples=100, deadline=None)
@given(sources, st.integers(0, 70), st.integers(0, 70))
def test_what_is_wanted(source: FakeSource, after: int, until: int) -> None:
    until = min(until, source.last)
    items = {item.sequence: item for item in source.items}
    begin = max(after + 1, source.first)
    wanted = list(wanted_messages(source, after, until))
    assert [each.sequence for each in wanted] == (list(range(begin, until + 1)) if items else [])
    for each in wanted:
        assert (each.subject is not None) == (each.sequence in items)
        if each.sequence in items:
            assert each.data == items[each.sequence].data


def test_what_is_the_same_message() -> None:
    (wanted,) = wanted_messages(FakeSource([Item(1, 5, b"a", b"r")]), 0, 1)
    for origin in (True, False):
        block = headers.header_block(b"orders", 1, 5, b"r", origin=origin)
        assert wanted.is_met((b"orders", block, b"a"), 1)
        assert wanted.is_met((b"orders", headers.guarded(block, b"orders:1:", 1, 0), b"a"), 1)
        assert not wanted.is_met((b"orders", headers.guarded(block, b"orders:2:", 1, 0), b"a"), 1)
        assert not wanted.is_met((b"other", block, b"a"), 1)
        assert not wanted.is_met((b"orders", block, b"b"), 1)
    assert not wanted.is_met((b"orders", b"", b"a"), 1)
    assert not wanted.is_met((b"orders", headers.header_block(b"orders", 1, 6, b"r", origin=True), b"a"), 1)
    assert not wanted.is_met(None, 1)


def test_fillers() -> None:
    block = headers.filler(41)
    assert block == b"NATS/1.0\r\nNats-Streaming-Filler: 1\r\nNats-Expected-Last-Sequence: 41\r\n\r\n"
    assert headers.is_filler(block, b"")
    assert not headers.is_filler(block, b"x")
    assert not headers.is_filler(headers.guarded(b"", b"a:1:", 1, 0), b"")
    assert not headers.is_filler(b"", b"")


@given(st.binary(max_size=20))
def test_any_channel_can_be_part_of_an_id(channel: bytes) -> None:
    assert headers.is_safe_value(headers.identity(channel, 1) + b"1")


def test_configurations_differ() -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({"max_msgs": -1}, {"max_msgs": 0}, False),
        ({}, {"max_msgs": -1}, False),
        ({"max_msgs": 5}, {"max_msgs": -1}, True),
        ({"max_msgs": 5}, {}, False),
        ({"max_age": 0}, {}, False),
        ({"max_age": 5}, {"max_age": 0}, True),
        ({"discard": "old"}, {"discard": "new"}, True),
        ({"deny_delete": False}, {}, False),
        ({}, {"deny_delete": True}, True),
        ({"republish": {"src": ">", "dest": "x.>"}}, {}, True),
        ({"duplicate_window": 5}, {"duplicate_window": 5}, False),
        ({"description": "a"}, {"description": "b"}, False),
    ]
    for there, wanted, differs in rows:
        assert bool(configurations.differences(there, wanted)) == differs, (there, wanted, differs)


def test_configuration_for_filling() -> None:
    config = {"name": "S", "max_age": 60 * 10**9, "max_msgs": 5, "no_ack": True, "republish": {"src": "a", "dest": "b"}}
    final = configurations.final_config(config)
    assert final == {**config, "discard": "old", "duplicate_window": 60 * 10**9}
    few = configurations.loading_config(final, 10)
    assert few == {
        "name": "S",
        "max_age": 0,
        "max_msgs": -1,
        "no_ack": False,
        "discard": "old",
        "duplicate_window": 60 * 10**9,
    }
    # The server remembers an id for every message.
    many = configurations.loading_config(final, configurations.MANY_IDS + 1)
    assert many == {**few, "duplicate_window": 10 * 10**9}
    assert configurations.differences(many, few)
    with pytest.raises(RefusedError, match="the account demands"):
        configurations.with_max_bytes(few, final)
    assert configurations.with_max_bytes(few, {**final, "max_bytes": 7})["max_bytes"] == 7


def test_which_failures_are_retriable() -> None:
    rows: list[tuple[StantoolsError, bool]] = [
        (ApiError("x", 400, 10071, "wrong last sequence: 1"), True),
        (ApiError("x", 503, 10008, "system temporarily unavailable"), True),
        (ApiError("x", 503, 0, "no stream takes it"), True),
        (ApiError("x", 503, 10077, "maximum bytes exceeded"), False),
        (ApiError("x", 503, 10023, "insufficient resources"), False),
        (ApiError("x", 503, 10039, "JetStream not enabled for account"), False),
        (ApiError("x", 400, 10054, "message size exceeds maximum"), False),
        (ConnectionLostError("x"), True),
        (NoAnswerError("x"), True),
        (PermissionDeniedError("x", "publish to"), False),
        (StantoolsError("x"), False),
    ]
    for problem, retriable in rows:
        assert problem.retriable == retriable, (problem, retriable)


class _Connected:
    async def wait_connected(self, timeout: float) -> None:
        assert timeout > 0


async def test_retry() -> None:
    retry = Retry(_Connected(), 0.2)  # type: ignore[arg-type]
    reached = [0]
    tries = 0

    async def slow_but_steady() -> str:
        nonlocal tries
        tries += 1
        reached[0] += 1
        if tries < 6:
            await asyncio.sleep(0.1)
            raise NoAnswerError("not yet")
        return "done"

    assert await retry.repeat(slow_but_steady, lambda: reached[0]) == "done"
    assert retry.interruptions == 5

    async def never() -> None:
        raise NoAnswerError("never")

    with pytest.raises(NoAnswerError, match="never"):
        await retry.repeat(never)

    async def refused() -> None:
        nonlocal tries
        tries += 1
        raise RefusedError("no")

    tries = 0
    with pytest.raises(RefusedError):
        await retry.repeat(refused)
    assert tries == 1
