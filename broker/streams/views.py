"""What monitoring says of streams (jetstream-server.md section 18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.streams.options import LEVEL
from broker.streams.server import StreamsServer
from broker.streams.stream import Stream
from broker.streams.streaminfo import stream_info

_ACCOUNT: Final = "$G"
_PAGE: Final = 1024


def _totals(server: StreamsServer) -> dict[str, Any]:
    found = server.account.as_json()
    return {
        **{name: found[name] for name in ("memory", "storage", "reserved_memory", "reserved_storage")},
        "accounts": 1,
        "ha_assets": 0,
        "api": {"level": LEVEL, "total": server.api.total, "errors": server.api.errors},
    }


def varz(server: StreamsServer) -> dict[str, Any]:
    """Returns what stands under `jetstream` among the general facts."""
    return {"config": _config(server), "stats": _totals(server)}


def _config(server: StreamsServer) -> dict[str, Any]:
    limits = server.account.room.limits
    return {"max_memory": limits.memory, "max_storage": limits.file, "store_dir": server.store_dir}


def jsz(server: StreamsServer, query: Mapping[str, str]) -> dict[str, Any]:
    """Returns totals, and what is asked for: streams of the account, their configurations.

    Args:
        server: The streams.
        query: `accounts` or `acc`, `streams`, `config`, `limit` and `offset`.
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

    def asked(name: str) -> bool:
        return query.get(name, "").lower() in ("1", "true")

    detailed = [asked(name) for name in ("streams", "consumers", "config")]
    if any(detailed) or asked("accounts") or query.get("acc"):
        if query.get("acc", _ACCOUNT) != _ACCOUNT:
            return found
        detail = {"name": _ACCOUNT, "id": _ACCOUNT, **_totals(server)}
        if any(detailed):
            begin, limit = _number(query, "offset", 0), _number(query, "limit", _PAGE)
            streams = account.selected("")[begin : begin + limit]
            detail["stream_detail"] = [
                _stream(server, stream, config=asked("config"), consumers=asked("consumers")) for stream in streams
            ]
        found["account_details"] = [detail]
        found["total"] = 1
    return found


def _stream(server: StreamsServer, stream: Stream, *, config: bool, consumers: bool) -> dict[str, Any]:
    info = stream_info(stream, server.now())
    detail = {"name": stream.name, "created": info["created"], "state": info["state"]}
    if config:
        detail["config"] = info["config"]
    if consumers:
        detail["consumer_detail"] = [
            server.consumers.info(each) for _, each in sorted(server.consumers.of(stream).items())
        ]
    return detail


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else default
