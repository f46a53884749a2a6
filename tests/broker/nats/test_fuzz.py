"""Whatever clients send: the server goes on, the others notice nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.nats.nats_options import Authorization, Permissions, ResponsePermission, SubjectPermission, User
from tests.broker.nats.serving import Raw, serving
from tests.waiting import eventually

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"headers":true}\r\n'
WORDS = st.sampled_from(
    [
        b"a",
        b"a.b",
        b"a.*",
        b">",
        b"*",
        b".",
        b"a..b",
        b"\xff\xfe",
        b"_INBOX.x.1",
        b"q",
        b"1",
        b"-1",
        b"0",
        b"2",
        b"99999999999",
    ]
)
PAYLOADS = st.binary(max_size=40)


@st.composite
def publishes(draw: st.DrawFn) -> bytes:
    payload = draw(PAYLOADS)
    words = draw(st.lists(WORDS, min_size=1, max_size=2))
    if draw(st.booleans()):
        return b"PUB %b %d\r\n%b\r\n" % (b" ".join(words), len(payload), payload)
    size = draw(st.integers(0, len(payload) + 1))
    return b"HPUB %b %d %d\r\n%b\r\n" % (b" ".join(words), size, len(payload), payload)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    operation = draw(
        st.sampled_from([b"SUB", b"UNSUB", b"PUB", b"HPUB", b"PING", b"PONG", b"INFO", b"MSG", b"+OK", b"sub"])
    )
    return (
        operation + b" " + b" ".join(draw(st.lists(WORDS, max_size=4))) + draw(st.sampled_from([b"\r\n", b"\n", b""]))
    )


CONNECTS = st.sampled_from(
    [
        QUIET,
        b"CONNECT {}\r\n",
        b'CONNECT {"verbose":true,"user":"a","pass":"a"}\r\n',
        b'CONNECT {"user":"r","pass":"r","headers":true,"no_responders":true,"verbose":false}\r\n',
        b'CONNECT {"echo":false,"verbose":false}\r\n',
        b"CONNECT [" + b"[" * 2000 + b"\r\n",
        b'CONNECT {"protocol":1e999}\r\n',
        b'CONNECT {"name":"' + b"x" * 3000 + b'"}\r\n',
    ]
)
BYTES = st.lists(st.one_of(publishes(), lines(), CONNECTS, st.binary(max_size=60)), max_size=12).map(b"".join)
USERS = Authorization(
    users=(
        User(
            "a",
            "a",
            permissions=Permissions(SubjectPermission((b"a.>",), (b"a.b",)), SubjectPermission(None, (b"a.b",))),
        ),
        User("r", "r", permissions=Permissions(responses=ResponsePermission())),
        User("z", "z"),
    ),
    no_auth_user="z",
)


@pytest.mark.parametrize("options", [{}, {"authorization": USERS}, {"trace": True, "max_control_line": 64}])
def test_anything(options: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    manager = serving(**options)
    server = loop.run_until_complete(manager.__aenter__())
    inner = server.internal_client("inner") if not options.get("authorization") else None
    if inner is not None:
        inner.subscribe(b">", lambda *_: None)

    async def say(said: list[bytes]) -> None:
        witness = await Raw.connect(server.port, QUIET + b"SUB only.me 1\r\n")
        await witness.until_pong()
        client = await Raw.connect(server.port)
        for part in said:
            client.send(part)
            await asyncio.sleep(0)
        await client.close()
        witness.send(b"PUB only.me 2\r\nhi\r\n")
        got = await witness.until_pong()
        assert got == b"MSG only.me 1 2\r\nhi\r\nPONG\r\n"
        await witness.close()
        await eventually(lambda: not server.connections())
        assert server.subscriptions.interest.count == (1 if inner is not None else 0)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(BYTES, st.lists(st.integers(0, 400), max_size=3))
    def check(said: bytes, cuts: list[int]) -> None:
        places = [0, *sorted(cuts), len(said)]
        loop.run_until_complete(say([said[a:b] for a, b in itertools.pairwise(places) if a <= b]))

    with caplog.at_level(logging.CRITICAL, "broker.nats" if not options.get("trace") else "other"):
        check()
    loop.run_until_complete(manager.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert "Error while handling input" not in caplog.text
