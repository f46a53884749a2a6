"""Changes of the configuration while the server runs (server-operations.md section 13)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from broker.log import NATS
from broker.nats import tls
from broker.nats.tracing import duration

if TYPE_CHECKING:
    from broker.nats.options import NatsOptions
    from broker.nats.server import NatsServer

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
#: What can be changed at once, and how the log calls it.
_CHANGING: Final = {
    "trace": "trace",
    "trace_verbose": "trace_verbose",
    "debug": "debug",
    "max_connections": "max_connections",
    "max_payload": "max_payload",
    "max_control_line": "max_control_line",
    "ping_interval": "ping_interval",
    "ping_max": "ping_max",
    "write_deadline": "write_deadline",
    "max_traced_msg_len": "max_traced_msg_len",
    "client_advertise": "client_advertise",
}
_SECONDS: Final = ("ping_interval", "write_deadline", "lame_duck_duration", "lame_duck_grace_period")


class ReloadError(ValueError):
    """A change that is not possible while the server runs; the text is what the original logs."""


def apply(server: NatsServer, options: NatsOptions) -> list[str]:
    """Takes on other options: all, or none of them.

    Returns:
        What was changed, as it was logged.

    Raises:
        ReloadError: Something differs that can only be changed by a restart.
        TLSError: The new TLS options cannot be used.
    """
    before = server.options
    for name, shown in _FIXED.items():
        old, new = getattr(before, name), getattr(options, name)
        if old != new:
            raise ReloadError(
                f"config reload not supported for {shown}: old={_shown(name, old)}, new={_shown(name, new)}"
            )
    if before.authorization.no_auth_user != options.authorization.no_auth_user:
        old, new = before.authorization.no_auth_user, options.authorization.no_auth_user
        raise ReloadError(f"config reload not supported for NoAuthUser: old={old}, new={new}")
    if options.tls is not None:
        tls.server_context(options.tls)
    lines = [
        # The original has it like this.
        f"{'Reload' if name == 'client_advertise' else 'Reloaded'}: {shown} = {_shown(name, getattr(options, name))}"
        for name, shown in _CHANGING.items()
        if getattr(before, name) != getattr(options, name)
    ]
    # Certificates may be others in the same files.
    if before.tls != options.tls or options.tls is not None:
        lines.append(f"Reloaded: tls = {'enabled' if options.tls is not None else 'disabled'}")
    authorization = _authorization(before, options)
    lines += authorization
    _take_on(server, before, options, recheck=bool(authorization) or before.tls != options.tls)
    lines.append("Reloaded server configuration")
    for line in lines:
        NATS.info("%s", line)
    return lines


def _authorization(before: NatsOptions, options: NatsOptions) -> list[str]:
    old, new = before.authorization, options.authorization
    lines = []
    if (old.users, old.default_permissions) != (new.users, new.default_permissions):
        lines.append("Reloaded: authorization users")
    if old.user != new.user:
        lines.append("Reloaded: authorization username")
    if old.password != new.password:
        lines.append("Reloaded: authorization password")
    if old.token != new.token:
        lines.append("Reloaded: authorization token")
    if old.timeout != new.timeout:
        lines.append(f"Reloaded: authorization timeout = {new.timeout:g}")
    return lines


def _take_on(server: NatsServer, before: NatsOptions, options: NatsOptions, *, recheck: bool) -> None:
    server.options = options
    server.config_time = time.time_ns()
    server.tracing = options.trace
    server.configure_tls()
    server.restart_keepalive()
    if recheck:
        server.router.forget_permissions()
        for client in server.clients():
            client.recheck()
    excess = len(server.connections()) - options.max_connections
    if options.max_connections and excess > 0 and before.max_connections != options.max_connections:
        server.drop_newest(excess)
    told = ("max_payload", "client_advertise", "tls", "authorization")
    if any(getattr(before, name) != getattr(options, name) for name in told):
        server.send_info()


def _shown(name: str, value: Any) -> str:
    if name in _SECONDS:
        return duration(round(value * 1e9))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
