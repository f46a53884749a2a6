"""The server's own life: log, lame duck mode, reload, clients in its process."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import numpy as np
import pytest

from broker.listening import ListenError
from broker.log import TRACE
from broker.nats.client import CloseReason
from broker.nats.nats_options import Authorization, NatsOptions, Permissions, ReloadError, SubjectPermission, User
from broker.nats.nats_server import NatsServer
from broker.streaming.requests import StreamingRequest, per_request
from stantools.format.envelope import Buffer
from stantools.nats.frames import PAYLOAD, PAYLOAD_SIZE, REPLY, REPLY_SIZE, SUBJECT, SUBJECT_SIZE, Frames, Payloads
from tests.broker.nats.serving import Raw, serving
from tests.broker.nats.test_permissions import user
from tests.waiting import eventually

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"headers":true,"no_responders":true}\r\n'
PONG = b"PONG\r\n"


def options(server: NatsServer, **changed: object) -> NatsOptions:
    import dataclasses

    return dataclasses.replace(server.options, **changed)  # type: ignore[arg-type]


async def test_lines_of_a_start_and_a_stop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    server = NatsServer(NatsOptions(host="127.0.0.1", port=-1, name="n1"), config_file="a.conf")

    async def monitor() -> None:
        logging.getLogger("broker.nats").info("(monitor)")

    await server.start(before_listening=monitor)
    await server.stop()
    server = server
    assert [record.getMessage() for record in caplog.records] == [
        "Starting nats-server",
        f"  Version:  {server.version}",
        "  Git:      [not set]",
        "  Name:     n1",
        f"  ID:       {server.id}",
        "Using configuration file: a.conf",
        "(monitor)",
        f"Listening for client connections on 127.0.0.1:{server.port}",
        "Server is ready",
        "Initiating Shutdown...",
        "Server Exiting..",
    ]


async def test_a_port_in_use() -> None:
    async with serving() as server:
        other = NatsServer(NatsOptions(host="127.0.0.1", port=server.port))
        where = f"127.0.0.1:{server.port}"
        with pytest.raises(ListenError) as failed:
            await other.start()
        assert str(failed.value) == (
            f'Error listening on port: {where}, "listen tcp {where}: bind: address already in use"'
        )


async def test_all_addresses() -> None:
    async with serving(host="0.0.0.0") as server, await Raw.connect(server.port) as client:
        assert json.loads(client.info[5:])["host"] == "0.0.0.0"


async def test_trace_and_debug_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE)

    async with serving(trace=True, debug=True, max_traced_msg_len=3) as server:
        said = user("u", "secret").replace(b"false", b"false", 1) + b"SUB foo q 1\r\nPUB foo r 5\r\nhello\r\n"
        async with await Raw.connect(server.port, said + b"HPUB foo 12 13\r\nNATS/1.0\r\n\r\n!\r\n") as client:
            await client.until_pong()
        await eventually(lambda: not server.connections())
    lines = [re.sub(r"^127.0.0.1:\d+ - cid:1 - ", "", record.getMessage()) for record in caplog.records]
    lines = [line for line in lines if not line.startswith(("  ", "Start", "Listen", "Server", "Init"))]
    assert "secret" not in "".join(lines)
    connect = next(line for line in lines if "CONNECT" in line)
    assert '"pass":"[REDACTED]"' in connect
    assert [line for line in lines if line is not connect and "selector" not in line] == [
        "Client connection created",
        "<<- [SUB foo q 1]",
        "<<- [PUB foo r 5]",
        '<<- MSG_PAYLOAD: ["hel..."]',
        "->> [MSG foo 1 r 5]",
        "<<- [HPUB foo 12 13]",
        '<<- MSG_PAYLOAD: ["NAT..."]',
        "->> [HMSG foo 1 12 13]",
        "<<- [PING]",
        "->> [PONG]",
        "Client connection closed: Client Closed",
    ]


async def test_lame_duck() -> None:
    async with serving(lame_duck_grace_period=0.05, lame_duck_duration=0.2) as server:
        clients = [await Raw.connect(server.port, QUIET) for _ in range(5)]
        for client in clients:
            await client.until_pong()
        duck = asyncio.create_task(server.lame_duck())
        for client in clients:
            assert json.loads((await client.line())[5:])["ldm"] is True
        with pytest.raises(OSError, match=r".*"):
            await asyncio.open_connection("127.0.0.1", server.port)
        for client in clients:
            assert await client.rest() == b""
            await client.close()
        await duck
        await server.stop()  # once more does no harm
        assert {each.reason for each in server.closed} == {CloseReason.SERVER_SHUTDOWN}


async def test_reload() -> None:
    async with serving() as server, await Raw.connect(server.port, QUIET) as client:
        await client.until_pong()
        for name, value, line in [
            ("debug", True, "debug = true"),
            ("trace", False, ""),
            ("max_connections", 5, "max_connections = 5"),
            ("max_payload", 100, "max_payload = 100"),
            ("ping_interval", 90.0, "ping_interval = 1m30s"),
            ("ping_max", 5, "ping_max = 5"),
            ("write_deadline", 0.5, "write_deadline = 500ms"),
            ("client_advertise", "1.2.3.4:5", "client_advertise = 1.2.3.4:5"),
        ]:
            lines = server.reload(options(server, **{name: value}))
            word = "Reload" if name == "client_advertise" else "Reloaded"
            assert lines == ([f"{word}: {line}"] if line else []) + ["Reloaded server configuration"]
        for name, value, text in [
            ("port", 4223, "Port: old=-1, new=4223"),
            ("host", "::1", "Host: old=127.0.0.1, new=::1"),
            ("max_pending", 5, "MaxPending: old=67108864, new=5"),
            ("lame_duck_duration", 30.0, "LameDuckDuration: old=2m0s, new=30s"),
            ("no_header_support", True, "NoHeaderSupport: old=false, new=true"),
        ]:
            with pytest.raises(ReloadError) as refused:
                server.reload(options(server, **{name: value}))
            assert str(refused.value) == f"config reload not supported for {text}"
        told = [json.loads((await client.line())[5:]) for _ in range(2)]
        assert told[0]["max_payload"] == 100
        assert (told[1]["host"], told[1]["port"]) == ("1.2.3.4", 5)
        client.send(b"PUB a 101\r\n")
        assert await client.rest() == b"-ERR 'Maximum Payload Violation'\r\n"


async def test_reload_of_users() -> None:
    only = Permissions(subscribe=SubjectPermission((b"foo", b"wide.>"), (b"wide.secret",)))
    before = Authorization(users=(User("a", "a"), User("b", "b"), User("c", "c")))
    after = Authorization(users=(User("a", "a", permissions=only), User("b", "new")))
    async with serving(authorization=before) as server:
        clients = [await Raw.connect(server.port, user(name)) for name in "abc"]
        for client in clients:
            client.send(b"SUB foo 1\r\nSUB bar 2\r\nSUB wide.> 3\r\n")
            await client.until_pong()
        ours = server.internal_client("ours", credentials=None) if not server.authenticator.required else None
        assert ours is None
        assert "Reloaded: authorization users" in server.reload(options(server, authorization=after))
        stays, *gone = clients
        for client in gone:
            assert b"-ERR 'Authorization Violation'" in await client.rest()
        got = await stays.until_pong()
        assert b'-ERR \'Permissions Violation for Subscription to "bar" (sid "2")\'\r\n' in got
        stays.send(b"PUB foo 1\r\nx\r\nPUB bar 1\r\nx\r\nPUB wide.secret 1\r\nx\r\nPUB wide.open 1\r\nx\r\n")
        assert await stays.until_pong() == b"MSG foo 1 1\r\nx\r\nMSG wide.open 3 1\r\nx\r\n" + PONG
        for client in clients:
            await client.close()


async def test_turning_authorization_on_cuts_clients_of_the_process_off() -> None:
    async with serving() as server:
        ours = server.internal_client("ours")
        told: list[bool] = []
        ours.on_closed = lambda: told.append(True)
        ours.subscribe(b"a", lambda *_: None)
        server.reload(options(server, authorization=Authorization(user="u", password="p")))
        assert told == [True]
        assert server.subscriptions.interest.count == 0 and not server.clients()


Seen = tuple[bytes, bytes, bytes]


def rows(buffer: Buffer, frames: Frames, begin: int, end: int) -> list[Seen]:
    view = memoryview(buffer)
    return [
        tuple(bytes(view[row[at] : row[at] + row[size]]) for at, size in _COLUMNS)  # type: ignore[misc]
        for row in frames[begin:end].tolist()
    ]


_COLUMNS = ((SUBJECT, SUBJECT_SIZE), (REPLY, REPLY_SIZE), (PAYLOAD, PAYLOAD_SIZE))


async def test_clients_of_the_process() -> None:
    async with serving() as server:
        ours, other = server.internal_client("ours"), server.internal_client("other")
        got: list[Seen] = []
        spans: list[int] = []

        def take(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
            got.extend(rows(buffer, frames, begin, end))
            spans.append(end - begin)

        subscription = ours.subscribe(b"in.>", take)
        async with await Raw.connect(server.port, QUIET + b"SUB out.* 7\r\nSUB rep 8\r\n") as client:
            await client.until_pong()
            # To one receiver: many subjects are one run, from the second time on.
            batch = b"".join(b"PUB in.%d r 1\r\n%d\r\n" % (i, i) for i in range(8))
            for _ in range(3):
                client.send(batch)
                await client.until_pong()
            assert got == [(b"in.%d" % i, b"r", b"%d" % i) for i in range(8)] * 3
            assert spans[-1] == 8
            # One message, a block, a request, with and without somebody there.
            assert ours.publish(b"out.a", b"1", b"rep") == 1
            block = Payloads(b"xxhello!world", np.array([2, 8]), np.array([5, 5], np.uint32))
            server.router.publish_runs(ours, [(b"out.b", 0, 2)], block)
            assert ours.publish(b"nobody", b"") == 0
            assert ours.publish(b"", b"") == 0
            assert ours.publish(b"bad subject", b"") == 0
            await client.expect(b"MSG out.a 7 rep 1\r\n1\r\nMSG out.b 7 5\r\nhello\r\nMSG out.b 7 5\r\nworld\r\n")
            answers: list[tuple[bytes | None, bool]] = []
            ours.request(b"rep", b"?", 5, lambda payload, nobody: answers.append((payload, nobody)))
            line = await client.line()
            assert re.fullmatch(rb"MSG rep 8 _INBOX\.[0-9A-Za-z]{22}\.[0-9A-Za-z]{8} 1\r\n", line)
            await client.line()
            client.send(b"PUB %b 3\r\nyes\r\n" % line.split()[3])
            await eventually(lambda: answers)
            ours.request(b"nobody", b"?", 5, lambda payload, nobody: answers.append((payload, nobody)))
            assert len(answers) == 1
            await eventually(lambda: len(answers) == 2)
            ours.request(b"rep", b"?", 0.01, lambda payload, nobody: answers.append((payload, nobody)))
            await eventually(lambda: len(answers) == 3)
            assert answers == [(b"yes", False), (None, True), (None, False)]
        # Among themselves: never from within the call, in order.
        got.clear()
        assert other.publish(b"in.x", b"1", b"r") == 1
        server.router.publish_runs(other, [(b"in.y", 0, 2)], block)
        assert got == []
        done: list[bool] = []
        ours.barrier(lambda: done.append(len(got) == 3))
        await eventually(lambda: done)
        assert done == [True]
        assert got == [(b"in.x", b"r", b"1"), (b"in.y", b"", b"hello"), (b"in.y", b"", b"world")]
        ours.unsubscribe(subscription)
        assert other.publish(b"in.x", b"") == 0
        with pytest.raises(ValueError, match="invalid subject"):
            ours.subscribe(b"a..b", take)


async def test_a_handler_that_talks_to_itself_or_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        ours = server.internal_client("ours")
        count = [0]

        def again(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
            count[0] += 1
            ours.publish(b"again", b"")

        def broken(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
            raise KeyError("oops")

        ours.subscribe(b"again", again)
        ours.subscribe(b"broken", broken)
        async with await Raw.connect(server.port, QUIET + b"PUB again 0\r\n\r\nPUB broken 0\r\n\r\n") as client:
            # The others get their turn.
            for _ in range(3):
                assert await client.until_pong() == PONG
            ours.publish(b"broken", b"")
            await eventually(lambda: caplog.text.count("oops") >= 2)
            assert count[0] > 100
            ours.close()


async def test_a_failed_request_loses_none_that_was_read_with_it(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[bytes] = []

    def answer(request: StreamingRequest) -> None:
        taken.append(request.payload)
        if request.payload != b"2":
            raise KeyError(f"oops {request.payload!r}")

    async with serving() as server:
        server.internal_client("ours").subscribe(b"ask", per_request(answer))
        frames = b"".join(b"PUB ask 1\r\n%d\r\n" % number for number in range(4))
        async with await Raw.connect(server.port, QUIET + frames) as client:
            assert await client.until_pong() == PONG
    assert taken == [b"0", b"1", b"2", b"3"]
    assert all(f"oops b'{number}'" in caplog.text for number in (0, 1, 3))


async def test_a_failed_callback_of_a_request_loses_no_other_answer(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[bytes | None] = []

    def answered(payload: bytes | None, nobody: bool) -> None:
        answers.append(payload)
        if payload == b"0":
            raise KeyError("oops")

    async with serving() as server, await Raw.connect(server.port, QUIET + b"SUB ask 1\r\n") as client:
        assert await client.until_pong() == PONG
        ours = server.internal_client("ours")
        for number in range(3):
            ours.request(b"ask", b"%d" % number, 60, answered)
        lines = [await client.line() for _ in range(6)]
        replies = [line.split()[3] for line in lines[::2]]
        client.send(b"".join(b"PUB %b 1\r\n%d\r\n" % (reply, at) for at, reply in enumerate(replies)))
        await eventually(lambda: len(answers) == 3)
    assert answers == [b"0", b"1", b"2"] and "oops" in caplog.text
