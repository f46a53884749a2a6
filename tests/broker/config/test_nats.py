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

from broker.config.catalogue import KEYS
from broker.config.file_reader import parse_address
from broker.config.grammar import parse
from broker.config.nats_file import is_permission_subject, read_nats
from broker.config.settings import FileContent
from broker.config.values import ConfigurationError
from broker.nats.auth import user_key
from broker.nats.nats_options import Permissions, ResponsePermission, SubjectPermission, TLSOptions
from stantools.server_options import Support, ValueType
from tests.servers import OLDEST, binary

NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def read(source: str) -> FileContent:
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
        "monitoring.host": "0.0.0.0",
        "monitoring.http_port": 6000,
        "nats.name": "x",
        "log.nats_debug": True,
        "nats.max_payload": 2 << 20,
        "nats.ping_interval": 5_000_000_000,
        "nats.write_deadline": 3_000_000_000,
        "nats.max_connections": 7,
        "nats.no_auth_user": "u",
        "log.timestamps": False,
        "monitoring.base_path": "/x",
        "pid_file": "p",
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
    found = read(f"authorization {{ users: [ {{ user: a, password: b, permissions: {source} }} ] }}").settings[
        "authorization"
    ]
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
    }}""").settings["authorization"]
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
    assert read(f"{source} }}").settings["tls"] == TLSOptions(certificates / "c.pem", certificates / "k.pem")
    found = read(f"""{source}, ca_file: "{certificates}/c.pem", verify: true, timeout: "3s", insecure: true
        cipher_suites: [ TLS_AES_128_GCM_SHA256 ], curve_preferences: [ X25519 ] }}""").settings["tls"]
    assert found is not None and found.ca == certificates / "c.pem"
    assert (found.verify, found.timeout, found.curves) == (True, 3.0, ("X25519",))
    assert read("tls { timeout: 5 }").settings["tls"] is None
    pinned = read(f'{source}, pinned_certs: ["{"a" * 64}"] }}')
    assert pinned.unavailable == ["F:1:" + pinned.unavailable[0].split(":")[2] + ": pinned_certs of tls"]
    assert "failed to parse root ca certificate" in problem(f'{source}, ca_file: "{certificates}/k.pem" }}')
    swapped = source.replace("c.pem", "k.pem")
    assert problem(f"{swapped} }}").startswith("F:1:0: error parsing X509 certificate/key pair: tls: ")


def test_keys_of_every_map_without_an_effect_are_accepted() -> None:
    """Every key that is accepted without effect takes a value of its type, wherever it is."""
    values = {ValueType.STRING: "x", ValueType.BOOL: "true", ValueType.INT: "5", ValueType.DURATION: '"5s"'}
    for path in ("", "tls", "jetstream", "cluster"):
        for name, (_, option) in KEYS[path].items():
            if option.support in (Support.WARNED, Support.NOT_NEEDED):
                line = f"{name}: {values.get(option.value_type, 'x')}"
                (warning,) = read(f"{path} {{ {line} }}" if path else line).warnings
                assert f": {name}" in warning and "has no effect" in warning


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


#: Sources, and the errors in them; a real server finds an error at the same place.
ERRORS = [
    ("jetstream: 5", "F:1:0: Expected map, bool or string to define JetStream, got int64"),
    ("jetstream { zork: 1 }", 'F:1:12: unknown field "zork"'),
    ("port: x", 'F:1:0: parameter "port" value is expected to be int64, got string'),
    ("port: 1.5", 'F:1:0: parameter "port" value is expected to be int64, got float64'),
    ("host: 5", 'F:1:0: parameter "host" value is expected to be string, got int64'),
    ("debug: x", 'F:1:0: parameter "debug" value is expected to be bool, got string'),
    ("listen: x", 'F:1:0: could not parse address string "x"'),
    ('listen: "x:y"', 'F:1:0: could not parse port "y"'),
    ("http: true", "F:1:0: expected port or host:port, got bool"),
    ("http: []", "F:1:0: expected port or host:port, got slice"),
    ("max_payload: 9GB", "F:1:0: max_payload value is too big"),
    ("max_control_line: 9GB", "F:1:0: max_control_line value is too big"),
    ('ping_interval: "5"', 'F:1:0: error parsing ping_interval: time: missing unit in duration "5"'),
    ('write_deadline: "x"', 'F:1:0: error parsing write_deadline: time: invalid duration "x"'),
    ('lame_duck_duration: "5s"', "F:1:0: invalid lame_duck_duration, minimum is 30 seconds"),
    ('lame_duck_grace_period: "-5s"', "F:1:0: invalid lame_duck_grace_period, needs to be positive"),
    ("authorization { user: a, token: b }", "F:1:0: Cannot have a user/pass and token"),
    (
        "authorization { user: a, pass: b, users: [] }",
        "F:1:0: Can not have a single user/pass and a users array",
    ),
    ("authorization { token: b, users: [] }", "F:1:0: Can not have a token and a users array"),
    ("authorization { foo: 1 }", 'F:1:16: unknown field "foo"'),
    ("authorization { users: 5 }", "F:1:16: Expected users field to be an array, got 5"),
    ("authorization { users: [{password: a}] }", "F:1:24: User entry requires a user"),
    ("authorization { users: [{user: a, zork: 1}] }", 'F:1:34: unknown field "zork"'),
    ("authorization { users: [{user: a, nkey: b}] }", "F:1:24: Not a valid public nkey for a user"),
    (
        f"authorization {{ users: [{{nkey: {NKEY}, password: x}}] }}",
        "F:1:24: Nkey users do not take usernames or passwords",
    ),
    ("authorization { users: [{user: a}, {user: a}] }", 'F:1:0: Duplicate user "a" detected'),
    (
        "authorization { users: [{user: a, permissions: 5}] }",
        "F:1:34: expected a map, got 5",
    ),
    (
        "authorization { users: [{user: a, permissions: {publish: [5 ]}}] }",
        'F:1:58: subject "5" is not a valid subject',
    ),
    (
        "authorization { users: [{user: a, permissions: {publish: {allow: 5}}}] }",
        "F:1:58: Expected a subject, or an array of subjects, got int64",
    ),
    (
        "authorization { users: [{user: a, permissions: {publish: {zork: b}}}] }",
        'F:1:58: unknown field "zork"',
    ),
    (
        "authorization { users: [{user: a, permissions: {zork: b}}] }",
        'F:1:48: unknown field "zork"',
    ),
    (
        "authorization { users: [{user: a, permissions: {allow_responses: 5}}] }",
        "F:1:48: expected a map, got 5",
    ),
    (
        "authorization { users: [{user: a, permissions: {allow_responses: {expires: 5}}}] }",
        'F:1:66: parameter "expires" value is expected to be string, got int64',
    ),
    (
        "authorization { users: [{user: a, allowed_connection_types: [zork]}] }",
        'F:1:24: invalid connection types ["ZORK"]',
    ),
    ("tls: 5", "F:1:0: expected a map, got 5"),
    ("tls { client_cert: a }", 'F:1:6: unknown field "client_cert"'),
    ("tls { cert_file: 5 }", 'F:1:6: parameter "cert_file" value is expected to be string, got int64'),
    ("tls { cert_file: nope }", "F:1:0: missing 'key_file' in TLS configuration"),
    ("tls { key_file: nope }", "F:1:0: missing 'cert_file' in TLS configuration"),
    (
        "tls { cert_file: nope, key_file: nope }",
        "F:1:0: error parsing X509 certificate/key pair: open nope: no such file or directory",
    ),
    ("tls { verify: x }", 'F:1:6: parameter "verify" value is expected to be bool, got string'),
    ("tls { timeout: x }", 'F:1:6: timeout: time: invalid duration "x"'),
    ("tls { timeout: true }", "F:1:6: timeout: wrong type"),
    ("tls { cipher_suites: [] }", "F:1:6: expected a list with one name at least, got []"),
    ("tls { cipher_suites: [ foo ] }", "F:1:23: unrecognized cipher foo"),
    ("tls { curve_preferences: [foo] }", "F:1:26: unrecognized curve preference foo"),
    (
        "tls { verify_cert_and_check_known_urls: true }",
        'F:1:6: unknown field "verify_cert_and_check_known_urls"',
    ),
    ("cluster { node_id: a }", 'F:1:10: unknown field "node_id"'),
    ("cluster 5", "F:1:0: expected a map, got 5"),
]


@pytest.mark.parametrize(("source", "said"), ERRORS)
def test_errors(source: str, said: str) -> None:
    assert problem(source) == said


@pytest.mark.skipif(not binary(OLDEST).exists(), reason="the real server is not here")
@pytest.mark.parametrize(("source", "said"), ERRORS)
def test_a_real_server_finds_the_error_at_the_same_place(source: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "F").write_text(source)
    found = subprocess.run(
        [binary(OLDEST), "-t", "-c", "F"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert found.returncode == 1
    theirs = found.stderr.strip().removeprefix("nats-server: ")
    # It takes the keys of a user in random order, and names the place of the last one.
    place = re.compile("F:1:" if "users" in source else "F:1:[0-9]+: ")
    ours = place.match(said)
    assert ours is not None
    assert theirs.startswith(ours.group())


def test_all_errors_are_listed_warnings_first() -> None:
    assert problem("port: x\nping_interval: 5\nhost: 5").splitlines() == [
        'F:2:1: invalid use of field "ping_interval": ping_interval should be converted to a duration',
        'F:1:0: parameter "port" value is expected to be int64, got string',
        'F:3:1: parameter "host" value is expected to be string, got int64',
    ]
