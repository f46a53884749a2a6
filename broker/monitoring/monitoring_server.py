"""The HTTP server of monitoring (server-operations.md section 14), on aiohttp.

Loading aiohttp takes as long as the rest of a broker's start. So a thread loads it after the port is open, while
clients are already served; requests wait until it is loaded.

It runs on the broker's own loop. The entries of a document are selected at once; the text is written in pieces, and
the items of long lists are made one at a time, so that a long document does not delay messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import logging
import os
import ssl
import sys
import time
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from broker import log
from broker.listening import MAX_PORT, address, open_sockets, reachable
from broker.monitoring.http import QueryParameters, Reply, document, not_found, problem, written
from broker.monitoring.metrics import Metrics
from broker.monitoring.pages import NatsPages, Page, streaming_pages
from broker.monitoring.rates import RateHistory
from broker.nats.tls import TLSError, certificate_context
from stantools.errors import StantoolsError
from stantools.install_hints import install_command

if TYPE_CHECKING:
    import socket

    from aiohttp import web

    from broker.nats.nats_options import TLSOptions

#: seconds of writing before other tasks run
_TURN: Final = 0.001
#: seconds for which an idle connection stays open, and for which `stop` waits
_KEEP_ALIVE: Final = 75
_SHUTDOWN: Final = 1
#: characters of an error text in the log
_REASON: Final = 200


class _OneLineHandler(logging.LoggerAdapter[logging.Logger]):
    """Logs aiohttp's messages, mostly bad requests, in one line each, without a traceback."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        problem = kwargs.pop("exc_info", None)
        problem = sys.exc_info()[1] if problem is True else problem
        reason = " ".join(str(problem).split()) or repr(problem)
        text = f"Monitoring: {msg}" if problem is None else f"Monitoring: {msg}: {reason[:_REASON].replace('%', '%%')}"
        return text, kwargs


class MonitoringError(StantoolsError):
    """Monitoring cannot be started; the text is that of the original's log."""


