"""A node of a cluster, and the configuration of its own nats-server.

Facts: high-availability.md section D. Data that the original replicates by itself is in JetStream streams here, with
copies in files. The nats-server accepts the keys of the embedded server: plain values come from the merged settings,
and whole parts unchanged from the file. The broker handles monitoring, the log, and process files itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.config.broker_options import FILE, JETSTREAM, BrokerOptions, ChannelsOptions, NodeOptions
from broker.config.catalogue import CLUSTER, KEYS, NATS, NATS_LOGS, NATS_PARTS, ROUTES
from stantools.errors import UsageError
from stantools.server_options import Support, ValueType

if TYPE_CHECKING:
    from broker.config.settings import BrokerSettings, FileContent
    from broker.config.values import ConfigNode
    from broker.nats.nats_options import ClusterOptions

_NO_EFFECT: Final = "cluster: %s: no effect; elections and replication are those of JetStream, in the NATS servers"
_COMMA: Final = (
    "Peer name contains ',' make sure you provided an array of peer names, not a string with commas: taken for %d peers"
)
#: sync interval with durable copies; a power failure loses at most the data without such copies, registrations and new
#: subscriptions, of this time
_SYNC_INTERVAL: Final = "1s"
#: limit of servers that hold a stream, and the default for an unknown number of nodes
_MAX_REPLICAS: Final = 5
_USUAL: Final = 3
_OURS: Final = ("nats.name", "nats.profile")
_PLAIN: Final = (ValueType.BOOL, ValueType.INT, ValueType.STRING, ValueType.DURATION)
#: keys of the part `cluster` that are passed unchanged
_ROUTE_KEYS: Final = ("tls", "permissions", "accounts", "pool_size", "compression", "ping_interval", "ping_max")
_OF_JETSTREAM_NOT: Final = ("enabled", "enable", "store_dir", "storedir", "streams_from_channels", "preview_api")
#: command line options that change the part `tls`
_TLS: Final = {"verify": "verify", "cert": "cert_file", "key": "key_file", "ca": "ca_file"}
#: keys of maps; other keys that a variable refers to only define that variable
_KNOWN: Final = frozenset(name for keys in KEYS.values() for name in keys)
_LOG_SIZE: Final = 16 << 20
_LOGS: Final = 2
#: attempts, one per second, between two lines about a lost node
_REPORTS: Final = 60
_BLANK: Final = re.compile(r"\s")


def as_node(options: BrokerOptions, settings: BrokerSettings, file: FileContent) -> BrokerOptions:
    """Returns the options of a node, from those of its file store; UsageError if it could not reach the other nodes."""
    node = settings.of(NodeOptions, "cluster.", log_path=Path())
    named = [each.strip() for name in node.peers for each in name.split(",")]
    peers = tuple(dict.fromkeys(each for each in named if each not in ("", node.node_id)))
    listed, node = node.peers, replace(node, peers=peers)
    external = bool(settings.text("connection.urls"))
    if options.store == FILE:
        options = _on_files(options, settings, file, node, external=external)
    else:
        options = replace(options, node=node)
    given = [
        option.keys[0]
        for name, option in CLUSTER.options
        if option.support is Support.WARNED and settings.given.get(name)
    ]
    warnings = (_NO_EFFECT % ", ".join(given),) if given else ()
    if any("," in each for each in listed):
        warnings = (*warnings, _COMMA % len(peers))
    return replace(options, warnings=(*options.warnings, *warnings))


def _on_files(
    options: BrokerOptions, settings: BrokerSettings, file: FileContent, node: NodeOptions, *, external: bool
) -> BrokerOptions:
    routes = options.nats.cluster
    if node.peers and routes is None and not external:
        raise UsageError(
            f"cluster: nodes {', '.join(node.peers)} cannot be reached: this node's NATS server needs routes to theirs "
            "(cluster { listen, routes }, or --cluster and --routes), or all nodes one NATS server with JetStream "
            "(--nats_server)"
        )
    # On all nodes, as in the original. Nodes that join are not listed anywhere.
    replicas = (
        min(1 + len(node.peers), _MAX_REPLICAS) if node.peers else 1 if routes is None and not external else _USUAL
    )
    assert options.file is not None
    directory = options.file.directory
    log_path = settings.text("cluster.log_path") or f"{settings.text('cluster_id')}/{node.node_id}"
    server = None if external else server_config(settings, file, routes)
    return replace(
        options,
        store=JETSTREAM,
        file=replace(options.file, directory=directory / "copy"),
        channels=ChannelsOptions(replicas, settings.text("jetstream_options.domain")),
        node=replace(node, directory=directory, log_path=Path(log_path), server=server),
    )


def server_config(settings: BrokerSettings, file: FileContent, cluster: ClusterOptions | None) -> dict[str, Any]:
    """Returns the configuration of a node's nats-server, without its name and directory."""
    config: dict[str, Any] = {"reconnect_error_reports": _REPORTS}
    config |= {
        each.keys[0]: f"{value}ns" if each.value_type is ValueType.DURATION else value
        for name, each in (*NATS.options, *NATS_LOGS.options)
        if name.startswith(("nats.", "log.nats_")) and name not in _OURS
        if each.keys and each.value_type in _PLAIN and (value := settings.given.get(name)) is not None
    }
    config |= {"host": settings.text("nats.host"), "port": settings.number("nats.port")}
    config |= {"logfile_size_limit": _LOG_SIZE, "logfile_max_num": _LOGS}
    parts = {name.lower(): node for name, node in file.top.items()}
    wanted = (*NATS_PARTS.keys, "server_tags")
    config |= {name: _value(parts[name]) for name in wanted if name in parts and name not in ("cluster", "jetstream")}
    if user := settings.text("authorization.user"):
        config["authorization"] = {"user": user, "password": settings.text("authorization.password")}
    elif token := settings.text("authorization.token"):
        config["authorization"] = {"token": token}
    if settings.given.get("tls.enabled") is False:
        config.pop("tls", None)
    elif given := {key: value for name, key in _TLS.items() if (value := settings.given.get(f"tls.{name}"))}:
        config["tls"] = {**config.get("tls", {}), **given}
    if cluster is not None:
        config["cluster"] = _routes(cluster, _map(parts.get("cluster")), settings.text("cluster_id"))
    jetstream = {name: value for name, value in _map(parts.get("jetstream")).items() if name not in _OF_JETSTREAM_NOT}
    if settings.switch("cluster.sync"):
        jetstream.setdefault("sync_interval", _SYNC_INTERVAL)
    config["jetstream"] = jetstream
    return config


