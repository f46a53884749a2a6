"""Everything that was configured, as the process that is started from it wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.nats.options import NatsOptions
from broker.stores.options import EncryptionOptions, FileOptions
from broker.streaming.options import StreamingOptions
from broker.streams.options import StreamsOptions
from stantools.store.limits import StoreLimits

#: Store types. `SQL` is recognised, but there is no such store yet.
MEMORY = "MEMORY"
FILE = "FILE"
SQL = "SQL"
JETSTREAM = "JETSTREAM"


@dataclass(frozen=True, slots=True)
class ClientTLSOptions:
    """TLS of the streaming server's own connections (server-operations.md section 15)."""

    cert: Path | None = None  #: client certificate, PEM
    key: Path | None = None  #: its private key, PEM
    ca: Path | None = None  #: whom the NATS server's certificate has to be from, PEM; None for the system's
    server_name: str = ""  #: name that the certificate has to carry; empty for the host of the URL
    skip_verify: bool = False  #: trust any certificate


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How the streaming server connects to NATS (server-operations.md section 15).

    To the embedded server they only say who the streaming server is, by user, token, nkey or client certificate.
    """

    urls: str = ""  #: URLs of the external NATS server, as given; empty for the embedded one
    user: str = ""  #: name of the user
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey_seed_file: str = ""  #: file with the seed of an nkey
    credentials: str = ""  #: file with a JWT and its seed
    tls: ClientTLSOptions | None = None  #: TLS; None without

    @property
    def url_list(self) -> tuple[str, ...]:
        """The URLs one by one."""
        return tuple(url.strip() for url in self.urls.split(",") if url.strip())


@dataclass(frozen=True, slots=True)
class ChannelsOptions:
    """The streams of channels (high-availability.md section C.1)."""

    replicas: int = 1  #: servers that hold each of them
    domain: str = ""  #: their JetStream domain; empty for that of the account
    durable_copy: bool = False  #: a message is acknowledged when the copy of it in files is durable, too


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """A node of a cluster: one of several servers on the same streams (high-availability.md section D.3)."""

    node_id: str = ""  #: what it is called; empty for a random name
    lease: float = 2.0  #: seconds that the lease of the leader is good for
    peers: tuple[str, ...] = ()  #: the other nodes, as configured
    directory: Path | None = None  #: the node's, instead of a file store's; None where there is only a copy
    log_path: Path = Path()  #: where the original would have its Raft log
    #: Configuration of the nats-server that it brings along, without names and places; None for one somewhere else.
    server: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MonitoringOptions:
    """Where monitoring is served (server-operations.md section 14)."""

    host: str = "0.0.0.0"  #: address to listen on
    port: int = 0  #: port; 0 without monitoring, -1 for a free one
    https: bool = False  #: with the TLS of the embedded NATS server
    base_path: str = "/"  #: in front of the paths of NATS; the streaming paths are not affected
    problem: str = ""  #: why it cannot be served: a fatal line, without `STREAM: `, once the NATS server has started


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """What is logged, and where to (server-operations.md section 13)."""

    file: str = ""  #: log file; empty for stderr or syslog
    size_limit: int = 0  #: bytes after which the file is rotated; 0 for never
    timestamps: bool = True  #: lines of stderr and files carry date and time
    utc: bool = False  #: in UTC instead of local time
    syslog: bool = False  #: log to the local syslog
    remote_syslog: str = ""  #: URL of a remote one (`udp://host:514`, `tcp://…`, `unix:///path`); empty without
    nats_debug: bool = False  #: debug lines of the NATS server
    nats_trace: bool = False  #: trace lines of the NATS server
    streaming_debug: bool = False  #: debug lines of the streaming server
    streaming_trace: bool = False  #: trace lines of the streaming server


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of the whole process."""

    streaming: StreamingOptions = field(default_factory=StreamingOptions)  #: of the streaming server
    nats: NatsOptions = field(default_factory=NatsOptions)  #: of the embedded NATS server
    store: str = MEMORY  #: `MEMORY`, `FILE` or `JETSTREAM`; something else only with a `failure`
    directory: str = ""  #: store directory as given; shown in the banner even if the store is in memory
    file: FileOptions | None = None  #: of the file store, or of the copy of streams; None for a store in memory
    channels: ChannelsOptions | None = None  #: of the streams of channels; None for other stores
    node: NodeOptions | None = None  #: of a node of a cluster; None for a server of its own
    limits: StoreLimits = field(default_factory=StoreLimits)  #: what the store may hold
    encryption: EncryptionOptions | None = None  #: encryption at rest; None without
    #: How the streaming server reaches NATS; `connection.urls` is empty for the embedded server.
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    streams: StreamsOptions | None = None  #: JetStream streams in the embedded server; None without
    monitoring: MonitoringOptions = field(default_factory=MonitoringOptions)  #: HTTP monitoring
    logging: LoggingOptions = field(default_factory=LoggingOptions)  #: log options
    pid_file: str = ""  #: where to write the process id; empty without
    ports_file_dir: str = ""  #: where to write the file of ports; empty without
    config_file: str = ""  #: file that configures NATS, as given; empty without
    warnings: tuple[str, ...] = ()  #: lines of the streaming logger at level WRN when the server starts
    nats_warnings: tuple[str, ...] = ()  #: the same of the NATS logger; none with an external server
    #: Why the server cannot start: a line `Failed to start: <failure>` of the streaming logger at the level FTL instead
    #: of the start of the store, and exit code 1. Empty if nothing is wrong.
    failure: str = ""

    @property
    def embedded(self) -> bool:
        """Whether the NATS server is in this process."""
        return not self.connection.urls and (self.node is None or self.node.server is None)


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
