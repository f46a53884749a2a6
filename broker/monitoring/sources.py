"""Where the documents come from: functions of `broker.nats.views` and `broker.streaming.views`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Document = Mapping[str, Any]


class NatsViews(Protocol):
    """Documents about a NATS server, members in the order of server-operations.md section 14.

    Queries are as in the URL. What is wrong with one is raised as `ValueError`, with the text for the client.
    """

    def varz(self, server: Any, /) -> Document:
        """The server."""

    def connz(self, server: Any, query: dict[str, str], /) -> Document:
        """Its connections."""

    def routez(self, server: Any, query: dict[str, str], /) -> Document:
        """Its routes."""

    def subsz(self, server: Any, query: dict[str, str], /) -> Document:
        """Its subscriptions."""

    def healthz(self, server: Any, /) -> Document:
        """Whether it is well: `status` is `ok` then."""


class StreamingViews(Protocol):
    """Documents about a streaming server, members in the order of server-operations.md section 14."""

    def serverz(self, server: Any, /) -> Document:
        """The server."""

    def storez(self, server: Any, /) -> Document:
        """Its store and limits."""

    def clientsz(self, server: Any, offset: int, limit: int, subs: bool, /) -> Document:
        """Clients, with their subscriptions if asked for."""

    def client(self, server: Any, client_id: bytes, subs: bool, /) -> Document | None:
        """One client, None if it is not connected."""

    def channelsz(self, server: Any, offset: int, limit: int, subs: bool, /) -> Document:
        """Names of channels, or with `subs` all about them."""

    def channel(self, server: Any, name: bytes, subs: bool, /) -> Document | None:
        """One channel, None if there is none of that name."""
