"""Connecting to real servers: every way to log in, TLS, and every way to fail."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nkeys
import pytest

from stantools.errors import ExitCode, StoreUnreadableError, UsageError
from stantools.nats import encoding
from stantools.nats.client import NatsMessage
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection, connect
from stantools.nats.errors import (
    CannotConnectError,
    ConnectionLostError,
    NatsError,
    NoAnswerError,
    NoResponderError,
    PermissionDeniedError,
)
from tests import servers
from tests.nats.authority import Authority, Operator, new_pair
from tests.waiting import eventually

PASSWORD = "pa%ss:wörd"


async def reach(*urls: str, **options: Any) -> tuple[str, bool]:
    """Connects and waits for a PONG. Returns the URL and whether the connection is encrypted."""

    async with connect(ConnectOptions(servers=urls, **options)) as connection:
        await connection.flush()
        return connection.url, connection.encrypted


async def refusal(*urls: str, **options: Any) -> CannotConnectError:
    with pytest.raises(CannotConnectError) as caught:
        await reach(*urls, **options)
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    assert caught.value.remedy
    assert PASSWORD not in caught.value.message
    return caught.value


async def test_a_connection_knows_its_server(each_server: Any) -> None:
    async with connect(ConnectOptions(servers=(each_server.url,))) as connection:
        assert ".".join(map(str, connection.version)) == each_server.version
        assert connection.url == each_server.url
        assert connection.max_payload == 1 << 20
        assert connection.cluster is None
        assert connection.server_name.startswith("N")


async def test_connects_to_the_first_reachable_server(start_server: Callable[..., Any]) -> None:
    server = start_server()
    assert (await reach(f"nats://127.0.0.1:{servers.free_port()}", server.url))[0] == server.url


async def test_user_and_password(start_server: Callable[..., Any]) -> None:
    server = start_server(config={"authorization": {"user": "me", "password": PASSWORD}})
    await reach(server.url, user="me", password=PASSWORD)
    await reach(f"nats://me:pa%25ss%3Aw%C3%B6rd@127.0.0.1:{server.port}")
    assert "does not accept the credentials" in str(await refusal(server.url, user="me", password="other"))
    assert "it requires credentials and none were given" in str(await refusal(server.url))
    problem = await refusal(f"nats://me:{PASSWORD.replace('%', '%25')}x@127.0.0.1:{server.port}")
    assert problem.message == f"cannot connect to {server.url}: it does not accept the credentials"


async def test_token(start_server: Callable[..., Any]) -> None:
    server = start_server(config={"authorization": {"token": "a-token"}})
    await reach(server.url, token="a-token")
    await reach(f"nats://a-token@127.0.0.1:{server.port}")
    assert "does not accept" in str(await refusal(server.url, token="another"))


async def test_nkey(start_server: Callable[..., Any], tmp_path: Path) -> None:
    seed, public = new_pair()
    server = start_server(config={"authorization": {"users": [{"nkey": public}]}})
    good, other = tmp_path / "good.nk", tmp_path / "other.nk"
    good.write_text(f"# mine\n{seed}\n")
    other.write_text(new_pair()[0])
    await reach(server.url, nkey=good)
    assert "does not accept" in str(await refusal(server.url, nkey=other))


async def test_credentials_file(start_server: Callable[..., Any], tmp_path: Path) -> None:
    operator = Operator()
    server = start_server(config=operator.config())
    good = operator.write_user(tmp_path / "good.creds")
    await reach(server.url, creds=good)
    windows = tmp_path / "windows.creds"
    windows.write_bytes(good.read_bytes().replace(b"\n", b"\r\n"))
    await reach(server.url, creds=windows)
    assert "does not accept" in str(await refusal(server.url, creds=Operator().write_user(tmp_path / "other.creds")))
    expired = operator.write_user(tmp_path / "expired.creds", expired=True)
    assert "does not accept" in str(await refusal(server.url, creds=expired)) or "expired" in str(
        await refusal(server.url, creds=expired)
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


def tls(authority: Authority, *hosts: str, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue("server", *hosts)
    return {"tls": {"cert_file": str(certificate), "key_file": str(key), **more}}


async def test_tls(start_server: Callable[..., Any], authority: Authority, tmp_path: Path) -> None:
    server = start_server(config=tls(authority, "127.0.0.1"))
    assert await reach(server.url, tls_ca=authority.path) == (server.url, True)
    assert (await reach(server.url.replace("nats:", "tls:"), tls_insecure=True))[1]
    assert "its certificate is not trusted: unable to get local issuer" in str(await refusal(server.url))
    other = Authority(tmp_path / "other").path
    problem = await refusal(server.url, tls_ca=other)
    assert "not trusted" in problem.message
    assert "--tls-ca" in problem.remedy


async def test_tls_with_a_name_other_than_the_host(start_server: Callable[..., Any], authority: Authority) -> None:
    server = start_server(config=tls(authority, "nats.example"))
    await reach(server.url, tls_ca=authority.path, tls_hostname="nats.example")
    assert "IP address mismatch" in str(await refusal(server.url, tls_ca=authority.path))


async def test_tls_before_the_info_line(authority: Authority, tmp_path: Path) -> None:
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip("no server")
    server = servers.NatsServer(tmp_path, config=tls(authority, "127.0.0.1", handshake_first=True))
    server.start(ready=False)
    try:
        while "Server is ready" not in server.text():
            time.sleep(0.02)
        await reach(server.url, tls_ca=authority.path, tls_first=True)
        problem = await refusal(server.url, tls_ca=authority.path, timeout=0.5)
        assert "tls_first" in problem.remedy
    finally:
        server.stop()


async def test_client_certificate(start_server: Callable[..., Any], authority: Authority, tmp_path: Path) -> None:
    server = start_server(config=tls(authority, "127.0.0.1", ca_file=str(authority.path), verify=True))
    certificate, key = authority.issue("client")
    await reach(server.url, tls_ca=authority.path, tls_cert=certificate, tls_key=key)
    assert "requires a client certificate" in str(await refusal(server.url, tls_ca=authority.path))
    stranger, its_key = Authority(tmp_path / "other").issue("client")
    problem = await refusal(server.url, tls_ca=authority.path, tls_cert=stranger, tls_key=its_key)
    assert "does not accept the client certificate" in problem.message


async def test_unusable_key_and_certificate_files_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("client")
    _, hidden = authority.issue("hidden", passphrase=b"secret")
    empty, text = tmp_path / "empty", tmp_path / "text"
    empty.write_bytes(b"")
    text.write_text("no key at all\nreally\n")
    account = tmp_path / "account.nk"
    account.write_text(new_pair(nkeys.PREFIX_BYTE_ACCOUNT)[0])
    half = tmp_path / "half.creds"
    half.write_text(Operator().write_user(tmp_path / "whole.creds").read_text().partition("*****")[0])
    for options, said in (
        ({"tls_ca": tmp_path / "missing"}, "cannot be read: No such file"),
        ({"tls_ca": tmp_path}, "cannot be read"),
        ({"tls_ca": empty}, "is empty"),
        ({"tls_ca": text}, "text holds no certificate in PEM form$"),
        ({"tls_cert": certificate, "tls_key": hidden}, f"the private key in {hidden} is encrypted$"),
        ({"tls_cert": certificate, "tls_key": text}, f"{text} holds no private key in PEM form$"),
        ({"nkey": text}, "holds no nkey seed"),
        ({"nkey": key}, "nkey"),
        ({"nkey": account}, "is not one of a user"),
        ({"creds": text}, "holds no user JWT"),
        ({"creds": half}, "holds no nkey seed"),
    ):
        with pytest.raises(StoreUnreadableError, match=said) as caught:
            await reach("nats://127.0.0.1:1", **options)
        assert str(next(iter(options.values()))) in caught.value.message or "tls_key" in options


@contextmanager
def canned_server(answer: bytes, *, hold: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends `answer` and keeps what it receives."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(2)
                connection.sendall(answer)
                try:
                    while hold and (data := connection.recv(4096)):
                        heard.append(data)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"nats://127.0.0.1:{listening.getsockname()[1]}", heard
        thread.join()


async def test_nothing_is_sent_in_clear_text_when_tls_is_wanted() -> None:
    with canned_server(b'INFO {"auth_required":true,"version":"2.10.0","max_payload":100}\r\n', hold=True) as (
        url,
        heard,
    ):
        problem = await refusal(url.replace("nats:", "tls:"), user="me", password=PASSWORD, timeout=10)
        assert "does not offer TLS" in problem.message
    assert heard == []


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO nothing\r\n", b"INFO []\r\n", b"", b"x" * 100_000, b"INFO\r\n"],
)
async def test_servers_of_other_protocols_are_refused(answer: bytes) -> None:
    with canned_server(answer) as (url, _):
        assert "cannot connect to" in str(await refusal(url, timeout=1))


async def test_a_silent_server_is_a_timeout() -> None:
    with canned_server(b"", hold=True) as (url, _):
        begun = time.monotonic()
        assert "no answer within 0.3 s" in str(await refusal(url, timeout=0.3))
        assert time.monotonic() - begun < 4


async def test_the_error_gives_a_reason_for_each_server() -> None:
    ports = [servers.free_port() for _ in range(2)]
    problem = await refusal(f"nats://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", "nats://no-such-host.invalid")
    assert problem.message.count("nothing is listening there") == 2
    assert "nats://no-such-host.invalid:4222: " in problem.message


async def test_embedded_is_no_url_to_connect_to() -> None:
    with pytest.raises(UsageError, match="must be started before"):
        await reach("embedded")


async def test_failing_requests_say_why(start_server: Callable[..., Any]) -> None:
    permissions = {"publish": ["a", "b", "$JS.>"], "subscribe": ["_INBOX.>", "b"]}
    config = {"authorization": {"users": [{"user": "u", "password": "p", "permissions": permissions}]}}
    server = start_server(config=config)

    async with connect(ConnectOptions(servers=(server.url,), user="u", password="p")) as connection:
        with pytest.raises(NoResponderError, match="nothing listens on a at"):
            await connection.request("a")
        connection.listen(b"b", _ignore)
        with pytest.raises(NoAnswerError, match=r"did not answer b within 0.3 s"):
            await connection.request("b", timeout=0.3)
        begun = time.monotonic()
        with pytest.raises(PermissionDeniedError, match=r"the user u may not publish to Other.One"):
            await connection.request("Other.One", timeout=30)
        assert time.monotonic() - begun < 15
        with pytest.raises(NatsError, match="is larger than the 1048576 bytes"):
            await connection.request("a", bytes(2 << 20))
        with connection.watch("Forbidden.*") as failed:
            connection.listen(b"Forbidden.*", _ignore)
            await connection.flush()
            assert failed.result().message == "the user u may not subscribe to Forbidden.*"


def _ignore(_: Any) -> None:
    return


async def test_a_lost_connection_fails_requests_at_once_and_reconnects(start_server: Callable[..., Any]) -> None:
    server = start_server()

    begun = time.monotonic()
    async with connect(ConnectOptions(servers=(server.url,))) as connection:
        connection.listen(b"silent", _ignore)
        waiting = asyncio.ensure_future(connection.request("silent", timeout=120))
        await asyncio.sleep(0.05)
        server.kill()
        with pytest.raises(ConnectionLostError, match=f"{server.url}: the connection broke"):
            await waiting
        with pytest.raises(ConnectionLostError, match=r"did not come back within 0.1 s"):
            await connection.wait_connected(0.1)
        server.start()
        # Requests wait until the connection is there again.
        with pytest.raises(NoResponderError):
            await connection.request("nobody")
    assert time.monotonic() - begun < 60


async def test_a_sender_learns_that_the_connection_broke(start_server: Callable[..., Any]) -> None:
    """Also one that never waits for anything else: it lets the loop see the end, and reconnect."""
    server = start_server()
    async with connect(ConnectOptions(servers=(server.url,))) as connection:
        server.kill()
        frames, turns = encoding.publish(b"a", bytes(1000), b"", b""), 0
        with pytest.raises(ConnectionLostError, match="the connection broke"):
            for _ in range(20_000):
                await connection.write(frames)
        server.start()
        while not connection.connected and turns < 1_000_000:
            turns += 1
            with suppress(ConnectionLostError):
                await connection.write(frames)
        assert connection.connected


async def test_a_full_buffer_is_waited_for(start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no lost connection."""
    monkeypatch.setattr("stantools.nats.nats_session._MAX_PENDING", 1 << 16)
    server = start_server()
    async with connect(ConnectOptions(servers=(server.url,))) as connection:
        inbox = connection.open_inbox(b"a")
        await connection.flush()
        frames = encoding.publish(b"a", bytes(1000), b"", b"") * 100
        for _ in range(50):
            assert connection.send(frames)
            await connection.write(frames)
        received = 0
        while received < 10_000:
            received += len(await inbox.receive(20))


