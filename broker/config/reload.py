"""Reload of the configuration's NATS part while the server runs (server-operations.md section 13)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker.config.broker_options import BrokerOptions, Environment
from broker.config.cluster import server_config
from broker.config.flags import FlagError, parse_flags
from broker.config.process_options import (
    logging_options,
    monitoring_options,
    nats_options,
    server_problem,
    streams_options,
    tls_options,
)
from broker.config.reader import ParsedSettings, configure
from broker.config.values import ConfigurationError
from broker.nats.nats_options import TLSOptions
from stantools.errors import StantoolsError


class ReloadProblem(StantoolsError):  # noqa: N818 (it is a refusal)
    """The new configuration cannot be applied."""

    @property
    def line(self) -> str:
        """The line for the streaming logger, at level ERR."""
        return self.message if self.message.startswith("Reload ") else f"Reload: {self.message}"


@dataclass(frozen=True, slots=True)
class ReloadResult:
    #: the new options: `nats`, `logging` and the files have changed; the NATS server may still refuse its part, and
    #: then nothing may change
    options: BrokerOptions
    #: lines for the NATS server's log at level INF, about settings besides its own options
    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()  #: lines for the same log, at level WRN


def reload_options(old: BrokerOptions, argv: Sequence[str], environ: Environment | None = None) -> ReloadResult:
    """Reads the configuration again, with the command line of the start; an error changes nothing."""
    if old.connection.urls:
        raise ReloadProblem("Reload supported only for embedded NATS Server's configuration")
    found, tls = _configured(old, argv, environ)
    if found.nats.unavailable:
        raise ReloadProblem(f"not available yet: {', '.join(found.nats.unavailable)}")
    return _compare(old, found, tls)


def reload_node(old: BrokerOptions, argv: Sequence[str]) -> dict[str, Any]:
    """Reads the configuration of a node again; returns that of its nats-server."""
    found, tls = _configured(old, argv, None)
    return server_config(found.settings, found.nats, nats_options(found.settings, tls).cluster)


def _configured(
    old: BrokerOptions, argv: Sequence[str], environ: Environment | None
) -> tuple[ParsedSettings, TLSOptions | None]:
    if not old.config_file:
        raise ReloadProblem("can only reload config when a file is provided using -c or --config")
    try:
        found = configure(parse_flags(argv), os.environ if environ is None else environ)
        return found, tls_options(found.settings, found.flags.settings)
    except (ConfigurationError, FlagError) as problem:
        raise ReloadProblem(problem.message) from None


def _compare(old: BrokerOptions, found: ParsedSettings, tls: TLSOptions | None) -> ReloadResult:
    nats = nats_options(found.settings, tls)
    # The address cannot change: the original silently keeps the old one.
    nats = replace(nats, host=old.nats.host)
    if problem := server_problem(nats):
        raise ReloadProblem(problem)
    monitoring, was = monitoring_options(found.settings, tls), old.monitoring
    _refuse_change("HTTPBasePath", was.base_path, monitoring.base_path)
    _refuse_change("HTTPSPort" if was.https else "HTTPPort", was.port, monitoring.port)
    if (streams := streams_options(found.settings)) != old.streams:
        raise ReloadProblem(f"config reload not supported for JetStream: old={old.streams}, new={streams}")
    logging = replace(
        logging_options(found.settings),
        streaming_debug=old.logging.streaming_debug,
        streaming_trace=old.logging.streaming_trace,
    )
    _refuse_change("LogSizeLimit", old.logging.size_limit, logging.size_limit)
    pid_file = found.settings.text("pid_file")
    ports_file_dir = found.settings.text("ports_file_dir")
    lines = []
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
            shown = str(after).lower() if isinstance(after, bool) else after
            lines.append(f"Reloaded: {label} = {shown}")
    warnings = (*found.misplaced, *found.nats.warnings)
    options = replace(
        old,
        nats=nats,
        logging=logging,
        pid_file=pid_file,
        ports_file_dir=ports_file_dir,
        nats_warnings=warnings,
    )
    return ReloadResult(options, tuple(lines), warnings)


def _refuse_change(name: str, old: int | str, new: int | str) -> None:
    if old != new:
        raise ReloadProblem(f"config reload not supported for {name}: old={old}, new={new}")
