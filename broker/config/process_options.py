"""The options of the process, built from settings, with the original's checks at the start.

Facts: server-operations.md section 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.config.broker_options import (
    FILE,
    JETSTREAM,
    MEMORY,
    SQL,
    BrokerOptions,
    ChannelsOptions,
    ClientTLSOptions,
    ConnectionOptions,
    Environment,
    LoggingOptions,
    MonitoringOptions,
)
from broker.config.catalogue import Setting
from broker.config.settings import BrokerSettings, FileContent
from broker.config.values import ConfigurationError
from broker.nats.nats_options import DEFAULT_TIMEOUT, Authorization, ClusterOptions, NatsOptions, TLSOptions
from broker.stores.store_options import EncryptionOptions, FileOptions
from broker.streaming.streaming_options import StreamingOptions
from broker.streams.streams_options import StreamsOptions
from stantools.errors import UsageError
from stantools.notation import format_go_duration
from stantools.server_options import as_bytes
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import ChannelLimits, PatternLimits, SliceLimits, StoreLimits

if TYPE_CHECKING:
    from stantools.nats.login import NatsAddress

KEY_VARIABLE: Final = "NATS_STREAMING_ENCRYPTION_KEY"
_CIPHERS: Final = ("", "AES", "CHACHA")
_NO_VERIFICATION: Final = "TLS certificate chain and hostname will not be verified. DO NOT USE IN PRODUCTION!"
_ALONE: Final = (
    "ft: this server's embedded NATS server is linked to no other: clients of a standby server are isolated, and "
    "servers of the group do not hear each other; link them (cluster) or use one NATS server for all (--nats_server)"
)
_STREAMS: Final = "JetStream is not clustered: consumers deliver to clients of this server, and not over routes"
_TEMPORARY: Final = (
    "JetStream has no store_dir: streams are in the temporary directory %s, which a restart of the machine may empty; "
    "configure one (-sd DIR)"
)
_SECOND: Final = 1e9
#: options that enable TLS, and the settings that they change
_TLS_FLAGS: Final = frozenset(f"tls.{each}" for each in ("enabled", "verify", "cert", "key", "ca")) | frozenset(
    f"connection.tls.{each}" for each in ("cert", "key", "ca")
)


def build(settings: BrokerSettings, nats: FileContent, tls: TLSOptions | None, environ: Environment) -> BrokerOptions:
    """Returns the options; a problem that prevents the start is in `failure`."""
    if tls is not None and settings.switch("connection.tls.skip_verify"):
        # In the original its own connections refuse an old certificate.
        tls = replace(tls, insecure=True)
    channels: Mapping[str, PatternLimits] = settings.given.get("limits.channels", {})
    partitions = tuple(map(as_bytes, channels)) if settings.switch("partitioning") else ()
    options = settings.of(
        BrokerOptions,
        streaming=settings.of(StreamingOptions, partitions=partitions),
        nats=nats_options(settings, tls),
        monitoring=monitoring_options(settings, tls),
        logging=logging_options(settings),
        pid_file=settings.text("pid_file"),
        ports_file_dir=settings.text("ports_file_dir"),
    )
    try:
        limits = settings.of(
            StoreLimits, "limits.", channel=settings.of(ChannelLimits, "limits."), per_channel=channels
        )
        options = replace(options, limits=limits)
        options = _with_store(options, settings, nats)
        options = _with_encryption(options, settings, environ)
        options = replace(options, connection=_connection(settings, options))
        if options.streaming.partitioning and not channels:
            raise UsageError("stan: no configured channel")
    except UsageError as problem:
        options = replace(options, failure=problem.message)
    if options.connection.urls:
        # Files that describe an embedded server are not written without one.
        options = replace(options, pid_file="", ports_file_dir="")
    elif options.embedded:
        options = replace(
            options,
            streams=streams_options(settings),
            nats_warnings=tuple(nats.warnings),
            failure=options.failure or server_problem(options.nats),
        )
    if options.connection.tls is not None and options.connection.tls.skip_verify:
        options = replace(options, warnings=(*options.warnings, _NO_VERIFICATION))
    if options.streams is not None and options.streams.temporary:
        warning = _TEMPORARY % options.streams.store_dir
        options = replace(options, nats_warnings=(*options.nats_warnings, warning))
    if options.streams is not None and options.nats.cluster is not None:
        options = replace(options, nats_warnings=(*options.nats_warnings, _STREAMS))
    if options.streaming.ft_group and not options.connection.urls and options.nats.cluster is None:
        options = replace(options, warnings=(*options.warnings, _ALONE))
    return options


def _with_store(options: BrokerOptions, settings: BrokerSettings, nats: FileContent) -> BrokerOptions:
    if settings.text("ft_group") and options.store not in (FILE, SQL):
        raise UsageError("ft: only FILE or SQL stores supported in FT mode")
    if options.store == SQL:
        # SQL stores are refused earlier, unless the original does not know the driver either.
        raise UsageError(f'sql: unknown driver "{settings.text("sql.driver")}" (forgotten import?)')
    if options.store == MEMORY:
        return options
    if options.store not in (FILE, JETSTREAM):
        raise UsageError(f"unsupported store type: {options.store}")
    if not options.directory:
        raise UsageError(f"for {options.store} stores, root directory must be specified")
    file = settings.of(
        FileOptions,
        "file.",
        directory=Path(options.directory),
        slices=settings.of(SliceLimits, "file.slices."),
        compaction=settings.of(CompactionRules, "file.compaction."),
    )
    options = replace(options, file=file)
    if settings.switch("cluster.clustered"):
        from broker.config.cluster import as_node

        options = as_node(options, settings, nats)
    if options.store == JETSTREAM:
        options = replace(options, channels=_channels(options, settings))
    return options


def _channels(options: BrokerOptions, settings: BrokerSettings) -> ChannelsOptions:
    if not settings.text("connection.urls") and (options.node is None or options.node.server is None):
        raise UsageError("for JETSTREAM stores, a NATS server with JetStream must be specified (--nats_server)")
    if settings.switch("partitioning"):
        raise UsageError("partitioning is not supported with JETSTREAM stores")
    durable = settings.switch("cluster.sync")
    if options.channels is not None and "jetstream_options.replicas" not in settings.given:
        return replace(options.channels, durable_copy=durable)
    channels = settings.of(ChannelsOptions, "jetstream_options.", durable_copy=durable)
    if channels.replicas not in (1, 3, 5):
        raise UsageError(f"a stream has 1, 3 or 5 replicas, not {channels.replicas}")
    return channels


def _with_encryption(options: BrokerOptions, settings: BrokerSettings, environ: Environment) -> BrokerOptions:
    encryption = settings.of(EncryptionOptions, "encryption.")
    if not encryption.key and not settings.switch("encrypt"):
        return options
    if key := environ.get(KEY_VARIABLE, ""):
        encryption = replace(encryption, key=as_bytes(key))
    if not encryption.key:
        raise UsageError("encryption key required")
    if encryption.cipher not in _CIPHERS:
        raise UsageError("encryption cipher not supported")
    return replace(options, encryption=encryption)


def streams_options(settings: BrokerSettings) -> StreamsOptions | None:
    """Returns the options of streams; None if JetStream is disabled."""
    if not settings.switch("jetstream"):
        return None
    if settings.text("jetstream.store_dir"):
        return settings.of(StreamsOptions, "jetstream.")
    from tempfile import gettempdir

    return settings.of(StreamsOptions, "jetstream.", store_dir=Path(gettempdir(), "nats"), temporary=True)


def _connection(settings: BrokerSettings, options: BrokerOptions) -> ConnectionOptions:
    found = settings.of(ClientTLSOptions, "connection.tls.")
    wanted = settings.switch("secure") or found.cert or found.key or found.ca or found.skip_verify
    connection = settings.of(ConnectionOptions, "connection.", tls=found if wanted else None)
    urls = connection.urls
    if urls and "@" not in urls and "," not in urls and not _is_url(urls):
        from stantools.nats.login import redacted

        raise UsageError(f"malformed url: {redacted(urls)}")
    # the NATS server's requirements come before the streaming configuration
    who = options.nats.authorization
    if who.user or who.token:
        connection = replace(connection, user=who.user, password=who.password, token=who.token)
    return connection


def _is_url(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    host, colon, port = rest.rpartition(":")
    return bool(scheme and separator and host and colon and port.isdecimal() and len(port) <= 5)


def nats_options(settings: BrokerSettings, tls: TLSOptions | None) -> NatsOptions:
    options = settings.of(
        NatsOptions,
        "nats.",
        debug=settings.switch("log.nats_debug"),
        trace=logging_options(settings).nats_trace,
        authorization=authorization(settings, tls),
        tls=tls,
    )
    return replace(options, cluster=cluster_options(settings, options))


def cluster_options(settings: BrokerSettings, nats: NatsOptions) -> ClusterOptions | None:
    """Returns the options of routes, with the client settings that also apply to routes; None without routes."""
    tls: TLSOptions | None = settings.given.get("routes.tls")
    options = settings.of(
        ClusterOptions,
        "routes.",
        user=settings.text("routes.user"),
        password=settings.text("routes.password"),
        timeout=settings.given.get("routes.timeout") or DEFAULT_TIMEOUT,
        tls=None if tls is None else replace(tls, verify=True),
        ping_interval=nats.ping_interval,
        write_deadline=nats.write_deadline,
    )
    if url := settings.text("routes.listen"):
        place = _route(url, "cluster")
        user, password = place.user or options.user, place.password or options.password
        options = replace(options, host=place.host, port=place.port, user=user, password=password)
    if not options.port:
        return None
    for each in options.routes:
        _route(each, "route")
    return options


def _route(url: str, what: str) -> NatsAddress:
    from broker.nats.nats_options import parse_route
    from stantools.nats.login import redacted

    try:
        return parse_route(url)
    except UsageError as problem:
        remedy = f" ({problem.remedy})" if problem.remedy else ""
        raise ConfigurationError(f"error parsing {what} url: {problem.message}: {redacted(url)}{remedy}") from None


def authorization(settings: BrokerSettings, tls: TLSOptions | None) -> Authorization:
    """Returns the permitted users: the command line's single user or token, else those of the file."""
    found: Authorization = settings.given.get("authorization", Authorization(timeout=0.0))
    user, password, token = (settings.text(f"authorization.{name}") for name in ("user", "password", "token"))
    if user or password:
        found = replace(found, user=user, password=password)
    if token:
        found = replace(found, token=token)
    default = DEFAULT_TIMEOUT if tls is None else tls.timeout + 1
    return replace(found, timeout=found.timeout or default, no_auth_user=settings.text("nats.no_auth_user"))


