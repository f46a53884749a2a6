"""What requests are answered with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from broker.monitoring.query import Query

_PLAIN: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer.

    Attributes:
        status: Status code of HTTP.
        body: Its content.
        kind: What the content is, empty if there is none.
        headers: More header fields.
    """

    status: int = 200
    body: bytes = b""
    kind: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A document, still to be written down."""

    document: Any


def problem(status: int, text: str) -> Reply:
    """Returns an answer that says in a line what is wrong."""
    return Reply(status, f"{text}\n".encode(errors="replace"), _PLAIN, {"X-Content-Type-Options": "nosniff"})


def refusal(text: str) -> Reply:
    """Returns the answer to a parameter that makes no sense, as the NATS server gives it: without a line break."""
    return Reply(400, text.encode(errors="replace"), _PLAIN)


def text(content: bytes) -> Reply:
    """Returns plain text."""
    return Reply(200, content, _PLAIN)


def not_found() -> Reply:
    """Returns the answer to a path that does not exist."""
    return problem(404, "404 page not found")


def document(body: bytes, query: Query, status: int = 200) -> Reply:
    """Returns a document, wrapped into a call if the query asks for it (`callback`)."""
    callback = query.raw("callback")
    if callback:
        return Reply(status, b"%b(%b)" % (callback, body), "application/javascript")
    return Reply(status, body, "application/json", {"Access-Control-Allow-Origin": "*"})
