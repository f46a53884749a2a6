"""Queries and documents of monitoring, read and written as in the original.

Malformed pairs of a query are ignored, and the first value of a name counts. JSON is indented by two blanks, `<`,
`>` and `&` are escaped, whole floats are integers. A document with thousands of entries takes long to write, and the
broker has one thread: so `written` yields the text in pieces, and its caller decides when other tasks run.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from json.encoder import encode_basestring
from math import isfinite
from types import GeneratorType
from typing import Any, Final
from urllib.parse import unquote_to_bytes

_ESCAPES = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
#: limit of parameters in a URL; 8 KiB could hold thousands
_MAX_PARAMETERS: Final = 64
_INT64 = 1 << 63

#: entries of a list without `limit`
DEFAULT_LIMIT: Final = 1024
_PLAIN: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
_INDENT = "  "
_CONTAINERS = frozenset((dict, list, tuple, GeneratorType))
#: characters that Go escapes and Python does not, or differently
_SPECIAL = re.compile("[<>&\x08\x0c\u2028\u2029\ud800-\udfff]")
#: Go writes numbers outside of this range with an exponent
_SMALLEST, _LARGEST = 1e-6, 1e21


class QueryParameters:
    """The parameters of a request. Names and values are bytes."""

    def __init__(self, text: str = "") -> None:
        self._values: dict[bytes, bytes] = {}
        pairs = text.encode("utf-8", "surrogateescape").split(b"&", _MAX_PARAMETERS)
        for pair in pairs[:_MAX_PARAMETERS]:
            if not pair or b";" in pair or _ESCAPES.search(pair):
                continue
            name, _, value = pair.replace(b"+", b" ").partition(b"=")
            self._values.setdefault(unquote_to_bytes(name), unquote_to_bytes(value))

    def __contains__(self, name: str) -> bool:
        return name.encode() in self._values

    def raw(self, name: str) -> bytes:
        return self._values.get(name.encode(), b"")

    def text(self, name: str) -> str:
        return self.raw(name).decode(errors="replace")

    def texts(self) -> dict[str, str]:
        return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in self._values.items()}

    def page(self) -> tuple[int, int]:
        """Returns `offset` and `limit` of a list; invalid values are ignored (server-operations.md section 14)."""
        offset, limit = integer(self.text("offset")), integer(self.text("limit"))
        return max(offset, 0), limit if limit > 0 else DEFAULT_LIMIT


def integer(text: str) -> int:
    """Reads a decimal number of 64 bits as Go does; 0 if invalid."""
    if not _INTEGER.fullmatch(text):
        return 0
    number = int(text)
    return number if -_INT64 <= number < _INT64 else 0


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    kind: str = ""  #: content type, "" without content
    headers: dict[str, str] = field(default_factory=dict)  #: additional header fields


def problem(status: int, text: str) -> Reply:
    """Returns an error reply of one line."""
    return Reply(status, f"{text}\n".encode(errors="replace"), _PLAIN, {"X-Content-Type-Options": "nosniff"})


def refusal(text: str) -> Reply:
    """Returns the reply to an invalid parameter, worded as in the NATS server: without a line break."""
    return Reply(400, text.encode(errors="replace"), _PLAIN)


def text(content: bytes) -> Reply:
    return Reply(200, content, _PLAIN)


def not_found() -> Reply:
    return problem(404, "404 page not found")


def document(body: bytes, query: QueryParameters, status: int = 200) -> Reply:
    """Returns a document, wrapped into a call if the query has `callback`."""
    callback = query.raw("callback")
    if callback:
        return Reply(status, b"%b(%b)" % (callback, body), "application/javascript")
    return Reply(status, body, "application/json", {"Access-Control-Allow-Origin": "*"})


def written(value: Any) -> Iterator[str]:
    """Yields a document in pieces.

    It may have dictionaries, lists, tuples, text, bytes (shown as UTF-8), numbers, True, False and None; other types
    raise TypeError. Generators are lists whose items are made one at a time.
    """
    yield from _written(value, "\n")


def compact(value: Mapping[str, Any]) -> bytes:
    """Writes a flat object without blanks and line breaks."""
    return f"{{{','.join(f'{_text(key)}:{_scalar(each)}' for key, each in value.items())}}}".encode()


def _written(value: Any, margin: str) -> Iterator[str]:
    inner = margin + _INDENT
    if isinstance(value, dict):
        if not value:
            yield "{}"
            return
        if _CONTAINERS.isdisjoint(map(type, value.values())):
            # most of a long document: one piece each
            rows = f",{inner}".join([f"{_text(key)}: {_scalar(each)}" for key, each in value.items()])
            yield f"{{{inner}{rows}{margin}}}"
            return
        separator = f"{{{inner}"
        for key, each in value.items():
            yield f"{separator}{_text(key)}: "
            yield from _written(each, inner)
            separator = f",{inner}"
        yield f"{margin}}}"
    elif isinstance(value, list | tuple | GeneratorType):
        separator = f"[{inner}"
        for each in value:
            yield separator
            yield from _written(each, inner)
            separator = f",{inner}"
        yield "[]" if separator[0] == "[" else f"{margin}]"
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if type(value) is int:  # the usual type
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text(bytes(value).decode(errors="replace"))
    return str(operator.index(value))


def _float(value: float) -> str:
    if not isfinite(value):
        return "null"
    if value == int(value) and abs(value) < _LARGEST:
        return str(int(value))
    text = repr(float(value))
    if "e" in text and _SMALLEST <= abs(value) < _LARGEST:
        return f"{Decimal(text):f}"
    # Go writes 1e-7, Python 1e-07
    return text.replace("e-0", "e-")


def _text(text: str) -> str:
    if not _SPECIAL.search(text):
        return encode_basestring(text)
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    if _SPECIAL.match(character):
        return "\\ufffd" if "\ud800" <= character <= "\udfff" else f"\\u{ord(character):04x}"
    return encode_basestring(character)[1:-1]