def tls_options(settings: BrokerSettings, flags: Mapping[str, Setting]) -> TLSOptions | None:
    """Returns the TLS options; those of the command line override the file's.

    Every option with a name that begins with `tls` enables TLS, even the options for the streaming server's own
    connections. Raises ConfigurationError if certificate or key are missing or unusable.
    """
    options: TLSOptions | None = settings.given.get("tls")
    if _TLS_FLAGS.isdisjoint(flags):
        return options
    if flags.get("tls.enabled") is False:
        return None
    given = {name: value for name, value in settings.fields(TLSOptions, "tls.").items() if value not in (None, Path())}
    options = replace(options or TLSOptions(), **given)
    if options.cert == Path():
        raise ConfigurationError("TLS Server certificate must be present and valid")
    if options.key == Path():
        raise ConfigurationError("TLS Server private key must be present and valid")
    from broker.config.nats_file import check_files

    check_files(options)
    return options


def monitoring_options(settings: BrokerSettings, tls: TLSOptions | None) -> MonitoringOptions:
    http, https = settings.number("monitoring.http_port"), settings.number("monitoring.https_port")
    host = settings.text("monitoring.host") or settings.text("nats.host")
    problem = ""
    if http and https:
        problem = f"Can't start monitoring: can't specify both HTTP ({http}) and HTTPs ({https}) ports"
    elif https and tls is None:
        problem = "Can't start monitoring: TLS cert and key required for HTTPS"
    return settings.of(
        MonitoringOptions, "monitoring.", host=host, port=https or http, https=bool(https), problem=problem
    )


def logging_options(settings: BrokerSettings) -> LoggingOptions:
    verbose = settings.switch("nats.trace_verbose")
    return settings.of(LoggingOptions, "log.", nats_trace=verbose or settings.switch("log.nats_trace"))


def server_problem(options: NatsOptions) -> str:
    """Returns why a NATS server with these options does not start, or ""."""
    who = options.authorization
    if user := who.no_auth_user:
        if not who.users:
            return f'no_auth_user: "{user}" present, but users are not defined'
        if all(each.name != user for each in who.users):
            return f'no_auth_user: "{user}" not present as user in authorization block or account configuration'
    if options.max_payload > options.max_pending:
        return f"max_payload ({options.max_payload}) cannot be higher than max_pending ({options.max_pending})"
    if options.lame_duck_grace_period >= options.lame_duck_duration:
        grace = format_go_duration(round(options.lame_duck_grace_period * _SECOND))
        duration = format_go_duration(round(options.lame_duck_duration * _SECOND))
        return f"lame duck grace period ({grace}) should be strictly lower than lame duck duration ({duration})"
    if options.tls is not None:
        from broker.config.nats_file import check_files

        try:
            check_files(options.tls, weak=False)
        except ConfigurationError as problem:
            return problem.message
    return ""
