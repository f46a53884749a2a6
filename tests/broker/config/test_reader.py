"""Command lines and files as a whole: precedence, answers, failures (server-operations.md sections 2, 5, 9, 10)."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli import main
from broker.config.broker_options import BrokerOptions, ChannelsOptions, ClientTLSOptions, CommandAnswer, SignalRequest
from broker.config.reader import parse
from broker.nats.nats_options import ClusterOptions, NatsOptions
from broker.stores.store_options import EncryptionOptions, FileOptions
from broker.streaming.streaming_options import StreamingOptions
from stantools import __version__
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import ChannelLimits, SliceLimits

SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(*argv: str, **environ: str) -> BrokerOptions:
    parsed = parse(argv, environ)
    assert isinstance(parsed, BrokerOptions), parsed
    return parsed


def answer(*argv: str, **environ: str) -> CommandAnswer:
    parsed = parse(argv, environ)
    assert isinstance(parsed, CommandAnswer), parsed
    return parsed


def write(text: str, name: str = "a.conf") -> str:
    Path(name).write_text(text)
    return name


# Examples of server-operations.md section 9


def test_stand_alone_with_limits() -> None:
    file = write("""
        # standalone broker, file store, monitoring
        listen: "127.0.0.1:4222"
        http: "127.0.0.1:8222"

        streaming {
          cluster_id: orders
          store: file
          dir: "data/orders"
          hb_interval: "10s", hb_timeout: "5s", hb_fail_count: 3

          store_limits {
            max_channels: 200
            max_subs: 0             # unlimited
            max_msgs: 500k          # 500 000
            max_bytes: 2GB          # 2 * 1024^3
            max_age: "72h"
          }
          file {
            sync: true
            auto_sync: "30s"
            slice_max_bytes: 16MB
            compact_interval: 120
          }
        }
        """)
    found = options("-c", file)
    assert found.streaming == StreamingOptions(b"orders", b"_STAN.discover", 10 * SECOND, 5 * SECOND, 3)
    assert (found.nats.host, found.nats.port) == ("127.0.0.1", 4222)
    assert (found.monitoring.host, found.monitoring.port, found.monitoring.https) == ("127.0.0.1", 8222, False)
    assert found.file == FileOptions(
        Path("data/orders"),
        auto_sync=30 * SECOND,
        slices=SliceLimits(max_bytes=16 << 20),
        compaction=CompactionRules(interval=120),
    )
    assert found.limits.max_channels == 200
    assert found.limits.channel == ChannelLimits(500_000, 2 << 30, 72 * 3600 * SECOND, 0, 0)
    assert found.failure == "" and found.config_file == file


def test_other_separators_a_variable_wildcard_limits() -> None:
    file = write("""
        port = 4222; host = 127.0.0.1
        BIG  = 64MB                 // variable, used below
        streaming = {
          id = limits
          store_limits = {
            max_msgs = 10000, max_age = "24h"
            channels = {
              "audit.>"     { max_msgs: 0, max_age: "0s" }      // 0 here means unlimited
              "audit.tmp.*" { max_msgs: 100 }
              metrics       { max_bytes: $BIG, max_inactivity: "1h" }
              "session.*"   { max_inactivity: "15m", max_subs: 1 }
            }
          }
        }
        """)
    limits = options("-sc", file).limits
    day = 24 * 3600 * SECOND
    assert {name: limits.limits_for(name) for name in limits.per_channel} == {
        "audit.>": ChannelLimits(0, 1_024_000_000, 0, 1000, 0),
        "audit.tmp.*": ChannelLimits(100, 1_024_000_000, 0, 1000, 0),
        "metrics": ChannelLimits(10000, 64 << 20, day, 1000, 3600 * SECOND),
        "session.*": ChannelLimits(10000, 1_024_000_000, day, 1, 900 * SECOND),
    }


def test_the_node_of_the_example() -> None:
    file = write("""
        listen: "127.0.0.1:4222"
        cluster {                       # NATS routes
          name: backbone
          listen: "127.0.0.1:6222"
          authorization { user: route_user, password: route_pw, timeout: 0.5 }
          routes: [
            "nats://route_user:route_pw@127.0.0.1:6222"
            "nats://route_user:route_pw@127.0.0.1:6223"
          ]
        }
        streaming {
          cluster_id: trio
          store: file
          dir: "data/store-a"
          cluster {                     # Raft
            node_id: "a"
            peers: ["b", "c"]
            log_path: "data/raft-a"
            sync: true
            raft_heartbeat_timeout: "2s"
            raft_commit_timeout: "100ms"
          }
        }
        """)
    found = options("-c", file)
    assert found.failure == "" and found.node is not None
    assert (found.node.node_id, found.node.peers, found.channels) == (
        "a",
        ("b", "c"),
        ChannelsOptions(3, durable_copy=True),
    )
    (warning,) = found.warnings
    assert warning.startswith("cluster: log_path, raft_heartbeat_timeout, raft_commit_timeout: no effect")


def test_routes() -> None:
    file = write("""
        cluster {
          name: backbone
          listen: "127.0.0.1:6222"
          authorization { user: r, password: p, timeout: 0.5 }
          routes: [ "nats://r:p@127.0.0.1:6222", nats-route://r:p@h:6223 ]
          cluster_advertise: "example.org:6222", no_advertise: true, connect_retries: 3, pool_size: 3, compression: off
        }
        streaming { id: c }
        """)
    assert options("-c", file).nats.cluster == ClusterOptions(
        name="backbone", host="127.0.0.1", port=6222, routes=("nats://r:p@127.0.0.1:6222", "nats-route://r:p@h:6223"),
        user="r", password="p", timeout=0.5, advertise="example.org:6222", no_advertise=True, connect_retries=3,
    )  # fmt: skip
    found = options(
        "-c", file, "-cluster", "nats://u:w@0.0.0.0:7000", "-cluster_name", "x", "-routes", "nats://h:1, h:2"
    )
    cluster = found.nats.cluster
    assert cluster is not None
    assert (cluster.host, cluster.port, cluster.user, cluster.password) == ("0.0.0.0", 7000, "u", "w")
    assert (cluster.name, cluster.routes, cluster.timeout) == ("x", ("nats://h:1", "h:2"), 0.5)
    # A block without a port is no cluster, and says nothing to a server somewhere else.
    assert options("-c", write("cluster { name: x }\nstreaming { id: c }")).nats.cluster is None
    file = write('cluster { port: 1, host: h }\nstreaming { ns: "nats://h:1", ft_group: g, store: file, dir: d }')
    assert options("-c", file).warnings == ()
    file = write("cluster { port: 1 }\nstreaming { ft_group: g, store: file, dir: d }")
    assert options("-c", file).warnings == ()


def test_routes_and_streams() -> None:
    file = write("cluster { port: 1 }\nstreaming { id: c }")
    assert options("-c", file).nats_warnings == ()
    (warning,) = options("-c", file, "-js", "-sd", "s").nats_warnings
    assert warning.startswith("JetStream is not clustered")


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("listen: x", 'a.conf:1:10: could not parse address string "x"'),
        ("bogus: 1", 'a.conf:1:10: unknown field "bogus"'),
        ("port: 1, routes: [ 'nats://h:x' ]", "error parsing route url: the URL of a server is malformed"),
        (
            "authorization { users: [ { user: a, password: b } ] }",
            "Cluster authorization does not allow multiple users",
        ),
    ],
)
def test_routes_that_are_wrong(block: str, said: str) -> None:
    found = answer("-c", write(f"cluster {{ {block} }}\nstreaming {{ id: c }}"))
    assert found.exit_code == 1
    assert said in found.stderr


def test_parts_of_routes_that_are_not_there() -> None:
    found = answer("-c", write("cluster { port: 1, permissions { import: a } }\nstreaming { id: c }"))
    assert found == CommandAnswer(2, stderr="not available yet: a.conf:1:19: permissions of cluster\n")


def test_json_style() -> None:
    file = write("""{
      "listen": "127.0.0.1:4222",
      "streaming": {
        "id": "json-style",
        "sd": false,
        "store_limits": { "max_msgs": 100, "channels": { "a": { "max_bytes": 1MB } } }
      }
    }""")
    found = options("-c", file)
    assert found.streaming.cluster_id == b"json-style"
    assert found.limits.limits_for("a") == ChannelLimits(100, 1 << 20)


def test_includes_and_environment() -> None:
    write("port: 5000", "net.conf")
    write("store_limits { mm: 7 }", "limits.inc")
    file = write('include "net.conf"\nstreaming {\n  id: $STAN_ID\n  include "limits.inc"\n}')
    found = options("-c", file, STAN_ID="orders")
    assert (found.nats.port, found.streaming.cluster_id) == (5000, b"orders")
    assert found.limits.channel.max_msgs == 7


def test_locked_down_accounts() -> None:
    file = write("""
        listen: "127.0.0.1:4222"
        authorization {
          CLIENT = {
            publish:   ["_STAN.discover.orders", "_STAN.pub.orders.>", "_INBOX.>"]
            subscribe: ["_INBOX.>", "_STAN.acks.>"]
          }
          SERVER = { publish: ["_INBOX.>"], subscribe: "_STAN.>" }
          users = [
            { user: broker, password: b_pw, permissions: $SERVER }
            { user: app,    password: a_pw, permissions: $CLIENT }
          ]
        }
        streaming { id: orders, username: broker, password: b_pw }
        """)
    found = options("-c", file)
    broker, app = found.nats.authorization.users
    assert (broker.name, broker.password, app.name) == ("broker", "b_pw", "app")
    assert app.permissions is not None and broker.permissions is not None
    assert app.permissions.publish.allow == (b"_STAN.discover.orders", b"_STAN.pub.orders.>", b"_INBOX.>")
    assert broker.permissions.subscribe.allow == (b"_STAN.>",)
    assert (found.connection.user, found.connection.password) == ("broker", "b_pw")


def test_external_server_with_tls() -> None:
    file = write("""streaming {
        ns: "nats://u:p@h1:4222, nats://u:p@h2:4222"
        tls { client_ca: "ca.pem", client_cert: "c.pem", client_key: "c.key", skip_verify: true, server_name: n }
    }""")
    found = options("-c", file, "-P", "pid", "-ports_file_dir", ".")
    assert found.connection.url_list == ("nats://u:p@h1:4222", "nats://u:p@h2:4222")
    assert found.connection.tls == ClientTLSOptions(Path("c.pem"), Path("c.key"), Path("ca.pem"), "n", True)
    assert any("DO NOT USE IN PRODUCTION" in line for line in found.warnings)
    assert (found.pid_file, found.ports_file_dir) == ("", "")


def test_partitions() -> None:
    file = write('streaming { partitioning: true, store_limits { channels { "foo" {}, "bar.*" {} } } }')
    assert options("-sc", file).streaming.partitions == (b"foo", b"bar.*")
    write("streaming { partitioning: true }")
    assert options("-sc", file).failure == "stan: no configured channel"


# Defaults and precedence


def test_defaults() -> None:
    found = options()
    assert found == BrokerOptions()
    assert found.nats == NatsOptions()
    assert options("-st", "FILE", "-dir", "ds").file == FileOptions(Path("ds"))


def test_which_file_configures_what() -> None:
    one = write("port: 5001\nstreaming { id: one, store_limits { mm: 1 } }", "one.conf")
    two = write("port: 5002\nid: two", "two.conf")
    both = options("-c", one, "-sc", two)
    assert (both.nats.port, both.streaming.cluster_id, both.limits.channel.max_msgs) == (5001, b"two", 1_000_000)
    for flag in ("-c", "-sc"):
        alone = options(flag, one)
        assert (alone.nats.port, alone.streaming.cluster_id, alone.config_file) == (5001, b"one", one)


def test_options_win_over_the_file() -> None:
    file = write("""port: 5001, debug: true
        streaming { id: one, sd: true, encryption_key: fromfile, store_limits { max_msgs: 5, max_bytes: 1KB } }""")
    found = options("-c", file, "-mm", "1000000", "-mb", "2KB", "-p", "5002", "-cid", "two", "-SD=false", "-D=false")
    assert found.limits.channel == ChannelLimits(max_msgs=1_000_000, max_bytes=2048)
    assert (found.nats.port, found.nats.debug, found.streaming.cluster_id) == (5002, False, b"two")
    assert not found.logging.streaming_debug
    # The other way round here.
    assert options("-c", file, "--encryption_key", "k").encryption == EncryptionOptions(b"fromfile")
    assert options("--encryption_key", "k", "--encryption_cipher", "chacha").encryption == EncryptionOptions(
        b"k", "CHACHA"
    )
    env = {"NATS_STREAMING_ENCRYPTION_KEY": "env"}
    assert options("-c", file, **env).encryption == EncryptionOptions(b"env")
    assert options("--encrypt", **env).encryption == EncryptionOptions(b"env")
    assert options(**env).encryption is None
    assert "fromfile" not in repr(options("-c", file))


def test_credentials_of_its_own_connections() -> None:
    file = write("streaming { username: s, password: sp }")
    assert options("-c", file).connection.user == "s"
    assert options("-c", file, "-user", "n", "-pass", "np").connection.user == "n"
    token = options("-c", file, "-auth", "tok")
    assert (token.connection.user, token.connection.token, token.nats.authorization.token) == ("", "tok", "tok")


def test_zero_in_a_file_is_not_nothing() -> None:
    file = write("streaming { store: file, dir: d, store_limits { mm: 0, mc: 0 }, file { buffer_size: 0, sync: no } }")
    found = options("-sc", file)
    assert (found.limits.channel.max_msgs, found.limits.max_channels) == (0, 0)
    assert found.file is not None
    assert (found.file.buffer_size, found.file.sync, found.file.read_buffer_size) == (0, False, 2 << 20)


def test_every_file_option() -> None:
    argv = """-st file -dir d --file_compact_enabled=false --file_compact_frag 1 --file_compact_interval 2
        --file_compact_min_size 3KB --file_buffer_size 4 --file_read_buffer_size 5 --file_crc=0
        --file_crc_poly 0x82F63B78 --file_sync=false --file_auto_sync -1s --file_slice_max_msgs 6
        --file_slice_max_bytes 7 --file_slice_max_age 8s --file_slice_archive_script s --file_fds_limit 9
        --file_parallel_recovery 10 --file_truncate_bad_eof"""
    found = options(*argv.split())
    assert found.file == FileOptions(
        Path("d"), 4, 5, False, 0x82F63B78, False, -SECOND, SliceLimits(6, 7, 8 * SECOND), "s",
        CompactionRules(False, 1, 2, 3072), 9, 10, True,
    )  # fmt: skip


# server-operations.md section 10


@pytest.mark.parametrize(
    ("argv", "failure"),
    [
        ("-st foo", "unsupported store type: FOO"),
        ("-st FILE", "for FILE stores, root directory must be specified"),
        ("-mc -1", "max channels limit cannot be negative (-1)"),
        ("-msu -1", "max subscriptions limit cannot be negative (-1)"),
        ("-mm -1", "max messages limit cannot be negative (-1)"),
        ("-mb -1", "max bytes limit cannot be negative (-1)"),
        ("-ma -1s", "max age limit cannot be negative (-1s)"),
        ("-mi -1m", "max inactivity limit cannot be negative (-1m0s)"),
        ("-ns foo", "malformed url: foo"),
        ("--encrypt", "encryption key required"),
        ("--encryption_key k --encryption_cipher x", "encryption cipher not supported"),
        ("-ft_group g", "ft: only FILE or SQL stores supported in FT mode"),
        ("-st SQL", 'sql: unknown driver "" (forgotten import?)'),
        ("-st SQL --sql_driver x", 'sql: unknown driver "x" (forgotten import?)'),
        ("-st FILE -dir d --file_buffer_size -1", "buffer size value must be a positive number"),
        ("-st FILE -dir d --file_read_buffer_size -1", "read buffer size value must be a positive number"),
        ("-st FILE -dir d --file_compact_interval 0", "compact interval value must at least be 1 seconds"),
        ("-st FILE -dir d --file_compact_frag 0", "compact fragmentation value must at least be 1"),
        ("-st FILE -dir d --file_compact_min_size -1", "compact minimum file size value must be a positive number"),
        ("-st FILE -dir d --file_crc_poly 0", "crc polynomial should be between 1 and 4294967295"),
        ("-st FILE -dir d --file_crc_poly 4294967296", "crc polynomial should be between 1 and 4294967295"),
        ("-st FILE -dir d --file_slice_max_age -1s", "slice max values must be positive numbers"),
        ("-st FILE -dir d --file_fds_limit -1", "file descriptor limit must be a positive number"),
        ("-st FILE -dir d --file_parallel_recovery 0", "parallel recovery value must be at least 1"),
    ],
)
def test_failures_of_the_start(argv: str, failure: str) -> None:
    assert options(*argv.split()).failure == failure


def test_too_many_channels() -> None:
    file = write("streaming { store_limits { mc: 1, channels { a {}, b {}, c.* {} } } }")
    assert options("-sc", file).failure == "too many channels defined (2). The max channels limit is set to 1"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("-mb abc", "mb should be a size, got 'abc'"),
        ("-file_slice_max_bytes x", "file_slice_max_bytes should be a size, got 'x'"),
        ("-c missing", "open missing: no such file or directory"),
        ("-c empty.conf -sc missing", "error opening config file: open missing: no such file or directory"),
        ("foo", 'unrecognized command: "foo"'),
        ("-SD false", 'unrecognized command: "false"'),
        ("-t", "must specify [-c, --config] option to check configuration file syntax"),
        ("--routes nats://h:1", "solicited routes require cluster capabilities, e.g. --cluster"),
        ("-tls", "TLS Server certificate must be present and valid"),
        ("-tls_client_cacert x", "TLS Server certificate must be present and valid"),
        ("-tlscert x", "TLS Server private key must be present and valid"),
        (
            "-tlscert x -tlskey y",
            "error parsing X509 certificate/key pair: open x: no such file or directory",
        ),
    ],
)
def test_answers_with_exit_code_1(argv: str, said: str) -> None:
    write("", "empty.conf")
    assert answer(*argv.split()) == CommandAnswer(1, stderr=f"{said}\n")


def test_answers_on_stdout() -> None:
    said = "stan: clustering mode not supported with MEMORY store type\n"
    assert answer("-clustered") == CommandAnswer(1, stdout=said)
    file = write('partitioning: true, store_limits { channels { "a" {} } }')
    found = answer("-sc", file, "-clustered", "-st", "FILE", "-dir", "d")
    assert found == CommandAnswer(1, stdout="stan: channels partitioning in clustering mode is not supported\n")
    found = answer("-clustered", "-st", "FILE", "-dir", "d", "-ft_group", "g")
    assert found == CommandAnswer(1, stdout="stan: clustering mode not supported in FT mode (ft_group)\n")
    file = write("streaming { ft_group_name: g, cluster { node_id: a } }")
    assert answer("-sc", file, "-st", "FILE", "-dir", "d") == found


def test_groups() -> None:
    file = write('streaming { store: file, dir: "d", ft_group_name: g, nats_server: "nats://h:1" }')
    found = options("-sc", file)
    assert (found.streaming.ft_group, found.warnings) == (b"g", ())
    # Nobody hears of each other, and clients of one on standby reach nobody.
    (warning,) = options("-st", "FILE", "-dir", "d", "-ft_group", "g").warnings
    assert warning.startswith("ft: ") and "--nats_server" in warning


def test_nodes() -> None:
    """The files of the original's tutorial, with all that they may have."""
    file = write("""
        PASS: secret
        listen: "127.0.0.1:4222"
        server_name: x, max_payload: 2MB, ping_interval: "10s", http: 8222, logfile: "log", debug: true
        authorization { CLIENT = { publish: ["a.>"] }, users: [ { user: u, password: $PASS, permissions: $CLIENT } ] }
        tls { cert_file: "c.pem", key_file: "k.pem" }
        cluster { listen: "127.0.0.1:6222", routes: ["nats://r:s@h:6222"], pool_size: 5
                  authorization { user: r, password: s, timeout: 2 } }
        jetstream { max_file: 10G, store_dir: "elsewhere" }
        mqtt { port: 1883 }
        streaming { id: c, store: file, dir: d, username: u, password: secret
                    cluster { node_id: a, peers: ["b", "c", "a"], log_path: "raft", sync: true } }
    """)
    # Files that are not there are the nats-server's matter.
    (Path.cwd() / "c.pem").touch()
    found = parse(("-c", file), {})
    assert isinstance(found, CommandAnswer), "certificates are checked"
    Path(file).write_text(Path(file).read_text().replace("tls {", "unknown {"))
    found = options("-c", file, "-p", "4333", "-cluster_name", "n")
    assert found.failure == "" and not found.embedded
    assert (found.store, found.directory, found.channels) == ("JETSTREAM", "d", ChannelsOptions(3, durable_copy=True))
    assert found.file is not None and found.file.directory == Path("d/copy")
    unknown, warning = found.warnings
    assert unknown == f'{file}:6:9: "unknown" has no effect: unknown key'
    assert warning.startswith("cluster: log_path: no effect")
    node = found.node
    assert node is not None
    assert (node.node_id, node.peers, node.directory, node.log_path) == ("a", ("b", "c"), Path("d"), Path("raft"))
    assert node.server == {
        "host": "127.0.0.1",
        "port": 4333,
        "max_payload": 2 << 20,
        "ping_interval": "10000000000ns",
        "debug": True,
        "logfile_size_limit": 16 << 20,
        "logfile_max_num": 2,
        "reconnect_error_reports": 60,
        "authorization": {"users": [{"user": "u", "password": "secret", "permissions": {"publish": ["a.>"]}}]},
        "cluster": {
            "name": "n",
            "host": "127.0.0.1",
            "port": 6222,
            "routes": ["nats://r:s@h:6222"],
            "authorization": {"user": "r", "password": "s", "timeout": 2.0},
            "no_advertise": False,
            "connect_retries": 0,
            "pool_size": 5,
        },
        "mqtt": {"port": 1883},
        "jetstream": {"max_file": 10_000_000_000, "sync_interval": "1s"},
    }


@pytest.mark.parametrize(
    ("argv", "replicas"),
    [
        ("", 1),
        ("-cluster nats://127.0.0.1:6222", 3),
        ("-cluster nats://127.0.0.1:6222 -cluster_peers b", 2),
        ("-cluster nats://127.0.0.1:6222 -cluster_peers b,c,d,e,f,g", 5),
        ("-ns nats://127.0.0.1:4222 -cluster_peers b,c", 3),
        ("-ns nats://127.0.0.1:4222 -cluster_peers b,c -jetstream_replicas 1", 1),
    ],
)
def test_replicas_of_nodes(argv: str, replicas: int) -> None:
    found = options("-clustered", "-st", "file", "-dir", "d", "-cluster_node_id", "a", *argv.split())
    assert (found.failure, found.channels) == ("", ChannelsOptions(replicas))


def test_nodes_that_cannot_reach_each_other() -> None:
    found = options("-clustered", "-st", "FILE", "-dir", "d", "-cluster_peers", "b,c")
    assert found.failure.startswith("cluster: nodes b, c cannot be reached: ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("-st SQL --sql_driver mysql --sql_source s", "SQL stores"),
    ],
)
def test_what_is_not_available_yet(argv: str, said: str) -> None:
    found = answer(*argv.split())
    assert found.exit_code == 2
    assert found.stderr.startswith("not available yet: ") and said in found.stderr


