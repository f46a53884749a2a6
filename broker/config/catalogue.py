"""Every option of the command line and every configuration key, with its state: the one source for all who need it.

The command line is parsed from `FLAGS`, streaming keys from `STREAMING_KEYS`; help text and documentation are made
from all of them. Facts: server-operations.md sections 3, 4, 7 and 8.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class State(enum.StrEnum):
    """What becomes of an option."""

    WORKS = "works"
    #: The server does not start with it and says why, with exit code 2.
    UNAVAILABLE = "not available yet"
    #: The server starts and logs a warning.
    WARNED = "accepted, no effect: a warning says so"
    #: Nothing depends on it here.
    NOT_NEEDED = "accepted, not needed"
    #: As in the original.
    IGNORED = "ignored, as in the original"


class Kind(enum.StrEnum):
    """Types of values, by their names in error texts where they have one."""

    STRING = "string"
    BOOL = "bool"
    INT = "int64"
    DURATION = "duration"
    SIZE = "size"
    MAP = "map"
    LIST = "slice"
    ADDRESS = "address"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of the command line.

    Attributes:
        to: The setting that it changes.
        names: The option and its aliases, without dashes.
        kind: Type of its value; sizes are checked later than other types (server-operations.md section 10).
        default: As the documentation shows it; empty for none.
        help: What it is for.
        state: What becomes of it.
        remark: What else there is to know.
    """

    to: str
    names: tuple[str, ...]
    kind: Kind
    default: str
    help: str
    state: State = State.WORKS
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration file.

    Attributes:
        to: The setting that it changes.
        names: The key and its aliases, in lower case.
        kind: Type of its value.
        help: What it is for.
        state: What becomes of it.
        remark: What else there is to know.
    """

    to: str
    names: tuple[str, ...]
    kind: Kind
    help: str
    state: State = State.WORKS
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A group of options or keys.

    Attributes:
        title: Its title.
        entries: What belongs to it.
        path: The map in the file; empty for the command line and for the top level.
    """

    title: str
    entries: tuple[Flag, ...] | tuple[Key, ...]
    path: str = ""


_S, _B, _I, _D, _Z = Kind.STRING, Kind.BOOL, Kind.INT, Kind.DURATION, Kind.SIZE
_NO_SQL: Final = State.UNAVAILABLE
_LATER: Final = State.UNAVAILABLE

STREAMING_FLAGS: Final = (
    Flag("cluster_id", ("cid", "cluster_id"), _S, "test-cluster", "Cluster id that clients connect to"),
    Flag("store", ("st", "store"), _S, "MEMORY", "Store type: MEMORY, FILE or SQL", remark="SQL: not available yet"),
    Flag("dir", ("dir",), _S, "", "Directory of the file store"),
    Flag(
        "nats_server", ("ns", "nats_server"), _S, "", "URL(s) of an external NATS server, instead of the embedded one"
    ),
    Flag("stan_config", ("sc", "stan_config"), _S, "", "Streaming configuration file"),
    Flag("hb_interval", ("hbi", "hb_interval"), _D, "30s", "Time between two heartbeats to a client"),
    Flag("hb_timeout", ("hbt", "hb_timeout"), _D, "10s", "How long the answer to a heartbeat may take"),
    Flag("hb_fail_count", ("hbf", "hb_fail_count"), _I, "10", "Failed heartbeats before a client is closed"),
    Flag("ft_group", ("ft_group",), _S, "", "Group of fault-tolerant servers", _LATER),
    Flag("replace_durable", ("replace_durable",), _B, "false", "A new subscription takes over an active durable"),
    Flag(
        "any_publish_subject",
        ("any_publish_subject",),
        _B,
        "false",
        "A message may name another channel than the subject it is published to",
        remark="the original always allows it: permissions for single channels then mean nothing",
    ),
    Flag("io_batch_size", ("io_batch_size",), _I, "1024", "Messages that are stored before a flush, at most"),
    Flag("io_sleep_time", ("io_sleep_time",), _I, "0", "Microseconds to wait for more messages before a flush"),
    Flag("encrypt", ("encrypt",), _B, "false", "Encrypt payloads of messages at rest"),
    Flag("encryption_cipher", ("encryption_cipher",), _S, "", "AES or CHACHA; the default suits the machine"),
    Flag(
        "encryption_key",
        ("encryption_key",),
        _S,
        "",
        "Key of the encryption",
        remark="implies --encrypt; the file's key wins over it, NATS_STREAMING_ENCRYPTION_KEY over both",
    ),
)