async def test_a_slow_reader_loses_nothing(start_server: Callable[..., Any]) -> None:
    """Messages wait in the inbox, so that the server gets its answers to pings in time."""
    server = start_server(config={"ping_interval": "1s", "ping_max": 2})
    async with (
        connect(ConnectOptions(servers=(server.url,))) as publisher,
        connect(ConnectOptions(servers=(server.url,))) as connection,
    ):
        inbox = connection.open_inbox(b"work")
        await connection.flush()
        with connection.watch() as failed:
            taken: list[int] = []
            for number in range(3500):
                publisher.publish(b"work", b"%02048d" % number)
            await publisher.flush()
            while len(taken) < 3500:
                received = await connection.receive(inbox, failed, 30, "the work")
                for row in range(0, len(received), 100):
                    await asyncio.sleep(0.1)
                    taken += [int(received.data(each)[-4:]) for each in range(row, min(row + 100, len(received)))]
            assert not failed.done() and connection.connected
    assert taken == list(range(3500))


async def test_a_callback_that_fails_loses_no_other_message(start_server: Callable[..., Any]) -> None:
    server = start_server()
    taken: list[bytes] = []

    def take(message: NatsMessage) -> None:
        taken.append(message.data)
        if message.data in (b"1", b"3"):
            raise ValueError(message.data)

    async with connect(ConnectOptions(servers=(server.url,))) as connection:
        connection.listen(b"work", take)
        with connection.watch() as failed:
            for number in range(5):  # sent, and therefore read, together
                connection.publish(b"work", b"%d" % number)
            await eventually(lambda: len(taken) == 5, 20)
            assert "could not be handled" in failed.result().message and "ValueError(b'1')" in failed.result().message
        assert taken == [b"0", b"1", b"2", b"3", b"4"] and connection.connected


