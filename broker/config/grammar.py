"""The grammar of configuration files (server-operations.md section 6).

A file is a map, without or with braces around it. The scanner reads the text once and preserves the oddities that
existing files rely on:

- digits followed by other characters are a word (`24h`), unless a size letter comes first: `10m` is ten million;
- an integer swallows a `]` directly after it: `[1,2]` fails, `[1, 2 ]` does not;
- a word may contain `#`, `=`, `:`, `{`, `[` and `"`, but ends with a `'`, which is dropped.

Errors begin with their place. Depth, number of included files and their size are bounded.
"""

from __future__ import annotations

import bisect
import codecs
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from broker.config.values import ConfigNode, ConfigurationError, ConfigValue, reason

MAX_DEPTH: Final = 100
MAX_INCLUDE_DEPTH: Final = 10
MAX_INCLUDES: Final = 1000
MAX_SIZE: Final = 16 * 1024 * 1024

_OTHER_ENCODINGS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLANKS: Final = " \t"
_LINE_ENDS: Final = "\r\n"
_SPACE: Final = "\t\n\v\f\r \x85\xa0"
_END: Final = ""
_WORD: Final = re.compile(r"[^ \t\r\n,;\]}'\\]*")
_BARE_KEY: Final = re.compile(r"[^\t\n\v\f\r \x85\xa0=:]*")
_BARE_INCLUDE: Final = re.compile(r"[^ \t\r\n;}']*")
_COMMENT: Final = re.compile(r"[^\r\n]*")
_QUOTED: Final = {"'": re.compile("'([^']*)'"), '"': re.compile('"([^"]*)"')}
_PLAIN_TEXT: Final = re.compile(r'[^"\\]*')
_BLOCK: Final = re.compile(r"\((.*?\n|\n)\)(?=[\r\n]|\Z)", re.DOTALL)
_ESCAPE: Final = re.compile(r'x([0-9a-fA-F]{2})|[tnr"\\]')
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_INTEGER: Final = re.compile(r"-?[0-9]+")
_SIZE: Final = re.compile(r"(-?[0-9]+)([kmgtpe])(b|ib?)?", re.IGNORECASE | re.ASCII)
_FLOAT: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_ADDRESS: Final = re.compile(r"-?[0-9]+\.[0-9]+\.[0-9.:-]*")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_AFTER_INTEGER: Final = " \t\r\n,;}"
_AFTER_SIZE: Final = "\t\n\v\f\r \x85\xa0,;}])"
_MAX_DIGITS: Final = 20
_BOOLS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_VARIABLE: Final = "value"


def parse(
    text: str, source: str = "", *, directory: Path | None = None, environ: Mapping[str, str]
) -> dict[str, ConfigNode]:
    """Parses a configuration and returns its top-level map.

    Bytes that are not UTF-8 are surrogate escapes. `source` is the file's name in error texts; includes are relative
    to `directory`, by default the working directory; `environ` has variables that the text does not define.
    """
    return _Scanner(text, source, directory or Path(), _IncludeContext(environ)).document()


def parse_file(path: str, environ: Mapping[str, str]) -> dict[str, ConfigNode]:
    return _parse_file(path, path, _IncludeContext(environ))


@dataclass(slots=True)
class _IncludeContext:
    """State shared by a file and its includes."""

    environ: Mapping[str, str]
    including: list[str] = field(default_factory=list)  #: open files, outermost first
    included: int = 0  #: number of included files
    resolving: list[str] = field(default_factory=list)  #: environment variables that are being parsed


