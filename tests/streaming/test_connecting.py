"""The streaming client's connection to real NATS servers: logins, TLS, permissions, losses, servers that go away."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import UsageError
from stantools.format.proto import protocol_pb2 as pb
from stantools.nats import encoding
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import open_connection
from stantools.streaming.client import ClientOptions, connect
from stantools.streaming.errors import NoServerError, SessionLostError, StreamingError
from tests import servers
from tests.migration.replay.fakestreaming import FakeStreaming
from tests.nats.authority import Authority, Operator, new_pair
from tests.waiting import eventually

Servers = Callable[..., Any]
PATIENT = ClientOptions(timeout=30, ack_timeout=60)


async def publish_once(server: FakeStreaming, *urls: str, **options: Any) -> None:
    async with server, await connect(urls, "test-cluster", "me", PATIENT, **options) as client:
        await client.publish("a", b"x")
        assert server.payloads(b"a") == [b"x"]


def users(*others: dict[str, Any]) -> dict[str, Any]:
    return {"authorization": {"users": [{"user": "stan", "password": "s"}, *others]}}


async def test_every_kind_of_login(start_server: Servers, tmp_path: Path) -> None:
    seed, public = new_pair()
    (tmp_path / "user.nk").write_text(seed)
    server = start_server(config=users({"user": "me", "password": "p:w"}), jetstream=False)
    stan = {"user": "stan", "password": "s"}
    await publish_once(FakeStreaming(server.url, login=stan), server.url, user="me", password="p:w")
    await publish_once(FakeStreaming(server.url, login=stan), f"nats://me:p%3Aw@127.0.0.1:{server.port}")
    with pytest.raises(NoServerError, match="it does not accept the credentials"):
        await connect(server.url, "test-cluster", "me", PATIENT, user="me", password="other")
    server = start_server(config=users({"nkey": public}), jetstream=False)
    await publish_once(FakeStreaming(server.url, login=stan), server.url, nkey=str(tmp_path / "user.nk"))
    server = start_server(config={"authorization": {"token": "t"}}, jetstream=False)
    await publish_once(FakeStreaming(server.url, login={"token": "t"}), server.url, token="t")
    operator = Operator()
    server = start_server(config=operator.config(), jetstream=False)
    creds = operator.write_user(tmp_path / "user.creds")
    await publish_once(FakeStreaming(server.url, login={"user_credentials": str(creds)}), server.url, creds=str(creds))


async def test_tls_and_websockets(start_server: Servers, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.issue("server", "127.0.0.1")
    tls = {"cert_file": str(certificate), "key_file": str(key), "ca_file": str(authority.path), "verify": True}
    port = servers.free_port()
    web = {"host": "127.0.0.1", "port": port, "tls": {name: tls[name] for name in ("cert_file", "key_file")}}
    server = start_server(config={"tls": tls, "websocket": web}, jetstream=False)
    mine, its_key = authority.issue("client")
    context = ssl.create_default_context(cafile=authority.path)
    context.load_cert_chain(mine, its_key)
    login = {"tls": context}
    options = {"tls_ca": str(authority.path), "tls_cert": mine, "tls_key": its_key}
    await publish_once(FakeStreaming(server.url, login=login), server.url, **options)
    await publish_once(FakeStreaming(server.url, login=login), f"wss://127.0.0.1:{port}", tls_ca=authority.path)
    with pytest.raises(NoServerError, match="its certificate is not trusted"):
        await connect(server.url, "test-cluster", "me", PATIENT)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"user_credentials": "f"}, "give creds instead"),
        ({"tls": None}, "give tls_ca, tls_cert and tls_key instead"),
        ({"allow_reconnect": False}, "give reconnect_attempts instead"),
        ({"connect_timeout": 1}, r"give ClientOptions\.timeout instead"),
        ({"servers": ()}, "the options are user, password, "),
        ({"reconnect_attempts": 0}, "give None for no limit"),
    ],
)
async def test_an_option_that_does_not_exist_names_the_right_one(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        await connect("nats://127.0.0.1:1", "test-cluster", "me", **options)
    assert remedy.replace("\\", "") in caught.value.remedy


async def test_a_missing_permission_is_said_at_once(start_server: Servers) -> None:
    deaf = {"user": "deaf", "password": "p", "permissions": {"subscribe": ["_INBOX.>"]}}
    mute = {"user": "mute", "password": "p", "permissions": {"publish": ["_INBOX.>"]}}
    server = start_server(config=users(deaf, mute), jetstream=False)
    async with FakeStreaming(server.url, login={"user": "stan", "password": "s"}):
        with pytest.raises(StreamingError, match=r"the user deaf may not subscribe to _STAN\.acks\."):
            await connect(server.url, "test-cluster", "me", PATIENT, user="deaf", password="p")
        with pytest.raises(StreamingError, match=r"the user mute may not publish to _STAN\.discover\.test-cluster"):
            await connect(server.url, "test-cluster", "me", PATIENT, user="mute", password="p")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGUSR2], ids=["killed", "lame duck"])
async def test_the_session_goes_on_at_the_second_server(start_server: Servers, end: signal.Signals) -> None:
    port = servers.free_port()
    lame = {"lame_duck_duration": "30s", "lame_duck_grace_period": "100ms"}
    cluster = {"name": "c", "host": "127.0.0.1", "port": port}
    first = start_server(config={"cluster": cluster, **lame}, jetstream=False)
    routes = {"name": "c", "host": "127.0.0.1", "port": servers.free_port(), "routes": [f"nats://127.0.0.1:{port}"]}
    second = start_server(config={"cluster": routes}, jetstream=False)
    async with FakeStreaming(second.url) as server:
        nats = await open_connection(ConnectOptions((first.url,), reconnect_attempts=None), "me")
        try:
            # The second one is known from the first.
            await eventually(lambda: len(nats._servers) > 1)
            async with await connect(nats, "test-cluster", "me", PATIENT) as client:
                got: list[bytes] = []
                await client.subscribe("a", lambda message: got.append(message.data))
                await client.publish("a", b"1")
                first.process.send_signal(end)
                await eventually(lambda: nats.connected and nats.server.port == second.port)
                await client.publish("a", b"2")
                assert server.payloads(b"a") == [b"1", b"2"]
                await eventually(lambda: got == [b"1", b"2"])
        finally:
            await nats.close()


async def test_publishers_wait_for_the_connection(start_server: Servers) -> None:
    server = start_server(jetstream=False)
    async with FakeStreaming(server.url) as fake, await connect(server.url, "test-cluster", "me", PATIENT) as client:
        await client.publish("a", b"before")
        await asyncio.to_thread(server.kill)
        await eventually(lambda: not client._link.writable)
        waiting = asyncio.gather(*(client.publish("a", b"%d" % number) for number in range(20)))
        await asyncio.sleep(0.1)
        assert client.outstanding == 0  # nothing is queued
        await asyncio.to_thread(server.start)
        # The other side must be there again as well: what comes before has no ack.
        await asyncio.wait({waiting}, timeout=0.5)
        if not waiting.done() and not fake._nats.is_connected:
            await eventually(lambda: fake._nats.is_connected)
        await client.publish("a", b"after")
        payloads = fake.payloads(b"a")
        assert len(payloads) == len(set(payloads))  # nothing is sent twice
        waiting.cancel()


async def test_a_publisher_waits_no_longer_than_for_an_ack(start_server: Servers) -> None:
    server = start_server(jetstream=False)
    options = ClientOptions(timeout=5, ack_timeout=0.3)
    async with FakeStreaming(server.url):
        client = await connect(server.url, "test-cluster", "me", options)
        await asyncio.to_thread(server.kill)
        await eventually(lambda: not client._link.writable)
        problems: list[StreamingError | None] = []
        with pytest.raises(StreamingError, match=r"could not be sent: .* did not come back within 0\.3 s"):
            await client.publish_async("a", b"x", problems.append)
        assert problems == []
        with pytest.raises(StreamingError):
            await client.close()
        assert client.closed


async def test_a_client_without_reconnection_is_lost(start_server: Servers) -> None:
    server = start_server(jetstream=False)
    lost: list[StreamingError] = []
    async with FakeStreaming(server.url):
        client = await connect(server.url, "test-cluster", "me", PATIENT, lost.append, reconnect_attempts=1)
        await asyncio.to_thread(server.kill)
        with pytest.raises(SessionLostError, match="the connection to NATS was closed"):
            while True:
                await client.publish("a", b"x")
        await eventually(lambda: len(lost) == 1)


async def test_a_server_that_does_not_read_is_waited_for() -> None:
    """What waits to be sent is bounded, whatever the window allows."""
    answering = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","headers":true,"max_payload":8000000}\r\n')
        prefixes = {"pub_prefix": b"p", "close_requests": b"c", "sub_requests": b"s", "unsub_requests": b"u"}
        while answering and (line := await reader.readline()):
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"PUB _STAN.discover"):
                _, _, reply, size = line.split()
                await reader.readexactly(int(size) + 2)
                answer = pb.ConnectResponse(**prefixes).SerializeToString()
                writer.write(encoding.message(reply, b"4", answer))
                break
        await asyncio.sleep(3600)

    tasks: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(serve(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 16) as listening:
        url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        client = await connect(url, "test-cluster", "me", ClientOptions(timeout=0.5))
        sent = 0

        async def publish() -> None:
            nonlocal sent
            while True:
                await client.publish_async("a", bytes(1 << 20))
                sent += 1

        publishing = asyncio.ensure_future(publish())
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        session = client._link._nats._session
        assert session is not None and session.pending < 3 << 20
        assert 0 < sent < client.options.max_outstanding
        publishing.cancel()
        with pytest.raises(StreamingError):
            await client.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("subject", [b"a b", b"a\r\nPUB x 0\r\n", b"\xff", b"a.*"])
async def test_subjects_of_a_server_are_checked(start_server: Servers, subject: bytes) -> None:
    """A client repeats them to NATS."""

    class Wrong(FakeStreaming):
        async def _subscribe(self, message: Any) -> None:
            await self._nats.publish(message.reply, pb.SubscriptionResponse(ack_inbox=subject).SerializeToString())

        async def _connect(self, message: Any) -> None:
            if not self.cluster_id.startswith("wrong"):
                return await super()._connect(message)
            answer = pb.ConnectResponse(pub_prefix=subject, close_requests=b"c")
            return await self._nats.publish(message.reply, answer.SerializeToString())

    server = start_server(jetstream=False)
    async with Wrong(server.url), Wrong(server.url, "wrong"):
        with pytest.raises(StreamingError, match=r"is not a streaming server: .* is no subject"):
            await connect(server.url, "wrong", "me", PATIENT)
        async with await connect(server.url, "test-cluster", "me", PATIENT) as client:
            with pytest.raises(StreamingError, match="has no valid inbox"):
                await client.subscribe("a", print)
