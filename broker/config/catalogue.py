"""All options of the command line and keys of the configuration file, declared once.

Parsers, defaults, help text and documentation use these tables. Facts: server-operations.md sections 3, 4, 7 and 8.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from stantools.format.crc import IEEE
from stantools.notation import format_go_duration
from stantools.store.limits import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_CHANNELS,
    DEFAULT_MAX_MSGS,
    DEFAULT_MAX_SUBS,
    DEFAULT_SLICE_MAX_BYTES,
)

#: value of a setting; durations are nanoseconds
Setting = bool | int | str | tuple[str, ...]

_SECOND: Final = 1_000_000_000
_MB: Final = 1 << 20


class Support(enum.StrEnum):
    WORKS = "works"
    #: the server does not start and says why, with exit code 2
    UNAVAILABLE = "not available yet"
    WARNED = "accepted without effect, with a warning"
    #: has no meaning here
    NOT_NEEDED = "accepted, not needed"
    IGNORED = "ignored, as in the original"


class ValueType(enum.StrEnum):
    """Types of values; those with a name in error texts have it as value."""

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
class OptionDeclaration:
    """An option of the command line, a key of the configuration file, or both."""

    setting: str  #: name of the setting
    kind: ValueType  #: type; sizes are checked after other types (server-operations.md section 10)
    help: str
    flags: tuple[str, ...]  #: names on the command line, without dashes
    keys: tuple[str, ...]  #: names in the file, in lower case
    default: Setting | None = None  #: default; None: zero, false or empty
    state: Support = Support.WORKS
    remark: str = ""

    @property
    def shown_default(self) -> str:
        """The default for people, "" without one."""
        value = self.default
        match self.kind:
            case ValueType.BOOL:
                return "true" if value else "false"
            case ValueType.DURATION:
                return format_go_duration(int(str(value or 0)))
            case ValueType.SIZE if isinstance(value, int):
                return f"{value / _MB:.2f}".rstrip("0").rstrip(".") + "MB"
            case ValueType.INT | ValueType.SIZE:
                return str(value or 0)
        return str(value or "")


class OptionSection:
    """A group of options. `path` is the map of their keys in the file, empty for the top level."""

    def __init__(self, title: str, path: str, *options: OptionDeclaration) -> None:
        self.title, self.path, self.options = title, path, options

    @property
    def keys(self) -> dict[str, OptionDeclaration]:
        return {name: option for option in self.options for name in option.keys}


def _option(
    setting: str,
    kind: ValueType,
    help: str,
    flags: str = "",
    keys: str = "",
    default: Setting | None = None,
    state: Support = Support.WORKS,
    remark: str = "",
) -> OptionDeclaration:
    return OptionDeclaration(setting, kind, help, tuple(flags.split()), tuple(keys.split()), default, state, remark)


_S, _B, _I, _D, _Z = ValueType.STRING, ValueType.BOOL, ValueType.INT, ValueType.DURATION, ValueType.SIZE
_M, _L = ValueType.MAP, ValueType.LIST
_LATER, _WARNED, _NOT_NEEDED = Support.UNAVAILABLE, Support.WARNED, Support.NOT_NEEDED

# fmt: off
STREAMING: Final = OptionSection(
    "Streaming server", "streaming",
    _option("cluster_id", _S, "Cluster id for clients", "cid cluster_id", "id cid cluster_id",
            "test-cluster"),
    _option("store", _S, "Store type: MEMORY, FILE, SQL or JETSTREAM", "st store", "st store_type store storetype",
            "MEMORY", remark="SQL: not available yet; JETSTREAM: with an external NATS server"),
    _option("dir", _S, "Directory of the file store, or of the copies of streams", "dir", "dir datastore"),
    _option("nats_server", _S, "URLs of an external NATS server, instead of the embedded one", "ns nats_server",
            "ns nats_server nats_server_url"),
    _option("stan_config", _S, "Streaming configuration file", "sc stan_config"),
    _option("hb_interval", _D, "Time between two heartbeats to a client", "hbi hb_interval",
            "hbi hb_interval server_to_client_hb_interval", 30 * _SECOND),
    _option("hb_timeout", _D, "Time limit for the answer to a heartbeat", "hbt hb_timeout",
            "hbt hb_timeout server_to_client_hb_timeout", 10 * _SECOND),
    _option("hb_fail_count", _I, "Failed heartbeats before a client is closed", "hbf hb_fail_count",
            "hbf hb_fail_count server_to_client_hb_fail_count", 10),
    _option("ft_group", _S, "Group of fault-tolerant servers with one store", "ft_group", "ft_group ft_group_name",
            remark="with a file store, not with clustering"),
    _option("replace_durable", _B, "A new subscription takes over an active durable", "replace_durable",
            "replace_durable replace_durables replace_duplicate_durable replace_duplicate_durables"),
    _option("any_publish_subject", _B, "A message may name a channel other than the subject it was published to",
            "any_publish_subject", "any_publish_subject",
            remark="the original always allows it, which defeats permissions for single channels"),
    _option("io_batch_size", _I, "Limit of messages stored before a flush", "io_batch_size", "", 1024),
    _option("io_sleep_time", _I, "Microseconds to wait for more messages before a flush", "io_sleep_time"),
    _option("encrypt", _B, "Encrypt payloads of messages at rest", "encrypt", "encrypt"),
    _option("encryption_cipher", _S, "AES or CHACHA; the default depends on the machine", "encryption_cipher",
            "encryption_cipher"),
    _option("encryption_key", _S, "Key of the encryption", "encryption_key", "encryption_key",
            remark="implies --encrypt; overridden by the key in the file, and both by NATS_STREAMING_ENCRYPTION_KEY"),
    _option("secure", _B, "Connect with TLS", "secure", "secure", remark="to an external server"),
    _option("discover_prefix", _S, "Prefix of the subject for connect requests", "", "discover_prefix",
            "_STAN.discover"),
    _option("credentials", _S, "Credentials file for the external server", "", "credentials"),
    _option("username", _S, "User for the NATS server", "", "username user"),
    _option("password", _S, "Password for the NATS server", "", "password pass"),
    _option("token", _S, "Token for the NATS server", "", "token"),
    _option("nkey_seed_file", _S, "File with an nkey seed for the NATS server", "", "nkey_seed_file"),
    _option("tls", _M, "TLS of the streaming server's connections", "", "tls"),
    _option("limits", _M, "Limits of the store", "", "limits store_limits storelimits"),
    _option("file", _M, "File store", "", "file file_options"),
    _option("sql", _M, "SQL store", "", "sql sql_options", state=_LATER),
    _option("jetstream_options", _M, "JetStream store", "", "jetstream_options"),
    _option("partitioning", _B, "Serve only the channels named by the limits", "", "partitioning"),
    _option("cluster", _M, "Run as a node of a cluster", "", "cluster", remark="with a file or JetStream store"),
)

STREAMING_LOGS: Final = OptionSection(
    "Logs of the streaming server", "streaming",
    _option("stan_debug", _B, "Debug lines of the streaming server", "SD stan_debug", "sd stan_debug"),
    _option("stan_trace", _B, "Trace lines of the streaming server", "SV stan_trace", "sv stan_trace"),
    _option("SDV", _B, "-SD and -SV", "SDV"),
    _option("syslog_name", _S, "Name of the event source on Windows", "syslog_name", "syslog_name",
            state=Support.IGNORED),
)

STREAMING_TLS: Final = OptionSection(
    "TLS of the streaming server's connections", "streaming.tls",
    _option("tls.client_cert", _S, "Client certificate of the streaming server", "tls_client_cert", "client_cert"),
    _option("tls.client_key", _S, "Client key of the streaming server", "tls_client_key", "client_key"),
    _option("tls.client_ca", _S, "CA of the NATS server's certificate", "tls_client_cacert", "client_ca client_cacert"),
    _option("tls.server_name", _S, "Required name in the certificate", "", "server_name server_hostname"),
    _option("tls.skip_verify", _B, "Trust any certificate", "", "skip_verify insecure"),
)

LIMITS: Final = OptionSection(
    "Limits of the store", "streaming.limits",
    _option("limits.max_channels", _I, "Number of channels (0 for unlimited, as for all limits)", "mc max_channels",
            "mc max_channels maxchannels", DEFAULT_MAX_CHANNELS),
    _option("limits.max_subs", _I, "Subscriptions of a channel", "msu max_subs",
            "msu max_subs max_subscriptions maxsubscriptions", DEFAULT_MAX_SUBS),
    _option("limits.max_msgs", _I, "Messages of a channel", "mm max_msgs", "mm max_msgs maxmsgs max_count maxcount",
            DEFAULT_MAX_MSGS),
    _option("limits.max_bytes", _Z, "Bytes of a channel's messages", "mb max_bytes", "mb max_bytes maxbytes",
            DEFAULT_MAX_BYTES),
    _option("limits.max_age", _D, "Age of messages", "ma max_age", "ma max_age maxage"),
    _option("limits.max_inactivity", _D, "Time after which an unused channel is removed", "mi max_inactivity",
            "mi max_inactivity maxinactivity"),
    _option("limits.channels", _M, "Limits by channel or pattern", "",
            "channels channels_limits channelslimits per_channel per_channel_limits"),
)

#: settings of a channel or pattern
CHANNEL_LIMITS: Final = OptionSection(
    "Limits of a channel or pattern",
    "streaming.limits.channels",
    *(
        # the setting is a field of `stantools.store.limits.PatternLimits`
        replace(
            option,
            setting=option.setting.removeprefix("limits.") + ("_ns" if option.kind is ValueType.DURATION else ""),
            flags=(),
            default=None,
        )
        for option in LIMITS.options
        if option.flags and option.setting != "limits.max_channels"
    ),
)

FILE: Final = OptionSection(
    "File store", "streaming.file",
    _option("file.compact_enabled", _B, "Compact the logs of clients and subscriptions", "file_compact_enabled",
            "compact compact_enabled", True),
    _option("file.compact_frag", _I, "Percent of dead records for a compaction", "file_compact_frag",
            "compact_frag compact_fragmentation", 50),
    _option("file.compact_interval", _I, "Seconds between two compactions of a file", "file_compact_interval",
            "compact_interval", 300),
    _option("file.compact_min_size", _Z, "Size of a file for a compaction", "file_compact_min_size", "compact_min_size",
            _MB),
    _option("file.buffer_size", _Z, "Write buffer; 0 writes at once", "file_buffer_size", "buffer_size", 2 * _MB),
    _option("file.read_buffer_size", _Z, "Bytes to read ahead", "file_read_buffer_size",
            "file_read_buffer_size read_buffer_size", 2 * _MB),
    _option("file.crc", _B, "Check the CRCs of records read", "file_crc", "crc do_crc", True),
    _option("file.crc_poly", _I, "Polynomial of the CRCs", "file_crc_poly", "crc_poly", IEEE),
    _option("file.sync", _B, "Sync files on every flush", "file_sync", "sync do_sync sync_on_flush", True),
    _option("file.auto_sync", _D, "Interval of syncing all files; 0 or less for never", "file_auto_sync",
            "file_auto_sync auto_sync", 60 * _SECOND),
    _option("file.slice_max_msgs", _I, "Messages of a slice", "file_slice_max_msgs",
            "slice_max_msgs slice_max_count slice_msgs slice_count"),
    _option("file.slice_max_bytes", _Z, "Bytes of a slice", "file_slice_max_bytes",
            "slice_max_bytes slice_max_size slice_bytes slice_size", DEFAULT_SLICE_MAX_BYTES),
    _option("file.slice_max_age", _D, "Age at which a slice is closed", "file_slice_max_age",
            "slice_max_age slice_age slice_max_time slice_time_limit"),
    _option("file.slice_archive_script", _S, "Program that receives removed slices", "file_slice_archive_script",
            "slice_archive_script slice_archive slice_script"),
    _option("file.fds_limit", _I, "Limit of open files", "file_fds_limit", "file_descriptors_limit fds_limit"),
    _option("file.parallel_recovery", _I, "Channels recovered in parallel", "file_parallel_recovery",
            "parallel_recovery", 1),
    _option("file.truncate_bad_eof", _B, "Truncate damaged ends of files at the start", "file_truncate_bad_eof",
            remark="not in two consecutive starts; no key in the file"),
)

SQL: Final = OptionSection(
    "SQL store", "streaming.sql",
    _option("sql.driver", _S, "Driver: mysql or postgres", "sql_driver", "driver", state=_LATER),
    _option("sql.source", _S, "Data source", "sql_source", "source", state=_LATER),
    _option("sql.no_caching", _B, "Do not cache", "sql_no_caching", "no_caching", state=_LATER),
    _option("sql.max_open_conns", _I, "Connections to the database", "sql_max_open_conns", "max_open_conns max_conns",
            state=_LATER),
    _option("sql.bulk_insert_limit", _I, "Messages in one insert", "sql_bulk_insert_limit", "bulk_insert_limit",
            state=_LATER),
)

CHANNELS: Final = OptionSection(
    "JetStream store", "streaming.jetstream_options",
    _option("jetstream_options.replicas", _I, "Servers that hold each stream: 1, 3 or 5", "jetstream_replicas",
            "replicas", 1),
    _option("jetstream_options.domain", _S, "JetStream domain of the streams", "jetstream_domain", "domain"),
)

CLUSTER: Final = OptionSection(
    "Streaming cluster", "streaming.cluster",
    _option("cluster.clustered", _B, "Run as a node of a cluster", "clustered",
            remark="with a file store: streams of the node's nats-server and their copies in its directory"),
    _option("cluster.node_id", _S, "Id of the node", "cluster_node_id", "node_id",
            remark="with a file store, stored in its directory; default: random"),
    _option("cluster.bootstrap", _B, "Start the cluster with this node", "cluster_bootstrap", "bootstrap",
            state=_NOT_NEEDED),
    _option("cluster.peers", _S, "Ids of the other nodes, separated by commas", "cluster_peers",
            remark="with a file store each stream has as many replicas as there are nodes, up to 5"),
    _option("cluster.log_path", _S, "Directory of the replicated log", "cluster_log_path", "log_path",
            state=_WARNED, remark="checked for a Raft log of the original"),
    _option("cluster.log_cache_size", _I, "Log entries in memory", "cluster_log_cache_size", "log_cache_size", 512,
            state=_WARNED),
    _option("cluster.log_snapshots", _I, "Snapshots to keep", "cluster_log_snapshots", "log_snapshots", 2,
            state=_WARNED),
    _option("cluster.trailing_logs", _I, "Log entries after a snapshot", "cluster_trailing_logs", "trailing_logs",
            10240, state=_WARNED),
    _option("cluster.sync", _B, "Sync the log on every write", "cluster_sync", "sync",
            remark="the copies of channels are synced before an acknowledgement; the node's own NATS server syncs "
                   "every second"),
    _option("cluster.raft_logging", _B, "Log the replication", "cluster_raft_logging", "raft_logging",
            state=_WARNED),
    _option("cluster.proceed_on_restore_failure", _B, "Continue when messages cannot be restored",
            "cluster_proceed_on_restore_failure", "proceed_on_restore_failure", state=_WARNED),
    _option("cluster.allow_add_remove_node", _B, "Nodes can be added and removed", "cluster_allow_add_remove_node",
            "allow_add_remove_node", state=_WARNED),
    _option("cluster.peers", _L, "Ids of the other nodes", "", "peers",
            remark="default with routes: three replicas"),
    _option("cluster.raft_heartbeat_timeout", _D, "Heartbeat time-out", "", "raft_heartbeat_timeout", state=_WARNED),
    _option("cluster.raft_election_timeout", _D, "Election time-out", "", "raft_election_timeout", state=_WARNED),
    _option("cluster.raft_lease_timeout", _D, "Lease of the leader", "", "raft_lease_timeout", _SECOND,
            remark="the lease is twice this time, and at least a second"),
    _option("cluster.raft_commit_timeout", _D, "Commit time-out", "", "raft_commit_timeout", state=_WARNED),
    _option("cluster.bolt_free_list_sync", _B, "Setting of the log's database", "", "bolt_free_list_sync",
            state=_WARNED),
    _option("cluster.bolt_free_list_map", _B, "Setting of the log's database", "", "bolt_free_list_map",
            state=_WARNED),
    _option("cluster.nodes_connections", _B, "One connection per node", "", "nodes_connections", state=_WARNED),
)

NATS: Final = OptionSection(
    "Embedded NATS server", "",
    _option("nats.host", _S, "Address to listen on", "a addr net", "host net", "0.0.0.0"),
    _option("nats.port", _I, "Port for clients; -1 for a free one", "p port", "port", 4222),
    _option("nats.name", _S, "Name of the NATS server; its id by default", "n name server_name", "server_name"),
    _option("nats.client_advertise", _S, "Address announced to clients", "client_advertise",
            "client_advertise"),
    _option("nats.pid_file", _S, "File for the process id", "P pid", "pidfile pid_file"),
    _option("nats.ports_file_dir", _S, "Directory for a file with the ports", "ports_file_dir", "ports_file_dir"),
    _option("nats.http_port", _I, "Port for monitoring over HTTP", "m http_port", "http_port monitor_port"),
    _option("nats.https_port", _I, "Port for monitoring over HTTPS", "ms https_port", "https_port"),
    _option("config", _S, "Configuration file", "c config"),
    _option("nats.user", _S, "User for clients", "user"),
    _option("nats.password", _S, "Password for clients", "pass"),
    _option("nats.token", _S, "Token for clients", "auth"),
    _option("nats.max_traced_msg_len", _I, "Limit of payload bytes in the trace", "max_traced_msg_len",
            "max_traced_msg_len"),
    _option("nats.profile", _I, "Port for profiling", "profile", "prof_port", state=_WARNED,
            remark="for Go programs only"),
    _option("jetstream", _B, "JetStream: streams in the embedded server", "js jetstream"),
    _option("jetstream.store_dir", _S, "Directory of streams; `jetstream` is added", "sd store_dir",
            "store_dir storedir", remark="default: the system's temporary directory"),
    _option("jetstream.from_channels", _B, "Each channel is also a read-only stream", "streams_from_channels"),
    _option("jetstream.preview", _B, "Support also JetStream's preview of 2019 and 2020", "preview_api"),
    _option("nats.listen", ValueType.ADDRESS, "Address and port for clients", "", "listen"),
    _option("nats.http", ValueType.ADDRESS, "Address and port for monitoring over HTTP", "", "http"),
    _option("nats.https", ValueType.ADDRESS, "Address and port for monitoring over HTTPS", "", "https"),
    _option("nats.http_base_path", _S, "Prefix of the paths of NATS monitoring", "", "http_base_path", "/"),
    _option("nats.max_connections", _I, "Clients at a time", "", "max_connections max_conn", 65536),
    _option("nats.max_subscriptions", _I, "Subscriptions of a client", "", "max_subscriptions max_subs"),
    _option("nats.max_sub_tokens", _I, "Tokens of a subject", "", "max_sub_tokens max_subscription_tokens",
            state=_WARNED),
    _option("nats.max_control_line", _I, "Limit of a control line in bytes", "", "max_control_line", 4096),
    _option("nats.max_payload", _I, "Bytes of a message", "", "max_payload", _MB),
    _option("nats.max_pending", _I, "Limit of bytes waiting for a client", "", "max_pending", 64 * _MB),
    _option("nats.ping_interval", _D, "Time between two pings", "", "ping_interval", 120 * _SECOND),
    _option("nats.ping_max", _I, "Unanswered pings until a connection is stale", "", "ping_max", 2),
    _option("nats.write_deadline", _D, "Time limit for clients that read no data", "", "write_deadline", 10 * _SECOND),
    _option("nats.no_sublist_cache", _B, "Disable the cache of matches", "", "disable_sublist_cache no_sublist_cache",
            state=_NOT_NEEDED, remark="the cache is bounded"),
    _option("nats.lame_duck_duration", _D, "Duration of disconnecting all clients", "", "lame_duck_duration",
            120 * _SECOND),
    _option("nats.lame_duck_grace_period", _D, "Delay before the first disconnection", "", "lame_duck_grace_period",
            10 * _SECOND),
    _option("nats.connect_error_reports", _I, "About routes only", "", "connect_error_reports", state=_NOT_NEEDED),
    _option("nats.reconnect_error_reports", _I, "About routes only", "", "reconnect_error_reports", state=_NOT_NEEDED),
    _option("nats.no_auth_user", _S, "User for clients without credentials", "", "no_auth_user"),
    _option("nats.no_header_support", _B, "Do without headers", "", "no_header_support"),
    _option("nats.allow_non_tls", _B, "Allow clients without TLS", "", "allow_non_tls", state=_LATER),
    _option("nats.no_system_account", _B, "", "", "no_system_account no_system no_sys_acc", state=_NOT_NEEDED),
    _option("nats.server_tags", _L, "Tags of the server", "", "server_tags", state=_WARNED),
    _option("nats.trace_headers", _B, "Trace headers only", "", "trace_headers", state=_WARNED),
    _option("nats.log_max_num", _I, "Number of rotated log files to keep", "", "logfile_max_num log_max_num",
            state=_WARNED),
    _option("nats.max_closed_clients", _I, "Closed connections shown by monitoring", "", "max_closed_clients",
            state=_WARNED),
    _option("nats.no_fast_producer_stall", _B, "Publishers never wait for slow receivers", "",
            "no_fast_producer_stall", state=_WARNED),
    _option("nats.prof_block_rate", _I, "Detail of profiling", "", "prof_block_rate", state=_WARNED),
    _option("nats.write_timeout", _S, "Treatment of a client that reads no data", "", "write_timeout",
            state=_WARNED),
)

NATS_LOGS: Final = OptionSection(
    "Logs", "",
    _option("log.file", _S, "Log file", "l log", "logfile log_file"),
    _option("log.size_limit", _I, "Size of the log file before rotation", "log_size_limit",
            "logfile_size_limit log_size_limit"),
    _option("log.timestamps", _B, "Date and time at the start of each line", "T logtime", "logtime", True),
    _option("log.utc", _B, "Date and time in UTC", "logtime_utc", "logtime_utc"),
    _option("log.syslog", _B, "Log to the local syslog", "s syslog", "syslog"),
    _option("log.remote_syslog", _S, "Log to a syslog server (udp://host:514)", "r remote_syslog", "remote_syslog"),
    _option("nats.debug", _B, "Debug lines of the NATS server", "D debug", "debug"),
    _option("nats.trace", _B, "Trace lines of the NATS server", "V trace", "trace"),
    _option("VV", _B, "-V, including the server's own connections", "VV"),
    _option("DV", _B, "-D and -V", "DV"),
    _option("DVV", _B, "-D and -VV", "DVV"),
    _option("nats.trace_verbose", _B, "Trace lines of the server's own connections", "", "trace_verbose"),
)

NATS_PARTS: Final = OptionSection(
    "Parts of the NATS server", "",
    _option("authorization", _M, "Who may connect", "", "authorization"),
    _option("tls", _M, "TLS for clients", "", "tls"),
    _option("cluster", _M, "Routes to other servers", "", "cluster"),
    _option("gateway", _M, "Gateways", "", "gateway", state=_LATER),
    _option("leafnodes", _M, "Leaf nodes", "", "leafnodes leaf", state=_LATER),
    _option("websocket", _M, "Clients over WebSocket", "", "websocket ws", state=_LATER),
    _option("mqtt", _M, "MQTT clients", "", "mqtt", state=_LATER),
    _option("jetstream", _M, "JetStream: streams", "", "jetstream", remark="or `enabled`"),
    _option("default_js_domain", _M, "JetStream", "", "default_js_domain", state=_NOT_NEEDED),
    _option("accounts", _M, "Accounts", "", "accounts", state=_LATER),
    _option("system_account", _S, "Account for system events", "", "system_account system", state=_LATER),
    _option("mappings", _M, "Subject mappings", "", "mappings maps", state=_LATER),
    _option("ocsp", _M, "Stapled certificate states", "", "ocsp", state=_LATER),
    _option("ocsp_cache", _M, "Cache of certificate states", "", "ocsp_cache", state=_NOT_NEEDED),
    _option("server_metadata", _M, "Other properties of the server", "", "server_metadata", state=_WARNED),
    _option("feature_flags", _M, "Features of nats-server", "", "feature_flags", state=_WARNED),
    _option("proxies", _M, "Trusted proxies", "", "proxies", state=_LATER),
    _option("default_sentinel", _S, "Default JWT of clients", "", "default_sentinel", state=_LATER),
    _option("operator", _M, "Operators and their accounts (JWT)", "",
            "operator operators roots root root_operators root_operator trusted trusted_keys resolver "
            "account_resolver account_resolvers resolver_tls resolver_preload resolver_pinned_accounts", state=_LATER),
)

JETSTREAM: Final = OptionSection(
    "JetStream", "jetstream",
    _option("jetstream", _B, "Enable JetStream; a map without this key also enables it", "", "enabled enable"),
    _option("jetstream.store_dir", _S, "Directory of streams; `jetstream` is added", "", "store_dir storedir store"),
    _option("jetstream.max_mem", _Z, "Limit of messages in memory, in bytes; 0: three quarters of all memory", "",
            "max_memory_store max_mem_store max_mem"),
    _option("jetstream.max_file", _Z, "Limit of messages in files, in bytes; 0: three quarters of the free space", "",
            "max_file_store max_file"),
    _option("jetstream.from_channels", _B, "Each channel is also a read-only stream", "",
            "streams_from_channels"),
    _option("jetstream.preview", _B, "Support also JetStream's preview of 2019 and 2020", "", "preview_api"),
    _option("jetstream.domain", _S, "Domain", "", "domain", state=_LATER),
    _option("jetstream.sync_interval", _S, "Time between two syncs of files", "", "sync_interval sync", state=_LATER,
            remark="two minutes"),
    _option("jetstream.limits", _M, "Limits of requests", "", "limits", state=_LATER),
    _option("jetstream.key", _S, "Encryption of files", "",
            "key encryption_key ek cipher prev_key prev_encryption_key prev_ek", state=_LATER),
    _option("jetstream.tpm", _M, "Key of the encryption in a TPM", "", "tpm", state=_LATER),
    _option("jetstream.strict", _B, "Refuse requests with unknown members", "", "strict", state=_WARNED),
    _option("jetstream.request_queue_limit", _I, "Limit of waiting requests", "", "request_queue_limit",
            state=_NOT_NEEDED, remark="requests are answered on arrival"),
    _option("jetstream.info_queue_limit", _I, "Limit of waiting requests for information", "", "info_queue_limit",
            state=_NOT_NEEDED),
    _option("jetstream.replication", _I, "About replicas only", "",
            "max_outstanding_catchup max_buffered_msgs max_buffered_size meta_compact meta_compact_size "
            "meta_compact_sync unique_tag extension_hint", state=_NOT_NEEDED),
)

AUTHORIZATION: Final = OptionSection(
    "Who may connect", "authorization",
    _option("user", _S, "User for clients", "", "user username"),
    _option("password", _S, "Password for clients, plain or bcrypt", "", "pass password"),
    _option("token", _S, "Token for clients, plain or bcrypt", "", "token"),
    _option("timeout", ValueType.SECONDS, "Time limit for authentication", "", "timeout"),
    _option("users", _L, "Several users", "", "users"),
    _option("default_permissions", _M, "Permissions of users without their own", "",
            "default_permission default_permissions permissions"),
    _option("auth_callout", _M, "Authentication by a service", "", "auth_callout auth_hook", state=_LATER),
    _option("proxy_required", _B, "Require clients to connect through a proxy", "", "proxy_required", state=_LATER),
)

USER: Final = OptionSection(
    "A user", "authorization.users",
    _option("name", _S, "Name", "", "user username"),
    _option("password", _S, "Password, plain or bcrypt", "", "pass password"),
    _option("nkey", _S, "Public nkey, instead of name and password", "", "nkey"),
    _option("permissions", _M, "Permissions of the user", "", "permission permissions authorization"),
    _option("allowed_connection_types", _L, "Kinds of connections", "",
            "allowed_connection_types connection_types clients",
            remark="without STANDARD the user cannot connect: other types are not available yet"),
    _option("proxy_required", _B, "Require the user to connect through a proxy", "", "proxy_required", state=_LATER),
)

NATS_TLS: Final = OptionSection(
    "TLS of the embedded NATS server", "tls",
    _option("nats.tls", _B, "TLS for clients", "tls"),
    _option("nats.tls.verify", _B, "Require client certificates", "tlsverify", "verify"),
    _option("nats.tls.cert", _S, "Certificate", "tlscert", "cert_file"),
    _option("nats.tls.key", _S, "Private key", "tlskey", "key_file"),
    _option("nats.tls.ca", _S, "CA of client certificates", "tlscacert", "ca_file"),
    _option("verify_and_map", _B, "Map client certificates to users", "", "verify_and_map"),
    _option("insecure", _B, "Accept a server certificate with an old signature or a short key", "", "insecure"),
    _option("timeout", ValueType.SECONDS, "Time limit for the handshake", "", "timeout"),
    _option("cipher_suites", _L, "Cipher suites", "", "cipher_suites"),
    _option("curve_preferences", _L, "Curves", "", "curve_preferences"),
    _option("pinned_certs", _L, "Accepted client certificates", "", "pinned_certs", state=_LATER),
    _option("connection_rate_limit", _I, "Handshakes per second", "", "connection_rate_limit", state=_WARNED),
    _option("handshake_first", _B, "TLS before anything else", "", "handshake_first first immediate", state=_LATER),
    _option("min_version", _S, "Oldest version of TLS; default: 1.2", "", "min_version", state=_LATER),
    _option("certs", _L, "Several certificates", "", "certs certificates", state=_LATER),
    _option("cert_store", _S, "Certificates of Windows", "",
            "cert_store cert_match_by cert_match cert_match_skip_invalid ca_certs_match", state=_LATER),
    _option("ocsp_peer", _M, "Check the revocation of client certificates", "", "ocsp_peer", state=_LATER),
    _option("allow_insecure_cipher_suites", _B, "Weak cipher suites", "", "allow_insecure_cipher_suites",
            state=_WARNED),
)

ROUTES: Final = OptionSection(
    "Routes of the embedded NATS server", "cluster",
    _option("routes.listen", _S, "Address and port for routes; on the command line a URL",
            "cluster cluster_listen", "listen", remark="other servers need user and password of the URL"),
    _option("routes.host", _S, "Address for routes", "", "host net", "0.0.0.0"),
    _option("routes.port", _I, "Port for routes; -1 for a free one", "", "port"),
    _option("routes", _S, "Routes to other servers; one reachable server suffices", "routes",
            "routes"),
    _option("routes.name", _S, "Name of the cluster, equal on all servers", "cluster_name", "name"),
    _option("routes.authorization", _M, "User and password of routes", "", "authorization"),
    _option("routes.tls", _M, "TLS of routes; certificates are required at both ends", "", "tls"),
    _option("routes.advertise", _S, "Address announced to other servers", "cluster_advertise",
            "cluster_advertise advertise"),
    _option("routes.no_advertise", _B, "Do not announce the other servers to clients", "no_advertise", "no_advertise"),
    _option("routes.connect_retries", _I, "Retries for a server announced by another one",
            "connect_retries", "connect_retries"),
    _option("routes.permissions", _M, "Permitted subjects of routes", "", "permissions", state=_LATER),
    _option("routes.accounts", _L, "Routes for single accounts", "", "accounts", state=_LATER),
    _option("routes.pool_size", _I, "Connections of a route", "", "pool_size", state=_NOT_NEEDED),
    _option("routes.compression", _S, "Compression of routes", "", "compression", state=_NOT_NEEDED),
    _option("routes.ping_interval", _D, "Time between two pings", "", "ping_interval", state=_NOT_NEEDED),
    _option("routes.ping_max", _I, "Unanswered pings until a route is stale", "", "ping_max", state=_NOT_NEEDED),
    _option("routes.write_deadline", _D, "Time limit for servers that read no data", "", "write_deadline write_timeout",
            state=_NOT_NEEDED),
    _option("routes.connect_backoff", _B, "Increase the pause between attempts", "", "connect_backoff",
            state=_NOT_NEEDED),
)

COMMON: Final = OptionSection(
    "Common", "",
    _option("signal", _S, "Send a signal to a server: <signal>[=<pid or pid file>]", "sl signal"),
    _option("check", _B, "Check the configuration and exit", "t",
            remark="the original checks the syntax and then starts nevertheless"),
    _option("help", _B, "Show this", "h help"),
    _option("version", _B, "Show the version", "v version"),
    _option("help_tls", _B, "Show the options of TLS", "help_tls"),
)
# fmt: on

#: in the order of the help text
SECTIONS: Final = (
    STREAMING, LIMITS, CHANNEL_LIMITS, FILE, SQL, CHANNELS, CLUSTER, STREAMING_TLS, STREAMING_LOGS,
    NATS, NATS_LOGS, NATS_TLS, NATS_PARTS, JETSTREAM, AUTHORIZATION, USER, ROUTES, COMMON,
)  # fmt: skip
#: keys by name, for each map of a file
KEYS: Final = {
    path: {name: key for section in SECTIONS if section.path == path for name, key in section.keys.items()}
    for path in dict.fromkeys(section.path for section in SECTIONS)
}
#: options by their names on the command line
FLAGS: Final = {name: option for section in SECTIONS for option in section.options for name in option.flags}
#: settings whose default is not zero, false or empty
DEFAULTS: Final[Mapping[str, Setting]] = {
    option.setting: option.default for section in SECTIONS for option in section.options if option.default is not None
}
