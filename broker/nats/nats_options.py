"""Options of the embedded NATS server (server-operations.md sections 4 and 8). Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import UsageError
from stantools.notation import format_go_duration
from stantools.server_options import (
    ANY,
    BOOL,
    DURATION,
    INT,
    LIST,
    MAP,
    SECONDS,
    STRING,
    WORDS,
    as_path,
    as_seconds,
    not_negative,
    server_field,
)

if TYPE_CHECKING:
    from stantools.nats.login import NatsAddress

#: Version of the NATS protocol.
VERSION: Final = "2.9.24"
#: Seconds for a TLS handshake, and for a login.
DEFAULT_TIMEOUT: Final = 2.0


#: Schemes of route URLs. The original ignores the scheme.
_ROUTES: Final = ("nats-route", "nats", "tls", "tcp")


def parse_route(url: str) -> NatsAddress:
    from stantools.nats.login import NatsAddress

    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() not in _ROUTES:
        raise UsageError(
            f"{scheme}:// is not the scheme of a route",
            "the URL of a route starts with nats-route://, nats:// or tls://",
        )
    return NatsAddress.parse(f"{'tls' if scheme.lower() == 'tls' else 'nats'}://{rest}" if separator else url)


_SECOND: Final = 1_000_000_000
_MAX_INT32: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class TLSOptions:
    cert: Path = server_field(STRING, "Certificate (chain), PEM", "tlscert", "cert_file", convert=Path)
    key: Path = server_field(STRING, "Private key, PEM", "tlskey", "key_file", convert=Path)
    ca: Path | None = server_field(
        STRING, "CA of client certificates, PEM; default: the system's", "tlscacert", "ca_file", convert=as_path
    )
    verify: bool = server_field(BOOL, "Require client certificates", "tlsverify", "verify")
    verify_and_map: bool = server_field(BOOL, "Map client certificates to users", "", "verify_and_map")
    timeout: float = server_field(
        SECONDS, "Time limit for the handshake", "", "timeout", convert=lambda seconds: seconds or DEFAULT_TIMEOUT
    )
    ciphers: tuple[str, ...] = server_field(WORDS, "Cipher suites by their IANA names", "", "cipher_suites")
    curves: tuple[str, ...] = server_field(WORDS, "Curves", "", "curve_preferences")
    #: accept a certificate that is too weak for OpenSSL: signed with SHA-1, or with a short key
    insecure: bool = server_field(
        BOOL, "Accept a server certificate with an old signature or a short key", "", "insecure"
    )


@dataclass(frozen=True, slots=True)
class SubjectPermission:
    """Allowed (None: all) and denied subjects, with wildcards; denied ones have precedence.

    Subscribe permissions may name a queue group after a blank (`foo.* workers`).
    """

    allow: tuple[bytes, ...] | None = server_field(ANY, "Permitted subjects", "", "allow")
    deny: tuple[bytes, ...] = server_field(ANY, "Refused subjects", "", "deny", ())


@dataclass(frozen=True, slots=True)
class ResponsePermission:
    """Permission to publish to the reply subjects of received messages."""

    max_msgs: int = server_field(INT, "Answers to a message", "", "max max_msgs max_messages max_responses", 1)
    expires: float = server_field(
        DURATION, "Time limit of the answers", "", "expires expiration ttl", 120 * _SECOND, convert=as_seconds
    )


@dataclass(frozen=True, slots=True)
class Permissions:
    publish: SubjectPermission = server_field(
        MAP,
        "Subjects, or permitted and refused ones",
        "",
        "publish pub import",
        convert=lambda given: given or SubjectPermission(),
    )
    subscribe: SubjectPermission = server_field(
        MAP,
        "Subjects, or permitted and refused ones",
        "",
        "subscribe sub export",
        convert=lambda given: given or SubjectPermission(),
    )
    responses: ResponsePermission | None = server_field(
        MAP, "Answers to received messages, or `true`", "", "allow_responses publish_allow_responses"
    )


@dataclass(frozen=True, slots=True)
class User:
    """A user with name and password (plain or bcrypt), or with an nkey."""

    name: str = server_field(STRING, "Name", "", "user username")
    password: str = server_field(STRING, "Password, plain or bcrypt", "", "pass password")
    nkey: str = server_field(STRING, "Public nkey, instead of name and password", "", "nkey")
    permissions: Permissions | None = server_field(
        MAP, "Permissions of the user", "", "permission permissions authorization"
    )


@dataclass(frozen=True, slots=True)
class Authorization:
    #: users; empty with a single user, a token, or no authorization
    users: tuple[User, ...] = server_field(MAP, "List of several users", "", "users", ())
    user: str = server_field(STRING, "Single user for clients", "user", "user username")
    password: str = server_field(STRING, "Password of the single user, plain or bcrypt", "pass", "pass password")
    token: str = server_field(STRING, "Token for clients, plain or bcrypt", "auth", "token")
    default_permissions: Permissions | None = server_field(
        MAP, "Permissions of users without their own", "", "default_permission default_permissions permissions"
    )
    timeout: float = server_field(SECONDS, "Time limit for authentication", "", "timeout", DEFAULT_TIMEOUT)
    no_auth_user: str = ""  #: user of clients without credentials

    @property
    def required(self) -> bool:
        return bool(self.users or self.user or self.token)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    name: str = server_field(STRING, "Name of the cluster, equal on all servers", "cluster_name", "name")
    host: str = server_field(STRING, "Address for routes", "", "host net", "0.0.0.0")
    port: int = server_field(INT, "Port for routes; -1 for a free one", "", "port")
    routes: tuple[str, ...] = server_field(
        LIST, "Routes to other servers; one reachable server suffices", "routes", "routes"
    )
    user: str = ""  #: user required of other servers; empty for none
    password: str = ""
    timeout: float = DEFAULT_TIMEOUT  #: seconds for the handshake
    tls: TLSOptions | None = server_field(
        MAP, "TLS of routes, in both directions; certificates are required at both ends", "", "tls"
    )
    advertise: str = server_field(
        STRING, "Address announced to other servers", "cluster_advertise", "cluster_advertise advertise"
    )
    no_advertise: bool = server_field(
        BOOL, "Do not announce the other servers to clients", "no_advertise", "no_advertise"
    )
    connect_retries: int = server_field(
        INT, "Retries for a server announced by another one", "connect_retries", "connect_retries"
    )
    ping_interval: float = 120.0  #: seconds between two pings
    write_deadline: float = 10.0  #: seconds without progress in sending to another server


@dataclass(frozen=True, slots=True)
class NatsOptions:
    host: str = server_field(STRING, "Address to listen on", "a addr net", "host net", "0.0.0.0")
    port: int = server_field(INT, "Port for clients; -1 for a free one", "p port", "port", 4222)
    name: str = server_field(STRING, "Name of the NATS server; its id by default", "n name server_name", "server_name")
    client_advertise: str = server_field(STRING, "Address announced to clients", "client_advertise", "client_advertise")
    max_connections: int = server_field(
        INT, "Clients at a time; 0 for no limit", "", "max_connections max_conn", 65536, convert=not_negative
    )
    max_subscriptions: int = server_field(
        INT, "Subscriptions of a client; 0 for no limit", "", "max_subscriptions max_subs", convert=not_negative
    )
    max_control_line: int = server_field(
        INT, "Limit of a control line in bytes", "", "max_control_line", 4096, most=_MAX_INT32,
        problem="max_control_line value is too big",
    )  # fmt: skip
    max_payload: int = server_field(
        INT, "Bytes of a message", "", "max_payload", 1 << 20, most=_MAX_INT32, problem="max_payload value is too big"
    )
    max_pending: int = server_field(INT, "Limit of bytes waiting for a client", "", "max_pending", 64 << 20)
    ping_interval: float = server_field(
        DURATION, "Time between two pings", "", "ping_interval", 120 * _SECOND, convert=as_seconds
    )
    ping_max: int = server_field(INT, "Unanswered pings until a connection is stale", "", "ping_max", 2)
    write_deadline: float = server_field(
        DURATION, "Time limit for clients that read no data", "", "write_deadline", 10 * _SECOND, convert=as_seconds
    )
    authorization: Authorization = field(default_factory=Authorization)
    tls: TLSOptions | None = None  #: TLS for clients
    cluster: ClusterOptions | None = None  #: routes to other servers, if any
    lame_duck_duration: float = server_field(
        DURATION, "Duration of disconnecting all clients", "", "lame_duck_duration", 120 * _SECOND, convert=as_seconds,
        least=30 * _SECOND, problem="invalid lame_duck_duration, minimum is 30 seconds",
    )  # fmt: skip
    lame_duck_grace_period: float = server_field(
        DURATION, "Delay before the first disconnection", "", "lame_duck_grace_period", 10 * _SECOND,
        convert=as_seconds, least=0, problem="invalid lame_duck_grace_period, needs to be positive",
    )  # fmt: skip
    no_header_support: bool = server_field(BOOL, "Do without headers", "", "no_header_support")
    debug: bool = False  #: log events of connections
    trace: bool = False  #: log protocol messages
    trace_verbose: bool = server_field(BOOL, "Trace lines of the server's own connections", "", "trace_verbose")
    max_traced_msg_len: int = server_field(
        INT, "Limit of payload bytes in the trace; 0 for all", "max_traced_msg_len", "max_traced_msg_len",
        convert=not_negative,
    )  # fmt: skip


#: Options that need a restart: our name -> the original's.
_FIXED: Final = {
    "host": "Host",
    "port": "Port",
    "name": "ServerName",
    "max_subscriptions": "MaxSubs",
    "max_pending": "MaxPending",
    "lame_duck_duration": "LameDuckDuration",
    "lame_duck_grace_period": "LameDuckGracePeriod",
    "no_header_support": "NoHeaderSupport",
}
#: Options that a reload applies.
_RELOADABLE: Final = (
    "trace", "trace_verbose", "debug", "max_connections", "max_payload", "max_control_line", "ping_interval",
    "ping_max", "write_deadline", "max_traced_msg_len", "client_advertise",
)  # fmt: skip
#: Options in seconds.
_IN_SECONDS: Final = ("ping_interval", "write_deadline", "lame_duck_duration", "lame_duck_grace_period")


class ReloadError(ValueError):
    """A change that needs a restart; the text is the original's log line."""


