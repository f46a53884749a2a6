"""The options of the process, built from settings, with the original's checks at the start.

Facts: server-operations.md section 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from broker.config.catalogue import CHANNEL_LIMITS, Setting
from broker.config.settings import BrokerSettings, NatsFile, StreamingFile
from broker.config.values import ConfigurationError
from broker.nats.nats_options import DEFAULT_TIMEOUT, SECONDS, Authorization, ClusterOptions, NatsOptions, TLSOptions
from broker.stores.store_options import EncryptionOptions, FileOptions
from broker.streaming.streaming_options import StreamingOptions
from broker.streams.streams_options import StreamsOptions
from stantools.errors import UsageError
from stantools.notation import format_go_duration
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import ChannelLimits, SliceLimits, StoreLimits

if TYPE_CHECKING:
    from stantools.nats.login import NatsAddress

KEY_VARIABLE: Final = "NATS_STREAMING_ENCRYPTION_KEY"
_CIPHERS: Final = ("", "AES", "CHACHA")
_SHORTEST: Final = 1_000_000
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
_MAX_POLYNOMIAL: Final = 0xFFFFFFFF
_POLYNOMIAL: Final = "crc polynomial should be between 1 and 4294967295"
_SLICES: Final = "slice max values must be positive numbers"
_SECOND: Final = 1e9
#: options that enable TLS, and the settings that they change
_TLS_FLAGS: Final = frozenset(f"nats.tls{each}" for each in ("", ".verify", ".cert", ".key", ".ca")) | frozenset(
    ("tls.client_cert", "tls.client_key", "tls.client_ca")
)


def build(
    settings: BrokerSettings, nats: NatsFile, streaming: StreamingFile, tls: TLSOptions | None, environ: Environment
) -> BrokerOptions:
    """Returns the options; a problem that prevents the start is in `failure`."""
    if tls is not None and settings.switch("tls.skip_verify"):
        # In the original its own connections refuse an old certificate.
        tls = replace(tls, insecure=True)
    options = BrokerOptions(
        streaming=_streaming(settings, streaming),
        nats=nats_options(settings, nats, tls),
        store=settings.text("store").upper(),
        directory=settings.text("dir"),
        monitoring=monitoring_options(settings, tls),
        logging=logging_options(settings),
        pid_file=settings.text("nats.pid_file"),
        ports_file_dir=settings.text("nats.ports_file_dir"),
    )
    try:
        options = _with_limits(options, settings, streaming)
        options = _with_store(options, settings, nats)
        options = _with_encryption(options, settings, environ)
        options = replace(options, connection=_connection(settings, options))
        if options.streaming.partitioning and not streaming.channels:
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


def _streaming(settings: BrokerSettings, file: StreamingFile) -> StreamingOptions:
    return StreamingOptions(
        cluster_id=_bytes(settings.text("cluster_id")),
        discover_prefix=_bytes(settings.text("discover_prefix")),
        # a timer of zero length would keep the process busy
        heartbeat_interval=max(settings.number("hb_interval"), _SHORTEST),
        heartbeat_timeout=max(settings.number("hb_timeout"), _SHORTEST),
        heartbeat_fail_count=settings.number("hb_fail_count"),
        replace_durable=settings.switch("replace_durable"),
        any_publish_subject=settings.switch("any_publish_subject"),
        io_batch_size=max(settings.number("io_batch_size"), 1),
        io_sleep_time=max(settings.number("io_sleep_time"), 0) * 1000,
        ft_group=_bytes(settings.text("ft_group")),
        partitioning=settings.switch("partitioning"),
        partitions=tuple(_bytes(name) for name in file.channels) if settings.switch("partitioning") else (),
    )


def _with_limits(options: BrokerOptions, settings: BrokerSettings, file: StreamingFile) -> BrokerOptions:
    channel = ChannelLimits(
        **{
            each.setting: settings.number(f"limits.{each.setting.removesuffix('_ns')}")
            for each in CHANNEL_LIMITS.options
        }
    )
    return replace(
        options,
        limits=StoreLimits(settings.number("limits.max_channels"), channel, file.channels),
    )


def _with_store(options: BrokerOptions, settings: BrokerSettings, nats: NatsFile) -> BrokerOptions:
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
    options = replace(options, file=_file(settings))
    if settings.switch("cluster.clustered"):
        from broker.config.cluster import as_node

        options = as_node(options, settings, nats)
    if options.store == JETSTREAM:
        options = replace(options, channels=_channels(options, settings))
    return options


def _channels(options: BrokerOptions, settings: BrokerSettings) -> ChannelsOptions:
    if not settings.text("nats_server") and (options.node is None or options.node.server is None):
        raise UsageError("for JETSTREAM stores, a NATS server with JetStream must be specified (--nats_server)")
    if settings.switch("partitioning"):
        raise UsageError("partitioning is not supported with JETSTREAM stores")
    durable = settings.switch("cluster.sync")
    if options.channels is not None and "jetstream_options.replicas" not in settings.given:
        return replace(options.channels, durable_copy=durable)
    channels = ChannelsOptions(**settings.of(ChannelsOptions, "jetstream_options."), durable_copy=durable)
    if channels.replicas not in (1, 3, 5):
        raise UsageError(f"a stream has 1, 3 or 5 replicas, not {channels.replicas}")
    return channels


#: settings of the file store: minimum, and the error below it; in the original's order
_MINIMA: Final = (
    ("buffer_size", 0, "buffer size value must be a positive number"),
    ("read_buffer_size", 0, "read buffer size value must be a positive number"),
    ("compact_interval", 1, "compact interval value must at least be 1 seconds"),
    ("compact_frag", 1, "compact fragmentation value must at least be 1"),
    ("compact_min_size", 0, "compact minimum file size value must be a positive number"),
    ("crc_poly", 1, _POLYNOMIAL),
    ("slice_max_msgs", 0, _SLICES),
    ("slice_max_bytes", 0, _SLICES),
    ("slice_max_age", 0, _SLICES),
    ("fds_limit", 0, "file descriptor limit must be a positive number"),
    ("parallel_recovery", 1, "parallel recovery value must be at least 1"),
)


def _file(settings: BrokerSettings) -> FileOptions:
    def number(name: str) -> int:
        return settings.number(f"file.{name}")

    for name, least, problem in _MINIMA:
        if number(name) < least:
            raise UsageError(problem)
        if name == "crc_poly" and number(name) > _MAX_POLYNOMIAL:
            raise UsageError(problem)
    return FileOptions(
        directory=Path(settings.text("dir")),
        polynomial=number("crc_poly"),
        slices=SliceLimits(number("slice_max_msgs"), number("slice_max_bytes"), number("slice_max_age")),
        compaction=CompactionRules(
            enabled=settings.switch("file.compact_enabled"),
            interval=number("compact_interval"),
            fragmentation=number("compact_frag"),
            min_size=number("compact_min_size"),
        ),
        **settings.of(FileOptions, "file."),
    )


def _with_encryption(options: BrokerOptions, settings: BrokerSettings, environ: Environment) -> BrokerOptions:
    key = settings.text("encryption_key")
    if not key and not settings.switch("encrypt"):
        return options
    key = environ.get(KEY_VARIABLE, "") or key
    cipher = settings.text("encryption_cipher").upper()
    if not key:
        raise UsageError("encryption key required")
    if cipher not in _CIPHERS:
        raise UsageError("encryption cipher not supported")
    return replace(options, encryption=EncryptionOptions(_bytes(key), cipher))


def streams_options(settings: BrokerSettings) -> StreamsOptions | None:
    """Returns the options of streams; None if JetStream is disabled."""
    if not settings.switch("jetstream"):
        return None
    store_dir = settings.text("jetstream.store_dir")
    temporary = not store_dir
    if temporary:
        from tempfile import gettempdir

        store_dir = f"{gettempdir()}/nats"
    limits = {name: max(settings.number(f"jetstream.{name}"), 0) for name in ("max_mem", "max_file")}
    from_channels, preview = settings.switch("jetstream.from_channels"), settings.switch("jetstream.preview")
    return StreamsOptions(Path(store_dir), **limits, from_channels=from_channels, temporary=temporary, preview=preview)


def _connection(settings: BrokerSettings, options: BrokerOptions) -> ConnectionOptions:
    urls = settings.text("nats_server")
    if urls and "@" not in urls and "," not in urls and not _is_url(urls):
        from stantools.nats.login import redacted

        raise UsageError(f"malformed url: {redacted(urls)}")
    # the NATS server's requirements come before the streaming configuration
    who = options.nats.authorization
    user, password, token = who.user, who.password, who.token
    if not user and not token:
        user, password, token = settings.text("username"), settings.text("password"), settings.text("token")
    return ConnectionOptions(
        urls=urls,
        user=user,
        password=password,
        token=token,
        nkey_seed_file=settings.text("nkey_seed_file"),
        credentials=settings.text("credentials"),
        tls=_client_tls(settings),
    )


def _client_tls(settings: BrokerSettings) -> ClientTLSOptions | None:
    def path(name: str) -> Path | None:
        return Path(value) if (value := settings.text(name)) else None

    found = ClientTLSOptions(
        path("tls.client_cert"),
        path("tls.client_key"),
        path("tls.client_ca"),
        settings.text("tls.server_name"),
        settings.switch("tls.skip_verify"),
    )
    wanted = settings.switch("secure") or found.cert or found.key or found.ca or found.skip_verify
    return found if wanted else None


def _is_url(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    host, colon, port = rest.rpartition(":")
    return bool(scheme and separator and host and colon and port.isdecimal() and len(port) <= 5)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def nats_options(settings: BrokerSettings, file: NatsFile, tls: TLSOptions | None) -> NatsOptions:
    values = settings.of(NatsOptions, "nats.")
    for name in ("max_connections", "max_subscriptions", "max_traced_msg_len"):
        values[name] = max(values.get(name, 0), 0)
    for name in SECONDS:
        values[name] /= _SECOND
    values |= {
        "trace": settings.switch("nats.trace") or settings.switch("nats.trace_verbose"),
        "authorization": authorization(settings, file, tls),
        "tls": tls,
        "cluster": cluster_options(settings, file, values),
    }
    return NatsOptions(**values)


def cluster_options(settings: BrokerSettings, file: NatsFile, values: Mapping[str, Any]) -> ClusterOptions | None:
    """Returns the options of routes, with the client settings that also apply to routes; None without routes."""
    host, port = settings.text("routes.host"), settings.number("routes.port")
    user, password = settings.text("routes.user"), settings.text("routes.password")
    if url := settings.text("routes.listen"):
        place = _route(url, "cluster")
        host, port, user, password = place.host, place.port, place.user or user, place.password or password
    if not port:
        return None
    routes = tuple(each.strip() for each in settings.text("routes").split(",") if each.strip())
    for each in routes:
        _route(each, "route")
    return ClusterOptions(
        host=host,
        port=port,
        name=settings.text("routes.name"),
        routes=routes,
        user=user,
        password=password,
        timeout=settings.number("routes.timeout") / _SECOND or DEFAULT_TIMEOUT,
        tls=None if file.cluster_tls is None else replace(file.cluster_tls, verify=True),
        advertise=settings.text("routes.advertise"),
        no_advertise=settings.switch("routes.no_advertise"),
        connect_retries=settings.number("routes.connect_retries"),
        ping_interval=values["ping_interval"],
        write_deadline=values["write_deadline"],
    )


def _route(url: str, what: str) -> NatsAddress:
    from broker.nats.nats_options import parse_route
    from stantools.nats.login import redacted

    try:
        return parse_route(url)
    except UsageError as problem:
        remedy = f" ({problem.remedy})" if problem.remedy else ""
        raise ConfigurationError(f"error parsing {what} url: {problem.message}: {redacted(url)}{remedy}") from None


def authorization(settings: BrokerSettings, file: NatsFile, tls: TLSOptions | None) -> Authorization:
    """Returns the permitted users: the command line's single user or token, else those of the file."""
    found = file.authorization or Authorization(timeout=0.0)
    if settings.text("nats.user") or settings.text("nats.password"):
        found = replace(found, user=settings.text("nats.user"), password=settings.text("nats.password"))
    if settings.text("nats.token"):
        found = replace(found, token=settings.text("nats.token"))
    default = DEFAULT_TIMEOUT if tls is None else tls.timeout + 1
    return replace(found, timeout=found.timeout or default, no_auth_user=settings.text("nats.no_auth_user"))


