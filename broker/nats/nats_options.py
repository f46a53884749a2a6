"""Options of the embedded NATS server (server-operations.md sections 4 and 8). Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import UsageError
from stantools.notation import format_go_duration

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


@dataclass(frozen=True, slots=True)
class TLSOptions:
    cert: Path  #: certificate (chain), PEM
    key: Path  #: its private key, PEM
    ca: Path | None = None  #: authority of client certificates, PEM; None for the system's
    verify: bool = False  #: require a client certificate
    verify_and_map: bool = False  #: client certificates name the users
    timeout: float = DEFAULT_TIMEOUT  #: seconds for the handshake
    ciphers: tuple[str, ...] = ()  #: cipher suites by their IANA names; empty for the defaults
    curves: tuple[str, ...] = ()  #: curve preferences; empty for the defaults
    insecure: bool = False  #: accept a certificate that is too weak for OpenSSL: signed with SHA-1, or with a short key


@dataclass(frozen=True, slots=True)
class SubjectPermission:
    """Allowed (None: all) and denied subjects, with wildcards; denied ones have precedence.

    Subscribe permissions may name a queue group after a blank (`foo.* workers`).
    """

    allow: tuple[bytes, ...] | None = None
    deny: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponsePermission:
    """Permission to publish to the reply subjects of received messages: number of answers each, and seconds."""

    max_msgs: int = 1
    expires: float = 120.0


@dataclass(frozen=True, slots=True)
class Permissions:
    publish: SubjectPermission = SubjectPermission()
    subscribe: SubjectPermission = SubjectPermission()
    responses: ResponsePermission | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A user with name and password (plain or bcrypt), or with an nkey."""

    name: str = ""
    password: str = ""
    nkey: str = ""
    permissions: Permissions | None = None


@dataclass(frozen=True, slots=True)
class Authorization:
    users: tuple[User, ...] = ()  #: users; empty with a single user, a token, or no authorization
    user: str = ""  #: single user
    password: str = ""  #: password of the single user
    token: str = ""  #: token, plain or bcrypt
    default_permissions: Permissions | None = None  #: for users without permissions of their own
    no_auth_user: str = ""  #: user of clients without credentials
    timeout: float = DEFAULT_TIMEOUT  #: seconds for a client to authenticate

    @property
    def required(self) -> bool:
        return bool(self.users or self.user or self.token)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    name: str = ""  #: name of the cluster; empty for a generated one
    host: str = "0.0.0.0"  #: listen address
    port: int = 0  #: port; -1 for a free one
    routes: tuple[str, ...] = ()  #: URLs of other servers
    user: str = ""  #: user required of other servers; empty for none
    password: str = ""
    timeout: float = DEFAULT_TIMEOUT  #: seconds for the handshake
    tls: TLSOptions | None = None  #: TLS of routes, in both directions; certificates are always required
    advertise: str = ""  #: address announced to other servers
    no_advertise: bool = False  #: do not announce the other servers to clients
    connect_retries: int = 0  #: further attempts to connect to a server announced by another one
    ping_interval: float = 120.0  #: seconds between two pings
    write_deadline: float = 10.0  #: seconds without progress in sending to another server


@dataclass(frozen=True, slots=True)
class NatsOptions:
    host: str = "0.0.0.0"  #: listen address
    port: int = 4222  #: port; -1 for a free one
    name: str = ""  #: server name; empty for its id
    client_advertise: str = ""  #: address for clients in INFO
    max_connections: int = 65536  #: maximum number of clients; 0 for unlimited
    max_subscriptions: int = 0  #: maximum number of subscriptions per client; 0 for unlimited
    max_control_line: int = 4096  #: maximum bytes of a control line
    max_payload: int = 1024 * 1024  #: maximum bytes of a message
    max_pending: int = 64 * 1024 * 1024  #: bytes pending for a client above which it is slow
    ping_interval: float = 120.0  #: seconds between two pings
    ping_max: int = 2  #: unanswered pings after which a connection is stale
    write_deadline: float = 10.0  #: seconds without progress in sending to a client
    authorization: Authorization = field(default_factory=Authorization)
    tls: TLSOptions | None = None  #: TLS for clients
    cluster: ClusterOptions | None = None  #: routes to other servers, if any
    lame_duck_duration: float = 120.0  #: seconds over which clients are sent away
    lame_duck_grace_period: float = 10.0  #: seconds before the first one is
    no_header_support: bool = False  #: disable headers
    debug: bool = False  #: log events of connections
    trace: bool = False  #: log protocol messages
    trace_verbose: bool = False  #: log those of the server's own connections as well
    max_traced_msg_len: int = 0  #: bytes of payload in the trace; 0 for all


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
SECONDS: Final = ("ping_interval", "write_deadline", "lame_duck_duration", "lame_duck_grace_period")


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
    if name in SECONDS:
        return format_go_duration(round(value * 1e9))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