LIMIT_FLAGS: Final = (
    Flag("limits.max_channels", ("mc", "max_channels"), _I, "100", "Channels (0 for unlimited, as for all limits)"),
    Flag("limits.max_subs", ("msu", "max_subs"), _I, "1000", "Subscriptions of a channel"),
    Flag("limits.max_msgs", ("mm", "max_msgs"), _I, "1000000", "Messages of a channel"),
    Flag("limits.max_bytes", ("mb", "max_bytes"), _Z, "976.56MB", "Bytes of a channel's messages"),
    Flag("limits.max_age", ("ma", "max_age"), _D, "0s", "Age of messages"),
    Flag("limits.max_inactivity", ("mi", "max_inactivity"), _D, "0s", "How long an unused channel is kept"),
)

FILE_FLAGS: Final = (
    Flag(
        "file.compact_enabled", ("file_compact_enabled",), _B, "true", "Compact the logs of clients and subscriptions"
    ),
    Flag("file.compact_frag", ("file_compact_frag",), _I, "50", "Percent of dead records for a compaction"),
    Flag("file.compact_interval", ("file_compact_interval",), _I, "300", "Seconds between two compactions of a file"),
    Flag("file.compact_min_size", ("file_compact_min_size",), _Z, "1MB", "Size of a file for a compaction"),
    Flag("file.buffer_size", ("file_buffer_size",), _Z, "2MB", "Write buffer; 0 writes at once"),
    Flag("file.read_buffer_size", ("file_read_buffer_size",), _Z, "2MB", "Bytes to read ahead"),
    Flag("file.crc", ("file_crc",), _B, "true", "Check CRCs of what is read"),
    Flag("file.crc_poly", ("file_crc_poly",), _I, "3988292384", "Polynomial of the CRCs"),
    Flag("file.sync", ("file_sync",), _B, "true", "Sync files on every flush"),
    Flag("file.auto_sync", ("file_auto_sync",), _D, "1m0s", "Sync all files that often; 0 or less for never"),
    Flag("file.slice_max_msgs", ("file_slice_max_msgs",), _I, "0", "Messages of a slice"),
    Flag("file.slice_max_bytes", ("file_slice_max_bytes",), _Z, "64MB", "Bytes of a slice"),
    Flag("file.slice_max_age", ("file_slice_max_age",), _D, "0s", "Time for which a slice is written"),
    Flag("file.slice_archive_script", ("file_slice_archive_script",), _S, "", "Program that gets removed slices"),
    Flag("file.fds_limit", ("file_fds_limit",), _I, "0", "Files that may be open"),
    Flag("file.parallel_recovery", ("file_parallel_recovery",), _I, "1", "Channels to recover at a time"),
    Flag(
        "file.truncate_bad_eof",
        ("file_truncate_bad_eof",),
        _B,
        "false",
        "Cut damaged ends off files at the start",
        remark="not in two consecutive starts; no key in the file",
    ),
)

SQL_FLAGS: Final = (
    Flag("sql.driver", ("sql_driver",), _S, "", "Driver: mysql or postgres", _NO_SQL),
    Flag("sql.source", ("sql_source",), _S, "", "Data source", _NO_SQL),
    Flag("sql.no_caching", ("sql_no_caching",), _B, "false", "Do not cache", _NO_SQL),
    Flag("sql.max_open_conns", ("sql_max_open_conns",), _I, "0", "Connections to the database", _NO_SQL),
    Flag("sql.bulk_insert_limit", ("sql_bulk_insert_limit",), _I, "0", "Messages of one insert", _NO_SQL),
)

CLUSTER_FLAGS: Final = (
    Flag("cluster.clustered", ("clustered",), _B, "false", "Run as a node of a cluster", _LATER),
    Flag("cluster.node_id", ("cluster_node_id",), _S, "", "Id of the node", _LATER),
    Flag("cluster.bootstrap", ("cluster_bootstrap",), _B, "false", "Start the cluster with this node", _LATER),
    Flag("cluster.peers", ("cluster_peers",), _S, "", "Ids of the nodes, with commas between them", _LATER),
    Flag("cluster.log_path", ("cluster_log_path",), _S, "", "Directory of the replicated log", _LATER),
    Flag("cluster.log_cache_size", ("cluster_log_cache_size",), _I, "512", "Log entries in memory", _LATER),
    Flag("cluster.log_snapshots", ("cluster_log_snapshots",), _I, "2", "Snapshots to keep", _LATER),
    Flag("cluster.trailing_logs", ("cluster_trailing_logs",), _I, "10240", "Log entries behind a snapshot", _LATER),
    Flag("cluster.sync", ("cluster_sync",), _B, "false", "Sync the log on every write", _LATER),
    Flag("cluster.raft_logging", ("cluster_raft_logging",), _B, "false", "Log what the replication does", _LATER),
    Flag(
        "cluster.proceed_on_restore_failure",
        ("cluster_proceed_on_restore_failure",),
        _B,
        "false",
        "Go on when messages cannot be restored",
        _LATER,
    ),
    Flag(
        "cluster.allow_add_remove_node",
        ("cluster_allow_add_remove_node",),
        _B,
        "false",
        "Nodes can be added and removed",
        _LATER,
    ),
)

