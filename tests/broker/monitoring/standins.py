"""Servers that are not there: views that serve what a real server once said (golden `monitoring` parts)."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from broker.monitoring.monitoring_server import MonitoringServer
from tests.conftest import GOLDEN

SUBSCRIPTION = {
    "client_id": "app-1",
    "inbox": "_INBOX.e3zmBpnPjgQjYDDDN764SF",
    "ack_inbox": "_INBOX.i72CjO6NCF6RvYWfzrKVCp",
    "durable_name": "audit",
    "is_durable": True,
    "is_offline": False,
    "max_inflight": 3,
    "ack_wait": 30,
    "last_sent": 3,
    "pending_count": 3,
    "is_stalled": True,
}
MEMBER = {
    "client_id": "app-2",
    "inbox": "_INBOX.765h5dMq5hSFgtbNgy15Pw",
    "ack_inbox": "_INBOX.i72CjO6NCF6RvYWfzrKVIN",
    "queue_name": "w2:g2",
    "is_durable": True,
    "is_offline": True,
    "max_inflight": 1024,
    "ack_wait": 30,
    "last_sent": 5,
    "pending_count": 0,
    "is_stalled": False,
}


def _sample() -> dict[str, Any]:
    head = {"cluster_id": "test-cluster", "server_id": "i72CjO6NCF6RvYWfzrKV8f", "now": "2026-11-21T00:01:00.125Z"}
    return {
        "serverz": {
            "cluster_id": "test-cluster",
            "server_id": "i72CjO6NCF6RvYWfzrKV8f",
            "version": "0.23.2",
            "go": "go1.19.8",
            "state": "STANDALONE",
            "now": "2026-11-21T00:01:00.125821289Z",
            "start_time": "2026-11-21T00:00:59.747387842Z",
            "uptime": "0s",
            "clients": 2,
            "subscriptions": 3,
            "channels": 2,
            "total_msgs": 6,
            "total_bytes": 423,
            "in_msgs": 6,
            "in_bytes": 243,
            "out_msgs": 8,
            "out_bytes": 256,
            "open_fds": 28,
            "max_fds": 20000,
        },
        "storez": head
        | {
            "type": "FILE",
            "limits": {
                "max_channels": 100,
                "max_msgs": 1000000,
                "max_bytes": 1024000000,
                "max_age": 90_000_000_000,
                "max_subscriptions": 1000,
                "max_inactivity": 0,
            },
            "total_msgs": 6,
            "total_bytes": 423,
        },
        "clientsz": head
        | {
            "clients": [
                {
                    "id": "app-1",
                    "hb_inbox": "_INBOX.a",
                    "subs_count": 1,
                    "subscriptions": {"orders.eu": [SUBSCRIPTION]},
                },
                {"id": "app-2", "hb_inbox": "_INBOX.765h5dMq5hSFgtbNgy14xs", "subs_count": 0},
            ]
        },
        "channelsz": head
        | {
            "channels": [
                {"name": '<b>&"\\', "msgs": 1, "bytes": 63, "first_seq": 1, "last_seq": 1, "subs_count": 0},
                {
                    "name": "orders.eu",
                    "msgs": 5,
                    "bytes": 360,
                    "first_seq": 3,
                    "last_seq": 7,
                    "subs_count": 2,
                    "subscriptions": [SUBSCRIPTION, MEMBER],
                },
            ]
        },
    }


@dataclass
class Streaming:
    """Views of a streaming server that knows two channels and two clients, or what it is given."""

    documents: dict[str, Any] = field(default_factory=_sample)
    fails: bool = False

    @classmethod
    def golden(cls, case: str) -> Streaming:
        return cls(json.loads((GOLDEN / case / "expected.json").read_text())["monitoring"])

    def serverz(self, _: Any) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("the server is on fire")
        return self.documents["serverz"]

    def configured_cluster_id(self, _: Any) -> str:
        return "test-cluster"

    def counters(self, _: Any) -> tuple[int, int]:
        server = self.documents["serverz"]
        return server["in_msgs"], server["out_msgs"]

    def storez(self, _: Any) -> dict[str, Any]:
        return self.documents["storez"]

    def clientsz(self, _: Any, offset: int, limit: int, subs: bool) -> dict[str, Any]:
        return self._page("clientsz", "clients", offset, limit, subs)

    def client(self, _: Any, client_id: bytes, subs: bool) -> dict[str, Any] | None:
        return self._one("clientsz", "clients", "id", client_id, subs)

    def channelsz(self, _: Any, offset: int, limit: int, subs: bool) -> dict[str, Any]:
        page = self._page("channelsz", "channels", offset, limit, True)
        if not subs:
            page["names"] = [each["name"] for each in page.pop("channels")]
        return {name: value for name, value in page.items() if value != [] or name not in ("names", "channels")}

    def channel(self, _: Any, name: bytes, subs: bool) -> dict[str, Any] | None:
        return self._one("channelsz", "channels", "name", name, subs)

    def _page(self, what: str, member: str, offset: int, limit: int, subs: bool) -> dict[str, Any]:
        document = copy.deepcopy(self.documents[what])
        everything = document.pop(member)
        head = {name: document[name] for name in ("cluster_id", "server_id", "now")}
        found = everything[offset : offset + limit]
        counts = {"offset": offset, "limit": limit, "count": len(found), "total": len(everything)}
        return head | counts | {member: [_without(each, subs) for each in found]}

    def _one(self, what: str, member: str, key: str, name: bytes, subs: bool) -> dict[str, Any] | None:
        for each in self.documents[what][member]:
            if each[key].encode() == name:
                return _without(each, subs)
        return None


def _without(entry: dict[str, Any], subs: bool) -> dict[str, Any]:
    return entry if subs else {name: value for name, value in entry.items() if name != "subscriptions"}


class Nats:
    """Views of a NATS server."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.status = "ok"

    def varz(self, _: Any) -> dict[str, Any]:
        return {
            "server_id": "NB6E",
            "server_name": "NB6E",
            "version": "2.9.24",
            "http_host": "",
            "http_port": 0,
            "http_base_path": "",
            "https_port": 0,
            "cluster": {},
            "start": "2026-11-21T09:24:07.395682623Z",
            "now": "2026-11-21T09:24:08.41481739Z",
            "mem": 11915264,
            "cpu": 0.0,
            "connections": 4,
            "total_connections": 9,
            "in_msgs": 3,
            "out_msgs": 4,
            "in_bytes": 30,
            "out_bytes": 40,
            "slow_consumers": 0,
            "subscriptions": 7,
            "http_req_stats": {},
            "system_account": "$SYS",
        }

    def connz(self, _: Any, query: dict[str, str]) -> dict[str, Any]:
        self.asked.append(query)
        if "sort" in query:
            raise ValueError(f"invalid sorting option: {query['sort']}")
        return {"server_id": "NB6E", "num_connections": 0, "connections": []}

    def routez(self, _: Any, query: dict[str, str]) -> dict[str, Any]:
        return {"server_id": "NB6E", "num_routes": 0, "routes": []}

    def subsz(self, _: Any, query: dict[str, str]) -> dict[str, Any]:
        return {"num_subscriptions": 7, "cache_hit_rate": 0.8, "max_fanout": 1}

    def healthz(self, _: Any, query: dict[str, str]) -> tuple[int, list[dict[str, Any]]]:
        return (200, []) if self.status == "ok" else (503, [{"type": "CONNECTION", "error": self.status}])


@contextlib.asynccontextmanager
async def monitoring(
    streaming: Streaming | None = None,
    nats: Nats | None = None,
    base_path: str = "",
    tls: Any = None,
) -> AsyncIterator[MonitoringServer]:
    """A monitoring server on a free port, for servers that are not there."""
    server = MonitoringServer(
        object(), object(), base_path, nats_views=nats or Nats(), streaming_views=streaming or Streaming()
    )
    await server.start("127.0.0.1", 0, tls)
    try:
        yield server
    finally:
        await server.stop()


@dataclass
class Got:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def get(port: int, target: str, method: str = "GET", ssl: Any = None, body: bytes = b"") -> Got:
    """Asks, exactly as told."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ssl)
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode("latin-1") + body)
    raw = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    head_bytes, _, content = raw.partition(b"\r\n\r\n")
    lines = head_bytes.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return Got(int(lines[0].split(" ")[1]), headers, content)
