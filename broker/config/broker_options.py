"""The complete configuration of a broker's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.nats.nats_options import NatsOptions
from broker.stores.store_options import EncryptionOptions, FileOptions
from broker.streaming.streaming_options import StreamingOptions
from broker.streams.streams_options import StreamsOptions
from stantools.store.limits import StoreLimits

#: store types; `SQL` is recognised but not available yet
MEMORY = "MEMORY"
FILE = "FILE"
SQL = "SQL"
JETSTREAM = "JETSTREAM"


@dataclass(frozen=True, slots=True)
class ClientTLSOptions:
    """TLS of the streaming server's own connections (server-operations.md section 15)."""

    cert: Path | None = None  #: client certificate, PEM
    key: Path | None = None  #: private key, PEM
    ca: Path | None = None  #: CA of the NATS server's certificate, PEM; None: the system's
    server_name: str = ""  #: required name in the certificate; empty: host of the URL
    skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Connection of the streaming server to NATS (server-operations.md section 15).

    With the embedded server only the identity counts: user, token, nkey or client certificate.
    """

    urls: str = ""  #: URLs of the external NATS server, as given; empty for the embedded one
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey_seed_file: str = ""  #: file with the seed of an nkey
    credentials: str = ""  #: file with a JWT and its seed
    tls: ClientTLSOptions | None = None

    @property
    def url_list(self) -> tuple[str, ...]:
        return tuple(url.strip() for url in self.urls.split(",") if url.strip())


@dataclass(frozen=True, slots=True)
class ChannelsOptions:
    """The streams of channels (high-availability.md section C.1)."""

    replicas: int = 1  #: servers that hold each stream
    domain: str = ""  #: JetStream domain; empty: the account's
    durable_copy: bool = False  #: a message is acknowledged only after its copy in files is durable as well


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """A node of a cluster: one of several servers on the same streams (high-availability.md section D.3)."""

    node_id: str = ""  #: name; empty: random
    lease: float = 2.0  #: duration of the leader's lease, in seconds
    peers: tuple[str, ...] = ()
    directory: Path | None = None  #: directory of the node, instead of a file store's; None if it has copies only
    log_path: Path = Path()  #: place of a Raft log of the original
    #: configuration of its own nats-server, without names and directories; None: the nats-server runs elsewhere
    server: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MonitoringOptions:
    """Address and port of monitoring (server-operations.md section 14)."""

    host: str = "0.0.0.0"
    port: int = 0  #: 0 without monitoring, -1 for a free port
    https: bool = False  #: with the TLS of the embedded NATS server
    base_path: str = "/"  #: prefix of NATS paths, not of streaming paths
    problem: str = ""  #: a fatal problem, logged without `STREAM: ` after the NATS server has started


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """Log levels and destination (server-operations.md section 13)."""

    file: str = ""  #: log file; empty for stderr or syslog
    size_limit: int = 0  #: bytes before rotation; 0 for never
    timestamps: bool = True  #: date and time on stderr and in files
    utc: bool = False  #: UTC instead of local time
    syslog: bool = False
    remote_syslog: str = ""  #: remote syslog (`udp://host:514`, `tcp://…`, `unix:///path`), or empty
    nats_debug: bool = False
    nats_trace: bool = False
    streaming_debug: bool = False
    streaming_trace: bool = False


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    streaming: StreamingOptions = field(default_factory=StreamingOptions)
    nats: NatsOptions = field(default_factory=NatsOptions)
    store: str = MEMORY  #: `MEMORY`, `FILE` or `JETSTREAM`; other types only with a `failure`
    directory: str = ""  #: store directory as given; shown in the banner even if the store is in memory
    file: FileOptions | None = None  #: of the file store, or of the copies of streams; None for a store in memory
    channels: ChannelsOptions | None = None  #: for JETSTREAM stores
    node: NodeOptions | None = None  #: for nodes of a cluster
    limits: StoreLimits = field(default_factory=StoreLimits)
    encryption: EncryptionOptions | None = None  #: encryption at rest
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    streams: StreamsOptions | None = None  #: JetStream streams in the embedded server; None: disabled
    monitoring: MonitoringOptions = field(default_factory=MonitoringOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)
    pid_file: str = ""  #: file for the process id, or empty
    ports_file_dir: str = ""  #: directory of the ports file, or empty
    config_file: str = ""  #: file that configures NATS, as given, or empty
    warnings: tuple[str, ...] = ()  #: lines of the streaming logger at level WRN at the start
    nats_warnings: tuple[
        str, ...
    ] = ()  #: lines of the NATS logger at level WRN at the start; none with an external server
    #: problem that prevents the start of the store, or empty: logged as `Failed to start: <failure>` at level FTL, with
    #: exit code 1
    failure: str = ""

    @property
    def embedded(self) -> bool:
        """The NATS server is in this process."""
        return not self.connection.urls and (self.node is None or self.node.server is None)


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Output and exit code of a command line that starts no server (server-operations.md section 2)."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """A signal for another server: `-sl <signal>[=<pid or pid file>]`."""

    text: str


#: result of parsing a command line
Parsed = BrokerOptions | CommandAnswer | SignalRequest

#: environment variables
Environment = Mapping[str, str]
