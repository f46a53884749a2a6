"""JSON as the original server writes it: two blanks of indentation, `<`, `>` and `&` escaped, whole floats as integers.

Writing a document of many thousand entries takes long, and the broker has only one thread. So the text is written
piece by piece: whoever iterates over `written` decides when to let others go first.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

_INDENT = "  "
_CONTAINERS = frozenset((dict, list, tuple))
#: What Go escapes and Python does not, or not in the same way.
_SPECIAL = re.compile("[<>&\x08\x0c\u2028\u2029\ud800-\udfff]")
#: Go writes smaller and larger numbers with an exponent.
_SMALLEST, _LARGEST = 1e-6, 1e21


def written(value: Any) -> Iterator[str]:
    """Writes a document, piece by piece.

    Args:
        value: Dictionaries, lists, tuples, text, bytes (shown as UTF-8), numbers, True, False and None.

    Raises:
        TypeError: Something else is in it.
    """
    yield from _written(value, "\n")


def encoded(value: Any) -> bytes:
    """Writes a small document at once. Raises TypeError as `written` does."""
    return "".join(written(value)).encode()


def compact(value: Mapping[str, Any]) -> bytes:
    """Writes a flat object without blanks and line breaks. Raises TypeError as `written` does."""
    return f"{{{','.join(f'{_text(key)}:{_scalar(each)}' for key, each in value.items())}}}".encode()


def _written(value: Any, margin: str) -> Iterator[str]:
    inner = margin + _INDENT
    if isinstance(value, dict):
        if not value:
            yield "{}"
            return
        if _CONTAINERS.isdisjoint(map(type, value.values())):
            # Most of a long document: one piece each.
            rows = f",{inner}".join([f"{_text(key)}: {_scalar(each)}" for key, each in value.items()])
            yield f"{{{inner}{rows}{margin}}}"
            return
        separator = f"{{{inner}"
        for key, each in value.items():
            yield f"{separator}{_text(key)}: "
            yield from _written(each, inner)
            separator = f",{inner}"
        yield f"{margin}}}"
    elif isinstance(value, list | tuple):
        if not value:
            yield "[]"
            return
        separator = f"[{inner}"
        for each in value:
            yield separator
            yield from _written(each, inner)
            separator = f",{inner}"
        yield f"{margin}]"
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if type(value) is int:  # nearly all others
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
    # Go writes 1e-7, Python 1e-07.
    return text.replace("e-0", "e-")


def _text(text: str) -> str:
    if not _SPECIAL.search(text):
        return encode_basestring(text)
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    if _SPECIAL.match(character):
        return "\\ufffd" if "\ud800" <= character <= "\udfff" else f"\\u{ord(character):04x}"
    return encode_basestring(character)[1:-1]
