"""The live page at `/streaming/ui`: a document, a style sheet and a script that asks the other endpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from broker.monitoring.query import Query
from broker.monitoring.replies import HTML, Answer, Reply

_FOLDER: Final = "page"
#: Nothing comes from anywhere else, and nothing in a name is ever run.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
_FILES: Final = {
    "/streaming/ui": ("ui.html", HTML),
    "/streaming/ui.css": ("ui.css", "text/css; charset=utf-8"),
    "/streaming/ui.js": ("ui.js", "text/javascript; charset=utf-8"),
}


class LivePage:
    """Serves the files of the page."""

    def __init__(self) -> None:
        self.paths: dict[str, Callable[[Query], Reply | Answer]] = {
            path: _serve(name, kind) for path, (name, kind) in _FILES.items()
        }


def _serve(name: str, kind: str) -> Callable[[Query], Reply]:
    def handler(_: Query) -> Reply:
        return Reply(200, _content(name), kind, _HEADERS)

    return handler


@cache
def _content(name: str) -> bytes:
    from importlib import resources

    return resources.files("broker.monitoring").joinpath(_FOLDER, name).read_bytes()
