"""The complete configuration of a broker's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.nats.nats_options import NatsOptions
from broker.stores.store_options import EncryptionOptions, FileOptions
from broker.streaming.streaming_options import StreamingOptions
from broker.streams.streams_options import StreamsOptions
from stantools.server_options import (
    BOOL,
    DURATION,
    INT,
    LIST,
    STRING,
    Support,
    as_path,
    not_negative,
    server_field,
)
from stantools.store.limits import StoreLimits

#: store types; `SQL` is recognised but not available yet
MEMORY = "MEMORY"
FILE = "FILE"
SQL = "SQL"
JETSTREAM = "JETSTREAM"


_SECOND: Final = 1_000_000_000
_SHORTEST_LEASE: Final = 1.0


@dataclass(frozen=True, slots=True)
class ClientTLSOptions:
    """TLS of the streaming server's own connections (server-operations.md section 15)."""

    cert: Path | None = server_field(
        STRING, "Client certificate of the streaming server", "tls_client_cert", "client_cert", convert=as_path
    )
    key: Path | None = server_field(
        STRING, "Client key of the streaming server", "tls_client_key", "client_key", convert=as_path
    )
    ca: Path | None = server_field(
        STRING, "CA of the NATS server's certificate; default: the system's", "tls_client_cacert",
        "client_ca client_cacert", convert=as_path,
    )  # fmt: skip
    server_name: str = server_field(
        STRING, "Required name in the certificate; default: the host of the URL", "", "server_name server_hostname"
    )
    skip_verify: bool = server_field(BOOL, "Trust any certificate", "", "skip_verify insecure")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Connection of the streaming server to NATS (server-operations.md section 15).

    With the embedded server only the identity counts: user, token, nkey or client certificate.
    """

    urls: str = server_field(
        STRING, "URLs of an external NATS server, instead of the embedded one", "ns nats_server",
        "ns nats_server nats_server_url",
    )  # fmt: skip
    user: str = server_field(STRING, "User for the NATS server", "", "username user")
    password: str = server_field(STRING, "Password for the NATS server", "", "password pass", repr=False)
    token: str = server_field(STRING, "Token for the NATS server", "", "token", repr=False)
    nkey_seed_file: str = server_field(STRING, "File with an nkey seed for the NATS server", "", "nkey_seed_file")
    credentials: str = server_field(STRING, "File with a JWT and its seed, for the external server", "", "credentials")
    tls: ClientTLSOptions | None = None

    @property
    def url_list(self) -> tuple[str, ...]:
        return tuple(url.strip() for url in self.urls.split(",") if url.strip())


@dataclass(frozen=True, slots=True)
class ChannelsOptions:
    """The streams of channels (high-availability.md section C.1)."""

    replicas: int = server_field(INT, "Servers that hold each stream: 1, 3 or 5", "jetstream_replicas", "replicas", 1)
    domain: str = server_field(STRING, "JetStream domain of the streams", "jetstream_domain", "domain")
    durable_copy: bool = False  #: a message is acknowledged only after its copy in files is durable as well


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """A node of a cluster: one of several servers on the same streams (high-availability.md section D.3)."""

    node_id: str = server_field(
        STRING, "Id of the node", "cluster_node_id", "node_id",
        remark="with a file store, stored in its directory; default: random",
    )  # fmt: skip
    lease: float = server_field(
        DURATION, "Lease of the leader", "", "raft_lease_timeout", _SECOND,
        convert=lambda nanoseconds: max(2 * nanoseconds / _SECOND, _SHORTEST_LEASE),
        remark="the lease is twice this time, and at least a second",
    )  # fmt: skip
    peers: tuple[str, ...] = server_field(
        LIST, "Ids of the other nodes, on the command line separated by commas", "cluster_peers", "peers",
        remark="with a file store each stream has as many replicas as there are nodes, up to 5; default with routes: 3",
    )  # fmt: skip
    directory: Path | None = None  #: directory of the node, instead of a file store's; None if it has copies only
    log_path: Path = server_field(
        STRING, "Directory of the replicated log", "cluster_log_path", "log_path", convert=Path,
        support=Support.WARNED, remark="checked for a Raft log of the original",
    )  # fmt: skip
    #: configuration of its own nats-server, without names and directories; None: the nats-server runs elsewhere
    server: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MonitoringOptions:
    """Address and port of monitoring (server-operations.md section 14)."""

    host: str = "0.0.0.0"
    port: int = 0  #: 0 without monitoring, -1 for a free port
    https: bool = False  #: with the TLS of the embedded NATS server
    base_path: str = server_field(STRING, "Prefix of the paths of NATS monitoring", "", "http_base_path", "/")
    problem: str = ""  #: a fatal problem, logged without `STREAM: ` after the NATS server has started


@dataclass(frozen=True, slots=True)
class LoggingOptions:
    """Log levels and destination (server-operations.md section 13)."""

    file: str = server_field(STRING, "Log file", "l log", "logfile log_file")
    size_limit: int = server_field(
        INT, "Size of the log file before rotation", "log_size_limit", "logfile_size_limit log_size_limit",
        convert=not_negative,
    )  # fmt: skip
    timestamps: bool = server_field(BOOL, "Date and time at the start of each line", "T logtime", "logtime", True)
    utc: bool = server_field(BOOL, "Date and time in UTC", "logtime_utc", "logtime_utc")
    syslog: bool = server_field(BOOL, "Log to the local syslog", "s syslog", "syslog")
    remote_syslog: str = server_field(
        STRING, "Log to a syslog server (udp://host:514, tcp://…, unix:///path)", "r remote_syslog", "remote_syslog"
    )
    nats_debug: bool = server_field(BOOL, "Debug lines of the NATS server", "D debug", "debug")
    nats_trace: bool = server_field(BOOL, "Trace lines of the NATS server", "V trace", "trace")
    streaming_debug: bool = server_field(BOOL, "Debug lines of the streaming server", "SD stan_debug", "sd stan_debug")
    streaming_trace: bool = server_field(BOOL, "Trace lines of the streaming server", "SV stan_trace", "sv stan_trace")


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    streaming: StreamingOptions = field(default_factory=StreamingOptions)
    nats: NatsOptions = field(default_factory=NatsOptions)
    #: other types than `MEMORY`, `FILE` and `JETSTREAM` only with a `failure`
    store: str = server_field(
        STRING, "Store type: MEMORY, FILE, SQL or JETSTREAM", "st store", "st store_type store storetype", MEMORY,
        choices=(MEMORY, FILE, SQL, JETSTREAM), convert=str.upper,
        remark="SQL: not available yet; JETSTREAM: with an external NATS server",
    )  # fmt: skip
    #: as given; shown in the banner even if the store is in memory
    directory: str = server_field(
        STRING, "Directory of the file store, or of the copies of streams", "dir", "dir datastore"
    )
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
