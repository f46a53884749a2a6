"""What can be configured about the embedded NATS server (server-operations.md sections 4 and 8). Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import UsageError
from stantools.notation import format_go_duration

if TYPE_CHECKING:
    from stantools.nats.login import Server

#: The version of NATS whose protocol is spoken.
VERSION: Final = "2.9.24"
#: Seconds that a TLS handshake may take, and a login.
DEFAULT_TIMEOUT: Final = 2.0


#: How URLs of routes begin. The original looks at none of it.
_ROUTES: Final = ("nats-route", "nats", "tls", "tcp")


def parse_route(url: str) -> Server:
    """Reads the URL of a route.

    Raises:
        UsageError: It is malformed, or that of something else.
    """
    from stantools.nats.login import Server

    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() not in _ROUTES:
        raise UsageError(
            f"a route has no URL of the kind {scheme}://", "it begins with nats-route://, nats:// or tls://"
        )
    return Server.parse(f"{'tls' if scheme.lower() == 'tls' else 'nats'}://{rest}" if separator else url)


@dataclass(frozen=True, slots=True)
class TLSOptions:
    """TLS of a listener."""

    cert: Path  #: certificate (chain), PEM
    key: Path  #: its private key, PEM
    ca: Path | None = None  #: whom client certificates have to be from, PEM; None for the system's
    verify: bool = False  #: clients have to show a certificate
    verify_and_map: bool = False  #: clients are the users that their certificates name
    timeout: float = DEFAULT_TIMEOUT  #: how long the handshake may take
    ciphers: tuple[str, ...] = ()  #: cipher suites by their IANA names; empty for the defaults
    curves: tuple[str, ...] = ()  #: curve preferences; empty for the defaults
    insecure: bool = False  #: take a certificate that OpenSSL finds too weak: signed with SHA-1, or with a short key


@dataclass(frozen=True, slots=True)
class SubjectPermission:
    """Subjects that are allowed (None: all) and denied, with wildcards; denied wins.

    Subscribe permissions may name a queue behind a blank (`foo.* workers`).
    """

    allow: tuple[bytes, ...] | None = None
    deny: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponsePermission:
    """What a client may publish to reply subjects of messages that it got: how many each, for how long."""

    max_msgs: int = 1
    expires: float = 120.0


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a user may do."""

    publish: SubjectPermission = SubjectPermission()
    subscribe: SubjectPermission = SubjectPermission()
    responses: ResponsePermission | None = None


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may connect: by name and password (plain or bcrypt), or by nkey."""

    name: str = ""
    password: str = ""
    nkey: str = ""
    permissions: Permissions | None = None


@dataclass(frozen=True, slots=True)
class Authorization:
    """Who may connect."""

    users: tuple[User, ...] = ()  #: users; empty for a single user, token, or nobody in particular
    user: str = ""  #: single user; its password
    password: str = ""  #: see there
    token: str = ""  #: token, plain or bcrypt
    default_permissions: Permissions | None = None  #: of users without permissions of their own
    no_auth_user: str = ""  #: who clients without credentials are
    timeout: float = DEFAULT_TIMEOUT  #: how long clients may take to say who they are

    @property
    def required(self) -> bool:
        """Whether clients have to say who they are."""
        return bool(self.users or self.user or self.token)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Routes to other servers. Times are seconds."""

    name: str = ""  #: name of the cluster; empty for one that is made up
    host: str = "0.0.0.0"  #: address to listen on
    port: int = 0  #: port; -1 for a free one
    routes: tuple[str, ...] = ()  #: URLs of servers to connect to
    user: str = ""  #: who other servers have to be; empty for anybody
    password: str = ""
    timeout: float = DEFAULT_TIMEOUT  #: how long the handshake may take
    tls: TLSOptions | None = None  #: TLS of routes, in both directions; certificates are always asked for
    advertise: str = ""  #: address that is announced to other servers
    no_advertise: bool = False  #: do not announce the other servers to clients
    connect_retries: int = 0  #: attempts for a server that another one announced, besides the first
    ping_interval: float = 120.0  #: time between two pings
    write_deadline: float = 10.0  #: how long another server may take no data at all


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Options of the embedded NATS server."""

    host: str = "0.0.0.0"  #: address to listen on
    port: int = 4222  #: port; -1 for a free one
    name: str = ""  #: server name; empty for its id
    client_advertise: str = ""  #: the address in INFO that clients are to connect to
    max_connections: int = 65536  #: clients at a time; 0 for no limit
    max_subscriptions: int = 0  #: subscriptions of a client; 0 for no limit
    max_control_line: int = 4096  #: bytes of a control line
    max_payload: int = 1024 * 1024  #: bytes of a message
    max_pending: int = 64 * 1024 * 1024  #: bytes that may wait for a client before it is slow
    ping_interval: float = 120.0  #: time between two pings
    ping_max: int = 2  #: unanswered pings after which a connection is stale
    write_deadline: float = 10.0  #: how long a client may take no data at all
    authorization: Authorization = field(default_factory=Authorization)  #: who may connect
    tls: TLSOptions | None = None  #: TLS for clients
    cluster: ClusterOptions | None = None  #: routes to other servers; None without
    lame_duck_duration: float = 120.0  #: over how long clients are sent away
    lame_duck_grace_period: float = 10.0  #: how long to wait before the first
    no_header_support: bool = False  #: do without headers
    debug: bool = False  #: log what connections do
    trace: bool = False  #: log protocol messages
    trace_verbose: bool = False  #: also those of the server's own connections
    max_traced_msg_len: int = 0  #: bytes of payload in the trace; 0 for all


#: What stays as it is until a restart: our name, the original's.
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
#: What can be changed at once.
_CHANGING: Final = (
    "trace", "trace_verbose", "debug", "max_connections", "max_payload", "max_control_line", "ping_interval",
    "ping_max", "write_deadline", "max_traced_msg_len", "client_advertise",
)  # fmt: skip
#: Options that are times.
SECONDS: Final = ("ping_interval", "write_deadline", "lame_duck_duration", "lame_duck_grace_period")


class ReloadError(ValueError):
    """A change that is not possible while the server runs; the text is what the original logs."""


def reload_changes(before: NatsOptions, after: NatsOptions) -> tuple[list[str], bool]:
    """Compares the options of a running server with those that it is to take on (server-operations.md section 13).

    Returns:
        What the log says of the changes, and whether clients have to be checked again.

    Raises:
        ReloadError: Something differs that can only be changed by a restart.
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
        # The original has it like this.
        f"{'Reload' if name == 'client_advertise' else 'Reloaded'}: {name} = {_shown(name, getattr(after, name))}"
        for name in _CHANGING
        if getattr(before, name) != getattr(after, name)
    ]
    # Certificates may be others in the same files.
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
