"""Endpoints of both servers (server-operations.md section 14), and the live page `/streaming/ui`.

A page gets the query and returns a document, or a complete `Reply`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache, partial
from html import escape
from typing import Any, Final

from broker.monitoring.http import HTML, QueryParameters, Reply, compact, document, integer, problem, refusal, text
from broker.monitoring.rates import RateHistory

Page = Callable[[QueryParameters], Any]

_NATS_LINKS: Final = (
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
#: accounts are not implemented; a server without any shows these two
_ACCOUNTS: Final = ("$G", "$SYS")
_BAD_REQUEST: Final = 400
#: values of a switch that is on
_ON: Final = ("1", "t", "T", "TRUE", "true", "True")
_SYSTEM_ACCOUNT: Final = "$SYS"
_NO_JETSTREAM: Final[dict[str, Any]] = {
    "disabled": True,
    "config": {"max_memory": 0, "max_storage": 0},
    **dict.fromkeys(("memory", "storage", "reserved_memory", "reserved_storage", "accounts", "ha_assets"), 0),
    "api": {"total": 0, "errors": 0},
    **dict.fromkeys(("streams", "consumers", "messages", "bytes"), 0),
}
_ROOT: Final = "/streaming"
_STREAMING_LINKS: Final = (
    ("streaming/serverz", "server"),
    ("streaming/storez", "store"),
    ("streaming/clientsz", "clients"),
    ("streaming/channelsz", "channels"),
    ("streaming/ui", "live page: channels, rates, clients and lag"),
)
#: the same for the path with a slash at its end
_RELATIVE_LINKS: Final = tuple((path.removeprefix("streaming/"), what) for path, what in _STREAMING_LINKS)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{theme}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<section>
<ul>
{items}
</ul>
</section>
</main>
</body>
</html>
"""
#: only own resources are loaded, and text from names is never executed
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
#: package and file of the look of all pages
_THEME: Final = ("stantools.pages", "templates/theme.css")
_FILES: Final = {
    "/streaming/ui": (("broker.monitoring", "page/ui.html"), HTML),
    "/streaming/ui.css": ((*_THEME, "broker.monitoring", "page/ui.css"), "text/css; charset=utf-8"),
    "/streaming/ui.js": (("broker.monitoring", "page/ui.js"), "text/javascript; charset=utf-8"),
}


class NatsPages:
    """Pages of a NATS server.

    `status` make its documents, as `broker.nats.status`; `base_path` is a prefix of all paths; `streams` may be None.
    With `live_page`, the first page links to that of the streaming server.
    """

    def __init__(
        self, server: Any, views: Any, base_path: str = "", streams: Any = None, *, live_page: bool = False
    ) -> None:
        self._live_page = live_page
        self._server = server
        self._streams = streams
        self._views = views
        self._base = base = "/" + base_path.strip("/") if base_path.strip("/") else ""
        #: monitoring's own address, for varz
        self.listening: dict[str, Any] = {}
        self._requests: dict[str, int] = {}
        subsz = self._counted("/subsz", self._asked(views.subsz))
        self.paths: dict[str, Page] = {
            base or "/": self._counted("/", self._root),
            f"{base}/subsz": subsz,
            f"{base}/subscriptionsz": subsz,
        }
        for path, page in (
            ("/varz", self._varz),
            ("/connz", self._asked(views.connz)),
            ("/routez", self._asked(views.routez)),
            ("/healthz", self._healthz),
            ("/gatewayz", lambda _: self._about() | {"outbound_gateways": {}, "inbound_gateways": {}}),
            ("/leafz", lambda _: self._about() | {"leafnodes": 0, "leafs": None}),
            ("/accountz", self._accountz),
            ("/accstatz", lambda _: self._about() | {"account_statz": []}),
            ("/jsz", self._jsz),
            ("/ipqueuesz", lambda _: {}),
            ("/stacksz", _stacks),
        ):
            self.paths[base + path] = self._counted(path, page)

    def _counted(self, path: str, page: Page) -> Page:
        def counted(query: QueryParameters) -> Any:
            self._requests[path] = self._requests.get(path, 0) + 1
            return page(query)

        return counted

    def _asked(self, view: Callable[[Any, dict[str, str]], Any]) -> Page:
        def page(query: QueryParameters) -> Any:
            try:
                return view(self._server, query.texts())
            except ValueError as wrong:
                return refusal(str(wrong))

        return page

    def _root(self, _: QueryParameters) -> Reply:
        # the links are relative: without this, those on `/base` would lead outside of it
        prefix = f"{self._base.rpartition('/')[2]}/" if self._base else ""
        links = [(prefix + path, what) for path, what in _NATS_LINKS]
        if self._live_page:
            up = "../" * max(self._base.count("/") - 1, 0)
            streaming = (("streaming/ui", "NATS Streaming, live page"), ("streaming", "NATS Streaming"))
            links = [*((up + path, what) for path, what in streaming), *links]
        return Reply(200, _list("NATS", links), HTML)

    def _varz(self, _: QueryParameters) -> Any:
        found = {"http_req_stats": dict(sorted(self._requests.items()))}
        if self._streams is not None:
            found["jetstream"] = _stream_views().varz(self._streams)
        return dict(self._views.varz(self._server)) | self.listening | found

    def _jsz(self, query: QueryParameters) -> Any:
        if self._streams is None:
            return self._about() | _NO_JETSTREAM
        return self._about() | _stream_views().jsz(self._streams, query.texts())

    def _healthz(self, query: QueryParameters) -> Reply:
        texts = query.texts()
        try:
            code, wrong = self._views.healthz(self._server, texts)
        except ValueError as switch:
            return refusal(str(switch))
        if not wrong and self._streams is not None:
            code, wrong = _stream_views().healthz(self._streams, texts)
        if not wrong:
            return document(compact({"status": "ok"}), query, code)
        if texts.get("details") in _ON:
            return document(b'{"status":"error","errors":[%b]}' % b",".join(map(compact, wrong)), query, code)
        status = "error" if code == _BAD_REQUEST else "unavailable"
        return document(compact({"status": status, "error": wrong[0]["error"]}), query, code)

    def _about(self) -> dict[str, Any]:
        varz = self._views.varz(self._server)
        return {"server_id": varz.get("server_id", ""), "now": varz.get("now", "")}

    def _accountz(self, query: QueryParameters) -> Any:
        name = query.text("acc")
        about = self._about() | {"system_account": _SYSTEM_ACCOUNT}
        if not name:
            return about | {"accounts": list(_ACCOUNTS)}
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
            "jetstream_enabled": used and self._streams is not None,
            "leafnode_connections": 0,
            "client_connections": varz.get("connections", 0) if used else 0,
            "subscriptions": varz.get("subscriptions", 0) if used else 0,
        }
        if used:
            del detail["is_system"]
        return about | {"account_detail": detail}