def _parse_file(path: str, source: str, surroundings: _IncludeContext) -> dict[str, ConfigNode]:
    try:
        if Path(path).is_dir():
            raise ConfigurationError(f"read {source}: is a directory")
        with Path(path).open("rb") as file:
            content = file.read(MAX_SIZE + 1)
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"open {source}: {reason(problem)}") from None
    if len(content) > MAX_SIZE:
        raise ConfigurationError(f"open {source}: larger than {MAX_SIZE} bytes")
    surroundings.including.append(str(Path(path).absolute()))
    try:
        if content.startswith(_OTHER_ENCODINGS):
            raise ConfigurationError(f"{source} is written in UTF-16; save it in UTF-8")
        # byte order mark of Windows editors, which would become part of the first key
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
        return _Scanner(text, source, Path(path).parent, surroundings).document()
    finally:
        surroundings.including.pop()


class _Scanner:
    __slots__ = ("directory", "newlines", "position", "scopes", "source", "surroundings", "text")

    def __init__(self, text: str, source: str, directory: Path, surroundings: _IncludeContext) -> None:
        # As in the original, a zero byte ends the text.
        self.text = text.partition("\0")[0]
        self.source = source
        self.directory = directory
        self.surroundings = surroundings
        self.position = 0
        self.newlines = [at for at, character in enumerate(self.text) if character == "\n"]
        self.scopes: list[dict[str, ConfigNode]] = []

    def document(self) -> dict[str, ConfigNode]:
        top: dict[str, ConfigNode] = {}
        self.scopes.append(top)
        self._skip_blank_lines()
        braces = self._peek() == "{"
        if braces:
            self.position += 1
        while True:
            self._skip_blank_lines()
            if self._peek() == _END:
                return top
            if braces and self._peek() == "}":
                self.position += 1
                continue
            self._entry(top, nested=False)
            self._end_of_member(_LINE_ENDS + ",;}")

    def _members(self, closing: str, separators: str, scope: dict[str, ConfigNode], member: Callable[[], None]) -> None:
        """Reads the members of a map or an array, from its opening bracket to its closing one."""
        opening = self.position
        self.position += 1
        self.scopes.append(scope)
        if len(self.scopes) > MAX_DEPTH:
            raise self._error(f"maps and arrays are nested deeper than {MAX_DEPTH} levels")
        while True:
            self._skip_blank_lines()
            if self._peek() == closing:
                break
            if self._peek() == _END:
                blank = " (after a number it needs a blank in front)" if closing == "]" else ""
                raise self._error(f"'{self.text[opening]}' has no '{closing}'{blank}", opening)
            member()
            self._skip(_BLANKS)
            if self._peek() == closing:
                break
            self._end_of_member(separators, closing)
        self.position += 1
        self.scopes.pop()

    def _end_of_member(self, separators: str, closing: str = _END) -> None:
        """Takes a separator or a comment after a member; the end of the text is one at the top level only."""
        self._skip(_BLANKS)
        if self._comment():
            return
        character = self._peek()
        if character not in separators or (closing and character == _END):
            expected = "a comma, a comment or the end of the line" + (f", or '{closing}'" if closing else "")
            raise self._unexpected(f"expected {expected}")
        self.position += 1

    def _array(self) -> list[ConfigNode]:
        found: list[ConfigNode] = []

        def element() -> None:
            if self._peek() == ",":
                raise self._unexpected("expected a value")
            node = self._node(self.position + (self._peek() in _QUOTED))
            node.value = self._value()
            found.append(node)

        # Arrays are no scope for variables, but count for the depth.
        self._members("]", _LINE_ENDS + ",", {}, element)
        return found

    def _entry(self, into: dict[str, ConfigNode], *, nested: bool) -> None:
        character = self._peek()
        if character in "=:" or (nested and character == "]"):
            raise self._unexpected("expected a key")
        bare = character not in _QUOTED
        node = self._node(self.position + (not bare))
        key = self._match(_BARE_KEY) if bare else self._quoted("key")
        if bare and key.lower() == "include" and self._peek() not in (":", "=", _END):
            self._include(into)
            return
        self._skip(_BLANKS + _LINE_ENDS)
        separated = self._peek() in ("=", ":")
        if separated:
            self.position += 1
            self._skip(_BLANKS + _LINE_ENDS if nested else _BLANKS)
        character = self._peek()
        if not separated if character == _END else character in (",}" if nested else _LINE_ENDS):
            raise ConfigurationError(f"{node.place}: the key '{key}' has no value")
        node.value = self._value()
        into[key] = node

    def _value(self) -> ConfigValue:
        character = self._peek()
        if character == "{":
            found: dict[str, ConfigNode] = {}
            self._members("}", _LINE_ENDS + ",;", found, lambda: self._entry(found, nested=True))
            return found
        if character == "[":
            return self._array()
        if character == '"':
            return self._double_quoted()
        if character == "'":
            return self._quoted("text")
        if character == "(":
            return self._block()
        if character and character in "0123456789-":
            return self._number()
        if character == ".":
            raise self._error("a number begins with a digit")
        begin = self.position
        word = self._word()
        if word.startswith("$") and "\\" not in self.text[begin : self.position]:
            return self._variable(word[1:])
        return _BOOLS.get(word.lower(), word)

    def _quoted(self, what: str) -> str:
        """Reads a text in quotes, without escapes."""
        match = _QUOTED[self._peek()].match(self.text, self.position)
        if not match:
            raise self._error(f"the {what} has no closing {self._peek()}")
        self.position = match.end()
        return match.group(1)

    def _double_quoted(self) -> str:
        opening = self.position
        self.position += 1
        parts: list[str] = []
        while True:
            parts.append(self._match(_PLAIN_TEXT))
            if self._peek() == _END:
                raise self._error('the text has no closing "', opening)
            self.position += 1
            if self.text[self.position - 1] == '"':
                return "".join(parts)
            parts.append(self._escape())

    def _word(self) -> str:
        parts: list[str] = []
        while True:
            parts.append(self._match(_WORD))
            character = self._peek()
            if character not in ("'", "\\"):
                return "".join(parts)
            self.position += 1
            if character == "'":
                return "".join(parts)
            parts.append(self._escape())

    def _escape(self) -> str:
        match = _ESCAPE.match(self.text, self.position)
        if not match:
            raise self._error('an escape is one of \\xXX, \\t, \\n, \\r, \\" and \\\\', self.position - 1)
        self.position = match.end()
        if digits := match.group(1):
            return bytes((int(digits, 16),)).decode("utf-8", "surrogateescape")
        return _ESCAPES[match.group()]

    def _block(self) -> str:
        """Reads `(` … `)`; the closing parenthesis is alone on its line."""
        match = _BLOCK.match(self.text, self.position)
        if not match:
            raise self._error("the block has no ) that is alone on its line")
        self.position = match.end()
        return match.group(1)

    def _number(self) -> int | float | str | datetime:
        """Reads a value that begins with a digit or with `-`: a number, size, date, address, or a word (`24h`)."""
        begin = self.position
        digits = self._match(_INTEGER)
        if not digits:
            raise self._error("expected a digit after '-'")
        character = self._peek()
        if character == ".":
            self.position = begin
            if address := self._match(_ADDRESS):
                return address
            if not (written := self._match(_FLOAT)):
                raise self._error("expected digits after the point of a number")
            if math.isinf(number := float(written)):
                raise self._error("the number is out of range", begin)
            return number
        if character == "-" and not digits.startswith("-"):
            self.position = begin
            try:
                return datetime.fromisoformat(self._match(_DATE))
            except ValueError:
                raise self._error("expected a time such as 2006-01-02T15:04:05Z", begin) from None
        if size := _SIZE.match(self.text, begin):
            self.position = size.end()
            if self._peek() in _AFTER_SIZE:
                base = 1024 if size.group(3) else 1000
                return self._integer(begin, digits, base ** ("kmgtpe".index(size.group(2).lower()) + 1))
        elif character in _AFTER_INTEGER or digits.startswith("-"):
            return self._integer(begin, digits, 1)
        # a word, which includes the next character in any case
        self.position += 1
        return self.text[begin : self.position] + self._word()

    def _integer(self, begin: int, digits: str, factor: int) -> int:
        significant = digits.lstrip("-0")
        number = int(significant or "0") * factor if len(significant) <= _MAX_DIGITS else 1 << 64
        if digits.startswith("-"):
            number = -number
        if not -(1 << 63) <= number < 1 << 63:
            raise self._error("the integer is out of range", begin)
        return number

    def _variable(self, name: str) -> ConfigValue:
        if name.startswith("2a$"):
            return f"${name}"
        for scope in reversed(self.scopes):
            if (found := scope.get(name)) is not None:
                found.used = True
                return found.value
        surroundings = self.surroundings
        value = surroundings.environ.get(name) if name else None
        if value is None:
            raise self._error(f"the variable '{name}' is defined neither above nor in the environment")
        if name in surroundings.resolving:
            raise self._error(f"the variable '{name}' refers to itself")
        surroundings.resolving.append(name)
        try:
            parsed = _Scanner(f"{_VARIABLE}={value}", f"${name}", self.directory, surroundings).document()
        except ConfigurationError as problem:
            raise self._error(f"the variable '{name}' of the environment has no value: {problem.message}") from None
        finally:
            surroundings.resolving.pop()
        return parsed[_VARIABLE].value

    def _include(self, into: dict[str, ConfigNode]) -> None:
        self._skip(_BLANKS)
        character = self._peek()
        place = self._node(self.position).place
        if character and character in _LINE_ENDS + "[{":
            raise self._unexpected("expected the name of a file to include")
        name = self._quoted("name of the file to include") if character in _QUOTED else self._match(_BARE_INCLUDE)
        surroundings = self.surroundings
        path = str(self.directory / name) if self.directory != Path() else name
        try:
            surroundings.included += 1
            if surroundings.included > MAX_INCLUDES:
                raise ConfigurationError(f"more than {MAX_INCLUDES} files are included")
            if len(surroundings.including) >= MAX_INCLUDE_DEPTH or str(Path(path).absolute()) in surroundings.including:
                raise ConfigurationError("files include each other without end")
            found = _parse_file(path, path, surroundings)
        except ConfigurationError as problem:
            raise ConfigurationError(f"{place}: include '{name}': {problem.message}") from None
        into.update(found)

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _match(self, pattern: re.Pattern[str]) -> str:
        """Takes the text that matches a pattern here, if any."""
        match = pattern.match(self.text, self.position)
        if match is None:
            return ""
        self.position = match.end()
        return match.group()

    def _skip(self, characters: str) -> None:
        text, position = self.text, self.position
        while position < len(text) and text[position] in characters:
            position += 1
        self.position = position

    def _comment(self) -> bool:
        """Skips a comment to the end of its line."""
        if not (self._peek() == "#" or self.text.startswith("//", self.position)):
            return False
        self._match(_COMMENT)
        return True

    def _skip_blank_lines(self) -> None:
        self._skip(_SPACE)
        while self._comment():
            self._skip(_SPACE)

    def _node(self, position: int) -> ConfigNode:
        line = bisect.bisect_left(self.newlines, position)
        begin = self.newlines[line - 1] if line else 0
        column = len(self.text[begin:position].encode("utf-8", "surrogateescape"))
        return ConfigNode("", line + 1, column, self.source)

    def _unexpected(self, expected: str) -> ConfigurationError:
        character = self._peek()
        names = {_END: "the end of the file", "\n": "the end of the line", "\r": "the end of the line"}
        return self._error(f"{expected}, not {names.get(character, repr(character))}")

    def _error(self, problem: str, position: int | None = None) -> ConfigurationError:
        place = self._node(self.position if position is None else position).place
        return ConfigurationError(f"{place}: {problem}")
