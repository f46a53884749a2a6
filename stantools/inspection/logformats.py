r"""The server's own line in the formats of log collectors.

{"log":"…\n","stream":"stderr","time":"…"}          Docker
{"__CURSOR":"…","MESSAGE":"…" or [91, 49, …]}        journald, `-o json`; json-pretty has a member a line
2022-07-15T11:17:01.2Z stderr F …                    Kubernetes; F: a whole line, P: a part of one
[pod/stan-0/stan] …, stan-1  | …, Jul 15 11:17:01 host stan[1]: …     kubectl, Compose, syslog
level=error msg="…"                                  logfmt
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

#: Terminal colours, also as rsyslog writes them.
_COLOURS: Final = re.compile(r"(?:\x1b|#033|\\u001b|\\x1b)\[[0-9;]*[mK]")
#: Members of JSON objects that hold the line, or a further object.
_MEMBERS: Final = ("log", "MESSAGE", "message", "msg", "text", "textPayload", "jsonPayload", "line", "body", "event")
#: Such a member alone in a line, or in JSON text that lost its quotes in a shell.
_MEMBER: Final = re.compile(rf'"?\b(?:{"|".join(_MEMBERS)})"?\s*[:=]\s*')
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
#: Beginning of the server's line: `[PID] DATE TIME [ERR] `, of which collectors keep a part.
_BEGIN: Final = re.compile(
    r"(?:\[\d+\]\s+)?(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s+)?\[(?:ERR|FTL|WRN|INF|DBG|TRC)\]\s"
    r"|\bST(?:REAM|AN): "
)
_CRI: Final = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [FP] ")
#: The text after the line in a JSON object without quotes.
_REST: Final = re.compile(r'(?:\\n)?"?,\s*"?(?:stream|time|_\w+|[A-Z_]+)"?\s*:.*$')
_MAX_DEPTH: Final = 4
#: Characters; longer texts are not decoded.
_MAX_LENGTH: Final = 1 << 20


def server_lines(text: str, depth: int = 0) -> Iterator[str]:
    """Yields the server's lines that a line of a log may hold, the likeliest first."""
    plain = _COLOURS.sub("", text).strip()
    if depth < _MAX_DEPTH and len(plain) < _MAX_LENGTH:
        for inner in _members(plain):
            for line in inner.splitlines() or [inner]:
                yield from server_lines(line, depth + 1)
    if begin := _BEGIN.search(plain):
        yield _REST.sub("", plain[begin.start() :])
    yield _CRI.sub("", plain)


def _members(text: str) -> Iterator[str]:
    """Yields the texts of the members that may hold the line."""
    start = text.find("{")
    if start >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            pass
        else:
            yield from _texts(value)
            return
    for member in _MEMBER.finditer(text):
        if quoted := _QUOTED.match(text, member.end()):
            try:
                yield str(json.loads(quoted[0], strict=False))
            except ValueError:
                continue


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value and all(isinstance(each, int) and 0 <= each < 256 for each in value):
        yield bytes(value).decode("utf-8", "surrogateescape")
    elif isinstance(value, list):
        for each in value if depth < _MAX_DEPTH else ():
            yield from _texts(each, depth + 1)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for name in _MEMBERS:
            if name in value:
                yield from _texts(value[name], depth + 1)
