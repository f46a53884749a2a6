"""TLS: after INFO, as NATS does it; with and without certificates of clients."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import nats
import pytest

from broker.nats import tls
from broker.nats.auth import Authenticator, ClientCredentials
from broker.nats.nats_options import Authorization, TLSOptions, User
from tests import natsclient
from tests.broker.nats.certificates import Party, old_certificate, party
from tests.broker.nats.serving import PATIENCE, Raw, both_loops, serving


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Party]:
    folder = tmp_path_factory.mktemp("certificates")
    ca = party(folder, "ca")
    return {
        "ca": ca,
        "server": party(folder, "server", ca),
        "client": party(folder, "client", ca, email="bob@example.com"),
        "stranger": party(folder, "stranger"),
    }


def options(parties: dict[str, Party], **more: object) -> TLSOptions:
    server = parties["server"]
    return TLSOptions(server.cert, server.key, parties["ca"].cert, **more)  # type: ignore[arg-type]


def context(parties: dict[str, Party], who: str = "") -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=str(parties["ca"].cert))
    if who:
        found.load_cert_chain(parties[who].cert, parties[who].key)
    return found


@both_loops
async def test_messages_over_tls(parties: dict[str, Party]) -> None:
    async with (
        serving(tls=options(parties)) as server,
        natsclient.connected(f"tls://127.0.0.1:{server.port}", tls=context(parties)) as client,
    ):
        inbox = await client.subscribe("a.*")
        big = bytes(range(256)) * 2000
        for i in range(200):
            await client.publish("a.b", b"%d" % i)
        await client.publish("a.c", big)
        await client.flush()
        got = [(await inbox.next_msg(PATIENCE)).data for _ in range(201)]
        assert got == [b"%d" % i for i in range(200)] + [big]
        [connection] = server.connections()
        assert connection.tls_version in ("1.2", "1.3")
        assert connection.tls_cipher


async def test_clients_without_certificate_are_refused(parties: dict[str, Party]) -> None:
    async with serving(tls=options(parties, verify=True)) as server:
        url = f"tls://127.0.0.1:{server.port}"
        for who in ("", "stranger"):
            with pytest.raises((OSError, nats.errors.Error, asyncio.TimeoutError)):
                await natsclient.connect(
                    url,
                    tls=context(parties, who),
                    connect_timeout=1,
                    allow_reconnect=False,
                    max_reconnect_attempts=0,
                )
        async with natsclient.connected(url, tls=context(parties, "client")) as client:
            await client.flush()


async def test_certificates_name_users(parties: dict[str, Party]) -> None:
    users = Authorization(users=(User("bob@example.com"), User("x")))
    async with (
        serving(tls=options(parties, verify_and_map=True), authorization=users) as server,
        natsclient.connected(f"tls://127.0.0.1:{server.port}", tls=context(parties, "client")) as client,
    ):
        await client.flush()
        assert [each.user for each in server.clients()] == ["bob@example.com"]
    users = Authorization(users=(User("x"),))
    async with serving(tls=options(parties, verify_and_map=True), authorization=users) as server:
        with pytest.raises(nats.errors.Error):
            await natsclient.connect(
                f"tls://127.0.0.1:{server.port}",
                tls=context(parties, "client"),
                allow_reconnect=False,
                max_reconnect_attempts=0,
            )


async def test_clients_that_do_not_speak_tls(parties: dict[str, Party]) -> None:
    async with serving(tls=options(parties, timeout=0.3)) as server:
        async with await Raw.connect(server.port, b"CONNECT {}\r\nPING\r\n") as client:
            assert b'"tls_required":true' in client.info
            assert b"PONG" not in await client.rest()
        async with await Raw.connect(server.port) as client:
            # One that says nothing.
            assert await client.rest() == b""
        assert not server.connections()
        assert {each.reason for each in server.closed} == {"TLS Handshake Failure"}


def test_options_that_cannot_be_used(parties: dict[str, Party], tmp_path: Path) -> None:
    server = parties["server"]
    with pytest.raises(tls.TLSError, match="key pair"):
        tls.server_context(TLSOptions(tmp_path / "none", server.key))
    with pytest.raises(tls.TLSError, match="key pair"):
        tls.server_context(TLSOptions(server.cert, parties["ca"].key))
    (tmp_path / "bad").write_text("no certificate")
    with pytest.raises(tls.TLSError, match="root ca"):
        tls.server_context(TLSOptions(server.cert, server.key, tmp_path / "bad"))
    with pytest.raises(tls.TLSError, match="unrecognized cipher"):
        tls.server_context(options(parties, ciphers=("TLS_FOO",)))
    with pytest.raises(tls.TLSError, match="unrecognized curve"):
        tls.server_context(options(parties, curves=("Curve1",)))
    restricted = tls.server_context(
        options(parties, ciphers=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), curves=("CurveP256",))
    )
    older = {each["name"] for each in restricted.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert older == {"ECDHE-ECDSA-AES128-GCM-SHA256"}
    only = tls.server_context(options(parties, ciphers=("TLS_AES_128_GCM_SHA256",)))
    assert only.minimum_version == ssl.TLSVersion.TLSv1_3


def test_a_certificate_that_openssl_finds_too_weak(tmp_path: Path) -> None:
    cert, key = old_certificate(tmp_path)
    with pytest.raises(tls.TLSError, match="CA_MD_TOO_WEAK"):
        tls.server_context(TLSOptions(cert, key))
    taken = tls.server_context(TLSOptions(cert, key, insecure=True))
    usual = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert [each["name"] for each in taken.get_ciphers()] == [each["name"] for each in usual.get_ciphers()]
    assert taken.minimum_version == ssl.TLSVersion.TLSv1_2


def test_distinguished_names() -> None:
    def who(subject: str, *users: str) -> str:
        authenticator = Authenticator(Authorization(users=tuple(map(User, users))), map_certificates=True)
        check = authenticator.check(ClientCredentials(names=("x.example.com", subject)))
        return check.identity.name if check.decide() else ""

    assert who("CN=a,OU=b,O=c", "O=c,OU=b,CN=a") == "O=c,OU=b,CN=a"
    assert who("CN=a,OU=b", "OU=b, CN=a", "cn = a, ou = b") == "cn = a, ou = b", "the same order comes first"
    assert who("CN=a,DC=example,DC=org", "dc=org,dc=example,cn=a")
    assert who(r"CN=a\,b,OU=\C3\A9", r"OU=é,CN=a\2Cb")
    assert who("CN=a+UID=7,O=c", "O=c,UID=7+CN=a")
    assert who("1.2.840.113549.1.9.1=a@b.c,CN=a", "CN=a,emailAddress=a@b.c")
    assert who("CN=a", "a") == ""
    assert who("CN=a,OU=b", "CN=a") == who("CN=a", "CN=a,OU=b") == who("CN=a", "CN=A") == ""
    assert who("CN=a,OU=b", "CN=a,OU=b,", "=a", "") == ""
    assert who("CN=a,CN=a,OU=b", "CN=a,OU=b,OU=b") == "", "no name counts twice"
    assert who("", "") == ""