CONNECTION_FLAGS: Final = (
    Flag("secure", ("secure",), _B, "false", "The streaming server connects with TLS", remark="to an external server"),
    Flag("tls.client_cert", ("tls_client_cert",), _S, "", "Client certificate of the streaming server"),
    Flag("tls.client_key", ("tls_client_key",), _S, "", "Client key of the streaming server"),
    Flag("tls.client_ca", ("tls_client_cacert",), _S, "", "CA of the NATS server's certificate"),
)

STREAMING_LOG_FLAGS: Final = (
    Flag("stan_debug", ("SD", "stan_debug"), _B, "false", "Debug lines of the streaming server"),
    Flag("stan_trace", ("SV", "stan_trace"), _B, "false", "Trace lines of the streaming server"),
    Flag("SDV", ("SDV",), _B, "false", "-SD and -SV"),
    Flag("syslog_name", ("syslog_name",), _S, "", "Name of the event source on Windows", State.IGNORED),
)

NATS_FLAGS: Final = (
    Flag("nats.host", ("a", "addr", "net"), _S, "0.0.0.0", "Address to listen on"),
    Flag("nats.port", ("p", "port"), _I, "4222", "Port for clients; -1 for a free one"),
    Flag("nats.name", ("n", "name", "server_name"), _S, "", "Name of the NATS server; its id by default"),
    Flag("nats.client_advertise", ("client_advertise",), _S, "", "Address that is announced to clients"),
    Flag("nats.pid_file", ("P", "pid"), _S, "", "File for the process id"),
    Flag("nats.ports_file_dir", ("ports_file_dir",), _S, "", "Directory for a file with the ports"),
    Flag("nats.http_port", ("m", "http_port"), _I, "0", "Port for monitoring over HTTP"),
    Flag("nats.https_port", ("ms", "https_port"), _I, "0", "Port for monitoring over HTTPS"),
    Flag("config", ("c", "config"), _S, "", "Configuration file"),
    Flag("nats.user", ("user",), _S, "", "User that clients have to be"),
    Flag("nats.password", ("pass",), _S, "", "Password that clients need"),
    Flag("nats.token", ("auth",), _S, "", "Token that clients need"),
    Flag("nats.max_traced_msg_len", ("max_traced_msg_len",), _I, "0", "Bytes of a payload in the trace"),
    Flag("nats.profile", ("profile",), _I, "0", "Port for profiling", State.WARNED, "made for Go programs"),
    Flag("jetstream", ("js", "jetstream"), _B, "false", "JetStream", _LATER),
    Flag("jetstream.store_dir", ("sd", "store_dir"), _S, "", "Directory of JetStream", State.NOT_NEEDED),
)

NATS_LOG_FLAGS: Final = (
    Flag("log.file", ("l", "log"), _S, "", "Log file"),
    Flag("log.size_limit", ("log_size_limit",), _I, "0", "Bytes after which the log file is rotated"),
    Flag("log.timestamps", ("T", "logtime"), _B, "true", "Date and time in front of each line"),
    Flag("log.utc", ("logtime_utc",), _B, "false", "Date and time in UTC"),
    Flag("log.syslog", ("s", "syslog"), _B, "false", "Log to the local syslog"),
    Flag("log.remote_syslog", ("r", "remote_syslog"), _S, "", "Log to a syslog server (udp://host:514)"),
    Flag("nats.debug", ("D", "debug"), _B, "false", "Debug lines of the NATS server"),
    Flag("nats.trace", ("V", "trace"), _B, "false", "Trace lines of the NATS server"),
    Flag("VV", ("VV",), _B, "false", "-V, with the server's own connections"),
    Flag("DV", ("DV",), _B, "false", "-D and -V"),
    Flag("DVV", ("DVV",), _B, "false", "-D and -VV"),
)

NATS_TLS_FLAGS: Final = (
    Flag("nats.tls", ("tls",), _B, "false", "TLS for clients"),
    Flag("nats.tls.verify", ("tlsverify",), _B, "false", "Clients have to show a certificate"),
    Flag("nats.tls.cert", ("tlscert",), _S, "", "Certificate"),
    Flag("nats.tls.key", ("tlskey",), _S, "", "Private key"),
    Flag("nats.tls.ca", ("tlscacert",), _S, "", "CA of client certificates"),
)

