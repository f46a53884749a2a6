"""Routes between servers: the wire, the mesh, who gets what (high-availability.md section R)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.listening import ListenError
from broker.nats import status
from broker.nats.nats_options import ClusterOptions, ReloadError, TLSOptions
from broker.nats.nats_server import NatsServer
from broker.nats.routes import wire
from tests.broker.nats.certificates import party
from tests.broker.nats.serving import PATIENCE, Raw, serving
from tests.servers import free_port
from tests.waiting import eventually

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'

words = st.binary(min_size=1, max_size=12).map(lambda raw: bytes(b for b in raw if 48 <= b < 123) or b"x")
names = st.lists(words, min_size=1, max_size=3).map(b".".join)
payloads = st.binary(max_size=60)


@st.composite
def messages(draw: st.DrawFn) -> wire.RoutedMessage:
    payload = draw(payloads)
    header_size = draw(st.integers(0, len(payload)))
    queues = tuple(draw(st.lists(words, max_size=3)))
    return wire.RoutedMessage(b"$G", draw(names), draw(names | st.just(b"")), queues, header_size, payload)


@st.composite
def wishes(draw: st.DrawFn) -> wire.RemoteInterest:
    queue = draw(words | st.just(b""))
    weight = draw(st.integers(0, 9))
    return wire.RemoteInterest(b"$G", draw(names), queue, weight if queue else min(weight, 1))


def written(event: Any) -> bytes:
    if isinstance(event, wire.RoutedMessage):
        return wire.message(event.subject, event.reply, event.queues, event.header_size, event.payload)
    if isinstance(event, wire.RemoteInterest):
        return wire.interest_lines(event.subject, event.queue, event.weight)
    if isinstance(event, wire.RouteInfo):
        return wire.info(event.fields)
    if isinstance(event, wire.RouteConnect):
        return wire.connect(event.fields)
    return wire.error(event.text) if isinstance(event, wire.RouteError) else bytes(event)


fields = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=4)
events = st.one_of(
    messages(), wishes(), fields.map(wire.RouteInfo), fields.map(wire.RouteConnect), st.just(wire.PING),
    st.just(wire.PONG), st.just(wire.RouteError("Authorization Violation")), )  # fmt: skip


@given(st.lists(events, max_size=8), st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=200)
def test_what_is_written_is_read(sent: list[Any], sizes: list[int]) -> None:
    """In whatever pieces it comes."""
    stream = b"".join(written(event) for event in sent)
    parser, got, at, turn = wire.Parser(trusted=True), [], 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        parser.feed(stream[at : at + size])
        got += list(parser.events())
        at, turn = at + size, turn + 1
    assert got == sent


@given(st.binary(max_size=200) | st.lists(st.sampled_from([b"RMSG", b"HMSG", b"RS+", b"$G", b"|", b"+", b" ", b"1",
       b"99", b"\r\n", b"INFO", b"{", b"}", b"CONNECT"]), max_size=20).map(b"".join))  # fmt: skip
@settings(max_examples=300)
def test_nonsense(data: bytes) -> None:
    parser = wire.Parser(trusted=True)
    parser.feed(data)
    with contextlib.suppress(wire.WireError):
        list(parser.events())


def test_lines_of_real_servers() -> None:
    """As they stand in the description, and what servers say about things that are not here."""
    parser = wire.Parser(trusted=True)
    parser.feed(
        b"RMSG $G foo 2\r\nhi\r\n"
        b"RMSG $G foo re 2\r\nhi\r\nRMSG $G foo | grp 2\r\nhi\r\nRMSG $G foo + re a b 2\r\nhi\r\n"
        b"HMSG $G foo re 12 14\r\nNATS/1.0\r\n\r\nhi\r\nHMSG $G foo + re grp 12 12\r\nNATS/1.0\r\n\r\n\r\n"
        b"RS+ $SYS $SYS.REQ.SERVER.PING\r\nLS+ $G foo\r\n+OK\r\nRS+ $G work grp 3\r\nRS- $G work grp\r\n-ERR 'no'\r\n"
    )
    got = list(parser.events())
    assert [(each.reply, each.queues, each.header_size) for each in got if isinstance(each, wire.RoutedMessage)] == [
        (b"", (), 0), (b"re", (), 0), (b"", (b"grp",), 0), (b"re", (b"a", b"b"), 0), (b"re", (), 12),
        (b"re", (b"grp",), 12),
    ]  # fmt: skip
    assert [(each.account, each.weight) for each in got if isinstance(each, wire.RemoteInterest)] == [
        (b"$SYS", 1), (b"$G", 3), (b"$G", 0)
    ]  # fmt: skip
    assert got[-1] == wire.RouteError("no")


@pytest.mark.parametrize(
    "line",
    [b"PUB foo 2", b"RMSG $G", b"RMSG $G foo x", b"RMSG $G foo a b 2", b"RMSG $G foo + 2", b"HMSG $G foo 9 2",
     b"RMSG $G foo 99999999999", b"RMSG $G foo 900000000", b"RS+ $G", b"RS+ $G a b", b"RS+ $G a..b", b"RS- $G a b c",
     b"INFO []", b"INFO {", b"CONNECT x"],
)  # fmt: skip
def test_lines_that_no_server_sends(line: bytes) -> None:
    parser = wire.Parser(trusted=True)
    parser.feed(line + b"\r\n")
    with pytest.raises(wire.WireError):
        list(parser.events())


def test_strangers_get_no_memory() -> None:
    for data in (b"RMSG $G foo 60000000\r\n", b"INFO " + b"x" * (2 << 20)):
        parser = wire.Parser()
        parser.feed(data)
        with pytest.raises(wire.WireError):
            list(parser.events())


# Servers


def url(server: NatsServer) -> str:
    assert server.mesh is not None
    return f"nats://127.0.0.1:{server.mesh.port}"


@contextlib.asynccontextmanager
async def node(*routes: str, name: str = "c", **more: Any) -> AsyncIterator[NatsServer]:
    cluster = ClusterOptions(**{"name": name, "host": "127.0.0.1", "port": -1, "routes": routes} | more)
    async with serving(cluster=cluster) as server:
        yield server


def neighbours(server: NatsServer) -> set[str]:
    assert server.mesh is not None
    return {link.remote_id for link in server.mesh.routes}


async def meshed(*servers: NatsServer) -> None:
    everybody = {server.id for server in servers}
    await eventually(lambda: all(neighbours(server) == everybody - {server.id} for server in servers))


async def known(server: NatsServer, subject: bytes, servers: int = 1) -> None:
    """Waits until a server knows that so many others want a subject."""
    assert server.mesh is not None
    mesh = server.mesh

    def count() -> int:
        found = mesh.match(subject)
        return (
            0 if found is None else len({*found.plain, *(each for group in found.groups.values() for each, _ in group)})
        )

    await eventually(lambda: count() == servers)


async def client(server: NatsServer, *lines: bytes) -> Raw:
    made = await Raw.connect(server.port, CONNECT + b"".join(lines))
    await made.until_pong()
    return made


async def test_a_mesh_of_three() -> None:
    """Each knows one of the others, or is known by it; all find each other, and their clients learn about them."""

    async with node() as a, node(url(a)) as b, node(url(a)) as c:
        await meshed(a, b, c)
        sub = await client(b, b"SUB foo.> 1\r\n", b"SUB foo.* 2\r\nSUB other 3\r\n")
        for server in (a, c):
            await known(server, b"foo.x")
            pub = await client(
                server, b"PUB foo.x 2\r\nhi\r\nPUB foo.x re 2\r\nho\r\nHPUB foo.x 12 14\r\nNATS/1.0\r\n\r\nhe\r\n"
            )
            told = json.loads(pub.info[5:])
            assert told["cluster"] == "c"
            assert set(told["connect_urls"]) == {f"127.0.0.1:{each.port}" for each in (a, b, c)}
            await sub.expect(
                b"MSG foo.x 1 2\r\nhi\r\nMSG foo.x 2 2\r\nhi\r\n"
                b"MSG foo.x 1 re 2\r\nho\r\nMSG foo.x 2 re 2\r\nho\r\n"
                b"HMSG foo.x 1 12 14\r\nNATS/1.0\r\n\r\nhe\r\nHMSG foo.x 2 12 14\r\nNATS/1.0\r\n\r\nhe\r\n"
            )
        found = status.routez(a, {"subs": "1"})
        assert found["num_routes"] == 2
        way = next(each for each in found["routes"] if each["remote_id"] == b.id)
        assert (way["out_msgs"], way["in_msgs"], way["did_solicit"]) == (3, 0, False)
        assert set(way["subscriptions_list"]) == {"foo.>", "foo.*", "other"}
        assert status.varz(a)["cluster"]["name"] == "c"
        assert status.varz(a)["routes"] == 2
        # Nobody is there any more.
        sub.send(b"UNSUB 1\r\nUNSUB 2\r\n")
        assert a.mesh is not None
        await eventually(lambda: a.mesh is not None and a.mesh.match(b"foo.x") is None)
        asking = await client(a, b"SUB re 1\r\n")
        asking.send(b"PUB foo.x re 0\r\n\r\n")
        await asking.expect(b"HMSG re 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")


async def test_one_member_of_each_group() -> None:
    """Wherever it is, about as often as any other; and those in no group get everything once."""

    async with node() as a, node(url(a)) as b:
        await meshed(a, b)
        here = await client(a, b"SUB work grp 1\r\n")
        there = [await client(b, b"SUB work grp 1\r\n") for _ in range(2)]
        plain = await client(b, b"SUB > 9\r\nSUB work other 5\r\n")
        await known(a, b"work")
        assert a.mesh is not None
        await eventually(lambda: a.mesh.match(b"work").groups[b"grp"][0][1] == 2)  # type: ignore[union-attr]
        await client(a, b"".join(b"PUB work 3\r\n%03d\r\n" % number for number in range(300)))
        everything = b""
        while everything.count(b"MSG work 9") < 300:
            everything += await asyncio.wait_for(plain.reader.read(1 << 20), PATIENCE)
        everything += await plain.until_pong()
        assert everything.count(b"MSG work 9") == everything.count(b"MSG work 5") == 300
        got = [(await each.until_pong()).count(b"MSG work 1 ") for each in (here, *there)]
        assert sum(got) == 300
        assert min(got) > 50


async def test_a_server_comes_back() -> None:
    port = free_port()
    async with node(f"nats://127.0.0.1:{port}") as a:
        sub = await client(a, b"SUB foo 1\r\n")
        for _ in range(2):
            async with node(port=port) as b:
                await meshed(a, b)
                await known(b, b"foo")
                await client(b, b"SUB back 1\r\nPUB foo 2\r\nhi\r\n")
                await sub.expect(b"MSG foo 1 2\r\nhi\r\n")
                await known(a, b"back")
            await eventually(lambda: not neighbours(a))
            assert a.mesh is not None
            assert a.mesh.match(b"back") is None


async def test_routes_that_name_everybody() -> None:
    """The server itself among them: each keeps one connection to each other one."""

    ports = [free_port() for _ in range(3)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(node(*routes, port=port)) for port in ports]
        await meshed(*servers)
        await eventually(lambda: all(len(server.mesh.links) == 2 for server in servers if server.mesh))
        subs = [await client(server, b"SUB foo 1\r\n") for server in servers]
        for server in servers:
            await known(server, b"foo", 2)
        await client(servers[0], b"PUB foo 2\r\nhi\r\n")
        for each in subs:
            await each.expect(b"MSG foo 1 2\r\nhi\r\n")
            assert await each.until_pong() == b"PONG\r\n"


async def test_names_of_clusters(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async with node() as a, node(url(a), name="zz") as wrong:
        await eventually(lambda: 'Rejecting connection, cluster name "c" does not match "zz"' in caplog.text)
        assert not neighbours(a) | neighbours(wrong)
        # A name that was made up gives way.
        async with node(url(a), name="") as nameless:
            await meshed(a, nameless)
            assert nameless.mesh is not None
            assert nameless.mesh.name == "c"
            assert "Cluster name updated to c" in caplog.text
    async with node(name="") as a, node(url(a), name="") as b:
        await meshed(a, b)
        assert a.mesh is not None
        assert b.mesh is not None
        assert a.mesh.name == b.mesh.name
    assert "Cluster name was dynamically generated, consider setting one" in caplog.text


async def test_credentials(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async with node(user="r", password="p") as a:
        good = url(a).replace("//", "//r:p@")
        async with node(good) as b, node(url(a)) as nobody, node(url(a), user="r", password="wrong") as wrong:
            await meshed(a, b)
            await eventually(lambda: caplog.text.count("Route Error 'Authorization Violation'") >= 2)
            assert not neighbours(nobody) | neighbours(wrong)
        # Who says nothing is sent away, and so is who is not a server.
        assert a.mesh is not None
        stranger = await Raw.connect(a.mesh.port)
        stranger.send(b'INFO {"server_id":"x","cluster":"c"}\r\n')
        assert b"Authorization Violation" in await stranger.rest()
        stranger = await Raw.connect(a.mesh.port, b"RMSG $G foo 2\r\nhi\r\n")
        assert b"Unknown Protocol Operation" in await stranger.rest()
    async with node(timeout=0.2) as a:
        assert a.mesh is not None
        assert b"Authentication Timeout" in await (await Raw.connect(a.mesh.port)).rest()


async def test_tls(tmp_path: Path) -> None:
    authority = party(tmp_path, "authority")
    own, strange = party(tmp_path, "server", authority), party(tmp_path, "stranger")

    def options(who: Any) -> TLSOptions:
        return TLSOptions(who.cert, who.key, authority.cert, verify=True)

    async with node(tls=options(own)) as a, node(url(a), tls=options(own)) as b:
        await meshed(a, b)
        sub = await client(a, b"SUB foo 1\r\n")
        await known(b, b"foo")
        await client(b, b"PUB foo 2\r\nhi\r\n")
        await sub.expect(b"MSG foo 1 2\r\nhi\r\n")
        async with node(url(a), tls=options(strange)) as stranger, node(url(a)) as plain:
            await asyncio.sleep(0.5)
            assert not neighbours(stranger) | neighbours(plain)
            assert neighbours(a) == {b.id}


async def test_a_port_that_is_taken() -> None:
    async with node() as a:
        assert a.mesh is not None
        with pytest.raises(ListenError, match=r"^Error listening on router port: \d+ - listen tcp .*: bind: address"):
            async with node(port=a.mesh.port):
                pass


async def test_routes_stay_as_they_are_until_a_restart() -> None:
    async with node() as a:
        a.reload(replace(a.options, max_payload=5))
        assert a.options.cluster is not None
        with pytest.raises(ReloadError, match="config reload not supported for Cluster"):
            a.reload(replace(a.options, cluster=replace(a.options.cluster, routes=("nats://h:1",))))


#: Before the ids of real servers in the order that decides who closes one of two connections, so that it is never ours.
PEER = "AAAA"


class Peer:
    """A server that says what it is told to say."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    @classmethod
    async def connect(cls, server: NatsServer, **fields: Any) -> Peer:
        assert server.mesh is not None
        told = {"server_id": PEER, "server_name": "peer", "cluster": "c", "headers": True, "port": 1} | fields
        raw = await Raw.connect(server.mesh.port, wire.connect({"cluster": "c"}) + wire.info(told))
        return cls(raw)

    async def expect(self, wanted: bytes) -> None:
        """The next bytes are these, after pings that may have become due."""
        async with asyncio.timeout(PATIENCE):
            while (head := await self.raw.reader.readexactly(6)) == b"PING\r\n":
                self.raw.send(b"PONG\r\n")
            assert head + await self.raw.reader.readexactly(len(wanted) - 6) == wanted

    async def rest(self) -> bytes:
        """What has come up to now, without pings."""
        return (await self.raw.until_pong()).removesuffix(b"PONG\r\n").replace(b"PING\r\n", b"")


