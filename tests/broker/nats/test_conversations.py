"""What the server says to bytes: the same as nats-server 2.9 does, seen here and, where it is, asked there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests import servers
from tests.broker.nats.serving import Raw, serving

C = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"headers":true,"no_responders":true}\r\n'
BARE = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
PONG = b"PONG\r\n"
UNKNOWN = b"-ERR 'Unknown Protocol Operation'\r\n(closed)"
CLOSED = b"(closed)"

#: What is sent, and what comes back, up to the answer of a last PING or the end.
CONVERSATIONS = [
    (b"", PONG),
    (b"PUB foo 2\r\nhi\r\n", b"+OK\r\n" + PONG),
    (C + b"FOO\r\n", UNKNOWN),
    (b"GET / HTTP/1.1\r\n\r\n", UNKNOWN),
    (C + b"SUB foo..bar 1\r\n", b"-ERR 'Invalid Subject'\r\n" + PONG),
    (C + b"SUB foo.>.x 1\r\n", b"-ERR 'Invalid Subject'\r\n" + PONG),
    (C + b"SUB foo.>x 1\r\nSUB foo.*x 2\r\n", PONG),
    (
        C + b"SUB foo 1\r\nSUB bar 2\r\nSUB baz 3\r\n",
        b"-ERR 'maximum subscriptions exceeded'\r\n" + PONG,
    ),
    (C + b"PUB foo 2000\r\n", b"-ERR 'Maximum Payload Violation'\r\n" + CLOSED),
    (C + b"PUB foo abc\r\nxx\r\n", CLOSED),
    (C + b"PUB foo -1\r\n", CLOSED),
    (C + b"PUB foo 99999999999999\r\n", CLOSED),
    (C + b"PUB foo 1 2 3\r\nx\r\n", CLOSED),
    (C + b"PUB foo 2\r\nhixx\r\n", UNKNOWN),
    (C + b"PUB foo 2\nhi\r\n", PONG),
    (C + b"PUB foo 0\r\n\r\n", PONG),
    (C + b"SUB " + b"x" * 5000 + b" 1\r\n", b"-ERR 'maximum control line exceeded'\r\n" + CLOSED),
    (C + b"PUB foo bar 2\r\nhi\r\n", PONG),
    (C + b"SUB bar 1\r\nPUB foo bar 2\r\nhi\r\n", b"HMSG bar 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" + PONG),
    # A subscription that has all its messages listens no more, also within one read.
    *(
        (
            C + b"SUB bar 1\r\nSUB foo %b2\r\nUNSUB 2 2\r\n" % queue + 4 * b"PUB foo bar 1\r\nx\r\n",
            2 * b"MSG foo 2 bar 1\r\nx\r\n" + 2 * b"HMSG bar 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" + PONG,
        )
        for queue in (b"", b"q ")
    ),
    (C + b"SUB bar 1\r\nPUB bar foo.x 2\r\nhi\r\n", b"MSG bar 1 foo.x 2\r\nhi\r\n" + PONG),
    (
        C + b"SUB bar 1\r\nHPUB bar 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        b"HMSG bar 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" + PONG,
    ),
    (
        C + b"SUB a 1\r\nHPUB a r 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"HMSG a 1 r 12 12\r\nNATS/1.0\r\n\r\n\r\n" + PONG,
    ),
    (C + b"HPUB bar 16 14\r\nNATS/1.0\r\n\r\nhi\r\n", CLOSED),
    (C + b"UNSUB 9\r\n", PONG),
    (C + b"UNSUB\r\n", UNKNOWN),
    (C + b"SUB\r\n", UNKNOWN),
    (C + b"SUB a b c d\r\n", CLOSED),
    (b'CONNECT {"verbose":1}\r\n', CLOSED),
    (b"CONNECT {bad\r\n", CLOSED),
    (b"CONNECT \r\n", CLOSED),
    (
        b'CONNECT {"verbose":true,"pedantic":true}\r\nPUB foo.* 1\r\nx\r\nPUB foo 1\r\nx\r\nSUB foo.>.x 3\r\n'
        b"SUB bar 1\r\nUNSUB 1 5\r\n",
        b"+OK\r\n-ERR 'Invalid Publish Subject'\r\n+OK\r\n+OK\r\n-ERR 'Invalid Subject'\r\n+OK\r\n+OK\r\n" + PONG,
    ),
    (
        C + b"SUB a 1\r\nSUB a 1\r\nPUB a 1\r\nx\r\nUNSUB 1 2\r\nPUB a 1\r\ny\r\nPUB a 1\r\nz\r\n",
        b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\ny\r\n" + PONG,
    ),
    (C + b"SUB a 1\r\nUNSUB 1 1\r\nPUB a 1\r\nx\r\nPUB a b 1\r\nx\r\n", b"MSG a 1 1\r\nx\r\n" + PONG),
    (C + b"INFO {}\r\n", PONG),
    (C + b"+OK\r\n", PONG),
    (C + b"-ERR 'x'\r\n", CLOSED),
    (C + b"MSG foo 1 2\r\nhi\r\n", UNKNOWN),
    (C + b"PONG\r\n", PONG),
    (C + C, PONG),
    (
        b'CONNECT {"verbose":false,"pedantic":false,"protocol":9}\r\n',
        b"-ERR 'invalid client protocol'\r\n" + CLOSED,
    ),
    (
        b'CONNECT {"verbose":false,"pedantic":false,"no_responders":true}\r\n',
        b"-ERR 'no responders requires headers support'\r\n" + CLOSED,
    ),
    (BARE + b"HPUB bar 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", CLOSED),
    (b'CONNECT {"verbose":false,"pedantic":false,"echo":false}\r\nSUB a 1\r\nPUB a 1\r\nx\r\n', PONG),
    (BARE + b"SUB a 1\r\nPUB a 1\r\nx\r\n\r\n", b"MSG a 1 1\r\nx\r\n" + UNKNOWN),
    (C + b"   PING\r\n", UNKNOWN),
    (C + b"PING   \r\n", PONG + PONG),
    (C + b"ping\r\nsub  foo\t \t1  \r\npub  foo\t 1 \r\nx\r\n", b"PONG\r\nMSG foo 1 1\r\nx\r\n" + PONG),
    (b'CONNECT {"account":"foo"}\r\n', b"-ERR 'Authorization Violation'\r\n" + CLOSED),
    (b'CONNECT {"jwt":"foo","nkey":"x","sig":"z"}\r\n', b"+OK\r\n" + PONG),
    (C + b"SUB > 1\r\nPUB .foo. 1\r\nx\r\n", PONG),
]
LIMITS = {"max_payload": 1000, "max_subscriptions": 2}


async def _all(port: int) -> list[bytes]:
    answers = []
    for said, wanted in CONVERSATIONS:
        async with await Raw.connect(port, said) as client:
            got = await client.until_pong()
            if wanted.count(PONG) > got.count(PONG):
                got += await client.line()
            answers.append(got)
    return answers


async def test_what_the_server_answers() -> None:
    async with serving(**LIMITS) as server:
        answers = await _all(server.port)
        for (said, wanted), got in zip(CONVERSATIONS, answers, strict=True):
            assert got == wanted, said


@pytest.mark.parametrize("version", servers.available()[:1])
async def test_nats_server_answers_the_same(tmp_path: Path, version: str) -> None:
    with servers.NatsServer(tmp_path, version, LIMITS, jetstream=False) as real:
        answers = await _all(real.port)
    for (said, wanted), got in zip(CONVERSATIONS, answers, strict=True):
        assert got == wanted, said


async def test_byte_by_byte_is_the_same() -> None:
    said = C + b"SUB a.* q 12\r\nPUB a.b rep 5\r\nhello\r\nHPUB a.c 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPING\r\n"
    wanted = b"MSG a.b 12 rep 5\r\nhello\r\nHMSG a.c 12 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPONG\r\n"
    async with serving() as server, await Raw.connect(server.port) as client:
        for i in range(len(said)):
            client.send(said[i : i + 1])
            await client.writer.drain()
            await asyncio.sleep(0)
        await client.expect(wanted)


async def test_members_of_info() -> None:
    async with serving(name="n1") as server, await Raw.connect(server.port) as client:
        assert client.info.endswith(b"} \r\n")
        info = json.loads(client.info[5:])
        assert list(info) == [
            "server_id",
            "server_name",
            "version",
            "proto",
            "go",
            "host",
            "port",
            "headers",
            "max_payload",
            "client_id",
            "client_ip",
        ]
        assert info["server_id"].startswith("N") and len(info["server_id"]) == 56
        assert info["server_name"] == "n1"
        assert info["client_id"] == 1