ROUTE_FLAGS: Final = (
    Flag("routes", ("routes",), _S, "", "Routes to other servers", _LATER),
    Flag("routes.cluster", ("cluster", "cluster_listen"), _S, "", "URL to accept routes on", _LATER),
    Flag("routes.cluster_name", ("cluster_name",), _S, "", "Name of the cluster", State.NOT_NEEDED),
    Flag("routes.cluster_advertise", ("cluster_advertise",), _S, "", "Address announced to routes", State.NOT_NEEDED),
    Flag("routes.no_advertise", ("no_advertise",), _B, "false", "Do not announce the cluster", State.NOT_NEEDED),
    Flag("routes.connect_retries", ("connect_retries",), _I, "0", "Attempts to connect a route", State.NOT_NEEDED),
)

COMMON_FLAGS: Final = (
    Flag("signal", ("sl", "signal"), _S, "", "Send a signal to a server: <signal>[=<pid or pid file>]"),
    Flag(
        "check",
        ("t",),
        _B,
        "false",
        "Check the configuration and exit",
        remark="the original checks the syntax and then starts nevertheless",
    ),
    Flag("help", ("h", "help"), _B, "false", "Show this"),
    Flag("version", ("v", "version"), _B, "false", "Show the version"),
    Flag("help_tls", ("help_tls",), _B, "false", "Show what there is for TLS"),
)

FLAGS: Final = (
    Section("Streaming server", STREAMING_FLAGS),
    Section("Limits of the store", LIMIT_FLAGS),
    Section("File store", FILE_FLAGS),
    Section("SQL store", SQL_FLAGS),
    Section("Streaming cluster", CLUSTER_FLAGS),
    Section("TLS of the streaming server's connections", CONNECTION_FLAGS),
    Section("Logs of the streaming server", STREAMING_LOG_FLAGS),
    Section("Embedded NATS server", NATS_FLAGS),
    Section("Logs", NATS_LOG_FLAGS),
    Section("TLS of the embedded NATS server", NATS_TLS_FLAGS),
    Section("Routes of the embedded NATS server", ROUTE_FLAGS),
    Section("Common", COMMON_FLAGS),
)

_TOP_KEYS: Final = (
    Key("cluster_id", ("id", "cid", "cluster_id"), _S, "Cluster id"),
    Key("discover_prefix", ("discover_prefix",), _S, "Prefix of the subject for connect requests"),
    Key("store", ("st", "store_type", "store", "storetype"), _S, "Store type: file, memory or sql"),
    Key("dir", ("dir", "datastore"), _S, "Directory of the file store"),
    Key("stan_debug", ("sd", "stan_debug"), _B, "Debug lines"),
    Key("stan_trace", ("sv", "stan_trace"), _B, "Trace lines"),
    Key("nats_server", ("ns", "nats_server", "nats_server_url"), _S, "URL(s) of an external NATS server"),
    Key("credentials", ("credentials",), _S, "Credentials file for the external server"),
    Key("username", ("username", "user"), _S, "User for the NATS server"),
    Key("password", ("password", "pass"), _S, "Password for the NATS server"),
    Key("token", ("token",), _S, "Token for the NATS server"),
    Key("nkey_seed_file", ("nkey_seed_file",), _S, "File with an nkey seed for the NATS server"),
    Key("secure", ("secure",), _B, "Connect with TLS"),
    Key("tls", ("tls",), Kind.MAP, "TLS of the streaming server's connections"),
    Key("limits", ("limits", "store_limits", "storelimits"), Kind.MAP, "Limits of the store"),
    Key("file", ("file", "file_options"), Kind.MAP, "File store"),
    Key("sql", ("sql", "sql_options"), Kind.MAP, "SQL store", _NO_SQL),
    Key("hb_interval", ("hbi", "hb_interval", "server_to_client_hb_interval"), _D, "Time between heartbeats"),
    Key("hb_timeout", ("hbt", "hb_timeout", "server_to_client_hb_timeout"), _D, "How long an answer may take"),
    Key("hb_fail_count", ("hbf", "hb_fail_count", "server_to_client_hb_fail_count"), _I, "Failures before the close"),
    Key("ft_group", ("ft_group", "ft_group_name"), _S, "Group of fault-tolerant servers", _LATER),
    Key("partitioning", ("partitioning",), _B, "Serve only the channels that the limits name"),
    Key("cluster", ("cluster",), Kind.MAP, "Run as a node of a cluster", _LATER),
    Key("syslog_name", ("syslog_name",), _S, "Name of the event source on Windows", State.IGNORED),
    Key("encrypt", ("encrypt",), _B, "Encrypt payloads at rest"),
    Key("encryption_cipher", ("encryption_cipher",), _S, "AES or CHACHA"),
    Key("encryption_key", ("encryption_key",), _S, "Key of the encryption"),
    Key(
        "replace_durable",
        ("replace_durable", "replace_durables", "replace_duplicate_durable", "replace_duplicate_durables"),
        _B,
        "A new subscription takes over an active durable",
    ),
    Key(
        "any_publish_subject",
        ("any_publish_subject",),
        _B,
        "A message may name another channel than the subject it is published to",
        remark="the original always allows it: permissions for single channels then mean nothing",
    ),
)

