"""All options of the command line and keys of the configuration file, by section and by name.

Options with a field of their own are declared beside it; this module adds those without one, and says where each
belongs in a file. Facts: server-operations.md sections 3, 4, 7 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from broker.config.broker_options import (
    BrokerOptions,
    ChannelsOptions,
    ClientTLSOptions,
    ConnectionOptions,
    LoggingOptions,
    MonitoringOptions,
    NodeOptions,
)
from broker.nats.nats_options import (
    Authorization,
    ClusterOptions,
    NatsOptions,
    Permissions,
    ResponsePermission,
    SubjectPermission,
    TLSOptions,
    User,
)
from broker.stores.store_options import EncryptionOptions, FileOptions
from broker.streaming.streaming_options import StreamingOptions
from broker.streams.streams_options import StreamsOptions
from stantools.options import declared
from stantools.server_options import (
    ADDRESS,
    ANY,
    BOOL,
    DURATION,
    INT,
    LIST,
    MAP,
    STRING,
    WORDS,
    ServerOption,
    Support,
    server_option,
)
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import ChannelLimits, SliceLimits, StoreLimits

#: value of a setting: bool, int, str or texts; of a map in a file also the object that it describes. Durations are
#: nanoseconds
Setting = Any

_LATER: Final[Mapping[str, Any]] = {"support": Support.UNAVAILABLE}
_WARNED: Final[Mapping[str, Any]] = {"support": Support.WARNED}
_NOT_NEEDED: Final[Mapping[str, Any]] = {"support": Support.NOT_NEEDED}


class NamedOption(NamedTuple):
    setting: str  #: name of the setting: of a section and a field, or of an option without a field
    option: ServerOption


class OptionSection:
    """A group of options. `path` is the map of their keys in the file, empty for the top level."""

    def __init__(self, title: str, path: str, options: Mapping[str, ServerOption]) -> None:
        self.title, self.path = title, path
        self.options = [NamedOption(*item) for item in options.items()]

    @property
    def keys(self) -> dict[str, NamedOption]:
        return {name: named for named in self.options for name in named.option.keys}


def options_of(owner: type, prefix: str = "") -> dict[str, ServerOption]:
    """Returns the options that a dataclass declares, by setting."""
    return {prefix + name: option for name, option in declared(owner) if isinstance(option, ServerOption)}


_LOGS: Final = options_of(LoggingOptions, "log.")
_STREAMING_LOGS: Final = {name: each for name, each in _LOGS.items() if name.startswith("log.streaming")}

# fmt: off
STREAMING: Final = OptionSection("Streaming server", "streaming", {
    **options_of(BrokerOptions),
    **options_of(StreamingOptions),
    "stan_config": server_option(STRING, "Streaming configuration file", "sc stan_config"),
    "encrypt": server_option(BOOL, "Encrypt payloads of messages at rest", "encrypt", "encrypt"),
    **options_of(EncryptionOptions, "encryption."),
    **options_of(ConnectionOptions, "connection."),
    "secure": server_option(BOOL, "Connect with TLS", "secure", "secure", remark="to an external server"),
    "tls": server_option(MAP, "TLS of the streaming server's connections", "", "tls"),
    "limits": server_option(MAP, "Limits of the store", "", "limits store_limits storelimits"),
    "file": server_option(MAP, "File store", "", "file file_options"),
    "sql": server_option(MAP, "SQL store", "", "sql sql_options", **_LATER),
    "jetstream_options": server_option(MAP, "JetStream store", "", "jetstream_options"),
    "cluster": server_option(MAP, "Run as a node of a cluster", "", "cluster",
                             remark="with a file or JetStream store"),
})

STREAMING_LOGS: Final = OptionSection("Logs of the streaming server", "streaming", {
    **_STREAMING_LOGS,
    "SDV": server_option(BOOL, "-SD and -SV", "SDV"),
    "syslog_name": server_option(STRING, "Name of the event source on Windows", "syslog_name", "syslog_name",
                                 support=Support.IGNORED),
})

STREAMING_TLS: Final = OptionSection(
    "TLS of the streaming server's connections", "streaming.tls", options_of(ClientTLSOptions, "connection.tls.")
)

LIMITS: Final = OptionSection("Limits of the store", "streaming.limits", {
    **options_of(StoreLimits, "limits."),
    **options_of(ChannelLimits, "limits."),
    "limits.channels": server_option(MAP, "Limits by channel or pattern", "",
                                     "channels channels_limits channelslimits per_channel per_channel_limits"),
})

#: settings are the fields of `stantools.store.limits.PatternLimits`
CHANNEL_LIMITS: Final = OptionSection("Limits of a channel or pattern", "streaming.limits.channels", {
    name: replace(option, flags=(), default=None) for name, option in options_of(ChannelLimits).items()
})

FILE: Final = OptionSection("File store", "streaming.file", {
    **options_of(FileOptions, "file."),
    **options_of(SliceLimits, "file.slices."),
    **options_of(CompactionRules, "file.compaction."),
})

SQL: Final = OptionSection("SQL store", "streaming.sql", {
    "sql.driver": server_option(STRING, "Driver: mysql or postgres", "sql_driver", "driver", **_LATER),
    "sql.source": server_option(STRING, "Data source", "sql_source", "source", **_LATER),
    "sql.no_caching": server_option(BOOL, "Do not cache", "sql_no_caching", "no_caching", **_LATER),
    "sql.max_open_conns": server_option(INT, "Connections to the database", "sql_max_open_conns",
                                        "max_open_conns max_conns", **_LATER),
    "sql.bulk_insert_limit": server_option(INT, "Messages in one insert", "sql_bulk_insert_limit", "bulk_insert_limit",
                                           **_LATER),
})

CHANNELS: Final = OptionSection(
    "JetStream store", "streaming.jetstream_options", options_of(ChannelsOptions, "jetstream_options.")
)

CLUSTER: Final = OptionSection("Streaming cluster", "streaming.cluster", {
    "cluster.clustered": server_option(
        BOOL, "Run as a node of a cluster", "clustered",
        remark="with a file store: streams of the node's nats-server and their copies in its directory",
    ),
    **options_of(NodeOptions, "cluster."),
    "cluster.bootstrap": server_option(BOOL, "Start the cluster with this node", "cluster_bootstrap", "bootstrap",
                                       **_NOT_NEEDED),
    "cluster.sync": server_option(
        BOOL, "Sync the log on every write", "cluster_sync", "sync",
        remark="the copies of channels are synced before an acknowledgement; the node's own NATS server syncs every "
               "second",
    ),
    "cluster.raft_heartbeat_timeout": server_option(DURATION, "Heartbeat time-out", "", "raft_heartbeat_timeout",
                                                    **_WARNED),
    "cluster.raft_election_timeout": server_option(DURATION, "Election time-out", "", "raft_election_timeout",
                                                   **_WARNED),
    "cluster.raft_commit_timeout": server_option(DURATION, "Commit time-out", "", "raft_commit_timeout", **_WARNED),
    "cluster.log_cache_size": server_option(INT, "Log entries in memory", "cluster_log_cache_size", "log_cache_size",
                                            512, **_WARNED),
    "cluster.log_snapshots": server_option(INT, "Snapshots to keep", "cluster_log_snapshots", "log_snapshots", 2,
                                           **_WARNED),
    "cluster.trailing_logs": server_option(INT, "Log entries after a snapshot", "cluster_trailing_logs",
                                           "trailing_logs", 10240, **_WARNED),
    "cluster.raft_logging": server_option(BOOL, "Log the replication", "cluster_raft_logging", "raft_logging",
                                          **_WARNED),
    "cluster.proceed_on_restore_failure": server_option(
        BOOL, "Continue when messages cannot be restored", "cluster_proceed_on_restore_failure",
        "proceed_on_restore_failure", **_WARNED,
    ),
    "cluster.allow_add_remove_node": server_option(BOOL, "Nodes can be added and removed",
                                                   "cluster_allow_add_remove_node", "allow_add_remove_node",
                                                   **_WARNED),
    "cluster.bolt_free_list_sync": server_option(BOOL, "Setting of the log's database", "", "bolt_free_list_sync",
                                                 **_WARNED),
    "cluster.bolt_free_list_map": server_option(BOOL, "Setting of the log's database", "", "bolt_free_list_map",
                                                **_WARNED),
    "cluster.nodes_connections": server_option(BOOL, "One connection per node", "", "nodes_connections", **_WARNED),
})

_STREAMS: Final = options_of(StreamsOptions, "jetstream.")

NATS: Final = OptionSection("Embedded NATS server", "", {
    **options_of(NatsOptions, "nats."),
    "pid_file": server_option(STRING, "File for the process id", "P pid", "pidfile pid_file"),
    "ports_file_dir": server_option(STRING, "Directory for a file with the ports", "ports_file_dir", "ports_file_dir"),
    "monitoring.http_port": server_option(INT, "Port for monitoring over HTTP", "m http_port",
                                          "http_port monitor_port"),
    "monitoring.https_port": server_option(INT, "Port for monitoring over HTTPS", "ms https_port", "https_port"),
    **options_of(MonitoringOptions, "monitoring."),
    "config": server_option(STRING, "Configuration file", "c config"),
    **{name: replace(option, keys=()) for name, option in options_of(Authorization, "authorization.").items()
       if option.flags},
    "nats.profile": server_option(INT, "Port for profiling", "profile", "prof_port", **_WARNED,
                                  remark="for Go programs only"),
    "jetstream": server_option(BOOL, "JetStream: streams in the embedded server", "js jetstream"),
    # at the top level only one of them is a key as well
    **{name: replace(option, keys=option.keys[:2] if name == "jetstream.store_dir" else ())
       for name, option in _STREAMS.items() if option.flags},
    "nats.listen": server_option(ADDRESS, "Address and port for clients", "", "listen"),
    "monitoring.http": server_option(ADDRESS, "Address and port for monitoring over HTTP", "", "http"),
    "monitoring.https": server_option(ADDRESS, "Address and port for monitoring over HTTPS", "", "https"),
    "nats.max_sub_tokens": server_option(INT, "Tokens of a subject", "", "max_sub_tokens max_subscription_tokens",
                                         **_WARNED),
    "nats.no_sublist_cache": server_option(BOOL, "Disable the cache of matches", "",
                                           "disable_sublist_cache no_sublist_cache", **_NOT_NEEDED,
                                           remark="the cache is bounded"),
    "nats.connect_error_reports": server_option(INT, "About routes only", "", "connect_error_reports", **_NOT_NEEDED),
    "nats.reconnect_error_reports": server_option(INT, "About routes only", "", "reconnect_error_reports",
                                                  **_NOT_NEEDED),
    "nats.no_auth_user": server_option(STRING, "User for clients without credentials", "", "no_auth_user"),
    "nats.allow_non_tls": server_option(BOOL, "Allow clients without TLS", "", "allow_non_tls", **_LATER),
    "nats.no_system_account": server_option(BOOL, "", "", "no_system_account no_system no_sys_acc", **_NOT_NEEDED),
    "server_tags": server_option(WORDS, "Tags of the server", "", "server_tags", **_WARNED),
    "nats.trace_headers": server_option(BOOL, "Trace headers only", "", "trace_headers", **_WARNED),
    "nats.log_max_num": server_option(INT, "Number of rotated log files to keep", "", "logfile_max_num log_max_num",
                                      **_WARNED),
    "nats.max_closed_clients": server_option(INT, "Closed connections shown by monitoring", "", "max_closed_clients",
                                             **_WARNED),
    "nats.no_fast_producer_stall": server_option(BOOL, "Publishers never wait for slow receivers", "",
                                                 "no_fast_producer_stall", **_WARNED),
    "nats.prof_block_rate": server_option(INT, "Detail of profiling", "", "prof_block_rate", **_WARNED),
    "nats.write_timeout": server_option(STRING, "Treatment of a client that reads no data", "", "write_timeout",
                                        **_WARNED),
})

NATS_LOGS: Final = OptionSection("Logs", "", {
    **{name: option for name, option in _LOGS.items() if name not in _STREAMING_LOGS},
    "VV": server_option(BOOL, "-V, including the server's own connections", "VV"),
    "DV": server_option(BOOL, "-D and -V", "DV"),
    "DVV": server_option(BOOL, "-D and -VV", "DVV"),
})

NATS_PARTS: Final = OptionSection("Parts of the NATS server", "", {
    "authorization": server_option(MAP, "Who may connect", "", "authorization"),
    "tls": server_option(MAP, "TLS for clients", "", "tls"),
    "routes": server_option(MAP, "Routes to other servers", "", "cluster"),
    "gateway": server_option(MAP, "Gateways", "", "gateway", **_LATER),
    "leafnodes": server_option(MAP, "Leaf nodes", "", "leafnodes leaf", **_LATER),
    "websocket": server_option(MAP, "Clients over WebSocket", "", "websocket ws", **_LATER),
    "mqtt": server_option(MAP, "MQTT clients", "", "mqtt", **_LATER),
    "jetstream": server_option(MAP, "JetStream: streams", "", "jetstream", remark="or `enabled`"),
    "default_js_domain": server_option(ANY, "JetStream", "", "default_js_domain", **_NOT_NEEDED),
    "accounts": server_option(MAP, "Accounts", "", "accounts", **_LATER),
    "system_account": server_option(STRING, "Account for system events", "", "system_account system", **_LATER),
    "mappings": server_option(MAP, "Subject mappings", "", "mappings maps", **_LATER),
    "ocsp": server_option(MAP, "Stapled certificate states", "", "ocsp", **_LATER),
    "ocsp_cache": server_option(ANY, "Cache of certificate states", "", "ocsp_cache", **_NOT_NEEDED),
    "server_metadata": server_option(ANY, "Other properties of the server", "", "server_metadata", **_WARNED),
    "feature_flags": server_option(ANY, "Features of nats-server", "", "feature_flags", **_WARNED),
    "proxies": server_option(MAP, "Trusted proxies", "", "proxies", **_LATER),
    "default_sentinel": server_option(STRING, "Default JWT of clients", "", "default_sentinel", **_LATER),
    "operator": server_option(
        MAP, "Operators and their accounts (JWT)", "",
        "operator operators roots root root_operators root_operator trusted trusted_keys resolver account_resolver "
        "account_resolvers resolver_tls resolver_preload resolver_pinned_accounts", **_LATER,
    ),
})

JETSTREAM: Final = OptionSection("JetStream", "jetstream", {
    "jetstream": server_option(BOOL, "Enable JetStream; a map without this key also enables it", "", "enabled enable"),
    **{name: replace(option, flags=()) for name, option in _STREAMS.items()},
    "jetstream.domain": server_option(STRING, "Domain", "", "domain", **_LATER),
    "jetstream.sync_interval": server_option(STRING, "Time between two syncs of files", "", "sync_interval sync",
                                             **_LATER, remark="two minutes"),
    "jetstream.limits": server_option(MAP, "Limits of requests", "", "limits", **_LATER),
    "jetstream.key": server_option(STRING, "Encryption of files", "",
                                   "key encryption_key ek cipher prev_key prev_encryption_key prev_ek", **_LATER),
    "jetstream.tpm": server_option(MAP, "Key of the encryption in a TPM", "", "tpm", **_LATER),
    "jetstream.strict": server_option(BOOL, "Refuse requests with unknown members", "", "strict", **_WARNED),
    "jetstream.request_queue_limit": server_option(INT, "Limit of waiting requests", "", "request_queue_limit",
                                                   **_NOT_NEEDED, remark="requests are answered on arrival"),
    "jetstream.info_queue_limit": server_option(INT, "Limit of waiting requests for information", "",
                                                "info_queue_limit", **_NOT_NEEDED),
    "jetstream.replication": server_option(
        ANY, "About replicas only", "",
        "max_outstanding_catchup max_buffered_msgs max_buffered_size meta_compact meta_compact_size meta_compact_sync "
        "unique_tag extension_hint", **_NOT_NEEDED,
    ),
})

_PROXY: Final = server_option(BOOL, "Require clients to connect through a proxy", "", "proxy_required", **_LATER)

AUTHORIZATION: Final = OptionSection("Who may connect", "authorization", {
    **{name: replace(option, flags=()) for name, option in options_of(Authorization).items()},
    "auth_callout": server_option(MAP, "Authentication by a service", "", "auth_callout auth_hook", **_LATER),
    "proxy_required": _PROXY,
})

USER: Final = OptionSection("A user", "authorization.users", {
    **options_of(User),
    "connection_types": server_option(
        WORDS, "Kinds of connections", "", "allowed_connection_types connection_types clients",
        remark="without STANDARD the user cannot connect: other types are not available yet",
    ),
    "proxy_required": _PROXY,
})

PERMISSIONS: Final = OptionSection("Permissions of a user", "permissions", options_of(Permissions))
SUBJECTS: Final = OptionSection(
    "Permitted and refused subjects", "permissions.publish", options_of(SubjectPermission)
)
RESPONSES: Final = OptionSection(
    "Answers to received messages", "permissions.allow_responses", options_of(ResponsePermission)
)

NATS_TLS: Final = OptionSection("TLS of the embedded NATS server", "tls", {
    "tls.enabled": server_option(BOOL, "TLS for clients", "tls"),
    **options_of(TLSOptions, "tls."),
    "tls.pinned_certs": server_option(LIST, "Accepted client certificates", "", "pinned_certs", **_LATER),
    "tls.connection_rate_limit": server_option(INT, "Handshakes per second", "", "connection_rate_limit", **_WARNED),
    "tls.handshake_first": server_option(ANY, "TLS before anything else", "", "handshake_first first immediate",
                                         **_LATER),
    "tls.min_version": server_option(STRING, "Oldest version of TLS; default: 1.2", "", "min_version", **_LATER),
    "tls.certs": server_option(LIST, "Several certificates", "", "certs certificates", **_LATER),
    "tls.cert_store": server_option(STRING, "Certificates of Windows", "",
                                    "cert_store cert_match_by cert_match cert_match_skip_invalid ca_certs_match",
                                    **_LATER),
    "tls.ocsp_peer": server_option(MAP, "Check the revocation of client certificates", "", "ocsp_peer", **_LATER),
    "tls.allow_insecure_cipher_suites": server_option(BOOL, "Weak cipher suites", "", "allow_insecure_cipher_suites",
                                                      **_WARNED),
})

ROUTES: Final = OptionSection("Routes of the embedded NATS server", "cluster", {
    "routes.listen": server_option(ADDRESS, "Address and port for routes; on the command line a URL",
                                   "cluster cluster_listen", "listen",
                                   remark="other servers need user and password of the URL"),
    **options_of(ClusterOptions, "routes."),
    "routes.authorization": server_option(MAP, "User and password of routes", "", "authorization"),
    "routes.permissions": server_option(MAP, "Permitted subjects of routes", "", "permissions", **_LATER),
    "routes.accounts": server_option(LIST, "Routes for single accounts", "", "accounts", **_LATER),
    "routes.pool_size": server_option(INT, "Connections of a route", "", "pool_size", **_NOT_NEEDED),
    "routes.compression": server_option(ANY, "Compression of routes", "", "compression", **_NOT_NEEDED),
    "routes.ping_interval": server_option(DURATION, "Time between two pings", "", "ping_interval", **_NOT_NEEDED),
    "routes.ping_max": server_option(INT, "Unanswered pings until a route is stale", "", "ping_max", **_NOT_NEEDED),
    "routes.write_deadline": server_option(ANY, "Time limit for servers that read no data", "",
                                           "write_deadline write_timeout", **_NOT_NEEDED),
    "routes.connect_backoff": server_option(BOOL, "Increase the pause between attempts", "", "connect_backoff",
                                            **_NOT_NEEDED),
})

COMMON: Final = OptionSection("Common", "", {
    "signal": server_option(STRING, "Send a signal to a server: <signal>[=<pid or pid file>]", "sl signal"),
    "check": server_option(BOOL, "Check the configuration and exit", "t",
                           remark="the original checks the syntax and then starts nevertheless"),
    "strict_exit": server_option(BOOL, "Exit code 2, not 0, for a wrong command line", "strict_exit",
                                 remark="not in the original, which ends with 0"),
    "help": server_option(BOOL, "Show this", "h help"),
    "version": server_option(BOOL, "Show the version", "v version"),
    "help_tls": server_option(BOOL, "Show the options of TLS", "help_tls"),
})

#: in the order of the help text
SECTIONS: Final = (
    STREAMING, LIMITS, CHANNEL_LIMITS, FILE, SQL, CHANNELS, CLUSTER, STREAMING_TLS, STREAMING_LOGS,
    NATS, NATS_LOGS, NATS_TLS, NATS_PARTS, JETSTREAM, AUTHORIZATION, USER, PERMISSIONS, SUBJECTS, RESPONSES, ROUTES,
    COMMON,
)
# fmt: on
#: keys by name, for each map of a file
KEYS: Final = {
    path: {name: named for section in SECTIONS if section.path == path for name, named in section.keys.items()}
    for path in dict.fromkeys(section.path for section in SECTIONS)
}
#: options by their names on the command line
FLAGS: Final = {name: named for section in SECTIONS for named in section.options for name in named.option.flags}
#: sections of maps that become objects, not settings
_OBJECTS: Final = (CHANNEL_LIMITS, AUTHORIZATION, USER, PERMISSIONS, SUBJECTS, RESPONSES)
#: settings whose default is not zero, false or empty
DEFAULTS: Final[Mapping[str, Setting]] = {
    name: each.default
    for section in SECTIONS
    if section not in _OBJECTS
    for name, each in section.options
    if each.default is not None
}
