"""Channels as streams of real nats-servers: clients, kills, restarts of either side, limits, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from stantools.format.proto import protocol_pb2 as protocol
from tests import natsclient, servers
from tests.broker.nats.serving import serving
from tests.brokers import Broker
from tests.conftest import others_slow
from tests.interop.talker import Client, NobodyAnsweredError, Talker
from tests.interop.test_other_clients import play
from tests.servers import Cluster, NatsServer
from tests.waiting import until

OLD_AND_NEW = [servers.OLDEST, servers.NEWEST]
STREAM, STATE = "test-cluster_a", "test-cluster-state"


def needs(version: str) -> str:
    if version not in servers.available():
        pytest.skip(f"nats-server {version} is not here (python tests/servers.py fetches it)")
    return version


def broker_on(folder: Path, url: str, *words: object, http: bool = False) -> Broker:
    return Broker(folder / "broker", "-ns", url, "-st", "jetstream", "-dir", folder / "copy", *words, http=http)


@contextlib.asynccontextmanager
async def streams(url: str) -> AsyncIterator[JetStreamContext]:
    """The JetStream context of nats-py."""
    async with natsclient.connected(url) as client:
        yield client.jetstream()


async def contents(url: str, stream: str = STREAM) -> list[tuple[int, bytes]]:
    """What a new service reads of a channel: sequences and data."""
    async with streams(url) as js, asyncio.timeout(120):
        state = (await js.stream_info(stream)).state
        last = state.last_seq if state.messages else 0
        found: list[tuple[int, bytes]] = []
        while state.first_seq + len(found) <= last:
            try:
                message = await js.get_msg(stream, state.first_seq + len(found))
                found.append((message.seq, message.data))
            except ServiceUnavailableError:  # the stream has no leader at the moment
                await asyncio.sleep(0.1)
        return found


def goes_on(client: Client, channel: bytes, data: bytes, seconds: float = 5) -> None:
    """Publishes one message until it is acknowledged in time; it may be there more than once then."""

    def published() -> bool:
        try:
            message = client.publication(channel, data).SerializeToString()
            answer = client.nats.request(client.subjects.pub_prefix + b"." + channel, message, seconds)
            return not protocol.PubAck.FromString(answer).error
        except (NobodyAnsweredError, TimeoutError):
            return False

    until(published)


@pytest.mark.parametrize("version", others_slow(OLD_AND_NEW, [servers.NEWEST]))
def test_published_clients(tmp_path: Path, version: str) -> None:
    with NatsServer(tmp_path / "nats", needs(version)) as server, broker_on(tmp_path, server.url) as broker:
        seen = play("node", server.url, "starts")
        assert seen["sequence"] == [3, 4, 5]
        assert play("node", server.url, "durable") == {"before": [1, 2], "resumed": [3, 4], "anew": [1, 2, 3, 4]}
        assert play("python", server.url, "publish_async")["in_order"]
        assert play("node", server.url, "redelivery")["after"] == 3
        members = play("node", server.url, "queue")
        assert len(members["left"] + members["right"]) == 20
        assert play("node", server.url, "large") == {"size": 900000}
        assert "[ERR]" not in broker.said()
        assert broker.stop() == 0


@pytest.mark.parametrize("copy", ["its own", "an older one", "none"])
async def test_killed_and_started_again(tmp_path: Path, copy: str) -> None:
    """Messages, timestamps, durables and what is pending are as before, whatever the copy in files has."""
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        with broker_on(tmp_path, server.url) as broker, Talker(server.port) as nats:
            client = Client(nats, "me")
            durable = client.subscribe(b"a", durable_name=b"d", ack_wait_in_secs=1)
            client.store(b"a", *[b"%d" % number for number in range(5)])
            before = durable.wait(5)
            for sequence in (1, 2, 4):
                durable.ack(sequence)
            assert broker.stop() == 0
            if copy == "an older one":
                shutil.copytree(tmp_path / "copy", tmp_path / "older")
            broker.start()
            client.store(b"a", b"5")
            assert durable.wait(6)[-1].sequence == 6
            broker.kill()
            if copy != "its own":
                shutil.rmtree(tmp_path / "copy")
            if copy == "an older one":
                shutil.move(tmp_path / "older", tmp_path / "copy")
            broker.start()
            client.store(b"a", b"6")
            reader = client.subscribe(b"a")
            after = reader.wait(7)
            assert [each.sequence for each in after] == list(range(1, 8))
            assert [(each.data, each.timestamp) for each in after[:5]] == [
                (each.data, each.timestamp) for each in before
            ]
            # What was not acknowledged comes again, and what was does not.
            until(lambda: {each.sequence for each in durable.messages if each.redelivered} >= {3, 5})
            assert not {each.sequence for each in durable.messages if each.redelivered} & {1, 2, 4}
        assert await contents(server.url) == [(number + 1, b"%d" % number) for number in range(7)]


@pytest.mark.parametrize("version", OLD_AND_NEW)
async def test_the_nats_server_is_killed(tmp_path: Path, version: str) -> None:
    """Nothing that was acknowledged is lost, and the broker goes on when the server is back."""
    server = NatsServer(tmp_path / "nats", needs(version))
    with server, broker_on(tmp_path, server.url) as broker:
        acknowledged = []
        for turn in range(3):
            with Talker(server.port) as nats:
                client = Client(nats, f"me{turn}")
                for number in range(20):
                    client.store(b"a", b"%d-%d" % (turn, number))
                    acknowledged.append(b"%d-%d" % (turn, number))
                inbox = nats.listen(nats.inbox + b".late")
                for number in range(200):
                    message = client.publication(b"a", b"%d-late-%d" % (turn, number))
                    subject = client.subjects.pub_prefix + b".a"
                    nats.publish(subject, message.SerializeToString(), nats.inbox + b".late")
                server.kill()
                assert inbox is not None
            server.start()
            until(lambda turn=turn: broker.said().count("reconnected to NATS Server") >= 5 * (turn + 1))
        with Talker(server.port) as nats:
            goes_on(Client(nats, "last"), b"a", b"last")
        log = await contents(server.url)
        assert [sequence for sequence, _ in log] == list(range(1, len(log) + 1))
        there = [data for _, data in log if data != b"last"]
        assert len(set(there)) == len(there)
        assert [data for data in there if b"late" not in data] == acknowledged
        assert broker.stop() == 0


@pytest.mark.slow  # three nodes, of which one dies, are in test_cluster_nodes.py
@pytest.mark.parametrize("count", [3, 5])
async def test_a_cluster(tmp_path: Path, count: int) -> None:
    """Streams with a replica on each server: as many die as may, and the broker goes on by the others."""
    async with Cluster(tmp_path / "nats", needs(servers.NEWEST), count=count) as cluster:
        urls, port = ",".join(cluster.urls), cluster.servers[-1].port
        with broker_on(tmp_path, urls, "-jetstream_replicas", count) as broker:
            with Talker(port) as nats:
                client = Client(nats, "me")
                client.store(b"a", *[b"%d" % number for number in range(10)])
                for server in cluster.servers[: count // 2]:
                    server.kill()
                goes_on(client, b"a", b"after")
            with Talker(port) as nats:
                client.move(nats)
                reader = client.subscribe(b"a")
                messages = reader.wait(11)
                assert [each.data for each in messages[:10]] == [b"%d" % number for number in range(10)]
                assert messages[10].data == b"after"
            assert broker.stop() == 0

        async with streams(cluster.servers[-1].url) as js:
            for name in (STREAM, STATE):
                assert (await js.stream_info(name)).config.num_replicas == count


async def test_limits(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        with (
            broker_on(tmp_path, server.url, "-mm", 5, "-mb", "5KB", "-ma", "1h") as broker,
            Talker(server.port) as nats,
        ):
            client = Client(nats, "me")
            client.store(b"a", *[b"%d" % number for number in range(12)])
            assert client.subscribe(b"a").wait(5)[0].sequence == 8
            assert [sequence for sequence, _ in await contents(server.url)] == [8, 9, 10, 11, 12]
            client.store(b"a", bytes(2000), bytes(2000), bytes(2000))
            # The limit of bytes is the broker's, and the stream follows.
            async with streams(server.url) as js:
                state = (await js.stream_info(STREAM)).state
                while (state.first_seq, state.last_seq) != (14, 15):
                    await asyncio.sleep(0.05)
                    state = (await js.stream_info(STREAM)).state
            broker.kill()
            broker.start()
            assert [each.sequence for each in client.subscribe(b"a").wait(2)] == [14, 15]
            assert broker.stop() == 0
            # Other limits are set when it starts.
            broker.words[broker.words.index("-mm") + 1] = "1"
            broker.start()
            assert broker.stop() == 0

        async with streams(server.url) as js:
            assert (await js.stream_info(STREAM)).config.max_msgs == 1
        assert [sequence for sequence, _ in await contents(server.url)] == [15]


async def test_somebody_else_publishes_to_a_stream(tmp_path: Path) -> None:
    """It is in the log then, for everybody; the broker says so and goes on behind it."""
    with (
        NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server,
        broker_on(tmp_path, server.url) as broker,
        Talker(server.port) as nats,
    ):
        client = Client(nats, "me")
        reader = client.subscribe(b"a")
        client.store(b"a", b"1")

        async with streams(server.url) as js:
            await js.publish("stan.test-cluster.a", b"strange")
        goes_on(client, b"a", b"2")
        assert "only the broker may write to it" in broker.said()
        assert [each.data for each in reader.wait(3)] == [b"1", b"strange", b"2"]
        assert await contents(server.url) == [(1, b"1"), (2, b"strange"), (3, b"2")]
        assert broker.stop() == 0


@pytest.mark.slow  # simulated ones are in tests/broker/stores/jetstream/test_power.py
async def test_messages_that_the_servers_have_lost(tmp_path: Path) -> None:
    """What was acknowledged and is only in the copy is published again."""
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        with broker_on(tmp_path, server.url) as broker, Talker(server.port) as nats:
            client = Client(nats, "me")
            client.store(b"a", b"1", b"2")
            server.stop()
            shutil.copytree(server.store_dir, tmp_path / "before")
            server.start()
            until(lambda: broker.said().count("reconnected to NATS Server") >= 5)
        with Talker(server.port) as nats:
            broker.start()
            goes_on(Client(nats, "other"), b"a", b"3")
            broker.kill()
        server.kill()
        shutil.rmtree(server.store_dir)
        shutil.move(tmp_path / "before", server.store_dir)
        server.start()
        broker.start()
        assert "the stream has lost 1 messages that were stored" in broker.said()
        assert await contents(server.url) == [(1, b"1"), (2, b"2"), (3, b"3")]
        assert broker.stop() == 0


async def test_an_idle_channel_is_deleted(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server,
        broker_on(tmp_path, server.url, "-mi", "500ms") as broker,
        Talker(server.port) as nats,
    ):
        client = Client(nats, "me")
        client.store(b"a", b"1")

        async with streams(server.url) as js:
            while [each.config.name for each in await js.streams_info()] != [STATE]:
                await asyncio.sleep(0.05)
        client.store(b"a", b"anew")
        assert client.subscribe(b"a").wait(1)[0].data == b"anew"
        assert await contents(server.url) == [(1, b"anew")]
        assert broker.stop() == 0


def refusal(broker: Broker) -> str:
    """The reason why a broker does not start."""
    with pytest.raises(RuntimeError) as problem:
        broker.start()
    lines = [line for line in str(problem.value).splitlines() if "[FTL]" in line]
    assert len(lines) == 1, str(problem.value)
    return lines[0].partition("STREAM: Failed to start: ")[2]


async def test_messages_that_do_not_fit_with_their_headers(tmp_path: Path) -> None:
    """Each is refused by itself, however it came; the largest that is stored is in the stream, and delivered."""
    with (
        NatsServer(tmp_path / "nats", needs(servers.NEWEST), {"max_payload": 4096}) as server,
        broker_on(tmp_path, server.url) as broker,
        Talker(server.port) as nats,
    ):
        assert "[WRN] STREAM: max_payload of the NATS server is 4096 bytes" in broker.said()
        client = Client(nats, "me")
        refused = client.publish(b"a", bytes(3900)).error.decode()
        most = int(refused.partition("and ")[2].partition(" ")[0])
        assert refused == (
            f"stan: message too large: 3900 bytes, and {most} are the most in this channel (max_payload of the NATS "
            "server is 4096)"
        )
        assert most > 4096 - 400
        sizes = [10, 3900, most, most + 1, 20]
        acks = nats.listen(b"acks")
        subject = client.subjects.pub_prefix + b".a"
        nats.send(
            b"".join(
                b"PUB %b acks %d\r\n%b\r\n" % (subject, len(payload), payload)
                for payload in (client.publication(b"a", bytes(size)).SerializeToString() for size in sizes)
            )
        )
        errors = [protocol.PubAck.FromString(each.data).error for each in acks.wait(5)]
        assert [bool(error) for error in errors] == [False, True, False, True, False]
        assert [len(each.data) for each in client.subscribe(b"a").wait(3)] == [10, most, 20]
        assert [len(data) for _, data in await contents(server.url)] == [10, most, 20]
        assert broker.stop() == 0


def test_refused_without_jetstream(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST), jetstream=False) as server:
        assert "JetStream is not enabled there" in refusal(broker_on(tmp_path, server.url))


async def test_refused_servers_that_are_too_old(tmp_path: Path) -> None:
    """None of those years can be had: it is the broker's own, which says that it is one."""

    async with serving() as server:
        server.version = "2.8.4"
        said = await asyncio.to_thread(refusal, broker_on(tmp_path, f"nats://127.0.0.1:{server.port}"))
    assert re.match(r"JetStream: the NATS server at .*127\.0\.0\.1:\d+ is 2\.8\.4, and has to be 2\.9 or newer", said)