_TLS_KEYS: Final = (
    Key("tls.client_cert", ("client_cert",), _S, "Client certificate"),
    Key("tls.client_key", ("client_key",), _S, "Client key"),
    Key("tls.client_ca", ("client_ca", "client_cacert"), _S, "CA of the NATS server's certificate"),
    Key("tls.server_name", ("server_name", "server_hostname"), _S, "Name that the certificate has to carry"),
    Key("tls.skip_verify", ("skip_verify", "insecure"), _B, "Trust any certificate"),
)

CHANNEL_KEYS: Final = (
    Key("max_subs", ("msu", "max_subs", "max_subscriptions", "maxsubscriptions"), _I, "Subscriptions of a channel"),
    Key("max_msgs", ("mm", "max_msgs", "maxmsgs", "max_count", "maxcount"), _I, "Messages of a channel"),
    Key("max_bytes", ("mb", "max_bytes", "maxbytes"), _I, "Bytes of a channel's messages"),
    Key("max_age", ("ma", "max_age", "maxage"), _D, "Age of messages"),
    Key("max_inactivity", ("mi", "max_inactivity", "maxinactivity"), _D, "How long an unused channel is kept"),
)

_LIMIT_KEYS: Final = (
    Key("limits.max_channels", ("mc", "max_channels", "maxchannels"), _I, "Channels"),
    *(Key(f"limits.{key.to}", key.names, key.kind, key.help) for key in CHANNEL_KEYS),
    Key(
        "limits.channels",
        ("channels", "channels_limits", "channelslimits", "per_channel", "per_channel_limits"),
        Kind.MAP,
        "Channel or pattern to its limits",
    ),
)

_FILE_KEYS: Final = (
    Key("file.compact_enabled", ("compact", "compact_enabled"), _B, "Compact logs"),
    Key("file.compact_frag", ("compact_frag", "compact_fragmentation"), _I, "Percent of dead records"),
    Key("file.compact_interval", ("compact_interval",), _I, "Seconds between two compactions"),
    Key("file.compact_min_size", ("compact_min_size",), _I, "Size of a file for a compaction"),
    Key("file.buffer_size", ("buffer_size",), _I, "Write buffer"),
    Key("file.read_buffer_size", ("file_read_buffer_size", "read_buffer_size"), _I, "Bytes to read ahead"),
    Key("file.crc", ("crc", "do_crc"), _B, "Check CRCs"),
    Key("file.crc_poly", ("crc_poly",), _I, "Polynomial of the CRCs"),
    Key("file.sync", ("sync", "do_sync", "sync_on_flush"), _B, "Sync on every flush"),
    Key("file.auto_sync", ("file_auto_sync", "auto_sync"), _D, "Sync all files that often"),
    Key(
        "file.slice_max_msgs",
        ("slice_max_msgs", "slice_max_count", "slice_msgs", "slice_count"),
        _I,
        "Messages of a slice",
    ),
    Key(
        "file.slice_max_bytes",
        ("slice_max_bytes", "slice_max_size", "slice_bytes", "slice_size"),
        _I,
        "Bytes of a slice",
    ),
    Key(
        "file.slice_max_age",
        ("slice_max_age", "slice_age", "slice_max_time", "slice_time_limit"),
        _D,
        "Time for which a slice is written",
    ),
    Key(
        "file.slice_archive_script",
        ("slice_archive_script", "slice_archive", "slice_script"),
        _S,
        "Program that gets removed slices",
    ),
    Key("file.fds_limit", ("file_descriptors_limit", "fds_limit"), _I, "Files that may be open"),
    Key("file.parallel_recovery", ("parallel_recovery",), _I, "Channels to recover at a time"),
)

