"""Connections to an external NATS server: who we are, TLS, and what happens when they are lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.bus.embedded import ROLES
from broker.bus.external import BusError, ExternalBus
from broker.bus.external import servers as servers_of
from broker.config.broker_options import ClientTLSOptions, ConnectionOptions
from broker.nats.nats_options import Authorization, TLSOptions, User
from broker.streaming.ports import RequestOutcome, Role
from stantools.errors import StantoolsError
from stantools.nats.login import redacted
from tests import servers
from tests.broker.bus.test_bus import REAL, Heard, ask, barrier
from tests.broker.nats.serving import both_loops, serving
from tests.nats.authority import Authority, Operator, new_pair


async def works(options: ConnectionOptions) -> None:
    """Connects, and sends something around."""
    bus = ExternalBus(options, b"c1")
    await bus.connect()
    try:
        heard = Heard()
        bus.listen(Role.ACKS, b"a", heard)
        await barrier(bus)
        assert bus.publish(Role.SEND, b"a", b"x")
        await heard.wait(1)
    finally:
        await bus.close()


async def refused(options: ConnectionOptions) -> str:
    with pytest.raises(StantoolsError) as caught:
        await works(options)
    return caught.value.message


def options(port: int, **more: Any) -> ConnectionOptions:
    return ConnectionOptions(urls=f"nats://127.0.0.1:{port}", **more)


async def test_user_and_password() -> None:
    async with serving(authorization=Authorization(user="u", password="p@")) as server:
        await works(options(server.port, user="u", password="p@"))
        await works(ConnectionOptions(urls=f"nats://u:p%40@127.0.0.1:{server.port}"))
        assert await refused(options(server.port)) == "nats: Authorization Violation"
        assert await refused(options(server.port, user="u", password="q")) == "nats: Authorization Violation"


async def test_token() -> None:
    async with serving(authorization=Authorization(token="secret")) as server:
        await works(options(server.port, token="secret"))
        await works(ConnectionOptions(urls=f"secret@127.0.0.1:{server.port}"))
        assert await refused(options(server.port, token="x")) == "nats: Authorization Violation"


async def test_nkey(tmp_path: Path) -> None:
    seed, public = new_pair()
    file = tmp_path / "seed.nk"
    file.write_text(seed)

    async with serving(authorization=Authorization(users=(User(nkey=public),))) as server:
        await works(options(server.port, nkey_seed_file=str(file)))
        assert await refused(options(server.port)) == "nats: Authorization Violation"
    assert "cannot be read" in await refused(options(1, nkey_seed_file=str(tmp_path / "none")))


@REAL
async def test_credentials_file(tmp_path: Path) -> None:
    operator = Operator()
    good = operator.write_user(tmp_path / "good.creds")
    stranger = Operator().write_user(tmp_path / "stranger.creds")
    with servers.NatsServer(tmp_path / "server", config=operator.config(), jetstream=False) as server:
        await works(options(server.port, credentials=str(good)))
        said = await refused(options(server.port, credentials=str(stranger)))
        assert said == "nats: Authorization Violation"


@both_loops
async def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    cert, key = authority.issue("server", "127.0.0.1")
    mine, my_key = authority.issue("client")

    tls = TLSOptions(cert, key, ca=authority.path)
    async with serving(tls=tls) as server:
        await works(options(server.port, tls=ClientTLSOptions(ca=authority.path)))
        await works(options(server.port, tls=ClientTLSOptions(skip_verify=True)))
        assert (await refused(options(server.port))).startswith("x509: ")
        bogus = ClientTLSOptions(ca=authority.path, server_name="bogus")
        assert (await refused(options(server.port, tls=bogus))).startswith("x509: ")
    async with serving(tls=TLSOptions(cert, key, ca=authority.path, verify=True)) as server:
        await works(options(server.port, tls=ClientTLSOptions(mine, my_key, authority.path)))
        await refused(options(server.port, tls=ClientTLSOptions(ca=authority.path)))
    async with serving() as server:
        said = await refused(options(server.port, tls=ClientTLSOptions(ca=authority.path)))
        assert said == "nats: secure connection not available"
    broken = ClientTLSOptions(ca=tmp_path / "none")
    assert "error parsing TLS files" in await refused(options(1, tls=broken))


def test_urls() -> None:
    def found(urls: str) -> list[str]:
        return [str(server) for server in servers_of(ConnectionOptions(urls=urls))]

    assert found("nats://localhost:4222") == ["nats://localhost:4222"]
    assert found("nats://u:p@h1, tls://[::1]:5555,h2") == [
        "nats://[REDACTED]@h1:4222",
        "tls://[::1]:5555",
        "nats://h2:4222",
    ]
    for urls in ("foo", "", "localhost:4222", "nats://localhost", "ws://h:80,h2", "nats://h:99999", "nats://:4222,"):
        with pytest.raises(BusError, match="malformed url"):
            found(urls)
    assert redacted("nats://u:p@h, tls://t@h") == "nats://[REDACTED]@h, tls://[REDACTED]@h"


async def test_nobody_there() -> None:
    assert await refused(options(1)) == "nats: no servers available for connection"


async def test_a_server_that_speaks_something_else() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        said = await refused(options(server.sockets[0].getsockname()[1]))
        assert said == "nats: no servers available for connection"


async def test_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker")

    async with serving() as server:
        port = server.port
        bus = ExternalBus(options(port), b"c1")
        await bus.connect()
        heard = Heard()
        bus.listen(Role.ACKS, b"a", heard)
        await barrier(bus)
    async with asyncio.timeout(60):
        while bus.publish(Role.SEND, b"a", b"lost"):
            await asyncio.sleep(0.01)
    later = Heard()
    bus.listen(Role.GENERAL, b"b", later)
    assert not bus.publish(Role.SEND, b"a", b"lost")
    assert (await ask(bus, b"a", 0.01)).outcome is RequestOutcome.TIMEOUT
    await barrier(bus)  # with nobody there it is reached as well
    async with serving(port=port):
        async with asyncio.timeout(60):
            while not all(bus.publish(role, b"nobody", b"") for role in ROLES):
                await asyncio.sleep(0.01)
        await barrier(bus)
        assert bus.publish(Role.SEND, b"a", b"found")
        assert bus.publish(Role.SEND, b"b", b"found, too")
        await heard.wait(1)
        await later.wait(1)
        await bus.close()
    assert [m[2] for m in heard.messages if m[2] != b"lost"] == [b"found"]
    assert 'connection "_NSS-c1-send" has been disconnected: ' in caplog.text
    assert 'connection "_NSS-c1-send" reconnected to NATS Server at "nats://127.0.0.1:' in caplog.text


async def test_names_and_order_of_the_connections() -> None:
    async with serving() as server:
        bus = ExternalBus(options(server.port), b"c1", roles=(*ROLES, Role.PARTITIONS))
        await bus.connect()
        names = [client.name for client in sorted(server.clients(), key=lambda client: client.cid)]
        assert names == [f"_NSS-c1-{role}" for role in ("send", "general", "acks", "hb", "pc")]
        await bus.close()