@pytest.mark.slow
def test_refused_without_a_majority(tmp_path: Path) -> None:
    """Nothing is changed; when the others are there again it starts."""
    with Cluster(tmp_path / "nats", needs(servers.NEWEST)) as cluster:
        url = cluster.urls[0]
        broker = broker_on(tmp_path, url, "-jetstream_replicas", 3)
        with broker, Talker(cluster.servers[0].port) as nats:
            Client(nats, "me").store(b"a", b"1")
            assert broker.stop() == 0
        for server in cluster.servers[1:]:
            server.kill()
        said = refusal(broker)
        assert said.startswith("JetStream does not answer: ") and "a cluster needs a majority of its servers" in said
        assert broker.process is not None
        assert broker.process.returncode == 1
        for server in cluster.servers[1:]:
            server.start()
        with broker, Talker(cluster.servers[0].port) as nats:
            assert Client(nats, "other").subscribe(b"a").wait(1)[0].data == b"1"
            assert broker.stop() == 0


def test_refused_options(tmp_path: Path) -> None:
    words = ("-st", "jetstream", "-dir", tmp_path)
    assert "a NATS server with JetStream must be specified" in refusal(Broker(tmp_path, *words))
    assert "root directory must be specified" in refusal(Broker(tmp_path, "-st", "jetstream", "-ns", "nats://x:1"))
    more = (*words, "-ns", "nats://127.0.0.1:1")
    assert "1, 3 or 5 replicas, not 2" in refusal(Broker(tmp_path, *more, "-jetstream_replicas", 2))
    assert "only FILE or SQL stores supported in FT mode" in refusal(Broker(tmp_path, *more, "-ft_group", "g"))


