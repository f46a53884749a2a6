"""Reading the configuration again while the server runs: its NATS part only (operations section 13)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.config.flags import FlagError, parse_flags
from broker.config.natsserver import (
    logging_options,
    monitoring_options,
    nats_options,
    nats_warnings,
    server_problem,
    tls_options,
)
from broker.config.options import BrokerOptions, Environment
from broker.config.parsing import Configured, configure
from broker.config.values import ConfigurationError
from broker.nats.options import Authorization, NatsOptions, TLSOptions
from stantools.errors import StantoolsError
from stantools.store.limits import format_duration

_SECOND: Final = 1_000_000_000

#: What cannot change while the server runs: field of the NATS options, name in the error text, whether it is a time.
_FIXED: Final = (
    ("port", "Port", False),
    ("name", "ServerName", False),
    ("max_subscriptions", "MaxSubs", False),
    ("max_pending", "MaxPending", False),
    ("no_header_support", "NoHeaderSupport", False),
    ("lame_duck_duration", "LameDuckDuration", True),
    ("lame_duck_grace_period", "LameDuckGracePeriod", True),
)
#: What can: field of the NATS options, name in the line of the log, whether it is a time.
_RELOADABLE: Final = (
    ("trace", "trace", False),
    ("trace_verbose", "trace_verbose", False),
    ("debug", "debug", False),
    ("max_connections", "max_connections", False),
    ("max_payload", "max_payload", False),
    ("max_control_line", "max_control_line", False),
    ("max_traced_msg_len", "max_traced_msg_len", False),
    ("ping_interval", "ping_interval", True),
    ("ping_max", "ping_max", False),
    ("write_deadline", "write_deadline", True),
)


class ReloadProblem(StantoolsError):
    """The configuration cannot be taken over: the text behind `STREAM: Reload: `, except where it is the whole line."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload comes to.

    Attributes:
        options: The options that hold now: `nats`, `logging` and the files are new, the rest is as before.
        lines: Lines for the log of the NATS server, at level INF; the last one is `Reloaded server configuration`.
        warnings: Lines for the same, at level WRN.
    """

    options: BrokerOptions
    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def reload_options(old: BrokerOptions, argv: Sequence[str], environ: Environment | None = None) -> Reloaded:
    """Reads the configuration again.

    Args:
        old: What holds so far.
        argv: The command line that the server was started with.
        environ: The environment; the process's if None.

    Raises:
        ReloadProblem: There is no file, it is wrong, or something changed that cannot: a line
            `Reload: <text>` of the streaming logger at level ERR. Nothing changes.
    """
    if old.connection.urls:
        raise ReloadProblem("Reload supported only for embedded NATS Server's configuration")
    if not old.config_file:
        raise ReloadProblem("can only reload config when a file is provided using -c or --config")
    try:
        found = configure(parse_flags(argv), os.environ if environ is None else environ)
        tls = tls_options(dict(found.flags.settings), found.nats)
    except (ConfigurationError, FlagError) as problem:
        raise ReloadProblem(problem.message) from None
    if found.nats.unavailable:
        raise ReloadProblem(f"not available yet: {', '.join(found.nats.unavailable)}")
    return _compare(old, found, tls)


def _compare(old: BrokerOptions, found: Configured, tls: TLSOptions | None) -> Reloaded:
    nats = nats_options(found.settings, found.nats, tls)
    # Where it listens cannot change: the original goes on silently with the old address.
    nats = replace(nats, host=old.nats.host)
    if problem := server_problem(nats):
        raise ReloadProblem(problem)
    for field, name, is_time in _FIXED:
        _refuse_change(name, getattr(old.nats, field), getattr(nats, field), is_time=is_time)
    monitoring, was = monitoring_options(found.settings, tls), old.monitoring
    _refuse_change("HTTPBasePath", was.base_path, monitoring.base_path)
    _refuse_change("HTTPSPort" if was.https else "HTTPPort", was.port, monitoring.port)
    _refuse_change("NoAuthUser", old.nats.authorization.no_auth_user, nats.authorization.no_auth_user)
    logging = replace(
        logging_options(found.settings),
        streaming_debug=old.logging.streaming_debug,
        streaming_trace=old.logging.streaming_trace,
    )
    _refuse_change("LogSizeLimit", old.logging.size_limit, logging.size_limit)
    pid_file = found.settings.text("nats.pid_file")
    ports_file_dir = found.settings.text("nats.ports_file_dir")
    lines = [*_nats_lines(old.nats, nats)]
    for label, before, after in (
        ("logtime", old.logging.timestamps, logging.timestamps),
        ("logtime_utc", old.logging.utc, logging.utc),
        ("log_file", old.logging.file, logging.file),
        ("syslog", old.logging.syslog, logging.syslog),
        ("remote_syslog", old.logging.remote_syslog, logging.remote_syslog),
        ("pid_file", old.pid_file, pid_file),
        ("ports_file_dir", old.ports_file_dir, ports_file_dir),
    ):
        if before != after:
            lines.append(f"Reloaded: {label} = {_shown(after)}")
    warnings = nats_warnings(nats, found.nats)
    options = replace(
        old,
        nats=nats,
        logging=logging,
        pid_file=pid_file,
        ports_file_dir=ports_file_dir,
        nats_warnings=warnings,
    )
    return Reloaded(options, (*lines, "Reloaded server configuration"), warnings)


def _nats_lines(old: NatsOptions, new: NatsOptions) -> list[str]:
    lines = []
    for field, name, is_time in _RELOADABLE:
        after = getattr(new, field)
        if getattr(old, field) != after:
            lines.append(f"Reloaded: {name} = {_shown(after, is_time=is_time)}")
    if old.client_advertise != new.client_advertise:
        lines.append(f"Reload: client_advertise = {new.client_advertise}")
    lines += _authorization_lines(old.authorization, new.authorization)
    if old.tls != new.tls or new.tls is not None:
        # Certificates are always read again: their files may have changed.
        lines.append(f"Reloaded: tls = {'disabled' if new.tls is None else 'enabled'}")
    return lines


def _authorization_lines(old: Authorization, new: Authorization) -> list[str]:
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


def _refuse_change(name: str, old: Any, new: Any, *, is_time: bool = False) -> None:
    if old != new:
        shown = f"old={_shown(old, is_time=is_time)}, new={_shown(new, is_time=is_time)}"
        raise ReloadProblem(f"config reload not supported for {name}: {shown}")


def _shown(value: Any, *, is_time: bool = False) -> str:
    if is_time:
        return format_duration(round(value * _SECOND))
    return str(value).lower() if isinstance(value, bool) else str(value)