_SQL_KEYS: Final = (
    Key("sql.driver", ("driver",), _S, "Driver", _NO_SQL),
    Key("sql.source", ("source",), _S, "Data source", _NO_SQL),
    Key("sql.no_caching", ("no_caching",), _B, "Do not cache", _NO_SQL),
    Key("sql.max_open_conns", ("max_open_conns", "max_conns"), _I, "Connections", _NO_SQL),
    Key("sql.bulk_insert_limit", ("bulk_insert_limit",), _I, "Messages of one insert", _NO_SQL),
)

_CLUSTER_KEYS: Final = (
    Key("cluster.node_id", ("node_id",), _S, "Id of the node", _LATER),
    Key("cluster.bootstrap", ("bootstrap",), _B, "Start the cluster with this node", _LATER),
    Key("cluster.peers", ("peers",), Kind.LIST, "Ids of the other nodes", _LATER),
    Key("cluster.log_path", ("log_path",), _S, "Directory of the replicated log", _LATER),
    Key("cluster.log_cache_size", ("log_cache_size",), _I, "Log entries in memory", _LATER),
    Key("cluster.log_snapshots", ("log_snapshots",), _I, "Snapshots to keep", _LATER),
    Key("cluster.trailing_logs", ("trailing_logs",), _I, "Log entries behind a snapshot", _LATER),
    Key("cluster.sync", ("sync",), _B, "Sync the log", _LATER),
    Key("cluster.raft_logging", ("raft_logging",), _B, "Log what the replication does", _LATER),
    Key("cluster.raft_heartbeat_timeout", ("raft_heartbeat_timeout",), _D, "Heartbeat time-out", _LATER),
    Key("cluster.raft_election_timeout", ("raft_election_timeout",), _D, "Election time-out", _LATER),
    Key("cluster.raft_lease_timeout", ("raft_lease_timeout",), _D, "Lease of the leader", _LATER),
    Key("cluster.raft_commit_timeout", ("raft_commit_timeout",), _D, "Commit time-out", _LATER),
    Key("cluster.proceed_on_restore_failure", ("proceed_on_restore_failure",), _B, "Go on without messages", _LATER),
    Key("cluster.allow_add_remove_node", ("allow_add_remove_node",), _B, "Nodes can be added and removed", _LATER),
    Key("cluster.bolt_free_list_sync", ("bolt_free_list_sync",), _B, "Detail of the log's database", _LATER),
    Key("cluster.bolt_free_list_map", ("bolt_free_list_map",), _B, "Detail of the log's database", _LATER),
    Key("cluster.nodes_connections", ("nodes_connections",), _B, "A connection for each node", _LATER),
)

STREAMING_KEYS: Final = (
    Section("Streaming server", _TOP_KEYS, "streaming"),
    Section("TLS of its connections", _TLS_KEYS, "streaming.tls"),
    Section("Limits of the store", _LIMIT_KEYS, "streaming.limits"),
    Section("Limits of a channel or pattern", CHANNEL_KEYS, "streaming.limits.channels"),
    Section("File store", _FILE_KEYS, "streaming.file"),
    Section("SQL store", _SQL_KEYS, "streaming.sql"),
    Section("Cluster", _CLUSTER_KEYS, "streaming.cluster"),
)

