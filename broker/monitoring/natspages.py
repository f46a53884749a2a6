"""Endpoints of the NATS server (server-operations.md section 14)."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.monitoring.gojson import compact
from broker.monitoring.query import Query
from broker.monitoring.replies import HTML, Answer, Reply, document, refusal, text
from broker.monitoring.sources import NatsViews
from broker.monitoring.startpage import page

_LINKS: Final = (
    ("varz", "General"),
    ("jsz", "JetStream"),
    ("connz", "Connections"),
    ("accountz", "Accounts"),
    ("accstatz", "Account Stats"),
    ("subsz", "Subscriptions"),
    ("routez", "Routes"),
    ("leafz", "LeafNodes"),
    ("gatewayz", "Gateways"),
    ("healthz", "Health Probe"),
)
#: Accounts are not there; a server without any shows these two.
_ACCOUNTS: Final = ("$G", "$SYS")
_SYSTEM_ACCOUNT: Final = "$SYS"


class NatsPages:
    """Answers what is asked about a NATS server.

    Args:
        server: The NATS server.
        views: What makes documents about it.
        base_path: In front of all paths.
    """

    def __init__(self, server: Any, views: NatsViews, base_path: str = "") -> None:
        self._server = server
        self._views = views
        base = "/" + base_path.strip("/") if base_path.strip("/") else ""
        self._base = base
        #: What varz says about monitoring itself.
        self.listening: dict[str, Any] = {}
        self._requests: dict[str, int] = {}
        self.paths: dict[str, Callable[[Query], Reply | Answer]] = {base or "/": self._root}
        for path, handler in (
            ("/varz", self._varz),
            ("/connz", self._connz),
            ("/routez", self._routez),
            ("/subsz", self._subsz),
            ("/subscriptionsz", self._subsz),
            ("/healthz", self._healthz),
            ("/gatewayz", self._gatewayz),
            ("/leafz", self._leafz),
            ("/accountz", self._accountz),
            ("/accstatz", self._accstatz),
            ("/jsz", self._jsz),
            ("/ipqueuesz", self._ipqueuesz),
            ("/stacksz", self._stacksz),
        ):
            self.paths[base + path] = handler

    def _count(self, path: str) -> None:
        self._requests[path] = self._requests.get(path, 0) + 1

    def _root(self, _: Query) -> Reply:
        self._count("/")
        # Relative to `/base` the links would lead past it.
        prefix = f"{self._base.rpartition('/')[2]}/" if self._base else ""
        return Reply(200, page("NATS", [(prefix + path, what) for path, what in _LINKS]), HTML)

    def _varz(self, _: Query) -> Answer:
        self._count("/varz")
        varz = dict(self._views.varz(self._server))
        varz.update(self.listening)
        varz["http_req_stats"] = dict(sorted(self._requests.items()))
        return Answer(varz)

    def _connz(self, query: Query) -> Reply | Answer:
        return self._asked("/connz", self._views.connz, query)

    def _routez(self, query: Query) -> Reply | Answer:
        return self._asked("/routez", self._views.routez, query)

    def _subsz(self, query: Query) -> Reply | Answer:
        return self._asked("/subsz", self._views.subsz, query)

    def _asked(
        self, path: str, view: Callable[[Any, dict[str, str]], Mapping[str, Any]], query: Query
    ) -> Reply | Answer:
        self._count(path)
        try:
            return Answer(view(self._server, query.texts()))
        except ValueError as wrong:
            return refusal(str(wrong))

    def _healthz(self, query: Query) -> Reply:
        self._count("/healthz")
        health = self._views.healthz(self._server)
        return document(compact(health), query, 200 if health.get("status") == "ok" else 503)

    def _about(self) -> dict[str, Any]:
        varz = self._views.varz(self._server)
        return {"server_id": varz.get("server_id", ""), "now": varz.get("now", "")}

    def _gatewayz(self, _: Query) -> Answer:
        self._count("/gatewayz")
        return Answer(self._about() | {"outbound_gateways": {}, "inbound_gateways": {}})

    def _leafz(self, _: Query) -> Answer:
        self._count("/leafz")
        return Answer(self._about() | {"leafnodes": 0, "leafs": None})

    def _accountz(self, query: Query) -> Reply | Answer:
        self._count("/accountz")
        name = query.text("acc")
        about = self._about() | {"system_account": _SYSTEM_ACCOUNT}
        if not name:
            return Answer(about | {"accounts": list(_ACCOUNTS)})
        if name not in _ACCOUNTS:
            return refusal(f"Account {name} does not exist")
        varz = self._views.varz(self._server)
        used = name != _SYSTEM_ACCOUNT
        detail = {
            "account_name": name,
            "update_time": varz.get("start", ""),
            "is_system": not used,
            "expired": False,
            "complete": True,
            "jetstream_enabled": False,
            "leafnode_connections": 0,
            "client_connections": varz.get("connections", 0) if used else 0,
            "subscriptions": varz.get("subscriptions", 0) if used else 0,
        }
        if used:
            del detail["is_system"]
        return Answer(about | {"account_detail": detail})

    def _accstatz(self, _: Query) -> Answer:
        self._count("/accstatz")
        return Answer(self._about() | {"account_statz": []})

    def _jsz(self, _: Query) -> Answer:
        self._count("/jsz")
        counts = dict.fromkeys(("memory", "storage", "reserved_memory", "reserved_storage", "accounts", "ha_assets"), 0)
        return Answer(
            self._about()
            | {"disabled": True, "config": {"max_memory": 0, "max_storage": 0}}
            | counts
            | {"api": {"total": 0, "errors": 0}}
            | dict.fromkeys(("streams", "consumers", "messages", "bytes"), 0)
        )

    def _ipqueuesz(self, _: Query) -> Answer:
        self._count("/ipqueuesz")
        return Answer({})

    def _stacksz(self, _: Query) -> Reply:
        """Says what the process is doing: stacks of its threads and tasks, without values."""
        self._count("/stacksz")
        found = io.StringIO()
        for number, frame in sys._current_frames().items():
            print(f"thread {number}:", file=found)
            traceback.print_stack(frame, file=found)
        with contextlib.suppress(RuntimeError):
            for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name)[:1000]:
                print(f"task {task.get_name()}:", file=found)
                task.print_stack(limit=20, file=found)
        return text(found.getvalue().encode(errors="replace"))
