"""What the broker publishes where a client has named the subject: it reaches clients, and never what servers listen to.

Each way on which a client can make the broker publish is tried with a subject that anybody may have, where it has to
arrive, and with the subjects of servers, where nothing may.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.reserved import ReservedSubjects
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from tests import servers
from tests.brokers import Broker
from tests.natsclient import PATIENCE, Client, connect

ID = "test-cluster"
DISCOVER = "our.discover"
#: Where clients may listen, and where the broker does: requests to streams, acknowledgements, and streaming requests.
FREE = ("plain.target", "_INBOX.a.b", "$JS.EVENT.ADVISORY.x", "_STAN.acks.x", "$KV.bucket.key", "$JSX.y", "_STANX.z")
RESERVED = (
    "$JS.API.STREAM.DELETE.victim",
    "$JS.API.CONSUMER.DELETE.victim.reader",
    "$JS.ACK.victim.reader.1.1.1.1.0",
    "$JS.SNAPSHOT.RESTORE.victim.abc",
    "$SYS.REQ.SERVER.PING",
    # Those of another server: this one gets requests of the test itself.
    "_STAN.close.another",
    "_STAN.pub.another.orders",
    "_STAN.ack.another.orders",
    f"{DISCOVER}.another",
)


def test_what_is_reserved() -> None:
    reserved = ReservedSubjects(DISCOVER.encode())
    assert all(subject.encode() in reserved for subject in RESERVED)
    assert not any(subject.encode() in reserved for subject in FREE)
    assert f"{DISCOVER}.{ID}".encode() not in ReservedSubjects()
    assert f"_STAN.close.{ID}".encode() in ReservedSubjects()
    assert reserved.is_inbox(b"a.b") and not reserved.is_inbox(b"a.*") and not reserved.is_inbox(b"$JS.API.INFO")


class Sender:
    """A client that names a subject in every way there is."""

    def __init__(self, client: Client, number: int, target: str) -> None:
        self.client, self.number, self.target = client, number, target

    async def api(self, call: str, body: Any = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else b""
        found: dict[str, Any] = json.loads((await self.client.request(f"$JS.API.{call}", data)).data)
        return found

    async def stream(self, **config: Any) -> str:
        name = f"mine{self.number}"
        await self.api(f"STREAM.DELETE.{name}")
        made = {"name": name, "subjects": [f"m{self.number}.>"], "allow_direct": True, **config}
        assert "error" not in await self.api(f"STREAM.CREATE.{name}", made)
        return name

    async def publish(self, subject: str, data: bytes = b"") -> None:
        await self.client.publish(subject, data, reply=self.target)

    # Streams

    async def answers_of_the_api(self) -> None:
        await self.publish("$JS.API.INFO")

    async def acknowledgement(self) -> None:
        await self.stream()
        await self.publish(f"m{self.number}.a")

    async def many_acknowledgements(self) -> None:
        await self.stream()
        for _ in range(100):
            await self.publish(f"m{self.number}.a")

    async def refusal(self) -> None:
        await self.stream(max_msg_size=1)
        await self.publish(f"m{self.number}.a", b"too large")

    async def republished_by_a_mapping(self) -> None:
        # The whole subject comes from the message.
        head, _, rest = self.target.partition(".")
        tokens = rest.split(".")
        destination = ".".join(f"{{{{wildcard({i + 1})}}}}" for i in range(len(tokens) + 1))
        source = f"m{self.number}." + ".".join("*" * (len(tokens) + 1))
        await self.stream(subjects=[source], republish={"src": source, "dest": destination})
        await self.client.request(f"m{self.number}.{head}.{rest}", b"")

    async def pulled(self) -> None:
        name = await self.stream()
        await self.client.request(f"m{self.number}.a", b"x")
        await self.api(f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": {"name": "c"}})
        await self.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.c")

    async def answer_to_an_acknowledgement(self) -> None:
        name = await self.stream()
        await self.client.request(f"m{self.number}.a", b"x")
        config = {"name": "c", "ack_policy": "explicit"}
        await self.api(f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": config})
        inbox = self.client.new_inbox()
        delivered = await self.client.subscribe(inbox)
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.c", b"", reply=inbox)
        got = await delivered.next_msg(timeout=PATIENCE)
        await self.publish(got.reply, b"+ACK")

    async def direct_get(self) -> None:
        name = await self.stream()
        await self.client.request(f"m{self.number}.a", b"x")
        await self.publish(f"$JS.API.DIRECT.GET.{name}.m{self.number}.a")

    async def piece_of_a_restore(self) -> None:
        name = await self.stream()
        await self.api(f"STREAM.DELETE.{name}")
        request = {"config": {"name": name, "subjects": [f"m{self.number}.>"]}, "state": {}}
        said = await self.api(f"STREAM.RESTORE.{name}", request)
        await self.publish(said["deliver_subject"], b"piece")

    # Channels

    async def connected(self) -> protocol.ConnectResponse:
        inbox = self.client.new_inbox()
        await self.client.subscribe(inbox, cb=_answer)
        request = pb.ConnectRequest(
            client_id=f"c{self.number}".encode(), heartbeat_inbox=inbox.encode(), protocol=1, conn_id=b"x"
        )
        answer = await self.client.request(f"{DISCOVER}.{ID}", request.SerializeToString())
        return protocol.ConnectResponse.FromString(answer.data)

    async def answer_to_a_connect(self) -> None:
        request = pb.ConnectRequest(client_id=f"d{self.number}".encode(), heartbeat_inbox=b"_INBOX.nobody")
        await self.publish(f"{DISCOVER}.{ID}", request.SerializeToString())

    async def acknowledgement_of_a_channel(self) -> None:
        subjects = await self.connected()
        # Read as a request to close, it names the client that is to go.
        message = protocol.PubMsg(client_id=f"c{self.number}".encode(), guid=b"victim", subject=b"orders", data=b"x")
        for _ in range(3):
            await self.publish(f"{subjects.pub_prefix.decode()}.orders", message.SerializeToString())

    async def inbox_of_a_subscription(self) -> None:
        subjects = await self.connected()
        message = protocol.PubMsg(client_id=f"c{self.number}".encode(), guid=b"g", subject=b"orders", data=b"x")
        await self.client.request(f"{subjects.pub_prefix.decode()}.orders", message.SerializeToString())
        request = pb.SubscriptionRequest(
            client_id=f"c{self.number}".encode(), subject=b"orders", inbox=self.target.encode(), max_in_flight=10,
            ack_wait_in_secs=30, start_position=pb.FIRST,
        )  # fmt: skip
        await self.client.request(subjects.sub_requests.decode(), request.SerializeToString())

    async def answers_to_subscriptions_and_closes(self) -> None:
        subjects = await self.connected()
        for to in (
            subjects.sub_requests,
            subjects.unsub_requests,
            subjects.sub_close_requests,
            subjects.close_requests,
        ):
            await self.publish(to.decode(), pb.SubscriptionRequest(client_id=b"x").SerializeToString())

    async def answer_to_a_ping(self) -> None:
        subjects = await self.connected()
        await self.publish(subjects.ping_requests.decode(), protocol.Ping(conn_id=b"x").SerializeToString())


async def _answer(message: Any) -> None:
    if message.reply:
        await message.respond(b"")


_WAYS = [name for name in vars(Sender) if not name.startswith("_") and name not in ("api", "stream", "publish")]
STREAMS = tuple(_WAYS[: _WAYS.index("connected")])
CHANNELS = tuple(_WAYS[_WAYS.index("connected") + 1 :])


class Witness:
    """A client that sees everything, as it may subscribe to all subjects."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: list[str] = []
        self._came = asyncio.Event()

    async def listen(self) -> None:
        for subject in (*FREE, *RESERVED):
            await self.client.subscribe(subject, cb=partial(self._see, subject))
        await self.client.flush()

    async def _see(self, subject: str, message: Any) -> None:
        # What a consumer delivers has another subject.
        self.seen.append(subject)
        self._came.set()

    async def until(self, subject: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while subject not in self.seen:
                self._came.clear()
                await self._came.wait()


@pytest.fixture(params=["embedded", "external"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A broker: where it is, and what can be tried there."""
    file = tmp_path / "broker.conf"
    file.write_text(f'streaming {{ discover_prefix: "{DISCOVER}" }}\n')
    if request.param == "embedded":
        with Broker(tmp_path / "b", "-c", file, "-js", "-sd", tmp_path / "js", "-hbi", "100ms") as embedded:
            yield embedded.url, (*STREAMS, *CHANNELS)
        return
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip("no nats-server here: see tests/servers.py")
    with (
        servers.NatsServer(tmp_path / "n", jetstream=False) as real,
        Broker(tmp_path / "b", "-c", file, "-ns", real.url),
    ):
        yield real.url, CHANNELS


async def test_subjects_that_clients_name_reach_clients_only(broker: tuple[str, tuple[str, ...]]) -> None:
    await try_all(*broker)


async def try_all(url: str, ways: tuple[str, ...]) -> None:
    async with await connect(url) as client, await connect(url) as other:
        streams = "answers_of_the_api" in ways
        victim = Sender(client, 0, "")
        if streams:
            await victim.api("STREAM.CREATE.victim", {"name": "victim", "subjects": ["victim"]})
        victims_inbox = client.new_inbox()
        await client.subscribe(victims_inbox, cb=_answer)
        registration = pb.ConnectRequest(client_id=b"victim", heartbeat_inbox=victims_inbox.encode())
        answer = await client.request(f"{DISCOVER}.{ID}", registration.SerializeToString())
        assert not protocol.ConnectResponse.FromString(answer.data).error

        witness = Witness(other)
        await witness.listen()
        number = 0
        for way in ways:
            for target in (*RESERVED, "plain.target"):
                number += 1
                sender = Sender(client, number, target)
                act: Callable[[], Awaitable[None]] = getattr(sender, way)
                await act()
            # What went before has arrived where this one has.
            await witness.until("plain.target")
            await other.flush()
            assert set(witness.seen) == {"plain.target"}, way
            witness.seen.clear()

        # A client's heartbeats go nowhere either.
        for target in (*RESERVED, "plain.target"):
            number += 1
            connecting = pb.ConnectRequest(client_id=f"h{number}".encode(), heartbeat_inbox=target.encode())
            for _ in range(2):  # the second time it is asked whether the first is there
                await client.request(f"{DISCOVER}.{ID}", connecting.SerializeToString())
        await witness.until("plain.target")
        assert set(witness.seen) == {"plain.target"}

        # Nothing was done with anybody's rights: the client is still registered, the stream still there.
        number += 1
        await Sender(client, number, f"_STAN.close.{ID}").acknowledgement_of_a_channel()
        again = await client.request(f"{DISCOVER}.{ID}", registration.SerializeToString())
        assert protocol.ConnectResponse.FromString(again.data).error
        if streams:
            assert "error" not in await victim.api("STREAM.INFO.victim")


async def test_configurations_that_name_subjects_of_servers_are_refused(tmp_path: Path) -> None:
    with Broker(tmp_path, "-js", "-sd", tmp_path / "js") as broker:
        async with await connect(broker.url) as client:
            sender = Sender(client, 1, "")
            name = await sender.stream()
            to = "$JS.API.STREAM.DELETE.victim"
            made = await sender.api("STREAM.CREATE.other", {"name": "other", "republish": {"src": ">", "dest": to}})
            assert made["error"]["err_code"] == 10052
            part = "$JS.API.STREAM.DELETE.{{wildcard(1)}}"
            made = await sender.api("STREAM.CREATE.other", {"name": "other", "republish": {"src": "*", "dest": part}})
            assert made["error"]["err_code"] == 10052
            config = {"config": {"deliver_subject": to}, "stream_name": name}
            assert (await sender.api(f"CONSUMER.CREATE.{name}", config))["error"]["err_code"] == 10112
            said = await sender.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": to})
            assert said["error"]["err_code"] == 10015