def _routes(cluster: ClusterOptions, given: Mapping[str, Any], cluster_id: str) -> dict[str, Any]:
    known = {name for name, (setting, _) in ROUTES.keys.items() if setting.removeprefix("routes.") in _ROUTE_KEYS}
    block: dict[str, Any] = {name: value for name, value in given.items() if name in known}
    block |= {
        "name": _BLANK.sub("_", cluster.name or cluster_id),
        "host": cluster.host,
        "port": cluster.port,
        "routes": list(cluster.routes),
        "no_advertise": cluster.no_advertise,
        "connect_retries": cluster.connect_retries,
    }
    if cluster.advertise:
        block["cluster_advertise"] = cluster.advertise
    if cluster.user:
        block["authorization"] = {"user": cluster.user, "password": cluster.password, "timeout": cluster.timeout}
    return block


def _map(node: ConfigNode | None) -> dict[str, Any]:
    value = None if node is None else _value(node)
    return {name.lower(): each for name, each in value.items()} if isinstance(value, dict) else {}


def _value(node: ConfigNode) -> Any:
    value = node.value
    if isinstance(value, dict):
        return {name: _value(each) for name, each in value.items() if not each.used or name.lower() in _KNOWN}
    if isinstance(value, list):
        return [_value(each) for each in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