def tls_options(flags: Mapping[str, Setting], file: NatsFile) -> TLSOptions | None:
    """Returns the TLS options; those of the command line override the file's.

    Every option with a name that begins with `tls` enables TLS, even those for the streaming server's own
    connections. Raises ConfigurationError if certificate or key are missing or unusable.
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
    from broker.config.nats import check_files

    check_files(options)
    return options


def monitoring_options(settings: BrokerSettings, tls: TLSOptions | None) -> MonitoringOptions:
    http, https = settings.number("nats.http_port"), settings.number("nats.https_port")
    host = settings.text("nats.http_host") or settings.text("nats.host")
    base_path = settings.text("nats.http_base_path")
    problem = ""
    if http and https:
        problem = f"Can't start monitoring: can't specify both HTTP ({http}) and HTTPs ({https}) ports"
    elif https and tls is None:
        problem = "Can't start monitoring: TLS cert and key required for HTTPS"
    return MonitoringOptions(host, https or http, bool(https), base_path, problem)


def logging_options(settings: BrokerSettings) -> LoggingOptions:
    values = settings.of(LoggingOptions, "log.")
    values["size_limit"] = max(values.get("size_limit", 0), 0)
    return LoggingOptions(
        nats_debug=settings.switch("nats.debug"),
        nats_trace=settings.switch("nats.trace") or settings.switch("nats.trace_verbose"),
        streaming_debug=settings.switch("stan_debug"),
        streaming_trace=settings.switch("stan_trace"),
        **values,
    )


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
        from broker.config.nats import check_files

        try:
            check_files(options.tls, weak=False)
        except ConfigurationError as problem:
            return problem.message
    return ""
