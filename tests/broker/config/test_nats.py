"""The NATS part of a file: values, permissions, TLS, errors with their places; the real server agrees on them."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker.config.grammar import parse
from broker.config.nats import NatsFile, parse_address, read_nats
from broker.config.natsauth import is_permission_subject
from broker.config.values import ConfigurationError
from broker.nats.auth import user_key
from broker.nats.nats_options import Permissions, ResponsePermission, SubjectPermission, TLSOptions
from tests.servers import OLDEST, binary

NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def read(source: str) -> NatsFile:
    return read_nats(parse(source, "F", environ={}))


def problem(source: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(source)
    return caught.value.message


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "c.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "k.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def test_values() -> None:
    found = read("""
        listen: "127.0.0.1:5000", http: "0.0.0.0:6000", server_name: x, debug: true, max_payload: 2MB
        ping_interval: "5s", write_deadline: 3, max_conn: 7, no_auth_user: u, logtime: no, unknown: 5
        http_base_path: /x, pid_file: p, jetstream: false, cluster { name: x }
        """)
    assert found.settings == {
        "nats.host": "127.0.0.1",
        "nats.port": 5000,
        "nats.http_host": "0.0.0.0",
        "nats.http_port": 6000,
        "nats.name": "x",
        "nats.debug": True,
        "nats.max_payload": 2 << 20,
        "nats.ping_interval": 5_000_000_000,
        "nats.write_deadline": 3_000_000_000,
        "nats.max_connections": 7,
        "nats.no_auth_user": "u",
        "log.timestamps": False,
        "nats.http_base_path": "/x",
        "nats.pid_file": "p",
        "jetstream": False,
        "routes.name": "x",
    }
    assert found.unavailable == []
    assert any("write_deadline should be converted to a duration" in line for line in found.warnings)


def test_addresses() -> None:
    assert parse_address(5) == (None, 5)
    assert parse_address("h:5") == ("h", 5)
    assert parse_address(":5") == ("", 5)
    assert parse_address("[::1]:5") == ("::1", 5)


def permissions(source: str) -> Permissions | None:
    found = read(f"authorization {{ users: [ {{ user: a, password: b, permissions: {source} }} ] }}").authorization
    assert found is not None
    return found.users[0].permissions


def test_permissions() -> None:
    assert permissions('{ publish: "a", sub: ["b.*", "c.> q"] }') == Permissions(
        SubjectPermission((b"a",)), SubjectPermission((b"b.*", b"c.> q"))
    )
    assert permissions('{ pub: { allow: ["a"], deny: "b" }, subscribe: { deny: ["c"] } }') == Permissions(
        SubjectPermission((b"a",), (b"b",)), SubjectPermission(None, (b"c",))
    )
    # Whoever may answer may not publish what is not allowed expressly.
    assert permissions("{ allow_responses: true }") == Permissions(
        SubjectPermission(()), SubjectPermission(), ResponsePermission(1, 120.0)
    )
    assert permissions('{ pub: a, allow_responses: { max: 5, expires: "1m" } }') == Permissions(
        SubjectPermission((b"a",)), SubjectPermission(), ResponsePermission(5, 60.0)
    )
    assert permissions("{ allow_responses: false }") == Permissions()


def test_users() -> None:
    found = read(f"""authorization {{
        default_permissions {{ publish: x }}
        timeout: 5
        users = [ {{ username: a, pass: b, permission {{ sub: y }} }}, {{ nkey: {NKEY} }} ]
    }}""").authorization
    assert found is not None
    first, second = found.users
    assert (first.name, first.password, second.nkey, found.timeout) == ("a", "b", NKEY, 5.0)
    assert first.permissions == Permissions(SubjectPermission(), SubjectPermission((b"y",)))
    assert second.permissions == Permissions(SubjectPermission((b"x",)))


def test_nkeys_and_subjects() -> None:
    assert user_key(NKEY)
    assert not any(user_key(each) for each in ("", "UB", NKEY[:-1] + "5", "A" + NKEY[1:], NKEY.lower(), "U" * 56))
    assert all(is_permission_subject(each) for each in ("a", "a.*", ">", "a.>", "a.b q", "*.x"))
    assert not any(is_permission_subject(each) for each in ("", "a..b", ".a", ">.a", "a q r", " a", "a."))


def test_tls(certificates: Path) -> None:
    source = f'tls {{ cert_file: "{certificates}/c.pem", key_file: "{certificates}/k.pem"'
    assert read(f"{source} }}").tls == TLSOptions(certificates / "c.pem", certificates / "k.pem")
    found = read(f"""{source}, ca_file: "{certificates}/c.pem", verify: true, timeout: "3s", insecure: true
        cipher_suites: [ TLS_AES_128_GCM_SHA256 ], curve_preferences: [ X25519 ] }}""").tls
    assert found is not None and found.ca == certificates / "c.pem"
    assert (found.verify, found.timeout, found.curves) == (True, 3.0, ("X25519",))
    assert read("tls { timeout: 5 }").tls is None
    pinned = read(f'{source}, pinned_certs: ["{"a" * 64}"] }}')
    assert pinned.unavailable == ["F:1:" + pinned.unavailable[0].split(":")[2] + ": pinned_certs"]
    assert "failed to parse root ca certificate" in problem(f'{source}, ca_file: "{certificates}/k.pem" }}')
    swapped = source.replace("c.pem", "k.pem")
    assert problem(f"{swapped} }}").startswith("F:1:0: error parsing X509 certificate/key pair: tls: ")


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("jetstream: enabled", {"jetstream": True}),
        ("jetstream: false", {"jetstream": False}),
        ("jetstream {}", {"jetstream": True}),
        ("jetstream { enabled: false }", {"jetstream": False}),
        (
            "jetstream { store_dir: d, max_mem: 1MB, max_file_store: 2G }",
            {
                "jetstream": True,
                "jetstream.store_dir": "d",
                "jetstream.max_mem": 1 << 20,
                "jetstream.max_file": 2_000_000_000,
            },
        ),
    ],
)
def test_jetstream(source: str, settings: dict[str, object]) -> None:
    assert read(source).settings == settings


UNAVAILABLE = """gateway { name: x }; leafnodes { port: 5 }; websocket { port: 5 }; mqtt { port: 5 };
    jetstream { domain: d }; accounts { A {} }; operator: x; mappings { a: b }; ocsp: true; allow_non_tls: true;
    resolver: MEMORY; cluster { accounts: [ a ] }; system_account: x;
    authorization { users: [{user: a, clients: [mqtt]}] }"""


@pytest.mark.parametrize("source", UNAVAILABLE.split(";"))
def test_what_is_not_available(source: str) -> None:
    assert len(read(source).unavailable) == 1


#: Sources, and what is said about them; all of it was compared with a real server.
ERRORS = [
    ("jetstream: 5", "F:1:0: Expected map, bool or string to define JetStream, got int64"),
    ("jetstream { zork: 1 }", 'F:1:12: unknown field "zork"'),
    ("port: x", "F:1:0: interface conversion: interface {} is string, not int64"),
    ("port: 1.5", "F:1:0: interface conversion: interface {} is float64, not int64"),
    ("host: 5", "F:1:0: interface conversion: interface {} is int64, not string"),
    ("debug: x", "F:1:0: interface conversion: interface {} is string, not bool"),
    ("listen: x", 'F:1:0: could not parse address string "x"'),
    ('listen: "x:y"', 'F:1:0: could not parse port "y"'),
    ("http: true", "F:1:0: expected port or host:port, got bool"),
    ("http: []", "F:1:0: expected port or host:port, got []interface {}"),
    ("max_payload: 9GB", "F:1:0: max_payload value is too big"),
    ("max_control_line: 9GB", "F:1:0: max_control_line value is too big"),
    ('ping_interval: "5"', 'F:1:0: error parsing ping_interval: time: missing unit in duration "5"'),
    ('write_deadline: "x"', 'F:1:0: error parsing write_deadline: time: invalid duration "x"'),
    ('lame_duck_duration: "5s"', "F:1:0: invalid lame_duck_duration of 5s, minimum is 30 seconds"),
    ('lame_duck_grace_period: "-5s"', "F:1:0: invalid lame_duck_grace_period, needs to be positive"),
    ("authorization { user: a, token: b }", "F:1:0: Cannot have a user/pass and token"),
    (
        "authorization { user: a, pass: b, users: [] }",
        "F:1:0: Can not have a single user/pass and a users array",
    ),
    ("authorization { token: b, users: [] }", "F:1:0: Can not have a token and a users array"),
    ("authorization { foo: 1 }", 'F:1:16: unknown field "foo"'),
    ("authorization { users: 5 }", "F:1:16: Expected users field to be an array, got 5"),
    ("authorization { users: [{password: a}] }", "F:1:25: User entry requires a user"),
    ("authorization { users: [{user: a, zork: 1}] }", 'F:1:34: unknown field "zork"'),
    ("authorization { users: [{user: a, nkey: b}] }", "F:1:34: Not a valid public nkey for a user"),
    (
        f"authorization {{ users: [{{nkey: {NKEY}, password: x}}] }}",
        "F:1:89: Nkey users do not take usernames or passwords",
    ),
    ("authorization { users: [{user: a}, {user: a}] }", 'F:1:0: Duplicate user "a" detected'),
    (
        "authorization { users: [{user: a, permissions: 5}] }",
        "F:1:34: Expected permissions to be a map/struct, got 5",
    ),
    (
        "authorization { users: [{user: a, permissions: {publish: [5 ]}}] }",
        "F:1:58: Subject in permissions array cannot be cast to string",
    ),
    (
        "authorization { users: [{user: a, permissions: {publish: {allow: 5}}}] }",
        "F:1:58: Expected subject permissions to be a subject, or array of subjects, got int64",
    ),
    (
        "authorization { users: [{user: a, permissions: {publish: {zork: b}}}] }",
        "F:1:58: Unknown field name \"zork\" parsing subject permissions, only 'allow' or 'deny' are permitted",
    ),
    (
        "authorization { users: [{user: a, permissions: {zork: b}}] }",
        'F:1:48: Unknown field "zork" parsing permissions',
    ),
    (
        "authorization { users: [{user: a, permissions: {allow_responses: 5}}] }",
        "F:1:48: error parsing response permissions, expected a boolean or a map",
    ),
    (
        "authorization { users: [{user: a, permissions: {allow_responses: {expires: 5}}}] }",
        "F:1:66: error parsing expires, not a duration string",
    ),
    (
        "authorization { users: [{user: a, allowed_connection_types: [zork]}] }",
        'F:1:34: invalid connection types ["ZORK"]',
    ),
    ("tls: 5", "F:1:0: interface conversion: interface {} is int64, not map[string]interface {}"),
    ("tls { client_cert: a }", 'F:1:6: error parsing tls config, unknown field ["client_cert"]'),
    ("tls { cert_file: 5 }", "F:1:6: error parsing tls config, expected 'cert_file' to be filename"),
    ("tls { cert_file: nope }", "F:1:0: missing 'key_file' in TLS configuration"),
    ("tls { key_file: nope }", "F:1:0: missing 'cert_file' in TLS configuration"),
    (
        "tls { cert_file: nope, key_file: nope }",
        "F:1:0: error parsing X509 certificate/key pair: open nope: no such file or directory",
    ),
    ("tls { verify: x }", "F:1:6: error parsing tls config, expected 'verify' to be a boolean"),
    ("tls { timeout: x }", "F:1:6: error parsing tls config, 'timeout' time: invalid duration \"x\""),
    ("tls { timeout: true }", "F:1:6: error parsing tls config, 'timeout' wrong type"),
    ("tls { cipher_suites: [] }", "F:1:6: error parsing tls config, 'cipher_suites' cannot be empty"),
    ("tls { cipher_suites: [ foo ] }", "F:1:23: unrecognized cipher foo"),
    ("tls { curve_preferences: [foo] }", "F:1:26: unrecognized curve preference foo"),
    (
        "tls { verify_cert_and_check_known_urls: true }",
        "F:1:6: verify_cert_and_check_known_urls not supported in this context",
    ),
    ("cluster { node_id: a }", 'F:1:10: unknown field "node_id"'),
    ("cluster 5", "F:1:0: Expected map to define cluster, got int64"),
]


@pytest.mark.parametrize(("source", "said"), ERRORS)
def test_errors(source: str, said: str) -> None:
    assert problem(source) == said


@pytest.mark.skipif(not binary(OLDEST).exists(), reason="the real server is not here")
@pytest.mark.parametrize(("source", "said"), ERRORS)
def test_the_real_server_says_the_same(source: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "F").write_text(source)
    found = subprocess.run(
        [binary(OLDEST), "-t", "-c", "F"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert found.returncode == 1
    theirs = found.stderr.strip().removeprefix("nats-server: ")
    # It takes the keys of a user in random order, and names the place of the last one.
    anywhere = re.compile(r"^F:1:[0-9]+: ") if "users" in source else re.compile("^")
    assert anywhere.sub("", theirs) == anywhere.sub("", said)


def test_all_errors_are_listed_warnings_first() -> None:
    assert problem("port: x\nping_interval: 5\nhost: 5").splitlines() == [
        'F:2:1: invalid use of field "ping_interval": ping_interval should be converted to a duration',
        "F:1:0: interface conversion: interface {} is string, not int64",
        "F:3:1: interface conversion: interface {} is int64, not string",
    ]