_TUNING: Final = State.WARNED
#: Keys of the NATS server that have a plain value.
NATS_TOP_KEYS: Final = (
    Key("nats.listen", ("listen",), Kind.ADDRESS, "Address and port for clients"),
    Key("nats.port", ("port",), _I, "Port for clients"),
    Key("nats.host", ("host", "net"), _S, "Address to listen on"),
    Key("nats.client_advertise", ("client_advertise",), _S, "Address that is announced to clients"),
    Key("nats.name", ("server_name",), _S, "Name of the NATS server"),
    Key("nats.http", ("http",), Kind.ADDRESS, "Address and port for monitoring over HTTP"),
    Key("nats.https", ("https",), Kind.ADDRESS, "Address and port for monitoring over HTTPS"),
    Key("nats.http_port", ("http_port", "monitor_port"), _I, "Port for monitoring over HTTP"),
    Key("nats.https_port", ("https_port",), _I, "Port for monitoring over HTTPS"),
    Key("nats.http_base_path", ("http_base_path",), _S, "In front of the paths of NATS monitoring"),
    Key("nats.debug", ("debug",), _B, "Debug lines"),
    Key("nats.trace", ("trace",), _B, "Trace lines"),
    Key("nats.trace_verbose", ("trace_verbose",), _B, "Trace lines of the server's own connections"),
    Key("log.timestamps", ("logtime",), _B, "Date and time in front of each line"),
    Key("log.utc", ("logtime_utc",), _B, "Date and time in UTC"),
    Key("log.file", ("logfile", "log_file"), _S, "Log file"),
    Key("log.size_limit", ("logfile_size_limit", "log_size_limit"), _I, "Bytes after which it is rotated"),
    Key("log.syslog", ("syslog",), _B, "Log to the local syslog"),
    Key("log.remote_syslog", ("remote_syslog",), _S, "Log to a syslog server"),
    Key("nats.pid_file", ("pidfile", "pid_file"), _S, "File for the process id"),
    Key("nats.ports_file_dir", ("ports_file_dir",), _S, "Directory for a file with the ports"),
    Key("nats.profile", ("prof_port",), _I, "Port for profiling", _TUNING),
    Key("nats.max_connections", ("max_connections", "max_conn"), _I, "Clients at a time"),
    Key("nats.max_subscriptions", ("max_subscriptions", "max_subs"), _I, "Subscriptions of a client"),
    Key("nats.max_sub_tokens", ("max_sub_tokens", "max_subscription_tokens"), _I, "Tokens of a subject", _TUNING),
    Key("nats.max_control_line", ("max_control_line",), _I, "Bytes of a control line"),
    Key("nats.max_payload", ("max_payload",), _I, "Bytes of a message"),
    Key("nats.max_pending", ("max_pending",), _I, "Bytes that may wait for a client"),
    Key("nats.ping_interval", ("ping_interval",), _D, "Time between two pings"),
    Key("nats.ping_max", ("ping_max",), _I, "Unanswered pings of a stale connection"),
    Key("nats.write_deadline", ("write_deadline",), _D, "How long a client may take no data"),
    Key("nats.max_traced_msg_len", ("max_traced_msg_len",), _I, "Bytes of a payload in the trace"),
    Key(
        "nats.no_sublist_cache",
        ("disable_sublist_cache", "no_sublist_cache"),
        _B,
        "No cache of matches",
        State.NOT_NEEDED,
        "the cache is bounded",
    ),
    Key("nats.lame_duck_duration", ("lame_duck_duration",), _D, "Over how long clients are sent away"),
    Key("nats.lame_duck_grace_period", ("lame_duck_grace_period",), _D, "How long to wait before the first"),
    Key("nats.connect_error_reports", ("connect_error_reports",), _I, "About routes only", State.NOT_NEEDED),
    Key("nats.reconnect_error_reports", ("reconnect_error_reports",), _I, "About routes only", State.NOT_NEEDED),
    Key("nats.no_auth_user", ("no_auth_user",), _S, "Who clients without credentials are"),
    Key("nats.no_header_support", ("no_header_support",), _B, "Do without headers"),
    Key("nats.allow_non_tls", ("allow_non_tls",), _B, "Clients may do without TLS", State.UNAVAILABLE),
    Key("nats.no_system_account", ("no_system_account", "no_system", "no_sys_acc"), _B, "", State.NOT_NEEDED),
    Key("nats.server_tags", ("server_tags",), Kind.LIST, "Tags of the server", _TUNING),
)

#: Blocks of the NATS server; those that are read have a section of their own.
NATS_BLOCK_KEYS: Final = (
    Key("authorization", ("authorization",), Kind.MAP, "Who may connect"),
    Key("tls", ("tls",), Kind.MAP, "TLS for clients"),
    Key("cluster", ("cluster",), Kind.MAP, "Routes to other servers", _LATER),
    Key("gateway", ("gateway",), Kind.MAP, "Gateways", _LATER),
    Key("leafnodes", ("leafnodes", "leaf"), Kind.MAP, "Leaf nodes", _LATER),
    Key("websocket", ("websocket", "ws"), Kind.MAP, "Clients over WebSocket", _LATER),
    Key("mqtt", ("mqtt",), Kind.MAP, "MQTT clients", _LATER),
    Key("jetstream", ("jetstream",), Kind.MAP, "JetStream", _LATER),
    Key("default_js_domain", ("default_js_domain",), Kind.MAP, "JetStream", State.NOT_NEEDED),
    Key("accounts", ("accounts",), Kind.MAP, "Accounts", _LATER),
    Key("system_account", ("system_account", "system"), _S, "Account for system events", _LATER),
    Key("mappings", ("mappings", "maps"), Kind.MAP, "Subject mappings", _LATER),
    Key("ocsp", ("ocsp",), Kind.MAP, "Stapled certificate states", _LATER),
    Key(
        "operator",
        (
            "operator",
            "operators",
            "roots",
            "root",
            "root_operators",
            "root_operator",
            "trusted",
            "trusted_keys",
            "resolver",
            "account_resolver",
            "account_resolvers",
            "resolver_tls",
            "resolver_preload",
            "resolver_pinned_accounts",
        ),
        Kind.MAP,
        "Operators and their accounts (JWT)",
        _LATER,
    ),
)

