"""The same on every bus: the one to the server in this process, and the one over TCP to ours and to a real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from broker.bus import external
from broker.bus.embedded import EmbeddedBus
from broker.bus.external import ExternalBus
from broker.config.broker_options import ConnectionOptions
from broker.nats import recipients
from broker.streaming.ports import RequestAnswer, RequestOutcome, Role
from stantools.format.envelope import Buffer
from stantools.nats import frames as columns
from stantools.nats.frames import Frames, Payloads
from tests import servers
from tests.broker.nats.serving import serving

Bus = EmbeddedBus | ExternalBus
SECOND = 1_000_000_000


@dataclass
class Heard:
    """What a handler got: subject, reply and payload of each message."""

    messages: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    calls: int = 0

    def __call__(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        self.calls += 1
        view = memoryview(buffer)
        for row in frames[begin:end].tolist():
            payload = row[columns.PAYLOAD] + row[columns.HEADER_SIZE]
            self.messages.append(
                (
                    bytes(view[row[columns.SUBJECT] : row[columns.SUBJECT] + row[columns.SUBJECT_SIZE]]),
                    bytes(view[row[columns.REPLY] : row[columns.REPLY] + row[columns.REPLY_SIZE]]),
                    bytes(view[payload : row[columns.PAYLOAD] + row[columns.PAYLOAD_SIZE]]),
                )
            )

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                await asyncio.sleep(0.005)


def block(*pieces: bytes) -> Payloads:
    sizes = np.array([len(piece) for piece in pieces], np.uint32)
    return Payloads(b"".join(pieces), np.cumsum(sizes, dtype=np.int64) - sizes, sizes)


@contextlib.asynccontextmanager
async def a_bus(kind: str, directory: Path) -> AsyncIterator[Bus]:
    if kind == "real":
        with servers.NatsServer(directory, jetstream=False) as real:
            external = ExternalBus(ConnectionOptions(urls=real.url), b"c1")
            await external.connect()
            try:
                yield external
            finally:
                await external.close()
        return
    async with serving() as server:
        if kind == "embedded":
            bus = EmbeddedBus(server, b"c1")
            yield bus
            bus.close()
            return
        external = ExternalBus(ConnectionOptions(urls=f"nats://127.0.0.1:{server.port}"), b"c1")
        await external.connect()
        try:
            yield external
        finally:
            await external.close()


async def barrier(bus: Bus) -> None:
    reached = asyncio.Event()
    bus.barrier(reached.set)
    async with asyncio.timeout(60):
        await reached.wait()


async def ask(bus: Bus, subject: bytes, seconds: float = 60) -> RequestAnswer:
    answers: list[RequestAnswer] = []
    bus.request(Role.GENERAL, subject, b"question", int(seconds * SECOND), answers.append)
    assert not answers, "never from within the call"
    async with asyncio.timeout(60):
        while not answers:
            await asyncio.sleep(0.005)
    return answers[0]


REAL = pytest.mark.skipif(
    not servers.binary(servers.NEWEST).exists(), reason="no nats-server here: see tests/servers.py"
)


@pytest.fixture(params=["embedded", "ours", pytest.param("real", marks=REAL)])
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bus]:
    async with a_bus(request.param, tmp_path) as bus:
        yield bus


async def test_messages_and_blocks(bus: Bus) -> None:
    heard, all_of_it = Heard(), Heard()
    bus.listen(Role.ACKS, b"a.b", heard)
    bus.listen(Role.GENERAL, b"a.>", all_of_it)
    await barrier(bus)
    assert bus.publish(Role.SEND, b"a.b", b"one", b"r.1")
    assert bus.publish_block(Role.SEND, b"a.b", block(b"x", b"", b"two", b"3" * 1000, b"y"), 1, 4)
    assert bus.publish_block(Role.SEND, b"a.b", block(b"x"), 1, 1)
    assert bus.publish(Role.SEND, b"a.c", b"four")
    assert not bus.publish_each(Role.SEND, [(b"a.d", b"five"), (b"a d", b"no subject"), (b"a.b", b"six"), (b"", b"")])
    bus.publish_runs(Role.SEND, [(b"a.b", 0, 1), (b"a.b", 1, 3), (b"a.c", 3, 4)], block(b"1", b"2", b"3", b"4"))
    assert not heard.messages or isinstance(bus, EmbeddedBus)
    await heard.wait(8)
    await all_of_it.wait(11)
    expected = [
        (b"a.b", b"r.1", b"one"),
        (b"a.b", b"", b""),
        (b"a.b", b"", b"two"),
        (b"a.b", b"", b"3" * 1000),
    ]
    each = [(b"a.b", b"", payload) for payload in (b"six", b"1", b"2", b"3")]
    assert heard.messages == expected + each
    expected += [(b"a.c", b"", b"four"), (b"a.d", b"", b"five"), *each, (b"a.c", b"", b"4")]
    assert all_of_it.messages == expected


async def test_no_subject(bus: Bus) -> None:
    heard = Heard()
    bus.listen(Role.ACKS, b">", heard)
    for subject in (b"", b"a b", b"a\r\nPUB x 1\r\ny", b"a..b", b"*", b"a.>"):
        assert bus.publish(Role.SEND, subject, b"x")
        assert bus.publish_block(Role.SEND, subject, block(b"x"), 0, 1)
        assert (await ask(bus, subject)).outcome is RequestOutcome.NO_RESPONDERS
    assert bus.publish(Role.SEND, b"good", b"x")
    await heard.wait(1)
    assert [m for m in heard.messages if not m[0].startswith(b"_INBOX")] == [(b"good", b"", b"x")]
    with pytest.raises(ValueError, match="subject"):
        bus.listen(Role.ACKS, b"a b", heard)


async def test_requests(bus: Bus) -> None:
    def answer(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        heard = Heard()
        heard(buffer, frames, begin, end)
        for _, reply, payload in heard.messages:
            bus.publish(Role.SEND, reply, b"answer to " + payload)
            bus.publish(Role.SEND, reply, b"too late")

    bus.listen(Role.HEARTBEATS, b"help", answer)
    bus.listen(Role.HEARTBEATS, b"silent", Heard())
    await barrier(bus)
    assert await ask(bus, b"help") == RequestAnswer(RequestOutcome.REPLY, b"answer to question")
    assert await ask(bus, b"nobody") == RequestAnswer(RequestOutcome.NO_RESPONDERS)
    assert await ask(bus, b"silent", 0.05) == RequestAnswer(RequestOutcome.TIMEOUT)
    assert await ask(bus, b"help") == RequestAnswer(RequestOutcome.REPLY, b"answer to question")


async def test_unlisten(bus: Bus) -> None:
    heard, still = Heard(), Heard()
    subscription = bus.listen(Role.ACKS, b"a", heard)
    bus.listen(Role.ACKS, b"a", still)
    await barrier(bus)
    bus.publish(Role.SEND, b"a", b"1")
    await still.wait(1)
    bus.unlisten(subscription)
    bus.unlisten(subscription)
    bus.publish(Role.SEND, b"a", b"2")
    await still.wait(2)
    assert [m[2] for m in heard.messages] == [b"1"]


async def test_a_handler_that_fails_harms_nobody(bus: Bus) -> None:
    def fail(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        raise RuntimeError("a mistake")

    heard = Heard()
    bus.listen(Role.ACKS, b"a", fail)
    bus.listen(Role.ACKS, b"b", heard)
    await barrier(bus)
    bus.publish(Role.SEND, b"a", b"1")
    bus.publish(Role.SEND, b"b", b"2")
    await heard.wait(1)


async def test_much_at_once(bus: Bus) -> None:
    heard = Heard()
    bus.listen(Role.ACKS, b"a", heard)
    await barrier(bus)
    pieces = [b"%d" % i * (1 + i % 50) for i in range(20000)]
    large = b"z" * (bus.max_payload - 10)
    assert bus.publish_block(Role.SEND, b"a", block(*pieces), 0, len(pieces))
    assert bus.publish(Role.SEND, b"a", large)
    await heard.wait(len(pieces) + 1)
    assert [m[2] for m in heard.messages] == [*pieces, large]
    if isinstance(bus, ExternalBus):
        assert heard.calls < len(pieces) / 20


async def test_who_publishes_too_much_is_read_more_slowly(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the rules say otherwise, or a while has passed; others are served meanwhile."""
    monkeypatch.setattr(recipients, "_STALL", 3600)
    monkeypatch.setattr(external, "_PAUSE", 3600)
    count, payload = 400, bytes(64 << 10)

    heard, other, full = Heard(), Heard(), True

    def too_much(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        heard(buffer, frames, begin, end)
        if full:
            bus.slow_down()

    bus.listen(Role.GENERAL, b"much", too_much)
    bus.listen(Role.ACKS, b"other", other)
    await barrier(bus)
    many = b"".join(b"PUB much %d\r\n%b\r\n" % (len(payload), payload) for _ in range(count))
    if isinstance(bus, EmbeddedBus):
        reader, writer = await asyncio.open_connection("127.0.0.1", bus.server.port)
        await reader.readline()
        writer.write(b"CONNECT {}\r\n" + many)
    else:
        writer = None
        for _ in range(count):
            bus.publish(Role.SEND, b"much", payload)
    await heard.wait(1)
    for number in range(1, 50):
        bus.publish(Role.HEARTBEATS, b"other", b"")
        await other.wait(number)
    assert len(heard.messages) < count // 2
    full = False
    bus.end_slowdown()
    await heard.wait(count)
    if writer is not None:
        writer.close()
