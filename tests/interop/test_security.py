"""Users, permissions, tokens and TLS of the embedded server with streaming clients.

Facts: server-operations.md sections 9 and 15.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stantools.format.proto import protocol_pb2 as protocol
from tests import clients
from tests.broker.nats.certificates import Party, old_certificate, party
from tests.brokers import Broker
from tests.interop.talker import Client, NobodyAnsweredError, Talker
from tests.interop.test_other_clients import HERE, command, play
from tests.nats.authority import new_pair

LOCKED = """
authorization {
  CLIENT = {
    publish:   ["_STAN.discover.orders", "_STAN.discover.orders.pings", "_STAN.pub.orders.>",
                "_STAN.sub.orders", "_STAN.unsub.orders", "_STAN.subclose.orders", "_STAN.close.orders", "_INBOX.>"]
    subscribe: ["_INBOX.>", "_STAN.acks.>"]
  }
  READER = {
    publish:   ["_STAN.discover.orders", "_STAN.discover.orders.pings", "_STAN.pub.orders.public.>",
                "_STAN.sub.orders", "_STAN.unsub.orders", "_STAN.subclose.orders", "_STAN.close.orders", "_INBOX.>"]
    subscribe: ["_INBOX.>", "_STAN.acks.>"]
  }
  SERVER = {
    publish:   ["_INBOX.>", "_STAN.acks.>", "_STAN.discover.orders"]
    subscribe: ["_INBOX.>", "_STAN.discover.orders", "_STAN.discover.orders.pings", "_STAN.pub.orders.>",
                "_STAN.sub.orders", "_STAN.unsub.orders", "_STAN.subclose.orders", "_STAN.close.orders"]
  }
  users = [
    { user: broker, password: b_pw, permissions: $SERVER }
    { user: app,    password: a_pw, permissions: $CLIENT }
    { user: reader, password: r_pw, permissions: $READER }
  ]
}
streaming { id: orders, username: broker, password: b_pw }
"""


class Configured(Broker):
    """A broker whose command line has nothing but what a test gives: everything else is in files."""

    def __init__(self, broker: Broker, *bare: object) -> None:
        super().__init__(broker.folder, port=broker.port, environment=broker.environment)
        self.http_port = broker.http_port
        self._bare = [str(word) for word in bare]

    def command(self) -> list[str]:
        return [*super().command()[:3], *self._bare]


def works(nats: Talker, name: str = "me", cluster: str = "test-cluster") -> Client:
    """A client does a little of everything."""
    client = Client(nats, name, cluster=cluster)
    client.store(b"some.channel", b"1")
    subscription = client.subscribe(b"some.channel")
    assert subscription.wait(1)[0].data == b"1"
    subscription.ack(1)
    assert subscription.close() == ""
    assert client.ping() == ""
    return client


def refused(port: int, **options: Any) -> None:
    with pytest.raises(ConnectionError):
        Talker(port, **options)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("locked")
    (folder / "config").write_text(LOCKED)
    with Broker(folder, "-c", folder / "config") as broker:
        yield broker


def test_locked_down_accounts(locked: Broker) -> None:
    with Talker(locked.port, user="app", **{"pass": "a_pw"}) as nats:
        client = Client(nats, "app", cluster="orders")
        message = client.publication(b"private", b"1").SerializeToString()
        subject = client.subjects.pub_prefix + b".private"
        nats.request(subject, message)
        assert client.subscribe(b"private").wait(1)[0].data == b"1"
        assert client.ping() == ""
        nats.listen(b"_STAN.sub.orders")
        nats.listen(b">")
        nats.publish(b"elsewhere")
        nats.flush()
        assert nats.errors == [
            'Permissions Violation for Subscription to "_STAN.sub.orders"',
            'Permissions Violation for Subscription to ">"',
            'Permissions Violation for Publish to "elsewhere"',
        ]
        assert client.close() == ""
    refused(locked.port)
    refused(locked.port, user="app", **{"pass": "b_pw"})


def test_the_right_to_publish_to_some_channels(locked: Broker) -> None:
    """What is not allowed is never seen by the broker: the client waits in vain."""
    with Talker(locked.port, user="reader", **{"pass": "r_pw"}) as nats:
        client = Client(nats, "reader", cluster="orders")
        for channel, allowed in ((b"public.a", True), (b"secret", False)):
            message = client.publication(channel, b"1").SerializeToString()
            subject = client.subjects.pub_prefix + b"." + channel
            if allowed:
                nats.request(subject, message)
            else:
                with pytest.raises((TimeoutError, NobodyAnsweredError)):
                    nats.request(subject, message, 0.3)
        assert nats.errors == ['Permissions Violation for Publish to "_STAN.pub.orders.secret"']
        # The message for the one by the subject of the other.
        message = client.publication(b"secret", b"1").SerializeToString()
        answer = nats.request(client.subjects.pub_prefix + b".public.a", message)
        assert protocol.PubAck.FromString(answer).error == b"stan: invalid publish request"
        assert client.subscribe(b"secret").settled(0) == []
    assert (
        "[WRN] STREAM: [Client:reader] Refused a message for channel secret that was published to subject "
        "_STAN.pub.orders.public.a\n" in locked.said()
    )


@pytest.mark.parametrize("way", ["flag", "file"])
def test_the_original_lets_every_subject_do(tmp_path: Path, way: str) -> None:
    (tmp_path / "config").write_text("streaming { any_publish_subject: true }")
    words = ("-any_publish_subject",) if way == "flag" else ("-sc", tmp_path / "config")
    with Broker(tmp_path, *words) as broker, Talker(broker.port) as nats:
        client = Client(nats, "me")
        message = client.publication(b"real", b"1").SerializeToString()
        answer = nats.request(client.subjects.pub_prefix + b".other", message)
        assert not protocol.PubAck.FromString(answer).error
        assert client.subscribe(b"real").wait(1)[0].data == b"1"


@pytest.mark.parametrize(
    ("library", "scenario", "expected"),
    [
        ("node", "durable", {"before": [1, 2], "resumed": [3, 4], "anew": [1, 2, 3, 4]}),
        ("c", "durable_queue", {"first": [1, 2, 3], "second": [4]}),
    ],
    ids=["node", "c"],
)
def test_published_clients_in_locked_down_accounts(
    locked: Broker, library: str, scenario: str, expected: dict[str, Any]
) -> None:
    url = locked.url.replace("//", "//app:a_pw@")
    words = command_for("orders", library, url, scenario)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def command_for(cluster: str, library: str, url: str, scenario: str) -> list[str]:
    words = command(library, url, scenario)
    return [cluster if word == "test-cluster" else word for word in words]


def test_who_the_streaming_server_is(tmp_path: Path) -> None:
    """With several users it has to be said, and has to be right."""
    for name, streaming in (("nobody", "id: orders"), ("wrong", "id: orders, username: broker, password: x")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config").write_text(LOCKED.replace("id: orders, username: broker, password: b_pw", streaming))
        broker = Broker(folder, "-c", folder / "config")
        with pytest.raises(RuntimeError, match=r"\[FTL\] STREAM: Failed to start: nats: Authorization Violation"):
            broker.start()


def test_user_and_password(tmp_path: Path) -> None:
    with Broker(tmp_path, "-user", "u", "-pass", "p") as broker:
        with Talker(broker.port, user="u", **{"pass": "p"}) as nats:
            works(nats)
        refused(broker.port)
        refused(broker.port, user="u", **{"pass": "q"})
        url = broker.url.replace("//", "//u:p@")
        assert play("node", url, "starts")["sequence"] == [3, 4, 5]
        assert play("python", url, "durable")["resumed"] == [3, 4]
        assert play("c", url, "durable_queue")["second"] == [4]
        assert "authentication error" in broker.said()


def test_token(tmp_path: Path) -> None:
    with Broker(tmp_path, "-auth", "secret") as broker:
        with Talker(broker.port, auth_token="secret") as nats:
            works(nats)
        refused(broker.port)
        refused(broker.port, auth_token="Secret")
        assert play("node", broker.url.replace("//", "//secret@"), "durable")["resumed"] == [3, 4]


def test_nkeys_and_hashed_passwords(tmp_path: Path) -> None:
    bcrypt = pytest.importorskip("bcrypt")
    seed, public = new_pair()
    (tmp_path / "seed").write_text(seed)
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4, prefix=b"2a")).decode()
    (tmp_path / "config").write_text(
        f"""
        authorization {{ users = [ {{ nkey: {public} }}, {{ user: app, password: "{hashed}" }} ] }}
        streaming {{ nkey_seed_file: "{tmp_path / "seed"}" }}
        """
    )
    with Broker(tmp_path, "-c", tmp_path / "config") as broker:
        with Talker(broker.port, user="app", **{"pass": "secret"}) as nats:
            works(nats)
        refused(broker.port, user="app", **{"pass": hashed})


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Party]:
    folder = tmp_path_factory.mktemp("parties")
    authority = party(folder, "authority")
    return {"authority": authority} | {name: party(folder, name, authority) for name in ("server", "client")}


@pytest.mark.parametrize("verify", [False, True], ids=["server certificate", "both certificates"])
def test_tls(tmp_path: Path, parties: dict[str, Party], verify: bool) -> None:
    ca, server, client = parties["authority"].cert, parties["server"], parties["client"]
    (tmp_path / "config").write_text(
        f"""
        authorization {{ user: u, password: p }}
        tls {{ cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{ca}", verify: {str(verify).lower()} }}
        streaming {{ tls {{ client_ca: "{ca}", client_cert: "{client.cert}", client_key: "{client.key}" }} }}
        """
    )
    with Broker(tmp_path, "-c", tmp_path / "config") as broker:
        context = ssl.create_default_context(cafile=str(ca))
        if verify:
            with pytest.raises(OSError):
                Talker(broker.port, tls=context, user="u", **{"pass": "p"})
            context.load_cert_chain(client.cert, client.key)
        with Talker(broker.port, tls=context, user="u", **{"pass": "p"}) as nats:
            assert nats.info["tls_required"]
            works(nats)
        # Without TLS nobody gets in.
        with pytest.raises(OSError):
            Talker(broker.port, user="u", **{"pass": "p"})
        tls = ["--tls", str(ca), str(client.cert), str(client.key)] if verify else ["--tls", str(ca)]
        url = broker.url.replace("//", "//u:p@")
        modules = clients.node_modules()
        if modules is not None:
            script = HERE / "node" / "secure.js"
            words = ["node", str(script), str(modules), url, "test-cluster", *tls[1:]]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout) == {"texts": ["one", "two"], "reply": "re: x"}


MAPPED = """
    tls {{ cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{ca}", verify_and_map: true }}
    authorization {{ users = [
      {{ user: "OU=brokers, CN=broker" }}, {{ user: "CN=app,OU=apps" }}, {{ user: internal }}
    ] }}
    streaming {{ {streaming} }}
"""


@pytest.mark.parametrize("way", ["username", "client_cert"])
def test_users_that_certificates_name(tmp_path: Path, parties: dict[str, Party], way: str) -> None:
    authority = parties["authority"]
    ca = authority.cert
    # Neither name has the order of the certificate and both have blanks and orders of their own.
    own = party(tmp_path, "broker", authority, unit="brokers")
    app = party(tmp_path, "app", authority, unit="apps")
    streaming = f'tls {{ client_ca: "{ca}", client_cert: "{own.cert}", client_key: "{own.key}" }}'
    (tmp_path / "config").write_text(
        MAPPED.format(
            server=parties["server"], ca=ca, streaming=streaming if way == "client_cert" else "username: internal"
        )
    )
    with Broker(tmp_path, "-c", tmp_path / "config", http=True) as broker:
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(app.cert, app.key)
        with Talker(broker.port, tls=context) as nats:
            works(nats)
            users = {each["name"]: each["authorized_user"] for each in broker.figures("connz?auth=1")["connections"]}
            assert users.pop("_NSS-test-cluster-send") == (
                "OU=brokers, CN=broker" if way == "client_cert" else "internal"
            )
            assert "CN=app,OU=apps" in users.values()
        stranger = ssl.create_default_context(cafile=str(ca))
        stranger.load_cert_chain(parties["client"].cert, parties["client"].key)
        refused(broker.port, tls=stranger)


@pytest.mark.parametrize(
    ("streaming", "said"),
    [
        ("", "nats: Authorization Violation (with verify_and_map, `streaming { username: … }` must name"),
        ("username: nobody", "nats: Authorization Violation (with verify_and_map"),
        ('tls { client_cert: "none.pem" }', "error reading client certificate none.pem: No such file or directory"),
        ('tls { client_cert: "config" }', "error reading client certificate config: it contains no certificate"),
    ],
)
def test_a_broker_that_no_certificate_names(
    tmp_path: Path, parties: dict[str, Party], streaming: str, said: str
) -> None:
    config = MAPPED.format(server=parties["server"], ca=parties["authority"].cert, streaming=streaming)
    (tmp_path / "config").write_text(config)
    broker = Broker(tmp_path, "-c", "config")
    with pytest.raises(RuntimeError, match=re.escape(f"STREAM: Failed to start: {said}")):
        broker.start()


@pytest.mark.parametrize("where", ["tls", "streaming", "nowhere"])
def test_a_certificate_with_an_old_signature(tmp_path: Path, where: str) -> None:
    cert, key = old_certificate(tmp_path)
    insecure = {name: "insecure: true" if name == where else "" for name in ("tls", "streaming")}
    (tmp_path / "config").write_text(
        f"""
        tls {{ cert_file: "{cert}", key_file: "{key}", {insecure["tls"]} }}
        streaming {{ tls {{ {insecure["streaming"]} }} }}
        """
    )
    broker = Broker(tmp_path, "-c", tmp_path / "config")
    if where == "nowhere":
        with pytest.raises(RuntimeError, match=r"tls: ca md too weak: .* accept it with `tls \{ insecure: true \}`"):
            broker.start()
        return
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with broker:
        with Talker(broker.port, tls=context) as nats:
            works(nats)
        # The streaming server's connections to such a server elsewhere.
        (tmp_path / "other").write_text("streaming { id: other, secure: true, tls { insecure: true } }")
        url = f"nats://127.0.0.1:{broker.port}"
        with (
            Broker(tmp_path / "second", "-sc", tmp_path / "other", "-ns", url),
            Talker(broker.port, tls=context) as nats,
        ):
            works(nats, cluster="other")


def test_tls_from_the_command_line(tmp_path: Path, parties: dict[str, Party]) -> None:
    ca, server = parties["authority"].cert, parties["server"]
    words = ("--tls", "--tlscert", server.cert, "--tlskey", server.key, "-secure", "-tls_client_cacert", ca)
    with Broker(tmp_path, *words) as broker:
        with Talker(broker.port, tls=ssl.create_default_context(cafile=str(ca))) as nats:
            works(nats)
        assert broker.stop() == 0
    broker = Broker(tmp_path / "none", "--tls")
    with pytest.raises(RuntimeError, match="TLS Server certificate must be present and valid"):
        broker.start()


# The examples of server-operations.md section 9, started.


def test_example_with_limits(tmp_path: Path) -> None:
    broker = Broker(tmp_path, http=True)
    (tmp_path / "config").write_text(
        f"""
        # standalone broker, file store, monitoring
        listen: "127.0.0.1:{broker.port}"
        http: "127.0.0.1:{broker.http_port}"

        streaming {{
          cluster_id: orders
          store: file
          dir: "data/orders"
          hb_interval: "10s", hb_timeout: "5s", hb_fail_count: 3

          store_limits {{
            max_channels: 200
            max_subs: 0             # unlimited
            max_msgs: 500k          # 500 000
            max_bytes: 2GB          # 2 * 1024^3
            max_age: "72h"
          }}
          file {{
            sync: true
            auto_sync: "30s"
            slice_max_bytes: 16MB
            compact_interval: 120
          }}
        }}
        """
    )
    with Configured(broker, "-c", str(tmp_path / "config")) as running, Talker(running.port) as nats:
        works(nats, cluster="orders")
        assert (tmp_path / "data" / "orders" / "server.dat").exists()
        stores = running.figures("streaming/storez")
        assert stores["type"] == "FILE"
        assert stores["limits"] == {
            "max_channels": 200,
            "max_msgs": 500_000,
            "max_bytes": 2 << 30,
            "max_age": 72 * 3600 * 10**9,
            "max_subscriptions": 0,
            "max_inactivity": 0,
        }
        assert "STREAM: Message store is FILE\n" in running.said()
        assert "STREAM: Store location: data/orders\n" in running.said()


def test_example_with_wildcard_limits(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    (tmp_path / "config").write_text(
        f"""
        port = {broker.port}; host = 127.0.0.1
        BIG  = 64MB                 // variable, used below
        streaming = {{
          id = limits
          store_limits = {{
            max_msgs = 10, max_age = "24h"
            channels = {{
              "audit.>"     {{ max_msgs: 0, max_age: "0s" }}      // 0 here means unlimited
              "audit.tmp.*" {{ max_msgs: 3 }}
              metrics       {{ max_bytes: $BIG, max_inactivity: "1h" }}
              "session.*"   {{ max_inactivity: "15m", max_subs: 1 }}
            }}
          }}
        }}
        """
    )
    with (
        Configured(broker, "-sc", str(tmp_path / "config"), "-c", str(tmp_path / "config")) as running,
        Talker(running.port) as nats,
    ):
        client = Client(nats, "me", cluster="limits")
        for channel, first in ((b"audit.deep.er", 1), (b"audit.tmp.x", 10), (b"other", 3), (b"metrics", 3)):
            client.store(channel, *(b"x" for _ in range(12)))
            assert client.subscribe(channel).wait(13 - first)[0].sequence == first
        assert "STREAM:  |-> Messages             unlimited\n" in running.said()


def test_example_in_json(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    (tmp_path / "config").write_text(
        """
        {
          "listen": "127.0.0.1:PORT",
          "streaming": {
            "id": "json-style",
            "sd": false,
            "store_limits": { "max_msgs": 100, "channels": { "a": { "max_bytes": 1MB } } }
          }
        }
        """.replace("PORT", str(broker.port))
    )
    with Configured(broker, "-c", str(tmp_path / "config")) as running, Talker(running.port) as nats:
        works(nats, cluster="json-style")


def test_example_with_includes_and_environment(tmp_path: Path) -> None:
    broker = Broker(tmp_path, environment={"STAN_ID": "from-outside"})
    (tmp_path / "net.conf").write_text(f'listen: "127.0.0.1:{broker.port}"\n')
    (tmp_path / "limits.inc").write_text("store_limits { max_msgs: 7 }\n")
    (tmp_path / "config").write_text('include "net.conf"\nstreaming {\n  id: $STAN_ID\n  include "limits.inc"\n}\n')
    with Configured(broker, "-c", str(tmp_path / "config")) as running, Talker(running.port) as nats:
        works(nats, cluster="from-outside")
        assert "  Messages     :             7\n" in running.said()


def test_two_files_and_who_wins(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    (tmp_path / "nats").write_text(f"port: {broker.port}, max_payload: 5000\nstreaming {{ id: ignored }}\n")
    (tmp_path / "stan").write_text('port: 1\nid: taken\nstore_limits { max_msgs: 5, max_subs: 3 }\nhb_interval: "7s"\n')
    with (
        Configured(broker, "-a", "127.0.0.1", "-c", "nats", "-sc", "stan", "-mm", "7") as running,
        Talker(running.port) as nats,
    ):
        assert nats.info["max_payload"] == 5000
        works(nats, cluster="taken")
        assert "  Messages     :             7\n" in running.said()
        assert "  Subscriptions:             3\n" in running.said()
