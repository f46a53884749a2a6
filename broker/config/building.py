"""Options of the process from settings, with the checks that the original makes when it starts.

Facts: server-operations.md section 10.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from broker.config.banner import limits_table
from broker.config.natsserver import (
    logging_options,
    monitoring_options,
    nats_options,
    server_problem,
)
from broker.config.options import (
    FILE,
    MEMORY,
    SQL,
    BrokerOptions,
    ClientTLSOptions,
    ConnectionOptions,
    Environment,
)
from broker.config.settings import NatsFile, Settings, StreamingFile
from broker.nats.options import TLSOptions
from broker.stores.limits import store_limits
from broker.stores.options import EncryptionOptions, FileOptions
from broker.streaming.options import StreamingOptions
from stantools.errors import UsageError
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import ChannelLimits, SliceLimits

KEY_VARIABLE: Final = "NATS_STREAMING_ENCRYPTION_KEY"
_CIPHERS: Final = ("", "AES", "CHACHA")
_SHORTEST: Final = 1_000_000
_NO_VERIFICATION: Final = "TLS certificate chain and hostname will not be verified. DO NOT USE IN PRODUCTION!"
_MAX_POLYNOMIAL: Final = 0xFFFFFFFF


def build(
    settings: Settings, nats: NatsFile, streaming: StreamingFile, tls: TLSOptions | None, environ: Environment
) -> BrokerOptions:
    """Returns the options; what keeps the server from starting is in `failure`."""
    if tls is not None and settings.switch("tls.skip_verify"):
        # In the original it is its own connections that refuse an old certificate.
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
        options = _with_store(options, settings)
        options = _with_encryption(options, settings, environ)
        options = replace(options, connection=_connection(settings, options))
        if options.streaming.partitioning and not streaming.channels:
            raise UsageError("stan: no configured channel")
    except UsageError as problem:
        options = replace(options, failure=problem.message)
    if options.connection.urls:
        # Files that describe an embedded server are not written without one.
        options = replace(options, pid_file="", ports_file_dir="")
    else:
        options = replace(
            options,
            nats_warnings=tuple(nats.warnings),
            failure=options.failure or server_problem(options.nats),
        )
    if options.connection.tls is not None and options.connection.tls.skip_verify:
        options = replace(options, warnings=(*options.warnings, _NO_VERIFICATION))
    return options


def _streaming(settings: Settings, file: StreamingFile) -> StreamingOptions:
    return StreamingOptions(
        cluster_id=_bytes(settings.text("cluster_id")),
        discover_prefix=_bytes(settings.text("discover_prefix")),
        # A timer of no length would keep the process busy.
        heartbeat_interval=max(settings.number("hb_interval"), _SHORTEST),
        heartbeat_timeout=max(settings.number("hb_timeout"), _SHORTEST),
        heartbeat_fail_count=settings.number("hb_fail_count"),
        replace_durable=settings.switch("replace_durable"),
        any_publish_subject=settings.switch("any_publish_subject"),
        io_batch_size=max(settings.number("io_batch_size"), 1),
        io_sleep_time=max(settings.number("io_sleep_time"), 0) * 1000,
        partitioning=settings.switch("partitioning"),
        partitions=tuple(_bytes(name) for name in file.channels) if settings.switch("partitioning") else (),
    )


def _with_limits(options: BrokerOptions, settings: Settings, file: StreamingFile) -> BrokerOptions:
    channel = ChannelLimits(
        max_msgs=settings.number("limits.max_msgs"),
        max_bytes=settings.number("limits.max_bytes"),
        max_age_ns=settings.number("limits.max_age"),
        max_subs=settings.number("limits.max_subs"),
        max_inactivity_ns=settings.number("limits.max_inactivity"),
    )
    max_channels = settings.number("limits.max_channels")
    return replace(
        options,
        limits=store_limits(max_channels, channel, file.channels),
        limits_table=limits_table(max_channels, channel, file.channels),
    )


def _with_store(options: BrokerOptions, settings: Settings) -> BrokerOptions:
    if settings.text("ft_group") and options.store not in (FILE, SQL):
        raise UsageError("ft: only FILE or SQL stores supported in FT mode")
    if options.store == SQL:
        # SQL stores are refused before, unless the original does not know the driver either.
        raise UsageError(f'sql: unknown driver "{settings.text("sql.driver")}" (forgotten import?)')
    if options.store == MEMORY:
        return options
    if options.store != FILE:
        raise UsageError(f"unsupported store type: {options.store}")
    if not options.directory:
        raise UsageError("for FILE stores, root directory must be specified")
    return replace(options, file=_file(settings))


def _file(settings: Settings) -> FileOptions:
    def at_least(name: str, least: int, problem: str) -> int:
        if (value := settings.number(f"file.{name}")) < least:
            raise UsageError(problem)
        return value

    slices = "slice max values must be positive numbers"
    polynomial = settings.number("file.crc_poly")
    buffer_size = at_least("buffer_size", 0, "buffer size value must be a positive number")
    read_buffer_size = at_least("read_buffer_size", 0, "read buffer size value must be a positive number")
    compaction = CompactionRules(
        enabled=settings.switch("file.compact_enabled"),
        interval=at_least("compact_interval", 1, "compact interval value must at least be 1 seconds"),
        fragmentation=at_least("compact_frag", 1, "compact fragmentation value must at least be 1"),
        min_size=at_least("compact_min_size", 0, "compact minimum file size value must be a positive number"),
    )
    if not 1 <= polynomial <= _MAX_POLYNOMIAL:
        raise UsageError("crc polynomial should be between 1 and 4294967295")
    return FileOptions(
        directory=Path(settings.text("dir")),
        buffer_size=buffer_size,
        read_buffer_size=read_buffer_size,
        crc=settings.switch("file.crc"),
        polynomial=polynomial,
        sync=settings.switch("file.sync"),
        auto_sync=settings.number("file.auto_sync"),
        slices=SliceLimits(
            at_least("slice_max_msgs", 0, slices),
            at_least("slice_max_bytes", 0, slices),
            at_least("slice_max_age", 0, slices),
        ),
        slice_archive_script=settings.text("file.slice_archive_script"),
        compaction=compaction,
        fds_limit=at_least("fds_limit", 0, "file descriptor limit must be a positive number"),
        parallel_recovery=at_least("parallel_recovery", 1, "parallel recovery value must be at least 1"),
        truncate_bad_eof=settings.switch("file.truncate_bad_eof"),
    )


def _with_encryption(options: BrokerOptions, settings: Settings, environ: Environment) -> BrokerOptions:
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


def _connection(settings: Settings, options: BrokerOptions) -> ConnectionOptions:
    urls = settings.text("nats_server")
    if urls and "@" not in urls and "," not in urls and not _is_url(urls):
        raise UsageError(f"malformed url: {urls}")
    # What the NATS server asks for comes first, then what was configured for streaming.
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


def _client_tls(settings: Settings) -> ClientTLSOptions | None:
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