async def test_refused_streams(tmp_path: Path) -> None:
    """Streams that somebody has changed are not gone on with, and nothing is changed in them."""
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        with broker_on(tmp_path, server.url) as broker, Talker(server.port) as nats:
            Client(nats, "me").store(b"a", b"1", b"2", b"3")
            assert broker.stop() == 0
        # Too many replicas for one server.
        assert "replicas" in refusal(broker_on(tmp_path, server.url, "-jetstream_replicas", 3))

        async with streams(server.url) as js:
            await js.delete_msg(STREAM, 2)
        said = refusal(broker_on(tmp_path, server.url))
        assert 'stream test-cluster_a of channel "a" has holes, 1 messages' in said

        async with streams(server.url) as js:
            await js.delete_stream(STREAM)
        assert 'stream test-cluster_a of channel "a" is gone' in refusal(broker_on(tmp_path, server.url))

        async with streams(server.url) as js:
            await js.add_stream(name=STREAM, subjects=["other"])
        said = refusal(broker_on(tmp_path, server.url))
        assert "stream test-cluster_a is not as the broker makes it: its subjects is ['other']" in said
        assert "correct that (nats stream edit)" in said

        async with streams(server.url) as js:
            await js.delete_stream(STREAM)
            await js.add_stream(name="theirs", subjects=["stan.test-cluster.a"])
        said = refusal(broker_on(tmp_path, server.url))
        assert "stream theirs takes 'stan.test-cluster.a', which is a subject of the channels of cluster ID" in said