def test_no_embedded_server_needs_nothing() -> None:
    assert options("-ns", "nats://127.0.0.1:4222", "-js").connection.urls == "nats://127.0.0.1:4222"
    write("jetstream: enabled\naccounts { A { users: [] } }")
    assert options("-ns", "nats://127.0.0.1:4222", "-c", "a.conf").failure == ""


def test_channels_as_streams() -> None:
    words = ("-st", "jetstream", "-dir", "copy", "-ns", "nats://127.0.0.1:4222")
    found = options(*words, "-jetstream_replicas", "3", "-jetstream_domain", "hub")
    assert (found.store, found.channels, found.failure) == ("JETSTREAM", ChannelsOptions(3, "hub"), "")
    write("streaming { store: jetstream, dir: copy, ns: 'nats://127.0.0.1:4222', jetstream_options { replicas: 5 } }")
    found = options("-sc", "a.conf")
    assert (found.store, found.channels, found.failure) == ("JETSTREAM", ChannelsOptions(5), "")
    assert options("-st", "MEMORY").channels is None


def test_answers_load_little() -> None:
    """What answers at once needs no numpy, no event loop and no TLS."""
    script = (
        "import sys; from broker.cli import main; main(['-v']); print(sorted(set(sys.modules) & set(sys.argv[1:])))"
    )
    heavy = ("numpy", "asyncio", "ssl", "cryptography", "aiohttp", "google.protobuf", "uvloop")
    done = subprocess.run([sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("-v", "--version", "version", "VERSION"):
        assert main([word]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first == "nats-streaming-server version 0.25.6, nats-server: v2.9.24"
        assert second == f"stan-broker {__version__}"
    for word in ("-h", "--help", "help"):
        assert main([word]) == 0
        assert capsys.readouterr().out.startswith("\nUsage: nats-streaming-server [options]\n")
    assert main(["--help_tls"]) == 0
    assert "TLS_AES_128_GCM_SHA256" in capsys.readouterr().out
    assert main(["-x"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "flag provided but not defined: -x\n"
    assert shown.out.startswith("\nUsage: nats-streaming-server [options]\n")
    assert main(["foo"]) == 1
    assert capsys.readouterr().err == 'unrecognized command: "foo"\n'


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    file = write("streaming { id: a }")
    assert main(["-t", "-c", file]) == 0
    assert capsys.readouterr().err == "configuration file a.conf is valid\n"
    write("streaming { id: 5 }")
    assert main(["-t", "-c", file]) == 1
    assert capsys.readouterr().err == 'a.conf:1:12: parameter "id" value is expected to be string, got int64\n'
    write("streaming { store: file }")
    assert main(["-t", "-c", file]) == 1
    assert capsys.readouterr().err == "for FILE stores, root directory must be specified\n"


def test_signals() -> None:
    assert parse(["-sl", "stop=5"], {}) == SignalRequest("stop=5")


def test_monitoring() -> None:
    assert options("-m", "8222").monitoring.port == 8222
    assert options("-a", "127.0.0.1", "-m", "-1").monitoring.host == "127.0.0.1"
    assert options("-ms", "8222").monitoring.problem == "Can't start monitoring: TLS cert and key required for HTTPS"
    both = options("-ms", "2", "-m", "1").monitoring.problem
    assert both == "Can't start monitoring: can't specify both HTTP (1) and HTTPs (2) ports"


def test_logs() -> None:
    argv = "-l f --log_size_limit 5 -T=false --logtime_utc -s -r udp://h:1 -DV -SDV"
    found = options(*argv.split()).logging
    shown = tuple(getattr(found, field.name) for field in fields(found))
    assert shown == ("f", 5, False, True, True, "udp://h:1", True, True, True, True)


@given(st.binary(max_size=80))
def test_any_file(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.conf"
    path.write_bytes(content)
    assert isinstance(parse(["-c", str(path)], {}), BrokerOptions | CommandAnswer)


KEYS = """streaming authorization users permissions publish tls cluster limits channels file user password nkey token
    allow deny allow_responses timeout port listen id a verify cert_file cipher_suites max_age mm store http
    ping_interval peers foo..bar"""
keys = st.sampled_from(KEYS.split())
trees = st.recursive(
    st.sampled_from(["5", "-1", "x", '"1s"', "true", "1.5", '"a.b"', '"a:5"', "FILE"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: "[" + ", ".join(f"{one} " for one in each) + "]")
        | st.dictionaries(keys, inner, max_size=4).map(
            lambda each: "{" + "\n".join(f"{key}: {one}" for key, one in each.items()) + "}"
        )
    ),
    max_leaves=14,
)


@given(st.dictionaries(keys, trees, max_size=5))
def test_any_tree(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, str]) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.conf"
    path.write_text("\n".join(f"{key}: {value}" for key, value in tree.items()))
    assert isinstance(parse(["-c", str(path)], {}), BrokerOptions | CommandAnswer)


def test_every_configuration_of_the_guides_is_valid_and_has_an_effect(folder: Path) -> None:
    guides = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))
    blocks = [(path.name, text) for path in guides for text in re.findall(r"```conf\n(.*?)```", path.read_text(), re.S)]
    assert len(blocks) > 7
    for name, text in blocks:
        (folder / "guide.conf").write_text(text)
        checked = answer("-t", "-c", "guide.conf")
        assert checked.exit_code == 0, (name, text, checked.stderr)
