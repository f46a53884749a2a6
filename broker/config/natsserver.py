"""Options of the embedded NATS server, of monitoring and of logs, from settings.

Facts: server-operations.md sections 4, 8, 13, 15.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from broker.config.options import LoggingOptions, MonitoringOptions
from broker.config.settings import NatsFile, Settings
from broker.config.values import ConfigurationError
from broker.nats.options import DEFAULT_TIMEOUT, Authorization, NatsOptions, TLSOptions
from stantools.store.limits import format_duration

_SECOND: Final = 1e9
#: Options that switch TLS on, and the settings that they change.
_TLS_FLAGS: Final = frozenset(f"nats.tls{each}" for each in ("", ".verify", ".cert", ".key", ".ca")) | frozenset(
    ("tls.client_cert", "tls.client_key", "tls.client_ca")
)


def nats_options(settings: Settings, file: NatsFile, tls: TLSOptions | None) -> NatsOptions:
    """Returns the options of the embedded server."""
    connections = settings.number("nats.max_connections")
    return NatsOptions(
        host=settings.text("nats.host"),
        port=settings.number("nats.port"),
        name=settings.text("nats.name"),
        client_advertise=settings.text("nats.client_advertise"),
        max_connections=max(connections, 0),
        max_subscriptions=max(settings.number("nats.max_subscriptions"), 0),
        max_control_line=settings.number("nats.max_control_line"),
        max_payload=settings.number("nats.max_payload"),
        max_pending=settings.number("nats.max_pending"),
        ping_interval=settings.number("nats.ping_interval") / _SECOND,
        ping_max=settings.number("nats.ping_max"),
        write_deadline=settings.number("nats.write_deadline") / _SECOND,
        authorization=authorization(settings, file, tls),
        tls=tls,
        lame_duck_duration=settings.number("nats.lame_duck_duration") / _SECOND,
        lame_duck_grace_period=settings.number("nats.lame_duck_grace_period") / _SECOND,
        no_header_support=settings.switch("nats.no_header_support"),
        debug=settings.switch("nats.debug"),
        trace=settings.switch("nats.trace") or settings.switch("nats.trace_verbose"),
        trace_verbose=settings.switch("nats.trace_verbose"),
        max_traced_msg_len=max(settings.number("nats.max_traced_msg_len"), 0),
    )


def authorization(settings: Settings, file: NatsFile, tls: TLSOptions | None) -> Authorization:
    """Returns who may connect: the command line's single user or token, or what the file says."""
    found = file.authorization or Authorization(timeout=0.0)
    if settings.text("nats.user") or settings.text("nats.password"):
        found = replace(found, user=settings.text("nats.user"), password=settings.text("nats.password"))
    if settings.text("nats.token"):
        found = replace(found, token=settings.text("nats.token"))
    default = DEFAULT_TIMEOUT if tls is None else tls.timeout + 1
    return replace(found, timeout=found.timeout or default, no_auth_user=settings.text("nats.no_auth_user"))


def tls_options(flags: dict[str, bool | int | str], file: NatsFile) -> TLSOptions | None:
    """Returns the TLS options: the command line's over the file's.

    Args:
        flags: What was given on the command line. Every option whose name begins with `tls` switches TLS on, even
            those for the streaming server's own connections.
        file: What the file says.

    Raises:
        ConfigurationError: There is no certificate or key, or one of the files is not what it should be.
    """
    given = {name: value for name, value in flags.items() if name in _TLS_FLAGS}
    if not given:
        return file.tls
    if given.get("nats.tls") is False:
        return None

    def path(name: str, default: Path | None) -> Path | None:
        value = given.get(name)
        return Path(str(value)) if value else default

    cert = path("nats.tls.cert", file.tls.cert if file.tls else None)
    key = path("nats.tls.key", file.tls.key if file.tls else None)
    if cert is None:
        raise ConfigurationError("TLS Server certificate must be present and valid")
    if key is None:
        raise ConfigurationError("TLS Server private key must be present and valid")
    options = replace(file.tls or TLSOptions(cert, key), cert=cert, key=key)
    options = replace(options, ca=path("nats.tls.ca", options.ca))
    if "nats.tls.verify" in given:
        options = replace(options, verify=given["nats.tls.verify"] is True)
    from broker.config.natstls import check_files

    check_files(options)
    return options


def monitoring_options(settings: Settings, tls: TLSOptions | None) -> MonitoringOptions:
    """Returns where monitoring is served."""
    http, https = settings.number("nats.http_port"), settings.number("nats.https_port")
    host = settings.text("nats.http_host") or settings.text("nats.host")
    base_path = settings.text("nats.http_base_path")
    problem = ""
    if http and https:
        problem = f"Can't start monitoring: can't specify both HTTP ({http}) and HTTPs ({https}) ports"
    elif https and tls is None:
        problem = "Can't start monitoring: TLS cert and key required for HTTPS"
    return MonitoringOptions(host, https or http, bool(https), base_path, problem)


def logging_options(settings: Settings) -> LoggingOptions:
    """Returns what is logged, and where to."""
    return LoggingOptions(
        file=settings.text("log.file"),
        size_limit=max(settings.number("log.size_limit"), 0),
        timestamps=settings.switch("log.timestamps"),
        utc=settings.switch("log.utc"),
        syslog=settings.switch("log.syslog"),
        remote_syslog=settings.text("log.remote_syslog"),
        nats_debug=settings.switch("nats.debug"),
        nats_trace=settings.switch("nats.trace") or settings.switch("nats.trace_verbose"),
        streaming_debug=settings.switch("stan_debug"),
        streaming_trace=settings.switch("stan_trace"),
    )


def server_problem(options: NatsOptions) -> str:
    """Returns why a NATS server with these options does not start; an empty text if nothing is wrong."""
    who = options.authorization
    if user := who.no_auth_user:
        if not who.users:
            return f'no_auth_user: "{user}" present, but users are not defined'
        if all(each.name != user for each in who.users):
            return f'no_auth_user: "{user}" not present as user in authorization block or account configuration'
    if options.max_payload > options.max_pending:
        return f"max_payload ({options.max_payload}) cannot be higher than max_pending ({options.max_pending})"
    if options.lame_duck_grace_period >= options.lame_duck_duration:
        grace = format_duration(round(options.lame_duck_grace_period * _SECOND))
        duration = format_duration(round(options.lame_duck_duration * _SECOND))
        return f"lame duck grace period ({grace}) should be strictly lower than lame duck duration ({duration})"
    if options.tls is not None:
        from broker.config.natstls import check_files

        try:
            check_files(options.tls, weak=False)
        except ConfigurationError as problem:
            return problem.message
    return ""
