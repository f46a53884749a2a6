"""The query of a URL, read as the original does: pairs that are not well-formed do not count, the first value wins."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_ESCAPES = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
#: Parameters of a URL that are looked at; a URL of 8 KiB has room for thousands.
_MOST_PARAMETERS: Final = 64
_INT64 = 1 << 63

#: Entries that a list has unless `limit` says otherwise.
DEFAULT_LIMIT: Final = 1024


class Query:
    """The parameters of a request. Names and values are bytes.

    Args:
        text: What follows the question mark.
    """

    def __init__(self, text: str = "") -> None:
        self._values: dict[bytes, bytes] = {}
        pairs = text.encode("utf-8", "surrogateescape").split(b"&", _MOST_PARAMETERS)
        for pair in pairs[:_MOST_PARAMETERS]:
            if not pair or b";" in pair or _ESCAPES.search(pair):
                continue
            name, _, value = pair.replace(b"+", b" ").partition(b"=")
            self._values.setdefault(unquote_to_bytes(name), unquote_to_bytes(value))

    def __contains__(self, name: str) -> bool:
        return name.encode() in self._values

    def raw(self, name: str) -> bytes:
        """Returns a value, empty if there is none."""
        return self._values.get(name.encode(), b"")

    def text(self, name: str) -> str:
        """Returns a value as text, empty if there is none."""
        return self.raw(name).decode(errors="replace")

    def texts(self) -> dict[str, str]:
        """Returns all of them as text."""
        return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in self._values.items()}

    def page(self) -> tuple[int, int]:
        """Returns `offset` and `limit` of a list: what makes no sense counts as not given.

        Facts: server-operations.md section 14.
        """
        offset, limit = integer(self.text("offset")), integer(self.text("limit"))
        return max(offset, 0), limit if limit > 0 else DEFAULT_LIMIT


def integer(text: str) -> int:
    """Reads a decimal number of 64 bits as Go does; 0 if it is none."""
    if not _INTEGER.fullmatch(text):
        return 0
    number = int(text)
    return number if -_INT64 <= number < _INT64 else 0
