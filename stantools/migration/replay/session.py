"""The session of a replay with a streaming server: that of `stantools.streaming`, with errors of a target."""

from __future__ import annotations

from typing import ClassVar

from stantools.errors import StantoolsError
from stantools.nats.errors import NatsError
from stantools.streaming import session
from stantools.streaming.session import DISCOVER_PREFIX, Acked, Send, State

__all__ = ["DISCOVER_PREFIX", "Acked", "Send", "Session", "State"]


class Session(session.Session):
    """See `stantools.streaming.session`. Raises `NatsError`."""

    failure: ClassVar[type[StantoolsError]] = NatsError
    remedies: ClassVar[dict[str, str]] = {
        "client": "choose another --client-id",
        "cluster": "check --cluster-id and --discover-prefix: is something else listening there?",
    }
