"""Keys without an effect are named where they stand; what a real nats-server takes is taken, what it refuses is not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from broker.config.broker_options import BrokerOptions, CommandAnswer
from broker.config.catalogue import KEYS, SECTIONS
from broker.config.reader import parse
from tests.broker.nats.certificates import party
from tests.servers import NEWEST, binary

REAL = pytest.mark.skipif(not binary(NEWEST).exists(), reason=f"nats-server {NEWEST} is not in .servers")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(text: str | bytes, *words: str) -> BrokerOptions:
    Path("s.conf").write_bytes(text if isinstance(text, bytes) else text.encode())
    parsed = parse(("-c", "s.conf", *words), {})
    assert isinstance(parsed, BrokerOptions), parsed
    return parsed


def checked(text: str, **environ: str) -> CommandAnswer:
    Path("s.conf").write_text(text)
    parsed = parse(("-t", "-c", "s.conf"), environ)
    assert isinstance(parsed, CommandAnswer)
    return parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("streaming { stoer: file }", '1:12: "stoer" has no effect: did you mean "store"?'),
        ("streaming {\n  max_payload: 5MB\n}", '2:3: "max_payload" has no effect: it belongs to the top level'),
        ("streaming { max_msgs: 5 }", '1:12: "max_msgs" has no effect: it belongs into `store_limits { }`'),
        ("streaming { sync: true }", '1:12: "sync" has no effect: it belongs into `file_options { }`'),
        ("stan { cluster_id: o, store: file, dir: d }", '1:0: "stan" has no effect: did you mean "streaming"?'),
        ("streming: {}", '1:0: "streming" has no effect: did you mean "streaming"?'),
        ("max_paylod: 5", '1:0: "max_paylod" has no effect: did you mean "max_payload"?'),
        ("store: file, streaming { dir: d }", '1:0: "store" has no effect: it belongs into `streaming { }`'),
        ('{ "store": "memory", "max_msgs": 5 }', '1:22: "max_msgs" has no effect: it belongs into `store_limits { }`'),
        ("store_limits { max_mgs: 5 }", '1:15: "max_mgs" has no effect: did you mean "max_msgs"?'),
        ("streaming { store_limits { max_mgs: 5 } }", '1:27: "max_mgs" has no effect: did you mean "max_msgs"?'),
        ("streaming { limits { channels { a { max_mgs: 5 } } } }", '1:36: "max_mgs" has no effect: did you mean'),
        ("streaming { limits { channels { a { max_channels: 5 } } } }", "it belongs into `store_limits { }`"),
        ("streaming { file_options { bufer_size: 5 } }", 'did you mean "buffer_size"?'),
        ("streaming { tls { client_crt: x } }", 'did you mean "client_cert"?'),
        ("streaming { store: file, dir: d, cluster { nodeid: x } }", 'did you mean "node_id"?'),
        ("streaming { wholly_other: 1 }", "unknown key"),
        ("store_dir: x, streaming { store_dir: y }", "it belongs to the top level of the file"),
    ],
)
def test_keys_without_an_effect_are_named(text: str, said: str) -> None:
    found = checked(text)
    assert found.exit_code == 1 and said in found.stderr and found.stderr.startswith("s.conf:"), found
    if "store: file" not in text or "streaming" not in text:
        # The server starts nevertheless, as the original does.
        assert [line for line in started(text).warnings if said in line]


def test_files_that_are_all_right_have_no_warnings() -> None:
    good = """
        USER: someone  # only a variable
        listen: "127.0.0.1:4222", max_payload: 2MB, store_dir: "elsewhere"
        authorization { user: $USER, password: x }
        streaming { id: c, ST: memory, store_limits { MaxMsgs: 5, channels { "a.*": { max_age: "1h" } } }, sql { } }
    """
    assert checked(good).exit_code == 0 and started(good).warnings == ()
    assert started("id: c, store: memory, limits { mm: 5 }, port: 4222").warnings == ()
    assert all(option.keys == tuple(map(str.lower, option.keys)) for each in SECTIONS for _, option in each.options)


def test_two_files_say_which_of_them_counts() -> None:
    Path("stan.conf").write_text("port: 5\nstreaming { id: c }")
    found = started("streaming { id: d }\nport: 4222", "-sc", "stan.conf")
    assert found.streaming.cluster_id == b"c" and found.nats.port == 4222
    assert found.warnings == (
        's.conf:1:0: "streaming" has no effect: streaming is configured by stan.conf',
        'stan.conf:1:0: "port" has no effect: the NATS server is configured by s.conf',
    )


def test_a_byte_order_mark_is_no_part_of_a_key() -> None:
    Path("part.conf").write_bytes(b"\xef\xbb\xbfstore: file, dir: data\n")
    found = started(b"\xef\xbb\xbfstreaming { id: orders, include 'part.conf'\n}\n")
    assert (found.streaming.cluster_id, found.store, found.directory, found.warnings) == (b"orders", "FILE", "data", ())
    Path("s.conf").write_bytes("streaming { }".encode("utf-16"))
    refused = parse(("-c", "s.conf"), {})
    assert isinstance(refused, CommandAnswer) and "s.conf is written in UTF-16; save it in UTF-8" in refused.stderr


def test_what_has_no_use_here_is_said_and_no_error() -> None:
    text = (
        "jetstream { store_dir: x, max_file_store: '10G', request_queue_limit: 5, strict: true }\nmax_closed_clients: 5"
    )
    found = checked(text)
    assert found.exit_code == 0 and "s.conf is valid" in found.stderr
    assert "s.conf:1:49: request_queue_limit of jetstream has no effect here, and is not needed" in found.stderr
    assert "strict of jetstream has no effect in this server" in found.stderr
    assert "s.conf:2:1: max_closed_clients has no effect in this server" in found.stderr
    assert len(started(text).nats_warnings) == 3


def test_peers_in_one_text() -> None:
    text = 'streaming { store: file, dir: d, cluster { node_id: a, peers: ["a, b, c"] } }'
    found = started("cluster { port: 6222 }\n" + text)
    assert found.node is not None and found.node.peers == ("b", "c")
    assert found.channels is not None and found.channels.replicas == 3
    assert any(line.startswith("Peer name contains ','") for line in found.warnings)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        *((f"{scheme}://127.0.0.1:6222", "") for scheme in ("nats", "nats-route", "tls", "tcp")),
        ("127.0.0.1:6222", ""),
        ("http://127.0.0.1:6222", "http:// is not the scheme of a route"),
        ("nats://u:a/secret@127.0.0.1:6222", "percent-encoded"),
        ("nats://u:a@secret#@127.0.0.1:6222", "percent-encoded"),
        ("nats://u:a%2Fb@127.0.0.1:6222", ""),
    ],
)
@pytest.mark.parametrize("flag", ["-cluster", "-routes"])
def test_urls_of_routes(flag: str, url: str, said: str) -> None:
    words = (flag, url) if flag == "-cluster" else ("-cluster", "nats://127.0.0.1:6222", flag, url)
    found = parse(words, {})
    if not said:
        assert isinstance(found, BrokerOptions) and found.nats.cluster is not None
    else:
        assert isinstance(found, CommandAnswer) and found.exit_code == 1
        assert said in found.stderr and "secret" not in found.stderr


def test_certificates_that_are_wrong(tmp_path: Path) -> None:
    server, another = party(tmp_path, "server"), party(tmp_path, "another")
    cert, key, other = server.cert, server.key, another.key
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    for one, two, said in (
        (key, cert, f"{key} holds a private key and no certificate (certificate and key are swapped)"),
        (key, key, f"{key} holds a private key and no certificate"),
        (cert, cert, f"{cert} holds a certificate and no private key"),
        (cert, other, f"the private key in {other} is not that of the certificate in {cert}"),
        (empty, key, f"{empty} is empty"),
        (cert, empty, f"{empty} is empty"),
        (Path("/etc/hostname"), key, "/etc/hostname holds no certificate in PEM form"),
        (cert, Path("nope"), "open nope: no such file or directory"),
    ):
        for found in (
            parse(("--tls", "--tlscert", str(one), "--tlskey", str(two)), {}),
            checked(f'tls {{ cert_file: "{one}", key_file: "{two}" }}'),
        ):
            assert isinstance(found, CommandAnswer) and found.exit_code == 1
            assert said in found.stderr, (found, said)
    found = checked(f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{empty}" }}')
    assert f"failed to parse root ca certificate: {empty} is empty" in found.stderr


# Beside a real nats-server

#: Configurations of NATS: values that begin with digits, sizes, JetStream's options, maps of all kinds.
SNIPPETS = (
    *(
        f"authorization {{ token: {word} }}"
        for word in (
            *(
                "3x",
                "2GP3JZCZ4G7",
                "8m4dwr",
                "0K1abc",
                "5e7bcd-abc10",
                "33feda22ea",
                "12345",
                "0123",
                "1k",
                "1kb",
                "8m4",
            ),
            *("8m4.5", "10mx", "1.2.3.4", "1.5x", "1.5", "1e5", "1_000", "-5", "-5abc", "-a", "5-", "2020", "123-456"),
            *(
                "12:30",
                "8g",
                "8gib",
                "8gix",
                "1k2",
                "0x1F",
                "1#",
                "7/x",
                "99999999999999999999",
                "1.",
                "5k_",
                "5%",
                "24h",
            ),
            *(
                "1d3h",
                "5ki",
                "5kibx",
                "99999999999999999999a",
                "'12345'",
                '"0123"',
                "true",
                "$NOT_THERE",
                "$NUMBER",
                "$WORD",
            ),
        )
    ),
    *(
        f"authorization {{ user: u, password: {word} }}"
        for word in ("0123", "8m4dwr", "1k", "'0123'", "2a", "$2a$10$abcdefghijklmnopqrstuv", "007x")
    ),
    "authorization { users: [ { user: 8m4dwr, password: 5e7bcd-abc10 } ] }",
    "authorization { users: [ { user: 5, password: x } ] }",
    "authorization { usr: x }",
    *(f"max_payload: {size}" for size in ("1k", "1kb", "1m30s", "2MB", "'1MB'", "1.5MB", "0x10", "-1", "3GB")),
    *(
        f"jetstream {{ max_file_store: {size} }}"
        for size in ("10G", "'10G'", "'10K'", "'5M'", "'1T'", "''", "'x'", "1.5")
    ),
    *(f"jetstream {{ {each} }}" for each in ("strict: true", "request_queue_limit: 5", "info_queue_limit: 5")),
    *(
        f"jetstream {{ {each} }}"
        for each in ("max_buffered_msgs: 5", "unique_tag: 'a:'", "meta_compact: 5", "stoer_dir: x")
    ),
    *(
        f"jetstream {{ {each} }}"
        for each in ("store: x", "max_outstanding_catchup: 64MB", "enabled: true", "enabled: maybe")
    ),
    "jetstream: true",
    "jetstream: enabled",
    "jetstream: 5",
    "cluster { port: 6222, name: x, write_deadline: '2s', connect_backoff: true }",
    "cluster { port: 6222, nmae: x }",
    "cluster { port: 6222, routes: ['nats-route://h:1'], pool_size: 3, compression: off }",
    "max_closed_clients: 5",
    "no_fast_producer_stall: true",
    "logfile_max_num: 5, trace_headers: true, server_metadata { a: b }",
    "ping_interval: 5",
    "write_deadline: '5'",
    "listen: 'x:y'",
    "port: '4222'",
    "debug: 5",
    "debug: yes",
)
#: What differs, and why.
DIFFERENT = {"ping_interval: 5": "a warning is none of the errors here, as in the original"}


@REAL
@pytest.mark.parametrize("text", SNIPPETS)
def test_what_a_real_server_takes_is_taken(text: str) -> None:
    environ = {"NUMBER": "12345", "WORD": "8m4dwr"}
    # Without this a `cluster` would be one of the original.
    ours = checked(f"{text}\nstreaming {{ }}", **environ)
    Path("s.conf").write_text(text)
    done = subprocess.run(
        [binary(NEWEST), "-t", "-c", "s.conf"], capture_output=True, text=True, timeout=60, env=environ, check=False
    )
    said = f"{ours}\n{done.stdout}{done.stderr}"
    assert ((ours.exit_code == 0) == (done.returncode == 0)) != (text in DIFFERENT), said


@REAL
@pytest.mark.parametrize("rounds", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", ["", "jetstream", "cluster", "authorization"])
def test_keys_of_the_catalogue_are_those_of_a_real_server(path: str, rounds: int) -> None:
    """A real server says of all keys at once which of them it does not know, up to the first that has a wrong value.

    It looks at them in another order each time.
    """
    left, unknown = set(KEYS[path]) - {"include"}, set[str]()
    for _ in range(rounds):
        lines = "\n".join(f"{name}: {{}}" for name in sorted(left))
        Path("s.conf").write_text(f"{path} {{\n{lines}\n}}\n" if path else lines)
        done = subprocess.run([binary(NEWEST), "-t", "-c", "s.conf"], capture_output=True, text=True, check=False)
        found = set(re.findall(r'unknown field \[?"([^"]+)"', done.stdout + done.stderr))
        left, unknown = left - found, unknown | found
        if not path:
            break
    assert unknown <= {"streams_from_channels", "preview_api", "account_resolvers"}, unknown


#: What the newest nats-server knows, as it says itself.
THEIRS = {
    "": """accounts allow_non_tls authorization client_advertise cluster connect_error_reports debug default_js_domain
        default_sentinel disable_sublist_cache feature_flags gateway host http http_base_path http_port https https_port
        jetstream lame_duck_duration lame_duck_grace_period leaf leafnodes listen log_file log_max_num log_size_limit
        logfile logfile_max_num logfile_size_limit logtime logtime_utc mappings maps max_closed_clients max_conn
        max_connections max_control_line max_payload max_pending max_sub_tokens max_subs max_subscription_tokens
        max_subscriptions max_traced_msg_len monitor_port mqtt net no_auth_user no_fast_producer_stall
        no_header_support no_sublist_cache no_sys_acc no_system no_system_account ocsp ocsp_cache operator operators
        pid_file pidfile ping_interval ping_max port ports_file_dir prof_block_rate prof_port proxies
        reconnect_error_reports remote_syslog resolver resolver_pinned_accounts resolver_preload resolver_tls root
        root_operator root_operators roots server_metadata server_name server_tags store_dir storedir syslog system
        system_account tls trace trace_headers trace_verbose trusted trusted_keys websocket write_deadline
        write_timeout ws account_resolver""",
    "jetstream": """cipher domain ek enable enabled encryption_key extension_hint info_queue_limit key limits
        max_buffered_msgs max_buffered_size max_file max_file_store max_mem max_mem_store max_memory_store
        max_outstanding_catchup meta_compact meta_compact_size meta_compact_sync prev_ek prev_encryption_key prev_key
        request_queue_limit store store_dir storedir strict sync sync_interval tpm unique_tag""",
    "cluster": """accounts advertise authorization cluster_advertise compression connect_backoff connect_retries host
        listen name net no_advertise permissions ping_interval ping_max pool_size port routes tls write_deadline
        write_timeout""",
    "authorization": """auth_callout auth_hook default_permission default_permissions pass password permissions
        proxy_required timeout token user username users""",
}


@pytest.mark.parametrize("path", THEIRS)
def test_keys_of_a_real_server_are_known(path: str) -> None:
    assert set(THEIRS[path].split()) <= set(KEYS[path])


@pytest.mark.parametrize(
    "text",
    ["authorization { auth_callout { issuer: x } }", "authorization { users: [ { user: a, proxy_required: true } ] }",
     "proxies { trusted: [] }", "default_sentinel: x"],
)  # fmt: skip
def test_what_would_protect_is_refused_and_not_dropped(text: str) -> None:
    found = checked(text)
    assert found.exit_code == 2 and "not available yet" in found.stderr
