"""Errors between a client and a streaming server."""

from __future__ import annotations

from stantools.errors import StantoolsError


class StreamingError(StantoolsError):
    """An error of the streaming server, the way to it, or its answers."""


class RefusedByServerError(StreamingError):
    """The server answered with an error."""

    def __init__(self, request_name: str, text: str) -> None:
        super().__init__(f"the streaming server refused {request_name}: {text}")
        self.text = text  #: the server's own words (streaming-protocol.md section 26)


class NoServerError(StreamingError):
    """No server answered, or none could be reached."""


class AckTimeoutError(StreamingError):
    """The ack of a message did not come in time: it may be stored or not."""


class SessionLostError(StreamingError):
    """The server does not know the client any more, or does not answer its pings: connect again."""


class ClosedError(StreamingError):
    """The client, or the subscription, is closed."""
