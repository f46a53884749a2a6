"""Facts on streams for monitoring (jetstream-server.md section 18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.streams.server import StreamsServer
from broker.streams.stream import Stream
from broker.streams.streaminfo import stream_info
from broker.streams.streams_options import LEVEL

_ACCOUNT: Final = "$G"
_PAGE: Final = 1024
#: parameters that restrict the health check to the server itself
_SKIPPING: Final = ("js-enabled", "js-enabled-only", "js-server-only", "js-meta-only")


def _totals(server: StreamsServer) -> dict[str, Any]:
    found = server.account.as_json()
    return {
        **{name: found[name] for name in ("memory", "storage", "reserved_memory", "reserved_storage")},
        "accounts": 1,
        "ha_assets": 0,
        "api": {"level": LEVEL, "total": server.api.total, "errors": server.api.errors},
    }


def varz(server: StreamsServer) -> dict[str, Any]:
    """Returns the `jetstream` member of `/varz`."""
    return {"config": _config(server), "stats": _totals(server)}


def _config(server: StreamsServer) -> dict[str, Any]:
    limits = server.account.quota.limits
    return {"max_memory": limits.memory, "max_storage": limits.file, "store_dir": server.store_dir}


def jsz(server: StreamsServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Returns totals, and details of streams if the query asks for them.

    Its parameters are `accounts` or `acc`, `streams`, `config`, `limit` and `offset`.
    """
    account = server.account
    contents = [stream.store.contents for stream in account.streams.values()]
    found = {
        "config": _config(server),
        **_totals(server),
        "streams": len(account.streams),
        "consumers": server.consumers.count,
        "messages": sum(each.messages for each in contents),
        "bytes": sum(each.bytes for each in contents),
    }

    def requested(name: str) -> bool:
        return query.get(name, "").lower() in ("1", "true")

    detailed = [requested(name) for name in ("streams", "consumers", "config")]
    if any(detailed) or requested("accounts") or query.get("acc"):
        if query.get("acc", _ACCOUNT) != _ACCOUNT:
            return found
        detail = {"name": _ACCOUNT, "id": _ACCOUNT, **_totals(server)}
        if any(detailed):
            begin, limit = _number(query, "offset", 0), _number(query, "limit", _PAGE)
            streams = account.selected("")[begin : begin + limit]
            # A generator, as there may be thousands of streams.
            detail["stream_detail"] = (
                _stream(server, stream, config=requested("config"), consumers=requested("consumers"))
                for stream in streams
                if not stream.deleted
            )
        found["account_details"] = [detail]
        found["total"] = 1
    return found


def healthz(server: StreamsServer, query: Mapping[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """Returns the status as in HTTP and the problems of streams and consumers, each with `type` and `error`.

    The query selects by `account`, `stream` and `consumer`.
    """
    if any(query.get(name, "")[:1] in ("1", "t", "T") for name in _SKIPPING):
        return 200, []
    place = {name: query[name] for name in ("account", "stream", "consumer") if query.get(name)}
    stream = server.account.streams.get(place.get("stream", ""))
    if place.get("account", _ACCOUNT) != _ACCOUNT:
        return 404, [_not_found("account", place["account"], {"account": place["account"]})]
    if "stream" in place and stream is None:
        place.pop("consumer", None)
        return 404, [_not_found("stream", place["stream"], place, f' on account "{_ACCOUNT}"')]
    if stream is not None and "consumer" in place and place["consumer"] not in server.consumers.of(stream):
        where = f' for stream "{stream.name}" on account "{_ACCOUNT}"'
        return 404, [_not_found("consumer", place["consumer"], place, where)]
    failed = [each for each in ([stream] if stream else server.account.streams.values()) if each.failure]
    found = [
        {"type": "STREAM", "account": _ACCOUNT, "stream": each.name, "error": f'stream "{each.name}": {each.failure}'}
        for each in failed
    ]
    return (503 if found else 200), found


def _not_found(kind: str, name: str, place: dict[str, str], where: str = "") -> dict[str, Any]:
    return {"type": kind.upper(), **place, "error": f'JetStream {kind} "{name}" not found{where}'}


def _stream(server: StreamsServer, stream: Stream, *, config: bool, consumers: bool) -> dict[str, Any]:
    info = stream_info(stream, server.now())
    detail = {"name": stream.name, "created": info["created"], "state": info["state"]}
    if config:
        detail["config"] = info["config"]
    if consumers:
        detail["consumer_detail"] = (
            server.consumers.info(each)
            for name, each in sorted(server.consumers.of(stream).items())
            if server.consumers.of(stream).get(name) is each
        )
    return detail


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else default