def test_refused_directory(tmp_path: Path) -> None:
    """The directory of a store of its own is no place for a copy."""
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        with Broker(tmp_path / "file", "-ns", server.url, "-st", "FILE", "-dir", tmp_path / "copy") as broker:
            with Talker(server.port) as nats:
                Client(nats, "me").store(b"a", b"1")
            assert broker.stop() == 0
        assert "holds a store of its own" in refusal(broker_on(tmp_path, server.url))
        with Broker(tmp_path / "file", "-ns", server.url, "-st", "FILE", "-dir", tmp_path / "copy") as broker:
            with Talker(server.port) as nats:
                assert Client(nats, "other").subscribe(b"a").wait(1)[0].data == b"1"
            assert broker.stop() == 0


def test_refused_directory_of_another_broker(tmp_path: Path) -> None:
    """Its copy is not touched, whatever would be done to one that cannot be read."""
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        words = ("-clustered", "-cluster_node_id")
        with broker_on(tmp_path, server.url, *words, "a", "-cluster_sync") as first, Talker(server.port) as nats:
            client = Client(nats, "me")
            client.store(b"a", b"1")
            second = Broker(tmp_path / "second", *first.words)
            second.words[second.words.index("a")] = "b"
            assert f"{tmp_path / 'copy'}: another broker is using this store" in refusal(second)
            assert second.process is not None
            assert second.process.returncode == 1
            client.store(b"a", b"2")
            assert not (tmp_path / "copy.aside").exists()
            first.kill()
            first.start()
            assert [each.data for each in client.subscribe(b"a").wait(2)] == [b"1", b"2"]
            assert first.stop() == 0