def _stream_views() -> Any:
    from broker.streams import status

    return status


def _stacks(_: QueryParameters) -> Reply:
    """Returns the stacks of all threads and tasks, without values."""
    found = io.StringIO()
    for number, frame in sys._current_frames().items():
        print(f"thread {number}:", file=found)
        traceback.print_stack(frame, file=found)
    with contextlib.suppress(RuntimeError):
        for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name)[:1000]:
            print(f"task {task.get_name()}:", file=found)
            task.print_stack(limit=20, file=found)
    return text(found.getvalue().encode(errors="replace"))


def streaming_pages(server: Any, views: Any, rates: RateHistory) -> dict[str, Page]:
    """Returns the pages of a streaming server by path; `views` make its documents, as `broker.streaming.status`."""

    def state(_: QueryParameters) -> Reply:
        return Reply(200 if views.serverz(server).get("state") == "FT_ACTIVE" else 204)

    def listed(name: str, every: Callable[..., Any], one: Callable[..., Any]) -> Page:
        def page(query: QueryParameters) -> Any:
            subs = query.raw("subs") == b"1"  # only this value counts
            if not query.raw(name):
                return every(server, *query.page(), subs)
            found = one(server, query.raw(name), subs)
            return problem(404, f"{name.title()} {query.text(name)} not found") if found is None else found

        return page

    return {
        _ROOT: lambda _: Reply(200, _list("NATS Streaming", _STREAMING_LINKS), HTML),
        f"{_ROOT}/": lambda _: Reply(200, _list("NATS Streaming", _RELATIVE_LINKS), HTML),
        f"{_ROOT}/ratesz": lambda query: rates.document(integer(query.text("window"))),
        f"{_ROOT}/serverz": lambda _: views.serverz(server),
        f"{_ROOT}/storez": lambda _: views.storez(server),
        f"{_ROOT}/clientsz": listed("client", views.clientsz, views.client),
        f"{_ROOT}/channelsz": listed("channel", views.channelsz, views.channel),
        f"{_ROOT}/isFTActive": state,
        **{path: partial(_file, files, kind) for path, (files, kind) in _FILES.items()},
    }


def _list(title: str, links: Iterable[tuple[str, str]]) -> bytes:
    """Returns a page of links, each with its description; paths are relative to the page."""
    items = "\n".join(f'<li><a href="{escape(path)}">{escape(text)}</a></li>' for path, text in links)
    theme = _content(_THEME).decode()
    return _PAGE.format(title=escape(title), items=items, theme=theme).encode()


def _file(files: tuple[str, ...], kind: str, _: QueryParameters) -> Reply:
    return Reply(200, _content(files), kind, _HEADERS)


@cache
def _content(files: tuple[str, ...]) -> bytes:
    """Returns files, one after the other; each is a package and a path in it."""
    from importlib import resources

    pairs = zip(files[::2], files[1::2], strict=True)
    return b"".join(resources.files(package).joinpath(path).read_bytes() for package, path in pairs)
