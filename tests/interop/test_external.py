"""The broker on a NATS server of its own maker: the published clients, restarts, and who may log in."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as store
from tests import servers
from tests.broker.nats.certificates import party
from tests.brokers import Broker
from tests.conftest import others_slow
from tests.interop.talker import Client, NobodyAnsweredError, Talker
from tests.interop.test_other_clients import command, play
from tests.nats.authority import new_pair
from tests.servers import NatsServer
from tests.waiting import PATIENCE, until


def needs(version: str) -> str:
    if version not in servers.available():
        pytest.skip(f"nats-server {version} is not here (python tests/servers.py fetches it)")
    return version


@pytest.mark.parametrize("version", others_slow([servers.OLDEST, servers.NEWEST], [servers.NEWEST]))
def test_published_clients(tmp_path: Path, version: str) -> None:
    with NatsServer(tmp_path / "nats", needs(version), jetstream=False) as server:
        words = ("-ns", server.url, "-st", "FILE", "-dir", tmp_path / "store")
        with Broker(tmp_path, *words, http=True) as broker:
            seen = play("node", server.url, "starts")
            assert seen["sequence"] == [3, 4, 5]
            assert play("node", server.url, "durable") == {"before": [1, 2], "resumed": [3, 4], "anew": [1, 2, 3, 4]}
            assert play("python", server.url, "publish_async")["in_order"]
            if version == servers.NEWEST:
                assert play("node", server.url, "redelivery")["after"] == 3
                members = play("node", server.url, "queue")
                assert len(members["left"] + members["right"]) == 20
                assert play("node", server.url, "large") == {"size": 900000}
                assert play("c", server.url, "publish_async")["in_order"]
                assert play("c", server.url, "duplicate")["error"] == "stan: clientID already registered"
            assert broker.stop() == 0
        # There is no embedded server, nor what belongs to it.
        assert "Starting nats-server" not in broker.said()


def test_the_nats_server_is_restarted(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", needs(servers.NEWEST), jetstream=False)
    with server, Broker(tmp_path, "-ns", server.url) as broker:
        with subprocess.Popen(
            command("node", server.url, "nats_restart"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n"
            server.kill()
            text = '[ERR] STREAM: connection "_NSS-test-cluster-{}" has been disconnected'
            until(lambda: all(text.format(role) in broker.said() for role in ("send", "general", "acks", "hb")))
            server.start()
            output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        seen = json.loads(output)
        assert seen["texts"][:2] == ["before", "after"]
        assert seen["sequences"][:2] == [1, 2]
        text = '[INF] STREAM: connection "_NSS-test-cluster-{}" reconnected to NATS Server at "{}"'
        until(lambda: all(text.format(role, server.url) in broker.said() for role in ("send", "general", "acks", "hb")))
        assert broker.stop() == 0


def test_the_nats_server_is_gone_for_a_while(tmp_path: Path) -> None:
    """What becomes due meanwhile comes afterwards; nothing is lost."""
    server = NatsServer(tmp_path / "nats", needs(servers.NEWEST), jetstream=False)
    with server, Broker(tmp_path, "-ns", server.url) as broker:
        with Talker(server.port) as nats:
            client = Client(nats, "me")
            subscription = client.subscribe(b"a", ack_wait_in_secs=1)
            client.store(b"a", b"1")
            subscription.wait(1)
            server.kill()
            time.sleep(1.1)
            server.start()
        with Talker(server.port) as nats:
            client.move(nats)
            subscription.box = nats.listen(subscription.inbox)
            assert subscription.wait(1)[0].redelivered

            def published() -> bool:
                # Its request subject may not be there again yet.
                try:
                    return not client.publish(b"a", b"2").error
                except NobodyAnsweredError:
                    return False

            until(published)
            assert client.ping() == ""
            assert [message.sequence for message in subscription.messages if not message.redelivered] == [2]
        assert broker.stop() == 0


def test_heartbeats_without_no_responders(tmp_path: Path) -> None:
    """A NATS server without headers says nothing about subjects that nobody listens to: the time-outs hold."""
    config = {"no_header_support": True}
    with NatsServer(tmp_path / "nats", needs(servers.OLDEST), config, jetstream=False) as server:
        words = ("-ns", server.url, "-hbi", "100ms", "-hbt", "400ms", "-hbf", 1, "-SD")
        with Broker(tmp_path, *words) as broker, Talker(server.port, headers=False, no_responders=False) as nats:
            assert "Did not detect another server instance" in broker.said()
            assert not nats.info.get("headers")
            gone = Client(nats, "gone", heartbeat="gone")
            alive = Client(nats, "alive")
            # (interval + time-out) * (failures + 1), although nothing is listening there any more.
            until(lambda: "[Client:gone] Timed out on heartbeats" in broker.said())
            assert time.monotonic() - gone.asked_at >= 1.0
            assert alive.ping() == ""
            # The probe of a client that is registered twice takes its half second.
            Client(nats, "twice", heartbeat="gone")
            began = time.monotonic()
            Client(nats, "twice")
            assert time.monotonic() - began >= 0.5


def keys(folder: Path) -> dict[str, tuple[dict[str, Any], list[object], dict[str, Any]]]:
    """Ways to log in: configuration of the NATS server, options of the broker, options of a client."""
    seed, public = new_pair()
    (folder / "seed").write_text(seed)
    (folder / "nkey.conf").write_text(f'streaming {{ nkey_seed_file: "{folder / "seed"}" }}\n')
    (folder / "user.conf").write_text("streaming { username: u, password: p }\n")
    users = [{"nkey": public}, {"user": "app", "password": "a"}]
    app = {"user": "app", "pass": "a"}
    return {
        "user": (
            {"authorization": {"user": "u", "password": "p"}},
            ["--user", "u", "--pass", "p"],
            {"user": "u", "pass": "p"},
        ),
        "file": (
            {"authorization": {"user": "u", "password": "p"}},
            ["-sc", folder / "user.conf"],
            {"user": "u", "pass": "p"},
        ),
        "url": ({"authorization": {"user": "u", "password": "p"}}, [], {"user": "u", "pass": "p"}),
        "token": ({"authorization": {"token": "t"}}, ["--auth", "t"], {"auth_token": "t"}),
        "nkey": ({"authorization": {"users": users}}, ["-sc", folder / "nkey.conf"], app),
    }


@pytest.mark.parametrize("way", ["user", "file", "url", "token", "nkey"])
def test_logging_in(tmp_path: Path, way: str) -> None:
    config, words, login = keys(tmp_path)[way]
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST), config, jetstream=False) as server:
        url = server.url.replace("//", "//u:p@") if way == "url" else server.url
        with Broker(tmp_path, "-ns", url, *words) as broker, Talker(server.port, **login) as nats:
            client = Client(nats, "me")
            client.store(b"a", b"1")
            assert client.subscribe(b"a").wait(1)[0].data == b"1"
            server.kill()
            server.start()
            until(lambda: broker.said().count("reconnected to NATS Server") == 4)
            # Nothing secret is logged.
            assert "u:p@" not in broker.said()
            if way == "url":
                assert f'at "nats://[REDACTED]@127.0.0.1:{server.port}"' in broker.said()
        if way == "user":
            broker = Broker(tmp_path / "refused", "-ns", server.url, "--user", "u", "--pass", "wrong")
            with pytest.raises(RuntimeError, match=r"\[FTL\] STREAM: Failed to start: nats: Authorization Violation"):
                broker.start()


def test_tls(tmp_path: Path) -> None:
    authority = party(tmp_path, "authority")
    theirs, ours = party(tmp_path, "server", authority), party(tmp_path, "client", authority)
    config = {
        "tls": {
            "cert_file": str(theirs.cert), "key_file": str(theirs.key), "ca_file": str(authority.cert), "verify": True,
        }
    }  # fmt: skip
    words = ["-secure", "-tls_client_cert", ours.cert, "-tls_client_key", ours.key]
    # These switch TLS of the embedded server on, too, which is not there.
    trust = ["-tls_client_cacert", authority.cert, "-tls=false"]
    with NatsServer(tmp_path / "nats", needs(servers.NEWEST), config, jetstream=False) as server:
        with Broker(tmp_path, "-ns", server.url, *words, *trust) as broker:
            context = ssl.create_default_context(cafile=str(authority.cert))
            context.load_cert_chain(ours.cert, ours.key)
            with Talker(server.port, tls=context) as nats:
                client = Client(nats, "me")
                client.store(b"a", b"1")
                assert client.subscribe(b"a").wait(1)[0].data == b"1"
            assert broker.stop() == 0
        stranger = Broker(tmp_path / "stranger", "-ns", server.url, "-secure")
        with pytest.raises(RuntimeError, match=r"Failed to start: x509: "):
            stranger.start()
    with NatsServer(tmp_path / "plain", needs(servers.NEWEST), jetstream=False) as server:
        secure = Broker(tmp_path / "secure", "-ns", server.url, "-secure")
        with pytest.raises(RuntimeError, match=r"Failed to start: nats: secure connection not available"):
            secure.start()


def test_reload_is_not_for_an_external_server(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", needs(servers.NEWEST), jetstream=False)
    with server, Broker(tmp_path, "-ns", server.url, "-P", tmp_path / "pid", http=True) as broker:
        assert broker.process
        broker.process.send_signal(signal.SIGHUP)
        text = "[ERR] STREAM: Reload supported only for embedded NATS Server's configuration"
        until(lambda: text in broker.said())
        # Nothing of the embedded server is left behind.
        assert not (tmp_path / "pid").exists()
        assert broker.stop(signal.SIGTERM) == 143


def test_partitions(tmp_path: Path) -> None:
    """Two brokers share a cluster id and the channels (streaming-protocol.md section 25)."""

    def config(name: str, *channels: str) -> Path:
        listed = " ".join(f'"{channel}" {{}},' for channel in channels)
        path = tmp_path / f"{name}.conf"
        path.write_text(f"streaming {{ partitioning: true, store_limits {{ channels {{ {listed} }} }} }}\n")
        return path

    with NatsServer(tmp_path / "nats", needs(servers.NEWEST), jetstream=False) as server:
        one = Broker(tmp_path / "one", "-ns", server.url, "-sc", config("one", "foo", "bar.*"))
        two = Broker(tmp_path / "two", "-ns", server.url, "-sc", config("two", "baz", "bat.>"))
        with one, two, Talker(server.port) as nats:
            answers = nats.listen(b"answers")
            heartbeat = nats.listen(b"beats")
            heartbeat.on_message = lambda got: nats.publish(got.reply)
            request = _connect_request(b"me", b"beats")
            nats.publish(b"_STAN.discover.test-cluster", request, b"answers")
            # Both answer, and know the client.
            assert all(not protocol.ConnectResponse.FromString(got.data).error for got in answers.wait(2))
            client = Client(nats, "shared")
            for channel in (b"foo", b"bar.x", b"baz", b"bat.y.z"):
                message = client.publication(channel, channel).SerializeToString()
                ack = nats.request(client.subjects.pub_prefix + b"." + channel, message)
                assert protocol.PubAck.FromString(ack).error == b""
                assert client.subscribe(channel).wait(1)[0].data == channel
            with pytest.raises(NobodyAnsweredError):
                nats.request(client.subjects.pub_prefix + b".nobody", b"")
            # Somebody unknown is waited for, the first time.
            message = client.publication(b"foo", conn_id=b"unknown").SerializeToString()
            began = time.monotonic()
            ack = protocol.PubAck.FromString(nats.request(client.subjects.pub_prefix + b".foo", message))
            assert ack.error == b"stan: invalid publish request"
            assert time.monotonic() - began >= 1
            for _ in range(3):
                began = time.monotonic()
                ack = protocol.PubAck.FromString(nats.request(client.subjects.pub_prefix + b".foo", message))
                assert ack.error == b"stan: invalid publish request"
                if (took := time.monotonic() - began) < 0.9:
                    break
            assert took < 0.9
            third = Broker(tmp_path / "three", "-ns", server.url, "-sc", config("three", "new", "bat.a"))
            with pytest.raises(
                RuntimeError, match=r'channel "bat\.a" causes conflict with channels on server "\w{22}"'
            ):
                third.start()
        empty = tmp_path / "empty.conf"
        empty.write_text("streaming { partitioning: true }\n")
        fourth = Broker(tmp_path / "four", "-ns", server.url, "-sc", empty)
        with pytest.raises(RuntimeError, match="Failed to start: stan: no configured channel"):
            fourth.start()


@pytest.mark.slow
def test_partitions_that_meet_later(tmp_path: Path) -> None:
    """Two NATS servers are joined while brokers with the same channels are on them.

    Facts: streaming-protocol.md section 25.4.
    """
    config = tmp_path / "stan.conf"
    config.write_text('streaming { partitioning: true, store_limits { channels { "foo" {} } } }\n')
    ports = [servers.free_port() for _ in range(2)]

    def cluster(own: int, *others: int) -> dict[str, Any]:
        routes = [f"nats-route://127.0.0.1:{port}" for port in others]
        return {"cluster": {"name": "c", "host": "127.0.0.1", "port": own, "routes": routes}}

    one = NatsServer(tmp_path / "one", needs(servers.NEWEST), cluster(ports[0]), jetstream=False)
    two = NatsServer(tmp_path / "two", needs(servers.NEWEST), cluster(ports[1]), jetstream=False)
    a, b = Broker(tmp_path / "a", "-ns", one.url, "-sc", config), Broker(tmp_path / "b", "-ns", two.url, "-sc", config)
    with one, two, a, b:
        file = two.directory / "server.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | cluster(ports[1], ports[0])))
        assert two.process
        two.process.send_signal(signal.SIGHUP)
        until(lambda: any("Partitioning error: " in broker.said() for broker in (a, b)))
        failed = a if "Partitioning error: " in a.said() else b
        assert 'Partitioning error: channel "foo" causes conflict with channels on server' in failed.said()
        assert failed.process
        assert failed.process.wait(PATIENCE) == 1


def _connect_request(client_id: bytes, inbox: bytes) -> bytes:
    wanted = store.ConnectRequest(client_id=client_id, heartbeat_inbox=inbox, conn_id=client_id, protocol=1)
    return wanted.SerializeToString()


def test_urls_that_are_no_urls(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"\[FTL\] STREAM: Failed to start: malformed url: foo"):
        Broker(tmp_path, "-ns", "foo").start()


def test_a_channel_that_cannot_be_told_to_others(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        f"""
        max_payload: 256
        streaming {{ partitioning: true, store_limits {{ channels {{ short {{}}, "{"x" * 220}" {{}} }} }} }}
        """
    )
    broker = Broker(tmp_path, "-c", path)
    said = "Failed to start: unable to send channels list: message payload too small to send channels list"
    with pytest.raises(RuntimeError, match=said):
        broker.start()
    path.write_text(path.read_text().replace("x" * 220, "x" * 200))
    with Broker(tmp_path, "-c", path) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        client.store(b"short", b"1")


def of_size(client: Client, channel: bytes, size: int) -> bytes:
    """An encoded publish of so many bytes."""
    around = len(client.publication(channel, bytes(size), guid=b"guid").SerializeToString()) - size
    message = client.publication(channel, bytes(size - around), guid=b"guid").SerializeToString()
    assert len(message) == size
    return message


def test_messages_as_large_as_the_server_takes(tmp_path: Path) -> None:
    """What could not be delivered again is refused by itself; what is stored is delivered, as often as it takes."""
    words = ("-st", "FILE", "-dir", tmp_path / "store")
    server = NatsServer(tmp_path / "nats", needs(servers.NEWEST), {"max_payload": 4096}, jetstream=False)
    with server, Broker(tmp_path, "-ns", server.url, *words) as broker, Talker(server.port) as nats:
        said = "max_payload of the NATS server is 4096 bytes, and 1048576 are allowed here"
        assert f"[WRN] STREAM: {said}" in broker.said()
        client = Client(nats, "m")
        subscription = client.subscribe(b"a", ack_wait_in_secs=1)
        subject = client.subjects.pub_prefix + b".a"

        def published(size: int) -> str:
            return protocol.PubAck.FromString(nats.request(subject, of_size(client, b"a", size))).error.decode()

        fits = next(size for size in range(4096, 3900, -1) if not published(size))
        assert fits > 4000
        error = published(4096)
        assert error.startswith("stan: message too large: 40") and "(max_payload of the NATS server is 4096)" in error
        client.store(b"a", b"small")
        assert subscription.wait(2)[-1].data == b"small"
        until(lambda: sum(each.redelivered for each in subscription.messages) >= 2)
        assert {each.sequence for each in subscription.messages} == {1, 2}
        assert "is not sent" not in broker.said()
        assert broker.stop() == 0
    # One that takes less: what is behind is not skipped, and comes when the server takes it.
    server = NatsServer(tmp_path / "less", needs(servers.NEWEST), {"max_payload": 2048}, jetstream=False)
    with server, Broker(tmp_path, "-ns", server.url, *words) as broker:
        with Talker(server.port) as nats:
            client = Client(nats, "other")
            subscription = client.subscribe(b"a", ack_wait_in_secs=1)
            until(lambda: 'Channel "a": message 1 cannot be delivered' in broker.said())
            server.stop()
            server.settings["max_payload"] = 8192
            server.start()
        with Talker(server.port) as nats:
            client.move(nats)
            subscription.box = nats.listen(subscription.inbox)
            until(lambda: broker.said().count("reconnected to NATS Server") >= 4)

            def stored() -> bool:
                # Its request subject may not be there again yet.
                try:
                    return not client.publish(b"a", b"next").error
                except NobodyAnsweredError:
                    return False

            until(stored)
            assert [each.sequence for each in subscription.wait(3)] == [1, 2, 3]
        assert broker.stop() == 0