async def test_a_callback_that_unsubscribes_gets_nothing_more(start_server: Callable[..., Any]) -> None:
    server = start_server()
    taken: list[bytes] = []

    def take(message: NatsMessage) -> None:
        taken.append(message.data)
        if len(taken) == 2:
            connection.unsubscribe(sid)

    async with connect(ConnectOptions(servers=(server.url,))) as connection:
        sid = connection.listen(b"work", take)
        for number in range(5):
            connection.publish(b"work", b"%d" % number)
        await connection.flush()
        assert taken == [b"0", b"1"]


async def test_a_connection_that_cannot_be_made_again(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stantools.nats.connection.RECONNECT_WAIT", 0.05)
    server = start_server()

    async with connect(ConnectOptions(servers=(server.url,), reconnect_attempts=1)) as connection:
        server.kill()
        assert await _closed(connection)
        with pytest.raises(ConnectionLostError, match="could not be restored: nothing is listening there"):
            await connection.wait_connected()
        with connection.watch() as failed:
            assert isinstance(failed.result(), ConnectionLostError)


async def test_refused_credentials_end_reconnecting_after_two_attempts() -> None:
    visits = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.write(b'INFO {"server_id":"x"}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n" if visits == 1 else b"-ERR 'Authorization Violation'\r\n")
        if visits == 1:
            await reader.readuntil(b"PUB go 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with connect(ConnectOptions(servers=(url,), user="u", password="p")) as connection:
            with connection.watch() as failed:
                connection.publish(b"go")
                await failed
            assert await _closed(connection)
            with pytest.raises(ConnectionLostError, match="restored: it does not accept the credentials"):
                await connection.wait_connected()
    assert visits == 3


async def _closed(connection: NatsConnection) -> bool:
    for _ in range(200):
        if connection.closed:
            return True
        await asyncio.sleep(0.02)
    return False


def test_secrets_are_not_shown() -> None:
    options = ConnectOptions(servers=("nats://u:hidden1@host",), password="hidden2", token="hidden3")
    assert "hidden" not in repr(ConnectOptions(user="u", password="hidden2").checked())
    assert "hidden2" not in repr(options)
    assert "hidden3" not in repr(options)
    assert "hidden1" not in repr(ConnectOptions(servers=("nats://u:hidden1@host",)).checked())


async def test_no_task_is_left_behind(start_server: Callable[..., Any]) -> None:
    server = start_server()

    before = asyncio.all_tasks()
    async with connect(ConnectOptions(servers=(server.url,))) as connection:
        await connection.flush()
    with pytest.raises(CannotConnectError):
        async with connect(ConnectOptions(servers=(f"127.0.0.1:{servers.free_port()}",))):
            raise AssertionError
    await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == before
