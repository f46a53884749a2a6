"""Exact publishers into one stream: what is proven, what is refused, what nobody can tell, and who else writes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.stores.jetstream.exact_publisher import ExactPublisher, PublishRange
from stantools.format.columns import MessageColumns
from stantools.format.message_batch import MessageBatch
from stantools.nats.channel_streams import StreamNames
from tests.broker.stores.jetstream.loop import simulated
from tests.broker.stores.jetstream.model import JetStream, Link

NAMES = StreamNames("c")
STREAM = NAMES.stream(b"foo")
CONFIG = {**NAMES.state_config(), "name": STREAM, "subjects": ["stan.c.foo"], "max_msgs_per_subject": -1}


class Owner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def answered(self) -> None:
        """Every piece tells by itself."""

    def refused(self, error: str, *, certain: bool) -> None:
        self.said.append(f"refused {error}{'' if certain else '?'}")

    def diverged(self, reason: str, *, certain: bool, lost: bool = False) -> None:
        self.said.append(f"diverged {reason}{'' if certain else '?'}{' lost' if lost else ''}")


class Bench:
    """Servers with one stream, and a publisher into it."""

    def __init__(self) -> None:
        self.servers = JetStream(random.Random(1))
        self.link = Link(self.servers)
        self.owner = Owner()
        self.stored: list[int] = []
        self.last = 0

    async def open(self) -> None:
        await self.link.create_stream(CONFIG)
        self.stream = self.servers.streams[STREAM]
        self.publisher = ExactPublisher(self.link, STREAM, b"w", self.owner)
        self.publisher.restart(0)

    def submit(self, *texts: bytes) -> None:
        columns = MessageColumns(len(texts))
        data = b"".join(texts)
        at = 0
        for row, text in enumerate(texts):
            columns.sequence[row] = self.last + row + 1
            columns.data_start[row], columns.data_size[row] = at, len(text)
            at += len(text)
        first, self.last = self.last + 1, self.last + len(texts)
        last = self.last
        batch = MessageBatch(columns, memoryview(data), b"foo", b"stan.c.foo")
        self.publisher.submit(PublishRange(batch, first, last, lambda: self.stored.append(last)))

    def strange(self, text: bytes) -> None:
        """Somebody else publishes."""
        self.stream.store(b"stan.c.foo", b"", text, 0)

    @property
    def log(self) -> list[bytes]:
        return [self.stream.messages[sequence].data for sequence in sorted(self.stream.messages)]

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = JetStream.now() + seconds
        while not condition():
            assert JetStream.now() < end, (self.owner.said, self.stored, self.log)
            await asyncio.sleep(0.01)


def on_a_bench(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that plays on a bench of its own, in simulated time."""

    @functools.wraps(test)
    async def played(**cases: Any) -> None:
        bench = Bench()
        await bench.open()
        await test(bench, **cases)

    # pytest fills in the parameters but for the bench.
    played.__signature__ = inspect.signature(functools.partial(test, None))  # type: ignore[attr-defined]
    return simulated(played)


@on_a_bench
async def test_stored_in_order(bench: Bench) -> None:
    bench.submit(b"1", b"2")
    bench.submit(b"3")
    assert not bench.stored
    await bench.until(lambda: bench.stored == [2, 3])
    assert bench.log == [b"1", b"2", b"3"]
    assert bench.publisher.idle


@on_a_bench
async def test_a_long_chain_goes_by_windows(bench: Bench) -> None:
    texts = [b"%d" % number for number in range(10_000)]
    bench.submit(*texts)
    await bench.until(lambda: bench.stored == [10_000])
    assert bench.log == texts


@pytest.mark.parametrize(
    "more", [[b"%d" % number for number in range(512)], [b"x" * (300 << 10)]], ids=["many", "large"]
)
@on_a_bench
async def test_what_comes_while_something_is_under_way_is_gathered(bench: Bench, more: list[bytes]) -> None:
    sent: list[int] = []
    send = bench.link.send

    def counted(frames: bytes) -> bool:
        sent.append(frames.count(b"HPUB stan.c.foo "))
        return send(frames)

    bench.link.send = counted  # type: ignore[method-assign]
    bench.submit(b"1")
    assert sent == [1], "it is alone, and waits for nothing"
    bench.submit(b"2")
    bench.submit(b"3")
    assert sent == [1]
    await bench.until(lambda: bench.stored == [1, 2, 3])
    assert sum(sent) == 3
    bench.submit(b"4")
    bench.submit(b"5")
    assert sum(sent) == 4
    bench.submit(*more)
    assert sum(sent) == bench.last, "it is enough, before anything is answered"
    await bench.until(lambda: bench.publisher.idle)
    assert bench.log == [b"1", b"2", b"3", b"4", b"5", *more]


