"""The streaming client against a stand-in of a streaming server, on a real NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import UsageError
from stantools.format.proto import protocol_pb2 as pb
from stantools.format.proto import store_pb2
from stantools.nats import connection
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.errors import NoResponderError
from stantools.streaming.client import (
    Client,
    ClientOptions,
    Message,
    Start,
    SubscriptionOptions,
    connect,
)
from stantools.streaming.errors import (
    AckTimeoutError,
    ClosedError,
    NoServerError,
    RefusedByServerError,
    SessionLostError,
    StreamingError,
)
from tests.migration.replay.fakestreaming import FakeStreaming
from tests.servers import NEWEST, NatsServer, available, free_port
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(NEWEST not in available(), reason=f"nats-server {NEWEST} is not in .servers")

QUICK = ClientOptions(ping_interval=1, ping_max_out=2)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NatsServer(tmp_path_factory.mktemp("nats"), jetstream=False) as server:
        yield server.url


@contextlib.asynccontextmanager
async def serve(url: str, options: ClientOptions = QUICK, **more: Any) -> AsyncIterator[tuple[FakeStreaming, Client]]:
    async with FakeStreaming(url) as fake, await connect(url, "test-cluster", "me", options, **more) as client:
        yield fake, client


async def test_publish_waits_for_the_ack(url: str) -> None:
    async with serve(url) as (fake, client):
        await client.publish("orders", b"one", reply="back")
        assert fake.channels[b"orders"] == [(b"one", b"back")]
        await client.publish("örders", b"")
        assert fake.payloads("örders".encode()) == [b""]
        assert client.outstanding == 0


async def test_async_publishes_keep_their_order_and_their_bound(url: str) -> None:
    async with serve(url, ClientOptions(max_outstanding=7)) as (fake, client):
        problems: list[StreamingError | None] = []
        for number in range(200):
            await client.publish_async("a", b"%d" % number, problems.append)
            assert client.outstanding <= 7
        await client.settled()
        assert problems == [None] * 200
        assert fake.payloads(b"a") == [b"%d" % number for number in range(200)]


async def test_what_the_server_refuses(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(url) as (fake, client):
        fake.refuse[b"full"] = b"too many channels"
        with pytest.raises(RefusedByServerError, match="too many channels") as caught:
            await client.publish("full", b"x")
        assert caught.value.text == "too many channels"
        with pytest.raises(RefusedByServerError, match="stan: invalid publish request"):
            await client.publish("a/b", b"x")
        await client.publish_async("full", b"x")
        await client.settled()
        assert "a message may be lost" in caplog.text


@pytest.mark.parametrize("channel", ["", "a b", "a\r\nPUB x 1", "\udcff"])
async def test_names_that_cannot_be_sent(url: str, channel: str) -> None:
    async with serve(url) as (_fake, client):
        with pytest.raises(UsageError):
            await client.publish(channel, b"x")
        with pytest.raises(UsageError):
            await client.subscribe(channel, print)


async def test_a_message_that_is_too_large(url: str) -> None:
    async with serve(url) as (_fake, client):
        problems: list[StreamingError | None] = []
        with pytest.raises(StreamingError, match="could not be sent"):
            await client.publish_async("a", b"x" * (1 << 20), problems.append)
        assert (problems, client.outstanding) == ([], 0)
        await client.publish("a", b"y")


async def test_an_ack_that_does_not_come(url: str) -> None:
    async with serve(url, ClientOptions(ack_timeout=1.5)) as (fake, client):
        fake.silent_after = 0
        with pytest.raises(AckTimeoutError, match=r"no ack came within 1\.5 s"):
            await client.publish("a", b"x")
        fake.silent_after = None
        await client.publish("a", b"y")


async def test_messages_are_handed_over_one_by_one_and_acknowledged(url: str) -> None:
    async with serve(url) as (_fake, client):
        got: list[Message] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            got.append(message)

        for number in range(5):
            await client.publish("a", b"%d" % number, reply="r")
        subscription = await client.subscribe("a", handle, SubscriptionOptions(start=Start.first()))
        await client.publish("a", b"5")
        await eventually(lambda: len(got) == 6)
        assert [message.sequence for message in got] == [1, 2, 3, 4, 5, 6]
        assert (got[0].data, got[0].reply, got[0].channel) == (b"0", "r", "a")
        assert abs(got[0].timestamp - time.time_ns()) < 60_000_000_000
        await subscription.close()
        assert subscription.closed
        with pytest.raises(ClosedError):
            await got[0].ack()
        with pytest.raises(ClosedError):
            await subscription.unsubscribe()


async def test_a_slow_handler_keeps_the_session(url: str) -> None:
    """Pings and acknowledgements of publishes do not wait for it, and it gets its messages in order."""
    async with serve(url) as (_fake, client):
        got: list[int] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(QUICK.ping_interval * 0.9)
            got.append(message.sequence)

        for number in range(QUICK.ping_max_out + 2):
            await client.publish("a", b"%d" % number)
        await client.subscribe("a", handle, SubscriptionOptions(start=Start.first()))
        await client.publish("a", b"last")
        assert len(got) < QUICK.ping_max_out
        await eventually(lambda: len(got) == QUICK.ping_max_out + 3)
        assert got == list(range(1, QUICK.ping_max_out + 4))
        await client.publish("a", b"after")


class Recorded(FakeStreaming):
    """A stand-in that keeps the requests for subscriptions and what comes to the ack inboxes."""

    async def _subscribe(self, message: Any) -> None:
        self.requests = [*getattr(self, "requests", []), store_pb2.SubscriptionRequest.FromString(message.data)]
        inbox = self._nats.new_inbox()
        self.acks: list[int] = []

        async def acked(ack: Any) -> None:
            self.acks.append(pb.Ack.FromString(ack.data).sequence)

        await self._nats.subscribe(inbox, cb=acked)
        await self._nats.flush()
        # Messages may overtake the answer.
        for sequence in (1, 2, 3):
            payload = store_pb2.MsgProto(sequence=sequence, subject=b"a", redelivered=True, redelivery_count=4)
            await self._nats.publish(self.requests[-1].inbox.decode(), payload.SerializeToString())
        await self._nats.publish(message.reply, pb.SubscriptionResponse(ack_inbox=inbox.encode()).SerializeToString())

    async def _unsubscribe(self, message: Any) -> None:
        self.leaving = (message.subject, store_pb2.UnsubscribeRequest.FromString(message.data))
        await super()._unsubscribe(message)


@asynccontextmanager
async def recorded(url: str) -> AsyncIterator[tuple[Recorded, Client]]:
    async with asyncio.timeout(90), Recorded(url) as fake, await connect(url, "test-cluster", "me", QUICK) as client:
        yield fake, client


async def test_a_handler_that_fails_is_no_ack(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with recorded(url) as (fake, client):

        def handle(message: Message) -> None:
            assert (message.redelivered, message.redelivery_count) == (True, 4)
            if message.sequence == 2:
                raise ValueError("no")

        await client.subscribe("a", handle)
        await eventually(lambda: len(fake.acks) == 2)
        assert fake.acks == [1, 3]
        assert "a: a message was not handled: ValueError('no')" in caplog.text


async def test_acks_by_hand(url: str) -> None:
    async with recorded(url) as (fake, client):
        got: list[Message] = []
        subscription = await client.subscribe("a", got.append, SubscriptionOptions(manual_acks=True))
        await eventually(lambda: len(got) == 3)
        await got[2].ack()
        await subscription.ack(got[0])
        await eventually(lambda: len(fake.acks) == 2)
        assert fake.acks == [3, 1]


@pytest.mark.parametrize(
    ("start", "position", "sequence", "delta"),
    [
        (Start.new_only(), store_pb2.NEW_ONLY, 0, 0),
        (Start.last_received(), store_pb2.LAST_RECEIVED, 0, 0),
        (Start.first(), store_pb2.FIRST, 0, 0),
        (Start.sequence(1 << 40), store_pb2.SEQUENCE_START, 1 << 40, 0),
        (Start.ago(1.5), store_pb2.TIME_DELTA_START, 0, 1_500_000_000),
    ],
)
async def test_what_a_subscription_asks_for(
    url: str, start: Start, position: store_pb2.StartPosition, sequence: int, delta: int
) -> None:
    async with recorded(url) as (fake, client):
        options = SubscriptionOptions("group", "name", start, max_in_flight=5, ack_wait=7)
        subscription = await client.subscribe("a", print, options)
        asked = fake.requests[0]
        assert (asked.start_position, asked.start_sequence, asked.start_time_delta) == (position, sequence, delta)
        assert (asked.client_id, asked.subject, asked.q_group, asked.durable_name) == (b"me", b"a", b"group", b"name")
        assert (asked.max_in_flight, asked.ack_wait_in_secs) == (5, 7)
        await subscription.unsubscribe()
        subject, request = fake.leaving
        assert subject == "_STAN.unsub.test-cluster"
        assert (request.client_id, request.subject, request.durable_name) == (b"me", b"a", b"name")
        subscription = await client.subscribe("a", print)
        await subscription.close()
        assert fake.leaving[0] == "_STAN.subclose.test-cluster"


def test_a_start_at_a_time() -> None:
    an_hour_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    assert abs(Start.at(an_hour_ago).delta() - 3600 * 10**9) < 60 * 10**9


async def test_a_handler_may_close_its_subscription_and_the_client(url: str) -> None:
    async with recorded(url) as (fake, client):
        over: list[str] = []

        async def handle(message: Message) -> None:
            assert message.subscription is not None
            await message.subscription.close()
            over.append("subscription")

        async def last(message: Message) -> None:
            await client.close()
            over.append("client")

        await client.subscribe("a", handle)
        await eventually(lambda: over == ["subscription"])
        await client.subscribe("a", last)
        await eventually(lambda: over == ["subscription", "client"])
        assert client.closed
        assert fake.closed == [b"me"]


async def test_a_subscription_that_is_not_answered_is_taken_back(url: str) -> None:
    class Silent(Recorded):
        async def _subscribe(self, message: Any) -> None:
            self.requests = [store_pb2.SubscriptionRequest.FromString(message.data)]

    quick = ClientOptions(timeout=1.5)
    async with Silent(url) as fake, await connect(url, "test-cluster", "me", quick) as client:
        with pytest.raises(NoServerError, match=r"did not answer|no streaming server answered a subscription to a"):
            await client.subscribe("a", print)
        await eventually(lambda: hasattr(fake, "leaving"))
        subject, request = fake.leaving
        assert subject == "_STAN.subclose.test-cluster"
        assert request.inbox == fake.requests[0].inbox


async def test_a_client_id_is_taken_or_bad(url: str) -> None:
    async with serve(url) as (_fake, client):
        with pytest.raises(StreamingError, match="clientID already registered"):
            await connect(url, "test-cluster", "me")
        with pytest.raises(StreamingError, match="only alphanumeric"):
            await connect(url, "test-cluster", "a.b")
        await client.publish("a", b"x")


async def test_nobody_is_there(url: str) -> None:
    with pytest.raises(NoServerError, match=r"nothing listens on _STAN\.discover\.other"):
        await connect(url, "other", "me")
    with pytest.raises(NoServerError, match=r"no connection to NATS at nats://127\.0\.0\.1"):
        await connect(f"nats://127.0.0.1:{free_port()}", "other", "me", ClientOptions(timeout=0.5))


@pytest.mark.parametrize("error", [LookupError("of the block"), None], ids=["fails", "is cancelled"])
async def test_the_error_of_a_block_is_kept_where_closing_fails(
    url: str, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def block(fake: FakeStreaming, begun: asyncio.Event) -> None:
        async with await connect(url, "test-cluster", "me", ClientOptions(timeout=5)):
            await fake.__aexit__(None, None, None)
            begun.set()
            if error:
                raise error
            await asyncio.sleep(60)

    begun = asyncio.Event()
    task = asyncio.ensure_future(block(await FakeStreaming(url).__aenter__(), begun))
    await begun.wait()
    if error is None:
        task.cancel()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    assert found is error if error else task.cancelled()
    assert "was not closed in order" in caplog.text


async def test_heartbeats_and_pings(url: str) -> None:
    async with serve(url) as (fake, client):
        await eventually(lambda: fake.heartbeats_answered >= 2 and fake.pings >= 2)
        assert not client.closed


async def test_a_server_that_has_forgotten_us(url: str) -> None:
    lost: list[StreamingError] = []

    async with serve(url, connection_lost=lost.append) as (fake, client):
        subscription = await client.subscribe("a", print)
        fake.silent_after = 0
        publishing = asyncio.ensure_future(client.publish("a", b"x"))
        await eventually(lambda: client.outstanding == 1)
        fake.clients.clear()
        await eventually(lambda: bool(lost))
        assert "client has been replaced or is no longer registered" in str(lost[0])
        with pytest.raises(SessionLostError):
            await publishing
        with pytest.raises(SessionLostError):
            await client.publish("a", b"y")
        with pytest.raises(SessionLostError):
            await client.subscribe("a", print)
        assert client.closed
        assert subscription.closed
        await client.close()
        assert len(lost) == 1


async def test_a_server_that_has_gone(url: str) -> None:
    lost = asyncio.Event()

    async def on_lost(problem: StreamingError) -> None:
        assert "2 pings were not answered" in str(problem)
        lost.set()

    async with FakeStreaming(url):
        client = await connect(url, "test-cluster", "me", QUICK, on_lost)
    await asyncio.wait_for(lost.wait(), 60)
    assert client.closed


async def test_close_waits_for_acks(url: str) -> None:
    async with serve(url) as (fake, client):
        problems: list[StreamingError | None] = []
        for _ in range(100):
            await client.publish_async("a", b"x", problems.append)
        await client.close()
        assert problems == [None] * 100
        assert fake.closed == [b"me"]
        with pytest.raises(ClosedError):
            await client.publish("a", b"x")
        await client.close()


async def test_several_clients_on_one_connection(url: str) -> None:
    async with connection.connect(ConnectOptions(servers=(url,))) as nats, FakeStreaming(url) as server:
        inboxes = []
        for name in ("one", "two"):
            async with await connect(nats, "test-cluster", name) as client:
                await client.publish("a", b"x")
                inboxes.append(server.clients[name.encode()].inbox)
        assert nats.connected
        for inbox in inboxes:  # of the heartbeats: nobody listens there any more
            with pytest.raises(NoResponderError):
                await nats.request(inbox, timeout=30)


async def test_the_connection_breaks_and_comes_back(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, jetstream=False).start()

    try:
        async with (
            FakeStreaming(server.url) as fake,
            await connect(server.url, "test-cluster", "me", ClientOptions(ack_timeout=10)) as client,
        ):
            await client.publish("a", b"x")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    await asyncio.wait_for(client.publish("a", b"y"), 5)
                    break
                except (StreamingError, TimeoutError):
                    await asyncio.sleep(0.1)
            assert fake.payloads(b"a")[-1] == b"y"
    finally:
        server.stop()


async def test_options_that_make_no_sense(url: str) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        await connect(url, "test-cluster", "me", ClientOptions(ping_interval=0))
