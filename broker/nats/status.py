"""The NATS server's monitoring documents, with their members in the original's order (server-operations.md section 14).

Parameters are those of the URL. A wrong one raises ValueError with the text for the client.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.nats.connection import ClientConnection
from stantools.format.quoting import quote
from stantools.nats import subjects
from stantools.notation import format_go_duration, format_moment, format_uptime

if TYPE_CHECKING:
    from broker.nats.client import BrokerClient, NatsSubscription
    from broker.nats.nats_server import NatsServer
    from broker.nats.routes.link import Route

Document = dict[str, Any]
_SECOND: Final = 1_000_000_000
_LIMIT: Final = 1024
_ACCOUNT: Final = "$G"
_SYSTEM_ACCOUNT: Final = "$SYS"
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
#: Switches of health checks.
_HEALTH: Final = ("details", "js-enabled", "js-enabled-only", "js-server-only", "js-meta-only")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")


def varz(server: NatsServer) -> Document:
    options, now = server.options, time.time_ns()
    counters = server.router.counters
    found: Document = {
        "server_id": server.id,
        "server_name": server.name,
        "version": server.version,
        "proto": 1,
        "go": server.go_version,
        "host": options.host,
        "port": server.port,
    }
    if server.authenticator.required:
        found["auth_required"] = True
    if options.tls is not None:
        found["tls_required"] = True
        if options.tls.verify or options.tls.verify_and_map:
            found["tls_verify"] = True
    if options.client_advertise:
        found["connect_urls"] = [options.client_advertise]
    found["max_connections"] = options.max_connections
    if options.max_subscriptions:
        found["max_subscriptions"] = options.max_subscriptions
    return found | {
        "ping_interval": round(options.ping_interval * _SECOND),
        "ping_max": options.ping_max,
        "http_host": "",
        "http_port": 0,
        "http_base_path": "",
        "https_port": 0,
        "auth_timeout": options.authorization.timeout,
        "max_control_line": options.max_control_line,
        "max_payload": options.max_payload,
        "max_pending": options.max_pending,
        "cluster": _cluster(server),
        "gateway": {},
        "leaf": {},
        "mqtt": {},
        "websocket": {},
        "jetstream": {},
        "tls_timeout": options.tls.timeout if options.tls is not None else 2,
        "write_deadline": round(options.write_deadline * _SECOND),
        "start": format_moment(server.start_time),
        "now": format_moment(now),
        "uptime": format_uptime(now - server.start_time),
        "mem": resident_memory(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,
        "cpu": _cpu.percent(),
        "connections": len(server.clients()),
        "total_connections": server.total_connections,
        "routes": 0 if server.mesh is None else len(server.mesh.routes),
        "remotes": 0,
        "leafnodes": 0,
        "in_msgs": counters.in_msgs,
        "out_msgs": counters.out_msgs,
        "in_bytes": counters.in_bytes,
        "out_bytes": counters.out_bytes,
        "slow_consumers": server.slow_consumers,
        "subscriptions": server.subscriptions.interest.count,
        "http_req_stats": {},
        "config_load_time": format_moment(server.config_time),
        "system_account": _SYSTEM_ACCOUNT,
    }


def connz(server: NatsServer, query: Mapping[str, str]) -> Document:
    """Returns connections. Parameters: `sort`, `auth`, `subs`, `offset`, `limit`, `cid`, `state`, `user`, `acc`."""
    sort, state = query.get("sort", "") or "cid", query.get("state", "").lower() or "open"
    auth = _boolean(query, "auth")
    details = query.get("subs", "").lower() == "detail"
    listed = details or _boolean(query, "subs")
    offset, limit = _integer(query, "offset"), _integer(query, "limit")
    cid = _cid(query)
    if state not in ("open", "closed", "any", "all"):
        raise ValueError(f"Error decoding state for {query['state']}")
    if sort not in _SORTS:
        raise ValueError(f"invalid sorting option: {sort}")
    if sort in ("stop", "reason") and state != "closed":
        raise ValueError(f"sort by {sort} only valid on closed connections")
    found: list[BrokerClient] = []
    if state != "closed":
        found += server.clients()
    if state != "open":
        found += server.closed
    if cid:
        found = [client for client in found if client.cid == cid]
    if user := query.get("user", ""):
        found = [client for client in found if client.user == user]
    if query.get("acc", _ACCOUNT) not in ("", _ACCOUNT):
        found = []
    key, backwards = _SORTS[sort]
    found.sort(key=key, reverse=backwards)
    offset, limit = max(offset, 0), limit if limit > 0 else _LIMIT
    if cid:
        limit = 1
    page = found[offset : offset + limit]
    return {
        "server_id": server.id,
        "now": format_moment(time.time_ns()),
        "num_connections": len(page),
        "total": len(found),
        "offset": offset,
        "limit": limit,
        "connections": (_connection(client, auth, listed, details) for client in page),
    }


def _connection(client: BrokerClient, auth: bool, listed: bool, details: bool) -> Document:
    socket = client if isinstance(client, ClientConnection) else None
    stop = socket.stop if socket is not None and socket.closed else 0
    until = stop or time.time_ns()
    found: Document = {
        "cid": client.cid,
        "kind": "Client",
        "type": "nats",
        "ip": client.host,
        "port": client.port,
        "start": format_moment(client.start),
        "last_activity": format_moment(client.last_activity),
    }
    if stop and socket is not None:
        found |= {"stop": format_moment(stop), "reason": str(socket.reason)}
    counters = client.counters
    found |= {
        "rtt": format_go_duration(client.rtt),
        "uptime": format_uptime(until - client.start),
        "idle": format_uptime(until - client.last_activity),
        "pending_bytes": client.pending,
        "in_msgs": counters.in_msgs,
        "out_msgs": counters.out_msgs,
        "in_bytes": counters.in_bytes,
        "out_bytes": counters.out_bytes,
        "subscriptions": len(client.subscriptions),
    }
    for name, value in (("name", client.name), ("lang", client.lang), ("version", client.version)):
        if value:
            found[name] = value
    if socket is not None and socket.tls_version:
        found["tls_version"], found["tls_cipher_suite"] = socket.tls_version, socket.tls_cipher
    if auth and client.user:
        found["authorized_user"] = client.user
    if listed and client.subscriptions:
        held = list(client.subscriptions.values())
        if details:
            found["subscriptions_list_detail"] = (_subscription(each) for each in held)
        else:
            found["subscriptions_list"] = (_text(each.subject) for each in held)
    return found


def _subscription(subscription: NatsSubscription) -> Document:
    found: Document = {"subject": _text(subscription.subject)}
    if subscription.queue:
        found["qgroup"] = _text(subscription.queue)
    found |= {"sid": _text(subscription.sid), "msgs": subscription.delivered}
    if subscription.limit:
        found["max"] = subscription.limit
    return found | {"cid": subscription.client.cid}


_Key = Callable[["BrokerClient"], Any]


def _stopped(client: BrokerClient) -> int:
    return client.stop if isinstance(client, ClientConnection) else 0


#: Sort keys of connections, and whether the order is descending.
_SORTS: Final[dict[str, tuple[_Key, bool]]] = {
    "cid": (lambda c: c.cid, False),
    "start": (lambda c: (c.start, c.cid), False),
    "subs": (lambda c: len(c.subscriptions), True),
    "pending": (lambda c: c.pending, True),
    "msgs_to": (lambda c: c.counters.out_msgs, True),
    "msgs_from": (lambda c: c.counters.in_msgs, True),
    "bytes_to": (lambda c: c.counters.out_bytes, True),
    "bytes_from": (lambda c: c.counters.in_bytes, True),
    "last": (lambda c: c.last_activity, True),
    "idle": (lambda c: c.last_activity, False),
    "uptime": (lambda c: c.start - (_stopped(c) or time.time_ns()), False),
    "stop": (_stopped, False),
    "reason": (lambda c: str(c.reason) if isinstance(c, ClientConnection) else "", False),
}


def routez(server: NatsServer, query: Mapping[str, str]) -> Document:
    detail = query.get("subs", "").lower() == "detail"
    listed = detail or _boolean(query, "subs")
    links = [] if server.mesh is None else server.mesh.routes
    routes = (_route(link, listed=listed) for link in list(links))
    return {"server_id": server.id, "now": format_moment(time.time_ns()), "num_routes": len(links), "routes": routes}


def _route(link: Route, *, listed: bool) -> Document:
    now, counters = time.time_ns(), link.counters
    view: Document = {
        "rid": link.number,
        "remote_id": link.remote_id,
        "remote_name": str(link.remote.get("server_name", "")),
        "did_solicit": link.url is not None,
        "is_configured": link.configured,
        "ip": link.host,
        "port": link.port,
        "start": format_moment(link.start),
        "rtt": format_go_duration(link.rtt),
        "uptime": format_uptime(now - link.start),
        "pending_size": link.pending,
        "in_msgs": counters.in_msgs,
        "out_msgs": counters.out_msgs,
        "in_bytes": counters.in_bytes,
        "out_bytes": counters.out_bytes,
        "subscriptions": len(link.wishes),
    }
    if listed:
        view["subscriptions_list"] = (subject.decode(errors="replace") for subject, _ in list(link.wishes))
    return view


def _cluster(server: NatsServer) -> Document:
    """Returns the listen address of routes; empty without routes."""
    mesh = server.mesh
    if mesh is None:
        return {}
    cluster = mesh.cluster
    view: Document = {
        "name": mesh.name,
        "addr": cluster.host,
        "cluster_port": mesh.port,
        "auth_timeout": cluster.timeout,
    }
    if mesh.urls:
        view["urls"] = mesh.urls
    if cluster.tls is not None:
        view |= {"tls_timeout": cluster.tls.timeout, "tls_required": True, "tls_verify": True}
    return view


def subsz(server: NatsServer, query: Mapping[str, str]) -> Document:
    """Returns numbers of subscriptions, and with `subs` the subscriptions.

    Parameters: `subs`, `test` (only subscriptions that match this subject), `acc`, `offset`, `limit`.
    """
    listed = _boolean(query, "subs")
    offset, limit = max(_integer(query, "offset"), 0), _integer(query, "limit")
    limit = limit if limit > 0 else _LIMIT
    test = query.get("test", "").encode()
    if test and not subjects.valid_subject(test):
        raise ValueError(f"invalid test subject, must be valid publish subject: {query['test']}")
    numbers = asdict(server.subscriptions.statistics(server.router.counters.in_msgs))
    ours = query.get("acc", "") in ("", _ACCOUNT)
    if not ours:
        numbers = dict.fromkeys(numbers, 0)
    if not listed and not test:
        return numbers
    subscriptions: Iterable[NatsSubscription] = ()
    if ours and test:
        found = server.subscriptions.interest.match(test)
        subscriptions = sorted((*found.plain, *chain(*found.queues)), key=lambda each: each.client.cid)
    elif ours:
        subscriptions = (each for client in server.clients() for each in client.subscriptions.values())
    chosen = list(islice(subscriptions, offset, offset + limit))
    return {
        "server_id": server.id,
        "now": format_moment(time.time_ns()),
        **numbers,
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
        "subscriptions_list": ({"account": _ACCOUNT} | _subscription(each) for each in chosen),
    }


def healthz(server: NatsServer, query: Mapping[str, str]) -> tuple[int, list[Document]]:
    """Returns a status as in HTTP, 200 if healthy, and the problems, each with `type` and `error`.

    Parameters: `account`, `stream`, `consumer`, and switches.
    """
    for name in _HEALTH:
        _boolean(query, name)
    for of, name in (("consumer", "stream"), ("stream", "account")):
        if query.get(of) and not query.get(name):
            return 400, [{"type": "BAD_REQUEST", "error": f'"{name}" must not be empty when checking {of} health'}]
    if not server.listening:
        return 503, [{"type": "CONNECTION", "error": "not listening for clients"}]
    return 200, []


# Parameters


def _boolean(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "")
    if text in _TRUE:
        return True
    if not text or text in _FALSE:
        return False
    raise _parameter_error("boolean", name, "ParseBool", text)


def _integer(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    digits = text[1:] if text[0] in "+-" else text
    if not (digits.isascii() and digits.isdigit()):
        raise _parameter_error("int", name, "Atoi", text)
    if len(digits) > 18:
        raise _parameter_error("int", name, "Atoi", text, "value out of range")
    return int(text)


def _cid(query: Mapping[str, str]) -> int:
    text = query.get("cid", "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _parameter_error("uint64", "cid", "ParseUint", text)
    return int(text)


def _parameter_error(kind: str, name: str, function: str, text: str, problem: str = "invalid syntax") -> ValueError:
    return ValueError(f"Error decoding {kind} for '{name}': strconv.{function}: parsing {quote(text[:100])}: {problem}")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


# Times and measurements


def resident_memory() -> int:
    """Returns the resident memory of this process in bytes; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Cpu:
    """The processor time of this process, as a share of the time since the last call (at least a second)."""

    def __init__(self) -> None:
        self._at, self._used, self._percent = time.monotonic(), time.process_time(), 0.0

    def percent(self) -> float:
        now = time.monotonic()
        if now - self._at >= 1:
            used = time.process_time()
            self._percent = round(100 * (used - self._used) / (now - self._at), 1)
            self._at, self._used = now, used
        return self._percent


_cpu = _Cpu()