async def test_what_a_peer_may_do() -> None:
    async with node() as a:
        peer = await Peer.connect(a, connect_urls=["10.0.0.1:4222"])
        await eventually(lambda: neighbours(a) == {PEER})
        # A second connection of the same server waits for one of both to be closed; one for an account is no route.
        twin, account = await Peer.connect(a), await Peer.connect(a, route_account="$SYS")
        assert (await twin.raw.until_pong()).endswith(b"PONG\r\n")
        assert (await account.raw.until_pong()).endswith(b"PONG\r\n")
        sub = await client(a, b"SUB foo 1\r\n")
        assert json.loads(sub.info[5:])["connect_urls"] == [f"127.0.0.1:{a.port}", "10.0.0.1:4222"]
        assert b"RS+ $G foo\r\n" in await peer.raw.until_pong()
        assert b"RS+ $G foo\r\n" in await twin.raw.until_pong()
        # Interest of both is kept, that of one counts.
        for each in (peer, twin):
            each.raw.send(b"RS+ $G bar\r\n")
            await each.raw.until_pong()
        await client(a, b"PUB bar 2\r\nhi\r\n")
        await peer.expect(b"RMSG $G bar 2\r\nhi\r\n")
        assert await twin.rest() == b""
        peer.raw.writer.close()
        assert a.mesh is not None
        mesh = a.mesh
        await eventually(lambda: len(mesh.routes) == 1 and mesh.routes[0].number == 2)
        await client(a, b"PUB bar 2\r\nho\r\n")
        await twin.expect(b"RMSG $G bar 2\r\nho\r\n")
        # What comes over a route goes to clients here, and back to nobody.
        twin.raw.send(b"RS+ $G foo\r\nRMSG $G foo 2\r\nyo\r\nRMSG other foo 2\r\nno\r\n")
        await sub.expect(b"MSG foo 1 2\r\nyo\r\n")
        assert await twin.rest() == b""
        # It says that it leaves.
        twin.raw.send(wire.info({"server_id": PEER, "ldm": True}))
        await eventually(lambda: not mesh.connect_urls)
        # The same name, another server.
        other = await Peer.connect(a, server_id="other")
        await other.raw.rest()
        assert neighbours(a) == {PEER}


async def test_what_is_told_about_others() -> None:
    async with node() as a:
        first = await Peer.connect(a)
        await eventually(lambda: neighbours(a) == {PEER})
        await first.raw.until_pong()
        await Peer.connect(a, server_id="new", server_name="new", port=7777, nonce="x")
        line = await first.raw.line()
        told = json.loads(line[5:])
        assert (told["server_id"], told["ip"]) == ("new", "nats-route://127.0.0.1:7777/")
        assert "nonce" not in told
        # Where to find somebody who is not known yet.
        async with node(name="c") as b:
            assert b.mesh is not None
            ip = f"nats-route://127.0.0.1:{b.mesh.port}/"
            for _ in range(3):
                first.raw.send(wire.info({"server_id": b.id, "ip": ip}))
            await eventually(lambda: b.id in neighbours(a))
            first.raw.send(wire.info({"server_id": "nowhere", "ip": "nats-route://[:x/"}))
            await eventually(lambda: b.mesh is not None and len(b.mesh.links) == 1)
        assert (await first.raw.until_pong()).endswith(b"PONG\r\n")
