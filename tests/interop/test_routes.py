"""The broker's NATS server in a cluster with real ones, and with its like (high-availability.md section R)."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests import servers
from tests.broker.nats.certificates import party
from tests.brokers import Broker
from tests.interop.rawclient import NoRespondersError, RawClient, stored
from tests.interop.talker import Talker
from tests.interop.test_fault_tolerance import members_of
from tests.interop.test_faults_disk import calm
from tests.interop.test_flags import fetch
from tests.interop.test_other_clients import play
from tests.servers import NatsServer, free_port
from tests.waiting import until

#: Who dials, and with which version also in every run.
KEPT = {"ours": servers.OLDEST, "theirs": servers.NEWEST, "both": servers.NEWEST}


def configured(folder: Path, port: int, *routes: int) -> Path:
    path = folder / f"broker{port}.conf"
    urls = ", ".join(f'"nats-route://r:p@127.0.0.1:{route}"' for route in routes)
    path.write_text(
        f'cluster {{\n  name: nc\n  listen: "127.0.0.1:{port}"\n  authorization {{ user: r, password: p }}\n'
        f"  routes: [ {urls} ]\n}}\nstreaming {{ id: test-cluster }}\n"
    )
    return path


def real(folder: Path, name: str, version: str, port: int, *routes: int) -> NatsServer:
    if version not in servers.available():
        pytest.skip(f"nats-server {version} is not here (python tests/servers.py fetches it)")
    urls = [f"nats-route://r:p@127.0.0.1:{route}" for route in routes]
    cluster = {
        "name": "nc", "host": "127.0.0.1", "port": port, "routes": urls,
        "authorization": {"user": "r", "password": "p"},
    }  # fmt: skip
    config = {"server_name": name, "http_port": free_port(), "cluster": cluster}
    return NatsServer(folder / name, version, config, jetstream=False)


def linked(broker: Broker, number: int) -> None:
    until(lambda: fetch(f"{broker.monitoring}/routez")["num_routes"] == number)


def linked_with(broker: Broker, server: NatsServer) -> None:
    """Waits for the one connection that is left; where both have dialled, each may close another one at first."""
    addresses = broker.monitoring, f"http://127.0.0.1:{server.settings['http_port']}"

    def one() -> bool:
        ours, theirs = (fetch(f"{each}/routez")["routes"] or [] for each in addresses)
        return len(ours) == len(theirs) == 1 and ours[0]["did_solicit"] != theirs[0]["did_solicit"]

    until(one)


def served(port: int, client_id: str) -> RawClient:
    """A client of the streaming server, as soon as this NATS server knows of it."""

    def connected() -> RawClient | None:
        with contextlib.suppress(NoRespondersError):
            return RawClient(port, client_id)
        return None

    return until(connected)


def heard(speaker: Talker, listener: Talker) -> None:
    """Waits until what a client of another server listens to is known here: interest travels in order."""
    subject = b"heard" + listener.inbox
    box = listener.listen(subject)

    def came() -> int:
        speaker.publish(subject)
        return len(box)

    until(came)


@pytest.mark.parametrize(
    ("version", "dialler"),
    [
        pytest.param(version, dialler, marks=() if KEPT[dialler] == version else pytest.mark.slow)
        for version in servers.VERSIONS
        for dialler in KEPT
    ],
)
def test_with_a_real_server(tmp_path: Path, version: str, dialler: str) -> None:
    ours, theirs = free_port(), free_port()
    config = configured(tmp_path, ours, *([theirs] if dialler != "theirs" else []))
    server = real(tmp_path, "real", version, theirs, *([ours] if dialler != "ours" else []))
    with Broker(tmp_path, "-c", config, http=True) as broker, server:
        linked_with(broker, server)
        with Talker(server.port) as there, Talker(broker.port) as here:
            # A streaming client that knows nothing but the other server.
            with served(server.port, "me") as client:
                for number in range(20):
                    assert not client.stored(b"foo", b"%d" % number).error
            expected = [(number + 1, b"%d" % number) for number in range(20)]
            assert stored(server.port, "reader", b"foo") == expected
            # Interest, groups, headers, both ways.
            plain = {each: each.listen(b"x.>") for each in (there, here)}
            twice = here.listen(b"x.*")
            members = [each.listen(b"work", b"grp") for each in (there, here)]
            heard(there, here)
            heard(here, there)
            for each in (there, here):
                for number in range(100):
                    each.publish(b"work", b"%d" % number)
                each.publish(b"x.a", b"1", b"re")
                each.send(b"HPUB x.b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
                each.flush()
            for box in (*plain.values(), twice):
                got = box.wait(4)
                assert sorted((each.subject, each.reply, each.header, each.data) for each in got) == sorted(
                    [(b"x.a", b"re", b"", b"1"), (b"x.b", b"", b"NATS/1.0\r\n\r\n", b"hi")] * 2
                )
            until(lambda: sum(map(len, members)) == 200)
            assert min(map(len, members)) > 50
            for each in (there, here):
                each.flush()
            assert sum(map(len, members)) == 200
            assert [len(box) for box in (*plain.values(), twice)] == [4, 4, 4]
        server.kill()
        linked(broker, 0)
        assert broker.stop() == 0
    calm(broker)


@pytest.mark.parametrize(
    ("version", "dialler"),
    [
        pytest.param(
            version, dialler, marks=() if (version == servers.OLDEST) == (dialler == "ours") else pytest.mark.slow
        )
        for version in (servers.OLDEST, servers.NEWEST)
        for dialler in ("ours", "theirs")
    ],
)
def test_tls_with_a_real_server(tmp_path: Path, version: str, dialler: str) -> None:
    authority = party(tmp_path, "authority")
    certificate = party(tmp_path, "server", authority)
    files = {"cert_file": str(certificate.cert), "key_file": str(certificate.key), "ca_file": str(authority.cert)}
    ours, theirs = free_port(), free_port()
    config = configured(tmp_path, ours, *([theirs] if dialler == "ours" else []))
    block = ", ".join(f'{name}: "{value}"' for name, value in files.items())
    config.write_text(config.read_text().replace("routes:", f"tls {{ {block} }}\n  routes:"))
    server = real(tmp_path, "real", version, theirs, *([ours] if dialler == "theirs" else []))
    server.settings["cluster"]["tls"] = files
    broker = Broker(tmp_path, "-c", config, http=True)
    # Who dials would wait for who is not there yet.
    first, second = (server, broker) if dialler == "ours" else (broker, server)
    with first, second:
        linked(broker, 1)
        with served(server.port, "me") as client:
            assert not client.stored(b"foo", b"1").error
        # Who shows no certificate is no route.
        stranger = Broker(
            tmp_path / "stranger", "-c", configured(tmp_path, free_port(), ours), "-cid", "x", "-D", http=True
        )
        with stranger:
            until(lambda: "Router connection closed" in stranger.said())
            linked(stranger, 0)
        linked(broker, 1)
    calm(broker)


def test_a_cluster_of_four(tmp_path: Path) -> None:
    """Two brokers and two real servers; each knows one of the others only."""
    ports = [free_port() for _ in range(4)]
    first = Broker(tmp_path / "first", "-c", configured(tmp_path, ports[0]), http=True)
    # This one is not the streaming server of anybody: its cluster id is another one.
    config = configured(tmp_path, ports[1], ports[0])
    second = Broker(tmp_path / "second", "-c", config, "-cid", "other", http=True)
    old = real(tmp_path, "old", servers.OLDEST, ports[2], ports[1])
    new = real(tmp_path, "new", servers.NEWEST, ports[3], ports[0])
    with first, second, old, new:
        for broker in (first, second):
            linked(broker, 3)
        for server in (old, new):
            monitoring = f"http://127.0.0.1:{server.settings['http_port']}/routez"
            until(lambda url=monitoring: {each["remote_id"] for each in fetch(url)["routes"]} and  # type: ignore[misc]
                  len({each["remote_id"] for each in fetch(url)["routes"]}) == 3)  # fmt: skip
        with Talker(new.port) as client:
            assert len(client.info["connect_urls"]) >= 4
        for port in (new.port, old.port, second.port, first.port):
            with served(port, f"client{port}") as client:
                assert not client.stored(b"foo", b"%d" % port).error
        assert [data for _, data in stored(old.port, "reader", b"foo")] == [
            b"%d" % port for port in (new.port, old.port, second.port, first.port)
        ]
        assert play("node", new.url, "starts")["sequence"] == [3, 4, 5]
        assert play("python", old.url, "publish_async")["in_order"]
    for broker in (first, second):
        calm(broker)


def test_a_fault_tolerant_pair_with_embedded_servers(tmp_path: Path) -> None:
    """The layout without any other server: a client of the one on standby is served, before and after."""
    ports = [free_port(), free_port()]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    with members_of(tmp_path, None) as group:
        pair = [group.member("-cluster", f"nats://127.0.0.1:{port}", "-cluster_name", "nc", "-routes", routes)
                for port in ports]  # fmt: skip
        active, standby = pair
        active.launch().wait_until_active()
        assert "[WRN] STREAM: ft:" not in active.now
        standby.launch()
        linked(standby, 1)
        with served(standby.port, "me") as client:
            for number in range(10):
                assert not client.stored(b"foo", b"%d" % number).error
            assert standby.state() == ("FT_STANDBY", 204)
            # It hears the active server, and does not try the lock.
            time.sleep(1.5)
            assert "unable to get store lock" not in standby.now
            active.kill()
            standby.wait_until_active()
            for number in range(10, 20):
                assert not client.stored(b"foo", b"%d" % number).error
            active.launch()
            linked(standby, 1)
            assert stored(active.port, "reader", b"foo") == [(number + 1, b"%d" % number) for number in range(20)]