AUTHORIZATION_KEYS: Final = (
    Key("user", ("user", "username"), _S, "User that clients have to be"),
    Key("password", ("pass", "password"), _S, "Its password, plain or bcrypt"),
    Key("token", ("token",), _S, "Token that clients need, plain or bcrypt"),
    Key("timeout", ("timeout",), Kind.SECONDS, "How long a client may take"),
    Key("users", ("users",), Kind.LIST, "Several users"),
    Key(
        "default_permissions",
        ("default_permission", "default_permissions", "permissions"),
        Kind.MAP,
        "Permissions of users without their own",
    ),
)

USER_KEYS: Final = (
    Key("user", ("user", "username"), _S, "Name"),
    Key("password", ("pass", "password"), _S, "Password, plain or bcrypt"),
    Key("nkey", ("nkey",), _S, "Public nkey, instead of name and password"),
    Key("permissions", ("permission", "permissions", "authorization"), Kind.MAP, "What the user may do"),
    Key(
        "allowed_connection_types",
        ("allowed_connection_types", "connection_types", "clients"),
        Kind.LIST,
        "Kinds of connections",
        remark="a user without STANDARD among them cannot connect: there are no other kinds yet",
    ),
)

TLS_KEYS: Final = (
    Key("cert_file", ("cert_file",), _S, "Certificate"),
    Key("key_file", ("key_file",), _S, "Private key"),
    Key("ca_file", ("ca_file",), _S, "CA of client certificates"),
    Key("verify", ("verify",), _B, "Clients have to show a certificate"),
    Key("verify_and_map", ("verify_and_map",), _B, "Clients are the users that their certificates name"),
    Key("insecure", ("insecure",), _B, "Accept a certificate of the server with an old signature or a short key"),
    Key("timeout", ("timeout",), Kind.SECONDS, "How long the handshake may take"),
    Key("cipher_suites", ("cipher_suites",), Kind.LIST, "Cipher suites"),
    Key("curve_preferences", ("curve_preferences",), Kind.LIST, "Curves"),
    Key("pinned_certs", ("pinned_certs",), Kind.LIST, "Accepted client certificates", _LATER),
    Key("connection_rate_limit", ("connection_rate_limit",), _I, "Handshakes per second", _TUNING),
)

NATS_KEYS: Final = (
    Section("NATS server", NATS_TOP_KEYS),
    Section("Parts of the NATS server", NATS_BLOCK_KEYS),
    Section("Who may connect", AUTHORIZATION_KEYS, "authorization"),
    Section("A user", USER_KEYS, "authorization.users"),
    Section("TLS for clients", TLS_KEYS, "tls"),
)


def reference() -> str:
    """Returns a page of documentation about every option and key, in Markdown."""
    lines = ["# Options of the broker", "", "One or two dashes are the same.", ""]
    for section in FLAGS:
        lines += [f"## Command line: {section.title}", "", "| option | type [default] | what for | state |"]
        lines += ["|---|---|---|---|"]
        for entry in section.entries:
            if isinstance(entry, Flag):
                names = ", ".join(f"`-{name}`" for name in entry.names)
                default = f" [`{entry.default}`]" if entry.default else ""
                lines.append(f"| {names} | {_KIND_NAMES[entry.kind]}{default} | {entry.help} | {_state(entry)} |")
        lines.append("")
    for section in (*STREAMING_KEYS, *NATS_KEYS):
        place = f"`{section.path}`" if section.path else "top level"
        lines += [f"## File, {place}: {section.title}", "", "| key | type | what for | state |", "|---|---|---|---|"]
        for entry in section.entries:
            names = ", ".join(f"`{name}`" for name in entry.names)
            lines.append(f"| {names} | {_KIND_NAMES[entry.kind]} | {entry.help} | {_state(entry)} |")
        lines.append("")
    return "\n".join(lines)


_KIND_NAMES: Final = {
    Kind.STRING: "text",
    Kind.BOOL: "bool",
    Kind.INT: "integer",
    Kind.DURATION: "duration",
    Kind.SIZE: "size",
    Kind.MAP: "map",
    Kind.LIST: "list",
    Kind.ADDRESS: "address or port",
    Kind.SECONDS: "seconds or duration",
}


def _state(entry: Flag | Key) -> str:
    return f"{entry.state}; {entry.remark}" if entry.remark else str(entry.state)
