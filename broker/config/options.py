"""Everything that was configured, as the process that is started from it wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.nats.options import NatsOptions
from broker.stores.options import EncryptionOptions, FileOptions
from broker.streaming.options import StreamingOptions
from broker.streams.options import StreamsOptions
from stantools.store.limits import StoreLimits

#: Store types. `SQL` is recognised, but there is no such store yet.
MEMORY = "MEMORY"
FILE = "FILE"
SQL = "SQL"


@dataclass(frozen=True, slots=True)
class ClientTLSOptions:
    """TLS of the streaming server's own connections (server-operations.md section 15).

    Attributes:
        cert: Client certificate, PEM.
        key: Its private key, PEM.
        ca: Whom the NATS server's certificate has to be from, PEM; None for the system's.
        server_name: Name that the certificate has to carry; empty for the host of the URL.
        skip_verify: Trust any certificate.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    server_name: str = ""
    skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How the streaming server connects to NATS (server-operations.md section 15).

    To the embedded server they only say who the streaming server is, by user, token, nkey or client certificate.

    Attributes:
        urls: URLs of the external NATS server, as given; empty for the embedded one.
        user: Name of the user.
        password: Password.
        token: Token.
        nkey_seed_file: File with the seed of an nkey.
        credentials: File with a JWT and its seed.
        tls: TLS; None without.
    """

    urls: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey_seed_file: str = ""
    credentials: str = ""
    tls: ClientTLSOptions | None = None

    @property
    def url_list(self) -> tuple[str, ...]:
        """The URLs one by one."""
        return tuple(url.strip() for url in self.urls.split(",") if url.strip())


@dataclass(frozen=True, slots=True)
class MonitoringOptions:
    """Where monitoring is served (server-operations.md section 14).

    Attributes:
        host: Address to listen on.
        port: Port; 0 without monitoring, -1 for a free one.
        https: With the TLS of the embedded NATS server.
        base_path: In front of the paths of NATS; the streaming paths are not affected.
        problem: Why it cannot be served: a fatal line, without `STREAM: `, once the NATS server has started.
    """

    host: str = "0.0.0.0"
    port: int = 0
    https: bool = False
    base_path: str = "/"
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """What is logged, and where to (server-operations.md section 13).

    Attributes:
        file: Log file; empty for stderr or syslog.
        size_limit: Bytes after which the file is rotated; 0 for never.
        timestamps: Lines of stderr and files carry date and time.
        utc: In UTC instead of local time.
        syslog: Log to the local syslog.
        remote_syslog: URL of a remote one (`udp://host:514`, `tcp://…`, `unix:///path`); empty without.
        nats_debug: Debug lines of the NATS server.
        nats_trace: Trace lines of the NATS server.
        streaming_debug: Debug lines of the streaming server.
        streaming_trace: Trace lines of the streaming server.
    """

    file: str = ""
    size_limit: int = 0
    timestamps: bool = True
    utc: bool = False
    syslog: bool = False
    remote_syslog: str = ""
    nats_debug: bool = False
    nats_trace: bool = False
    streaming_debug: bool = False
    streaming_trace: bool = False


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of the whole process.

    Attributes:
        streaming: Of the streaming server.
        nats: Of the embedded NATS server.
        store: `MEMORY` or `FILE`; something else only with a `failure`.
        directory: Store directory as given; shown in the banner even if the store is in memory.
        file: Of the file store; None for other stores.
        limits: What the store may hold.
        encryption: Encryption at rest; None without.
        connection: How the streaming server reaches NATS; `connection.urls` is empty for the embedded server.
        streams: JetStream streams in the embedded server; None without.
        monitoring: HTTP monitoring.
        logging: Log options.
        pid_file: Where to write the process id; empty without.
        ports_file_dir: Where to write the file of ports; empty without.
        config_file: File that configures NATS, as given; empty without.
        warnings: Lines of the streaming logger at level WRN when the server starts.
        nats_warnings: The same of the NATS logger; none with an external server.
        failure: Why the server cannot start: a line `Failed to start: <failure>` of the streaming logger at the level
            FTL instead of the start of the store, and exit code 1. Empty if nothing is wrong.
    """

    streaming: StreamingOptions = field(default_factory=StreamingOptions)
    nats: NatsOptions = field(default_factory=NatsOptions)
    store: str = MEMORY
    directory: str = ""
    file: FileOptions | None = None
    limits: StoreLimits = field(default_factory=StoreLimits)
    encryption: EncryptionOptions | None = None
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    streams: StreamsOptions | None = None
    monitoring: MonitoringOptions = field(default_factory=MonitoringOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)
    pid_file: str = ""
    ports_file_dir: str = ""
    config_file: str = ""
    warnings: tuple[str, ...] = ()
    nats_warnings: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What there is to say instead of starting a server: output and exit code (server-operations.md section 2)."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """A signal is to be sent to another server: `-sl <signal>[=<pid or pid file>]`."""

    text: str


#: What a command line comes to.
Parsed = BrokerOptions | Answer | SignalRequest

#: The environment, for whoever passes one in.
Environment = Mapping[str, str]
