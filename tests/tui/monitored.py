"""A monitoring server with figures of our choice, in the form of the original's (server-operations.md section 14)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.tui.conftest import until

#: Status, content type and body of an answer.
Reply = tuple[int, str, bytes]


def server_document(**more: Any) -> dict[str, Any]:
    """`serverz` of a standalone server, with other members where they are given."""
    return {
        "cluster_id": "test-cluster",
        "server_id": "i72CjO6NCF6RvYWfzrKV8f",
        "version": "0.25.6",
        "go": "go1.20.5",
        "state": "STANDALONE",
        "now": "2026-11-21T00:01:00.125821289Z",
        "start_time": "2026-11-20T22:00:59.747387842Z",
        "uptime": "2h0m1s",
        "clients": 2,
        "subscriptions": 5,
        "channels": 2,
        "total_msgs": 6,
        "total_bytes": 423,
        "in_msgs": 6,
        "in_bytes": 243,
        "out_msgs": 8,
        "out_bytes": 256,
        "open_fds": 28,
        "max_fds": 20000,
    } | more


def store_document() -> dict[str, Any]:
    """`storez` with the default limits."""
    limits = {
        "max_channels": 100,
        "max_msgs": 1000000,
        "max_bytes": 1024000000,
        "max_age": 0,
        "max_subscriptions": 1000,
        "max_inactivity": 0,
    }
    return {"cluster_id": "test-cluster", "type": "FILE", "limits": limits, "total_msgs": 6, "total_bytes": 423}


def nats_document() -> dict[str, Any]:
    """The members of `varz` that are used, and one that is not."""
    return {
        "server_id": "NB6E",
        "version": "2.9.24",
        "connections": 6,
        "mem": 20 << 20,
        "cpu": 1.5,
        "slow_consumers": 0,
        "jetstream": {},
    }


def subscription(client: str, name: str = "", **more: Any) -> dict[str, Any]:
    """A subscription of a channel: a durable if it has a name."""
    found: dict[str, Any] = {
        "client_id": client,
        "inbox": f"_INBOX.{client}.{name or 'plain'}",
        "ack_inbox": f"_INBOX.acks.{client}.{name or 'plain'}",
        "is_durable": bool(name),
        "is_offline": False,
        "max_inflight": 1024,
        "ack_wait": 30,
        "last_sent": 0,
        "pending_count": 0,
        "is_stalled": False,
    }
    if name:
        found["durable_name"] = name
    return found | more


def channel(name: str, last: int = 0, *subscriptions: dict[str, Any], first: int = 1, **more: Any) -> dict[str, Any]:
    """A channel with messages from `first` to `last`."""
    count = max(last - first + 1, 0)
    found: dict[str, Any] = {
        "name": name,
        "msgs": count,
        "bytes": count * 72,
        "first_seq": first if count else 0,
        "last_seq": last,
        "subs_count": len(subscriptions),
    }
    if subscriptions:
        found["subscriptions"] = list(subscriptions)
    return found | more


class Figures:
    """What a server shows. Members may be changed while it is looked at.

    Attributes:
        server: `serverz`.
        store: `storez`.
        nats: `varz`; None if there is none.
        channels: Documents of channels, in order.
        clients: Documents of clients, in order.
        instead: Path -> what is answered instead.
        asked: What was asked for, without `now`.
    """

    def __init__(self) -> None:
        self.server = server_document()
        self.store = store_document()
        self.nats: dict[str, Any] | None = nats_document()
        self.channels: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []
        self.instead: dict[str, Callable[[], Reply] | Reply] = {}
        self.asked: list[str] = []

    def answer(self, target: str) -> Reply:
        """Answers a request."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.asked.append(target)
        instead = self.instead.get(parts.path) or self.instead.get("*")
        if instead is not None:
            return instead() if callable(instead) else instead
        documents: dict[str, Callable[[], dict[str, Any] | None]] = {
            "/streaming/serverz": lambda: self.server,
            "/streaming/storez": lambda: self.store,
            "/streaming/channelsz": lambda: self._page("channels", self.channels, query),
            "/streaming/clientsz": lambda: self._page("clients", self.clients, query),
            "/varz": lambda: self.nats,
        }
        document = documents.get(parts.path, lambda: None)()
        if document is None:
            return 404, "text/plain", b"404 page not found\n"
        return 200, "application/json", json.dumps(document, indent=2).encode()

    def _page(self, name: str, entries: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 1024))
        page = entries[offset : offset + limit]
        head = {"cluster_id": "test-cluster", "offset": offset, "limit": limit, "count": len(page)}
        head["total"] = len(entries)
        if name == "channels" and query.get("subs") != "1":
            return head | ({"names": [each["name"] for each in page]} if page else {})
        return head | ({name: page} if page or name == "clients" else {})


class MonitoredServer(Figures):
    """The figures behind a port of their own. A context manager.

    Args:
        port: A free one by default.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        figures = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                figures._connections.append(self.connection)

            def do_GET(self) -> None:
                figures.headers = dict(self.headers)
                status, kind, body = figures.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                for name, value in figures.more_headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._connections: list[socket.socket] = []
        self.headers: dict[str, str] = {}
        self.more_headers: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        # Whoever watches may go at any time: no trace of that belongs on the terminal.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign, assignment]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        for each in self._connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


async def settle(pilot: Any) -> None:
    """Waits until the screen is laid out: figures that came last may have made their lines higher."""
    from tui.widgets.line import TextLine

    def laid_out() -> bool:
        # Of figures no line is ever broken in two.
        heads = [line for line in pilot.app.screen.query(TextLine) if line.id == "live-head" and line.display]
        return all(line.size.height == len(str(line.content).splitlines()) for line in heads)

    await until(pilot, laid_out)


def usual_figures(figures: Figures) -> None:
    """Figures of a server with something of everything: stalled, offline, groups, names that are not nice."""
    group = {"queue_name": "workers:group", "is_durable": True}
    figures.channels = [
        channel("alerts", 85),
        channel("audit.[bold]\x1b[31m", 3),
        channel(
            "orders",
            5_000,
            subscription("app-1", "audit", last_sent=3, pending_count=3, max_inflight=3, is_stalled=True),
            subscription("app-1", last_sent=5_000),
            subscription("app-2", "nightly", last_sent=4_000, is_offline=True),
            subscription("app-2", last_sent=4_990, pending_count=4, **group),
            subscription("app-3", last_sent=4_998, pending_count=2, **group),
            first=4_001,
        ),
    ]
    figures.clients = [
        {"id": "app-1", "hb_inbox": "_INBOX.hb1", "subs_count": 2},
        {"id": "app-2", "hb_inbox": "_INBOX.hb2", "subs_count": 1},
        {"id": "app-3", "hb_inbox": "_INBOX.hb3", "subs_count": 1},
    ]
    figures.server = server_document(
        channels=3, clients=3, total_msgs=1_088, total_bytes=78_336, in_msgs=5_088, out_msgs=9_000
    )
