"""Endpoints of the streaming server (server-operations.md section 14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.monitoring.query import Query
from broker.monitoring.replies import HTML, Answer, Reply, problem
from broker.monitoring.sources import StreamingViews
from broker.monitoring.startpage import page

ROOT: Final = "/streaming"
_LINKS: Final = (
    ("streaming/serverz", "server"),
    ("streaming/storez", "store"),
    ("streaming/clientsz", "clients"),
    ("streaming/channelsz", "channels"),
)
_PAGE_LINK: Final = ("streaming/ui", "channels, rates, clients and lag, live")


class StreamingPages:
    """Answers what is asked about a streaming server.

    Args:
        server: The streaming server.
        views: What makes documents about it.
        live: Whether the live page is served too.
    """

    def __init__(self, server: Any, views: StreamingViews, *, live: bool = True) -> None:
        self._server = server
        self._views = views
        self._links = (*_LINKS, _PAGE_LINK) if live else _LINKS
        self.paths: dict[str, Callable[[Query], Reply | Answer]] = {
            ROOT: self._root,
            f"{ROOT}/serverz": self._serverz,
            f"{ROOT}/storez": self._storez,
            f"{ROOT}/clientsz": self._clientsz,
            f"{ROOT}/channelsz": self._channelsz,
            f"{ROOT}/isFTActive": self._is_ft_active,
        }

    def _root(self, _: Query) -> Reply:
        return Reply(200, page("NATS Streaming", self._links), HTML)

    def _serverz(self, _: Query) -> Answer:
        return Answer(self._views.serverz(self._server))

    def _storez(self, _: Query) -> Answer:
        return Answer(self._views.storez(self._server))

    def _clientsz(self, query: Query) -> Reply | Answer:
        name, subs = query.raw("client"), _wants_subscriptions(query)
        if not name:
            return Answer(self._views.clientsz(self._server, *query.page(), subs))
        found = self._views.client(self._server, name, subs)
        return problem(404, f"Client {query.text('client')} not found") if found is None else Answer(found)

    def _channelsz(self, query: Query) -> Reply | Answer:
        name, subs = query.raw("channel"), _wants_subscriptions(query)
        if not name:
            return Answer(self._views.channelsz(self._server, *query.page(), subs))
        found = self._views.channel(self._server, name, subs)
        return problem(404, f"Channel {query.text('channel')} not found") if found is None else Answer(found)

    def _is_ft_active(self, _: Query) -> Reply:
        return Reply(200 if self._views.serverz(self._server).get("state") == "FT_ACTIVE" else 204)


def _wants_subscriptions(query: Query) -> bool:
    # Only this value counts.
    return query.raw("subs") == b"1"
