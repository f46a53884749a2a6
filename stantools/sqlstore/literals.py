"""Values in dumps, by notation: literals of MySQL and PostgreSQL, and fields of COPY (sql-stores.md section 10).

Tokens are bytes as written. None stands for NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Token = bytes | None

_MYSQL_ESCAPE: Final = re.compile(rb"\\(.)|''", re.DOTALL)
_MYSQL_CONTROLS: Final = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}
_C_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)|''", re.DOTALL)
_COPY_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_C_CONTROLS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_BYTEA_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|\\)")
_QUOTE: Final = b"'"
#: a quoted string whose quotes are doubled, one with backslashes as well
_DOUBLED: Final = rb"'[^']*(?:''[^']*)*'"
_ESCAPED: Final = rb"'[^'\\]*(?:(?:\\.|'')[^'\\]*)*'"
_PLAIN: Final = rb"0[xX][0-9A-Fa-f]*|[+-]?[0-9]+(?:\.[0-9]*)?|[xX]'[0-9A-Fa-f]*'|[A-Za-z]+"


@dataclass(frozen=True)
class Notation:
    """How a dump writes values."""

    string: bytes  #: pattern of a string
    unquoted: Callable[[bytes], bytes]  #: content of a string token
    bytea: bool = False  #: bytes are text of PostgreSQL's type bytea

    @property
    def value(self) -> bytes:
        """The pattern of any value."""
        return self.string + rb"|" + _PLAIN

    def integer(self, token: Token) -> int | None:
        """Raises ValueError if it is no number."""
        if token is not None and token.isdigit():
            return int(token)
        content = self.content(token)
        return None if content is None else int(content)

    def flag(self, token: Token) -> bool:
        return (self.content(token) or b"0").lower() not in (b"0", b"f", b"false", b"\0")

    def content(self, token: Token) -> bytes | None:
        """Returns text as it was stored, in the charset of the dump."""
        if token is None or token[-1:] != _QUOTE or len(token) == 1:
            return None if token is None or (len(token) == 4 and token.upper() == b"NULL") else _hex(token)
        return _hex(token) if token[:2].upper() == b"X'" else self.unquoted(token)

    def binary(self, token: Token) -> bytes | None:
        """Returns bytes as they were stored. Raises ValueError if they are no value of the type bytea."""
        content = self.content(token)
        return _bytea(content) if self.bytea and content is not None else content


def _hex(token: bytes) -> bytes:
    if token[:2].lower() == b"0x":
        return bytes.fromhex(token[2:].decode())
    if token[:2].upper() == b"X'":
        return bytes.fromhex(token[2:-1].decode())
    return token


def _bytea(content: bytes) -> bytes:
    if content.startswith(b"\\x"):
        return bytes.fromhex(content[2:].decode("ascii"))
    return _BYTEA_ESCAPE.sub(_octal, content) if b"\\" in content else content


def _octal(found: re.Match[bytes]) -> bytes:
    return b"\\" if found[1] == b"\\" else bytes([int(found[1], 8) & 0xFF])


def _unquoted_mysql(token: bytes) -> bytes:
    inner = token[token.index(_QUOTE) + 1 : -1]
    if b"\\" not in inner and _QUOTE not in inner:
        return inner
    return _MYSQL_ESCAPE.sub(lambda found: _MYSQL_CONTROLS.get(found[1], found[1]) if found[1] else _QUOTE, inner)


def _unquoted_standard(token: bytes) -> bytes:
    if token[:1] in b"eE":
        return _unquoted_c(token[1:])
    return token[1:-1].replace(b"''", _QUOTE)


def _unquoted_c(token: bytes) -> bytes:
    return _C_ESCAPE.sub(_c_character, token[token.index(_QUOTE) + 1 : -1])


def _c_character(found: re.Match[bytes]) -> bytes:
    what: bytes | None = found[1]
    if what is None:
        return _QUOTE
    if what[:1] in b"01234567":
        return bytes([int(what, 8) & 0xFF])
    if what[:1] == b"x" and len(what) > 1:
        return bytes([int(what[1:], 16)])
    return _C_CONTROLS.get(what, what)


class _CopyNotation(Notation):
    def content(self, token: Token) -> bytes | None:
        if token is None or token == b"\\N":
            return None
        return _COPY_ESCAPE.sub(_c_character, token) if b"\\" in token else token


MYSQL: Final = Notation(rb"(?:_[A-Za-z0-9]+\s*)?" + _ESCAPED, _unquoted_mysql)
#: with standard_conforming_strings
POSTGRES: Final = Notation(rb"[eE]" + _ESCAPED + rb"|" + _DOUBLED, _unquoted_standard, bytea=True)
#: without
POSTGRES_OLD: Final = Notation(rb"[eE]?" + _ESCAPED, _unquoted_c, bytea=True)
COPY: Final = _CopyNotation(b"", bytes, bytea=True)