async def test_encrypted(tmp_path: Path) -> None:
    """Data is encrypted in the streams as well."""
    words = ("--encrypt", "--encryption_key", "secret")
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        with broker_on(tmp_path, server.url, *words) as broker, Talker(server.port) as nats:
            client = Client(nats, "me")
            client.store(b"a", b"plain text")
            broker.kill()
            shutil.rmtree(tmp_path / "copy")
            broker.start()
            assert client.subscribe(b"a").wait(1)[0].data == b"plain text"
            assert broker.stop() == 0
        assert b"plain text" not in (await contents(server.url))[0][1]


def test_monitoring(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server,
        broker_on(tmp_path, server.url, http=True) as broker,
        Talker(server.port) as nats,
    ):
        Client(nats, "me").store(b"a", b"1")
        assert broker.figures("streaming/storez")["type"] == "JETSTREAM"
        seen = broker.figures("streaming/channelsz?channel=a")
        assert (seen["msgs"], seen["first_seq"], seen["last_seq"]) == (1, 1, 1)
        assert broker.stop() == 0


def role(broker: Broker) -> tuple[str, str]:
    seen = broker.figures("streaming/serverz")
    assert seen["state"] == "CLUSTERED"
    return seen["node_id"], seen["role"]


async def test_a_group(tmp_path: Path) -> None:
    """The leader is killed, stopped, ended; another one serves, nothing is lost, and durables skip nothing."""
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST)) as server:
        nodes = [
            Broker(tmp_path / name, "-ns", server.url, "-st", "jetstream", "-dir", tmp_path / f"copy-{name}")
            for name in "ab"
        ]
        for node, name in zip(nodes, "ab", strict=True):
            node.words += ["-clustered", "-cluster_node_id", name]
            node.http_port = servers.free_port()
        first, second = nodes
        with contextlib.ExitStack() as stack:
            for node in nodes:
                stack.callback(node.stop, signal.SIGKILL)
            first.start()
            second.start(wait=False)
            until(lambda: "following until it leads" in second.said())
            assert role(first) == ("a", "Leader")
            with Talker(server.port) as nats:
                client = Client(nats, "me")
                durable = client.subscribe(b"a", durable_name=b"d", ack_wait_in_secs=1)
                client.store(b"a", *[b"%d" % number for number in range(20)])
                first.kill()
                goes_on(client, b"a", b"killed")
                assert "server became leader" in second.said()
                first.start(wait=False)
                until(lambda: first.said().count("following until it leads") == 2)
                assert (role(first), role(second)) == (("a", "Follower"), ("b", "Leader"))
                assert second.process is not None
                second.process.send_signal(signal.SIGSTOP)
                goes_on(client, b"a", b"stopped", 1)
                second.process.send_signal(signal.SIGCONT)
                until(lambda: "finished leader stepdown actions" in second.said())
                until(lambda: role(second) == ("b", "Follower"))
                assert role(first) == ("a", "Leader")
                assert first.stop() == 0
                goes_on(client, b"a", b"ended")
                log = await contents(server.url)
                assert [sequence for sequence, _ in log] == list(range(1, len(log) + 1))
                assert [data for _, data in log][:20] == [b"%d" % number for number in range(20)]
                until(lambda: {each.sequence for each in durable.messages} == {sequence for sequence, _ in log})
                # A single broker does not take from a group what is its own.
                assert "belongs to a group of servers" in refusal(broker_on(tmp_path, server.url))
            assert second.stop() == 0
        # It was ended in order.
        with broker_on(tmp_path, server.url) as alone:
            assert alone.stop() == 0