def reload_changes(before: NatsOptions, after: NatsOptions) -> tuple[list[str], bool]:
    """Compares old and new options for a reload (server-operations.md section 13).

    Returns the log lines about the changes, and whether clients must be checked again. Raises `ReloadError` for a
    change that needs a restart.
    """
    for name, shown in _FIXED.items():
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            raise ReloadError(
                f"config reload not supported for {shown}: old={_shown(name, old)}, new={_shown(name, new)}"
            )
    if before.cluster != after.cluster:
        raise ReloadError("config reload not supported for Cluster: routes can only be changed by a restart")
    if before.authorization.no_auth_user != after.authorization.no_auth_user:
        old, new = before.authorization.no_auth_user, after.authorization.no_auth_user
        raise ReloadError(f"config reload not supported for NoAuthUser: old={old}, new={new}")
    lines = [
        # The original has these two wordings.
        f"{'Reload' if name == 'client_advertise' else 'Reloaded'}: {name} = {_shown(name, getattr(after, name))}"
        for name in _RELOADABLE
        if getattr(before, name) != getattr(after, name)
    ]
    # The files may have new contents under the same names.
    if before.tls != after.tls or after.tls is not None:
        lines.append(f"Reloaded: tls = {'enabled' if after.tls is not None else 'disabled'}")
    authorization = _authorization(before, after)
    lines += authorization
    return lines, bool(authorization) or before.tls != after.tls


def _authorization(before: NatsOptions, options: NatsOptions) -> list[str]:
    old, new = before.authorization, options.authorization
    changed = {
        "users": (old.users, old.default_permissions) != (new.users, new.default_permissions),
        "username": old.user != new.user,
        "password": old.password != new.password,
        "token": old.token != new.token,
        f"timeout = {new.timeout:g}": old.timeout != new.timeout,
    }
    return [f"Reloaded: authorization {what}" for what, differs in changed.items() if differs]


def _shown(name: str, value: Any) -> str:
    if name in _IN_SECONDS:
        return format_go_duration(round(value * 1e9))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