class MonitoringServer:
    """Serves documents about a NATS server and a streaming server, metrics, and a page.

    `nats`, `streaming` and `streams` may be None, and their paths do not exist then. `base_path` is a prefix of the
    NATS server's paths only. The views make the documents; the defaults are `broker.nats.status` and
    `broker.streaming.status`.
    """

    loading: asyncio.Task[None] | None = None  #: done when requests can be answered

    def __init__(
        self,
        nats: object | None,
        streaming: object | None,
        base_path: str = "",
        *,
        nats_views: Any = None,
        streaming_views: Any = None,
        streams: object | None = None,
    ) -> None:
        self.port = 0  #: 0 before `start`
        self.url = ""  #: URL for programs on this machine
        self._base_path = base_path
        self._pages: dict[str, Page] = {}
        self._nats: NatsPages | None = None
        self._runner: web.ServerRunner | None = None
        if nats is not None:
            nats_views = nats_views or importlib.import_module("broker.nats.status")
            self._nats = NatsPages(nats, nats_views, base_path, streams, live_page=streaming is not None)
            self._pages |= self._nats.paths
        if streaming is not None:
            streaming_views = streaming_views or importlib.import_module("broker.streaming.status")
        self._streaming_views = streaming_views
        self._metrics = Metrics(nats, nats_views, streaming, streaming_views)
        #: rates of the streaming server
        self._rates = RateHistory(lambda: self._streaming_views.counters(self._metrics.streaming))
        if streaming is not None:
            self.show(streaming)

    def show(self, streaming: object) -> None:
        """Switches to this streaming server."""
        pages = streaming_pages(streaming, self._streaming_views, self._rates)
        self._pages = {"/": pages["/streaming"], **self._pages, **pages}  # the first page, unless NATS has it
        self._metrics.streaming = streaming

    async def start(self, host: str, port: int, tls: TLSOptions | None = None) -> None:
        """Listens on a host (empty: all addresses) and port (0 or less: a free one).

        With `tls` it serves HTTPS, without client certificates.
        """
        if not -1 <= port <= MAX_PORT:
            raise MonitoringError(
                f"Can't start monitoring: can't listen to the monitor port: listen tcp: address {port}: invalid port"
            )
        if importlib.util.find_spec("aiohttp") is None:
            raise MonitoringError("Can't start monitoring: aiohttp is not installed", install_command("aiohttp"))
        context = None if tls is None else _context(tls)
        try:
            sockets = open_sockets(host, port)
        except OSError as error:
            text = str(error)
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                # asyncio's own text repeats the address
                text = f"bind: {os.strerror(error.errno).lower()}"
            raise MonitoringError(
                f"Can't start monitoring: can't listen to the monitor port: listen tcp {address(host, port)}: {text}"
            ) from error
        self.port = int(sockets[0].getsockname()[1])
        self.loading = asyncio.create_task(self._serve(sockets, context))
        if self._metrics.streaming is not None:
            self._rates.start()
        if self._nats is not None:
            self._nats.listening = {
                "http_host": host,
                "http_port": 0 if tls else self.port,
                "http_base_path": self._base_path.rstrip("/"),
                "https_port": self.port if tls else 0,
            }
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{reachable(host, self.port)}"
        log.NATS.info("Starting %s monitor on %s", scheme, address(host or "0.0.0.0", self.port))

    async def stop(self) -> None:
        """Stops listening and closes all connections. May be called at any time."""
        self._rates.stop()
        if self.loading is not None:
            self.loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.loading
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _serve(self, sockets: list[socket.socket], context: ssl.SSLContext | None) -> None:
        with contextlib.ExitStack() as stack:
            for listener in sockets:
                stack.enter_context(listener)
            try:
                web = await asyncio.to_thread(_aiohttp)
            except ImportError as error:
                log.NATS.error("Can't start monitoring: aiohttp cannot be loaded: %s", error)
                return
            server = web.Server(
                self._answer,
                access_log=None,
                keepalive_timeout=_KEEP_ALIVE,
                logger=_OneLineHandler(log.NATS, {}),
                lingering_time=1.0,
                auto_decompress=False,
            )
            self._runner = runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN)
            await runner.setup()
            for listener in sockets:
                await web.SockSite(runner, listener, ssl_context=context).start()
            stack.pop_all()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        reply = await self._reply(request.raw_path)
        response: web.Response = _aiohttp().Response(
            status=reply.status, body=reply.body or None, headers=reply.headers
        )
        response.headers["Server"] = "stan-broker"
        if reply.kind:
            response.headers["Content-Type"] = reply.kind
        return response

    async def _reply(self, target: str) -> Reply:
        path, _, text = target.partition("?")
        if not target.startswith("/"):
            # A proxy may send the whole URL.
            try:
                parts = urlsplit(target)
                path, text = parts.path, parts.query
            except ValueError:
                path = text = ""
        path, query = unquote(path, errors="replace"), QueryParameters(text)
        try:
            if path == "/metrics":
                return await self._metrics.reply(query)
            page = self._pages.get(path)
            if page is None:
                return not_found()
            found = page(query)
            if isinstance(found, Reply):
                return found
            return document(await _written(found), query)
        except Exception as error:  # the broker keeps running after any error
            log.NATS.error(
                "Error getting information about %s: %s", path, error, exc_info=log.NATS.isEnabledFor(logging.DEBUG)
            )
            return problem(500, f"Error getting information about {path.rpartition('/')[2]}: {error}")


async def _written(value: Any) -> bytes:
    pieces: list[str] = []
    parts: list[bytes] = []
    turn = time.perf_counter() + _TURN
    for piece in written(value):
        pieces.append(piece)
        if time.perf_counter() > turn:
            parts.append("".join(pieces).encode())
            pieces.clear()
            await asyncio.sleep(0)
            turn = time.perf_counter() + _TURN
    return b"".join([*parts, "".join(pieces).encode()])


def _aiohttp() -> Any:
    from aiohttp import web

    return web


def _context(tls: TLSOptions) -> ssl.SSLContext:
    try:
        return certificate_context(tls)
    except TLSError as error:
        raise MonitoringError(f"Can't start monitoring: {error}") from error