@pytest.mark.parametrize("fault", ["silent", "nobody", "late"])
@on_a_bench
async def test_an_answer_is_missing(bench: Bench, fault: str) -> None:
    """What was stored is found by reading; what was not is sent again; nothing is there twice."""
    setattr(bench.servers.faults, fault, 0.3)
    for number in range(30):
        bench.submit(b"%d" % number)
    await bench.until(lambda: len(bench.stored) == 30, 300)
    await asyncio.sleep(10)
    assert bench.log == [b"%d" % number for number in range(30)]
    assert not bench.owner.said


@on_a_bench
async def test_the_connection_is_lost(bench: Bench) -> None:
    bench.submit(*[b"%d" % number for number in range(50)])
    await asyncio.sleep(0.01)
    bench.link.lose(3)
    bench.submit(b"50")
    await bench.until(lambda: bench.stored == [50, 51])
    assert bench.log == [b"%d" % number for number in range(51)]


@on_a_bench
async def test_no_leader_for_a_while(bench: Bench) -> None:
    bench.servers.depose(STREAM, 8)
    bench.submit(b"1", b"2", b"3")
    await asyncio.sleep(7)
    assert not bench.stored
    await bench.until(lambda: bench.stored == [3])
    assert bench.log == [b"1", b"2", b"3"]


@on_a_bench
async def test_refused_for_good(bench: Bench) -> None:
    bench.submit(b"1")
    await bench.until(lambda: bench.stored == [1])
    bench.stream.refuses = "insufficient storage resources available"
    bench.submit(b"2", b"3")
    await bench.until(lambda: bool(bench.owner.said))
    assert bench.owner.said == ["refused insufficient storage resources available"]
    assert bench.log == [b"1"]
    bench.stream.refuses = ""
    bench.publisher.forget()
    bench.last = 1
    bench.publisher.restart(1)
    bench.submit(b"anew")
    await bench.until(lambda: bench.stored == [1, 2])
    assert bench.log == [b"1", b"anew"]


@on_a_bench
async def test_refused_when_an_answer_was_missing_before(bench: Bench) -> None:
    """An earlier try may have been stored, or may yet be: nobody can say that it is not."""
    bench.servers.depose(STREAM, 1)
    bench.submit(b"1")
    await asyncio.sleep(0.5)
    bench.stream.refuses = "full"
    await bench.until(lambda: bool(bench.owner.said))
    assert bench.owner.said == ["refused full?"]


@on_a_bench
async def test_somebody_took_the_place(bench: Bench) -> None:
    bench.submit(b"1")
    await bench.until(lambda: bench.stored == [1])
    bench.strange(b"strange")
    bench.submit(b"2")
    await bench.until(lambda: bool(bench.owner.said))
    assert bench.owner.said == ["diverged sequence 2 is from another writer"]
    assert bench.log == [b"1", b"strange"]
    assert bench.stored == [1]


@on_a_bench
async def test_somebody_in_the_middle_of_a_chain(bench: Bench) -> None:
    """What lies behind somebody else's message is ours, and what it has displaced is lost: nobody gets a yes for it.
    Facts: high-availability.md section C.2, the message that an answer to the last one alone would have hidden.
    """
    store = bench.stream.store

    def squeezed_in(subject: bytes, header: bytes, data: bytes, time: int) -> dict[str, object]:
        if data == b"2":
            bench.stream.store = store  # type: ignore[method-assign]
            bench.strange(b"strange")
        return store(subject, header, data, time)

    bench.stream.store = squeezed_in  # type: ignore[method-assign]
    bench.submit(b"1")
    bench.submit(b"2", b"3", b"4")
    await bench.until(lambda: bool(bench.owner.said))
    assert bench.log == [b"1", b"strange", b"3", b"4"]
    assert bench.stored == [1]
    assert bench.owner.said == ["diverged sequence 2 is from another writer?"]


@on_a_bench
async def test_the_stream_has_lost_what_it_had(bench: Bench) -> None:
    bench.submit(b"1", b"2", b"3")
    await bench.until(lambda: bench.stored == [3])
    bench.stream.lose(2)
    bench.submit(b"4")
    await bench.until(lambda: bool(bench.owner.said))
    assert bench.owner.said == ["diverged it ends at sequence 1, but had 3? lost"]


@on_a_bench
async def test_what_a_server_says_that_is_behind_does_no_harm(bench: Bench) -> None:
    bench.servers.faults.stale = 0.8
    bench.servers.faults.silent = 0.2
    for number in range(40):
        bench.submit(b"%d" % number)
    await bench.until(lambda: len(bench.stored) == 40, 600)
    assert bench.log == [b"%d" % number for number in range(40)]
    assert not bench.owner.said
