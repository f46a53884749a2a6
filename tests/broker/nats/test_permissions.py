"""Users and what they may do: the same as at nats-server 2.9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import time
from pathlib import Path
from typing import Any

import bcrypt
import nkeys
import pytest

from broker.nats.auth import Authenticator, AuthorizationError, ClientCredentials, Permit
from broker.nats.nats_options import Authorization, Permissions, ResponsePermission, SubjectPermission, User
from tests import servers
from tests.broker.nats.serving import PATIENCE, Raw, serving
from tests.waiting import eventually

PONG = b"PONG\r\n"
CLOSED = b"(closed)"
VIOLATION = b"-ERR 'Authorization Violation'\r\n(closed)"
SEED = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
KEY = nkeys.from_seed(bytearray(SEED))
PUBLIC = KEY.public_key.decode()


def connect(**options: Any) -> bytes:
    said = {"verbose": False, "pedantic": False, "protocol": 1, "headers": True, "no_responders": True} | options
    return b"CONNECT " + json.dumps(said).encode() + b"\r\n"


def user(name: str, password: str = "") -> bytes:
    return connect(user=name, **{"pass": password or name})


def publish_denied(subject: str) -> bytes:
    return f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode()


def subscribe_denied(subject: str, queue: str = "") -> bytes:
    more = f' using queue "{queue}"' if queue else ""
    return f"-ERR 'Permissions Violation for Subscription to \"{subject}\"{more}'\r\n".encode()


USERS = Authorization(
    users=(
        User(
            "a",
            "a",
            permissions=Permissions(
                SubjectPermission((b"foo", b"foo.>", b"bar.*"), (b"bar.x",)),
                SubjectPermission((b"foo.>", b"baz q1"), (b"foo.secret", b"foo.z.*")),
            ),
        ),
        User("r", "r", permissions=Permissions(responses=ResponsePermission(2, 60.0))),
        User("z", "z"),
        User(nkey=PUBLIC),
    )
)
#: The same for nats-server.
CONFIG = {
    "authorization": {
        "users": [
            {
                "user": "a",
                "password": "a",
                "permissions": {
                    "publish": {"allow": ["foo", "foo.>", "bar.*"], "deny": ["bar.x"]},
                    "subscribe": {"allow": ["foo.>", "baz q1"], "deny": ["foo.secret", "foo.z.*"]},
                },
            },
            {"user": "r", "password": "r", "permissions": {"allow_responses": {"max": 2, "expires": "60s"}}},
            {"user": "z", "password": "z"},
            {"nkey": PUBLIC},
        ]
    }
}
CONVERSATIONS = [
    (b"", VIOLATION),
    (b"PUB a 1\r\nx\r\n", VIOLATION),
    (b"SUB a 1\r\n", VIOLATION),
    (b"XYZ\r\n", VIOLATION),
    (connect(), VIOLATION),
    (user("a", "b"), VIOLATION),
    (user("nobody"), VIOLATION),
    (connect(auth_token="a"), VIOLATION),
    (connect(nkey=PUBLIC, sig="abc"), VIOLATION),
    (connect(nkey="UXXX"), VIOLATION),
    (user("z"), PONG),
    (
        user("a") + b"PUB foo 1\r\nx\r\nPUB x 1\r\nx\r\nPUB bar.x 1\r\nx\r\nPUB bar.y 1\r\nx\r\nPUB x y 1\r\nx\r\n",
        publish_denied("x") + publish_denied("bar.x") + publish_denied("x") + PONG,
    ),
    (
        user("a") + b"SUB foo 1\r\nSUB foo.a 2\r\nSUB foo.secret 3\r\nSUB foo.* 4\r\nSUB baz 5\r\nSUB baz q1 6\r\n"
        b"SUB baz q2 7\r\nSUB foo.z.* 8\r\nSUB foo.z.> 9\r\nSUB foo.z.a 10\r\nSUB > 11\r\nUNSUB 1\r\n",
        subscribe_denied("foo")
        + subscribe_denied("foo.secret")
        + subscribe_denied("baz")
        + subscribe_denied("baz", "q2")
        + subscribe_denied("foo.z.*")
        + subscribe_denied("foo.z.>")
        + subscribe_denied("foo.z.a")
        + subscribe_denied(">")
        + PONG,
    ),
    # A wildcard that is allowed does not lead to what is denied.
    (
        user("a") + b"SUB foo.* 1\r\nPUB foo.secret 1\r\nx\r\nPUB foo.other 1\r\ny\r\n",
        b"MSG foo.other 1 1\r\ny\r\n" + PONG,
    ),
    (
        connect(user="a", verbose=True, **{"pass": "a"}) + b"PUB x 1\r\nx\r\nSUB q 1\r\n",
        b"+OK\r\n" + publish_denied("x") + subscribe_denied("q") + PONG,
    ),
    (user("r") + b"SUB req 1\r\nPUB req 1\r\nx\r\n", publish_denied("req") + PONG),
]


async def _all(port: int) -> list[bytes]:
    answers = []
    for said, _ in CONVERSATIONS:
        async with await Raw.connect(port, said) as client:
            answers.append(await client.until_pong())
    return answers


async def _respond(port: int) -> bytes:
    """A requester asks once, the responder answers three times though it may twice."""
    async with await Raw.connect(port, user("r") + b"SUB req 1\r\n") as responder:
        await responder.until_pong()
        async with await Raw.connect(port, user("z") + b"SUB rep 1\r\n") as requester:
            await requester.until_pong()
            requester.send(b"PUB req rep 1\r\n?\r\n")
            assert await responder.line() + await responder.line() == b"MSG req 1 rep 1\r\n?\r\n"
            responder.send(b"PUB rep 1\r\n1\r\nPUB rep 1\r\n2\r\nPUB rep 1\r\n3\r\n")
            answer = await responder.until_pong()
            return answer + await requester.until_pong()


RESPONSES = publish_denied("rep") + PONG + b"MSG rep 1 1\r\n1\r\nMSG rep 1 1\r\n2\r\n" + PONG


async def test_users_and_permissions() -> None:
    async with serving(authorization=USERS) as server:
        answers = await _all(server.port)
        for (said, wanted), got in zip(CONVERSATIONS, answers, strict=True):
            assert got == wanted, said
        assert await _respond(server.port) == RESPONSES


async def test_an_answer_is_permitted_for_a_while_and_to_so_many() -> None:
    users = tuple(
        User(name, name, permissions=Permissions(responses=ResponsePermission(-1, expires)))
        for name, expires in (("brief", 1e-9), ("long", 60.0), ("always", -1))
    )
    async with serving(authorization=Authorization(users=users)) as server:
        for name in ("brief", "long", "always"):
            async with await Raw.connect(server.port, user(name)) as client:
                await client.until_pong()
                (session,) = server.connections()
                for number in range(1 << 16):
                    session.remember_reply(b"rep.%d" % number)
                assert session.may_respond(b"rep.0") is session.may_respond(b"rep.65535") is (name != "brief")
                session.remember_reply(b"rep.more")
                client.send(b"PUB rep.0 1\r\nx\r\nPUB rep.1 1\r\nx\r\nPUB rep.more 1\r\nx\r\n")
                refused = [publish_denied(f"rep.{each}") for each in (0, 1, "more")]
                assert await client.until_pong() == b"".join(refused if name == "brief" else refused[:1]) + PONG
            await eventually(lambda: not server.connections())


@pytest.mark.parametrize("version", servers.available()[:1])
async def test_nats_server_does_the_same(tmp_path: Path, version: str) -> None:
    with servers.NatsServer(tmp_path, version, CONFIG, jetstream=False) as real:
        answers = await _all(real.port)
        responses = await _respond(real.port)
    for (said, wanted), got in zip(CONVERSATIONS, answers, strict=True):
        assert got == wanted, said
    assert responses == RESPONSES


HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


@pytest.mark.parametrize(
    ("authorization", "good", "bad"),
    [
        (Authorization(user="u", password="p"), connect(user="u", **{"pass": "p"}), user("u")),
        (Authorization(token="t"), connect(auth_token="t"), connect(auth_token="x")),
        (Authorization(user="u", password=HASHED), user("u", "secret"), user("u", HASHED)),
        (Authorization(token=HASHED), connect(auth_token="secret"), connect(auth_token=HASHED)),
        (Authorization(users=(User("u", HASHED),)), user("u", "secret"), user("u", "x")),
    ],
    ids=["password", "token", "hashed-password", "hashed-token", "users"],
)
async def test_passwords_and_tokens(authorization: Authorization, good: bytes, bad: bytes) -> None:
    async with serving(authorization=authorization) as server:
        async with await Raw.connect(server.port, good + b"SUB a 1\r\nPUB a 1\r\nx\r\n") as client:
            assert b'"auth_required":true' in client.info
            assert await client.until_pong() == b"MSG a 1 1\r\nx\r\n" + PONG
        async with await Raw.connect(server.port, bad) as client:
            assert await client.until_pong() == VIOLATION


async def test_nkeys_sign_the_nonce() -> None:
    import base64

    async with serving(authorization=USERS) as server:
        for encode in (base64.urlsafe_b64encode, base64.b64encode, lambda raw: base64.b64encode(raw).rstrip(b"=")):
            async with await Raw.connect(server.port) as client:
                nonce = json.loads(client.info[5:])["nonce"].encode()
                signature = encode(KEY.sign(nonce)).decode()
                client.send(connect(nkey=PUBLIC, sig=signature))
                assert await client.until_pong() == PONG
        async with await Raw.connect(server.port, connect(nkey=PUBLIC, sig=signature)) as client:
            # An old signature is of no use.
            assert await client.until_pong() == VIOLATION


async def test_clients_without_credentials_can_be_somebody() -> None:
    users = (User("guest", "g", permissions=Permissions(SubjectPermission((b"in",)))), User("b", "b"))
    async with serving(authorization=Authorization(users=users, no_auth_user="guest")) as server:
        async with await Raw.connect(server.port, connect() + b"PUB in 1\r\nx\r\nPUB out 1\r\nx\r\n") as client:
            assert b"auth_required" not in client.info
            assert await client.until_pong() == publish_denied("out") + PONG
        async with await Raw.connect(server.port, user("b", "wrong")) as client:
            assert await client.until_pong() == VIOLATION


async def test_who_says_nothing_has_to_go() -> None:
    authorization = Authorization(user="u", password="p", timeout=0.05)
    async with serving(authorization=authorization) as server, await Raw.connect(server.port) as client:
        assert await client.rest() == b"-ERR 'Authentication Timeout'\r\n"


async def test_who_goes_on_sending_reads_why_it_was_refused() -> None:
    """nats-py sends PING behind CONNECT, which may come when the connection is closed already."""

    def refused(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            client.recv(1 << 16)  # INFO
            client.sendall(connect())
            ended = select.poll()
            ended.register(client, select.POLLRDHUP)
            assert ended.poll(PATIENCE * 1000)
            for _ in range(3):
                client.sendall(b"PING\r\n")
            said = client.recv(1 << 16)
            assert client.recv(1) == b""
            # The server does not wait for ever until the client closes.
            with contextlib.suppress(ConnectionError):
                while ended.poll(PATIENCE * 1000)[0][1] & select.POLLHUP == 0:
                    client.sendall(b"PING\r\n" * 100_000)
                    time.sleep(0.01)
            return said

    async with serving(authorization=Authorization(user="u", password="p")) as server:
        assert await asyncio.to_thread(refused, server.port) == b"-ERR 'Authorization Violation'\r\n"


async def test_clients_of_this_process_need_to_be_somebody() -> None:
    async with serving(authorization=Authorization(user="u", password="p")) as server:
        assert server.internal_client("x").user == "u"
    async with serving(authorization=Authorization(token=HASHED)) as server:
        server.internal_client("x", ClientCredentials(token="secret"))
    async with serving(authorization=USERS) as server:
        with pytest.raises(AuthorizationError, match="nats: Authorization Violation"):
            server.internal_client("x")
        with pytest.raises(AuthorizationError):
            server.internal_client("x", ClientCredentials(user="a", password="z"))
        client = server.internal_client("x", ClientCredentials(user="a", password="a"))
        got: list[int] = []
        with pytest.raises(PermissionError):
            client.subscribe(b"nothing", lambda *_: None)
        client.subscribe(b"foo.*", lambda buffer, frames, begin, end: got.append(end - begin))
        assert client.publish(b"foo.a", b"") == 1
        assert client.publish(b"foo.secret", b"") == 0
        assert client.publish(b"x", b"") == 0


def test_rules() -> None:
    permit = Permit(Permissions(SubjectPermission(None, (b"a.*", b">"))))
    assert not permit.may_publish(b"a.b") and not permit.may_publish(b"x")
    assert permit.may_subscribe(b"x")
    permit = Permit(Permissions(subscribe=SubjectPermission(None, (b"a.*.c", b"q g", b"z.>"))))
    assert permit.narrows(b"a.>") and permit.narrows(b"a.b.*") and permit.narrows(b">") and permit.narrows(b"z.*")
    assert not permit.narrows(b"a.*") and not permit.narrows(b"b.>") and not permit.narrows(b"a.b.c")
    assert permit.may_subscribe(b"q") and not permit.may_subscribe(b"q", b"g") and permit.may_subscribe(b"q", b"h")
    assert not permit.may_receive(b"a.b.c") and permit.may_receive(b"a.b")


def test_hashed_passwords_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AuthorizationError, match="bcrypt, which is not installed"):
        Authenticator(Authorization(user="u", password="$2a$04$" + 53 * "x"))
    assert Authenticator(Authorization(user="u", password="plain")).plain_passwords
