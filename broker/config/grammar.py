"""The grammar of configuration files (server-operations.md section 6).

A file is a map, without or with braces around it. The scanner reads the text once and preserves the oddities that
existing files rely on, and those with well-known error texts:

- digits followed by other characters are a word (`24h`), unless a size letter comes first: `10m` is ten million;
- an integer swallows a `]` directly after it: `[1,2]` fails, `[1, 2 ]` does not;
- a word may contain `#`, `=`, `:`, `{`, `[` and `"`, but ends with a `'`, which is dropped.

Depth, number of included files and their size are bounded.
"""

from __future__ import annotations

import bisect
import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from broker.config.values import ConfigNode, ConfigurationError, NumberError, reason, scan_number, shown

MAX_DEPTH: Final = 100
MAX_INCLUDE_DEPTH: Final = 10
MAX_INCLUDES: Final = 1000
MAX_SIZE: Final = 16 * 1024 * 1024

_OTHER_ENCODINGS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLANKS: Final = " \t"
_LINE_ENDS: Final = "\r\n"
_SPACE: Final = "\t\n\v\f\r \x85\xa0"
_END: Final = ""
_DIGITS: Final = frozenset("0123456789")
_WORD: Final = re.compile(r"[^ \t\r\n,;\]}'\\]*")
_BARE_KEY: Final = re.compile(r"[^\t\n\v\f\r \x85\xa0=:]*")
_BARE_INCLUDE: Final = re.compile(r"[^ \t\r\n;}']*")
_COMMENT: Final = re.compile(r"[^\r\n]*")
_HEX: Final = re.compile(r"[0-9a-fA-F]{2}")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_BOOLS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


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
            self._end_of_entry()

    def _map(self) -> dict[str, ConfigNode]:
        found: dict[str, ConfigNode] = {}
        self.scopes.append(found)
        if len(self.scopes) > MAX_DEPTH:
            raise self._error(f"Maps and arrays are nested deeper than {MAX_DEPTH} levels")
        while True:
            self._skip_blank_lines()
            character = self._peek()
            if character == _END:
                raise self._error("Unexpected EOF processing map.")
            if character == "}":
                break
            self._entry(found, nested=True)
            self._skip(_BLANKS)
            if not self._comment():
                character = self._peek()
                if character == "}":
                    break
                if character == _END or character not in "\r\n,;":
                    found_instead = f"but got {shown(character)} instead."
                    raise self._error(f'Expected a map value terminator "," or a map terminator "}}", {found_instead}')
                self.position += 1
        self.position += 1
        self.scopes.pop()
        return found

    def _entry(self, into: dict[str, ConfigNode], *, nested: bool) -> None:
        character = self._peek()
        if nested and character == "]":
            raise self._error("Unexpected array end ']' processing map.")
        if character in "=:":
            raise self._error(f"Unexpected key separator '{character}'" + ("." if nested else ""))
        bare = character not in "\"'"
        key, begin = self._key(nested=nested)
        if bare and key.lower() == "include" and self._peek() not in (":", "=", _END):
            self._include(into)
            return
        node = self._node(begin)
        self._skip(_BLANKS + _LINE_ENDS)
        separated = self._peek() in ("=", ":")
        if separated:
            self.position += 1
            self._skip(_BLANKS + _LINE_ENDS if nested else _BLANKS)
        character = self._peek()
        if nested and (character == "," or character == "}"):
            raise self._error(f'Unexpected map value terminator "{character}".')
        if not nested and character != _END and character in _LINE_ENDS:
            self.position += 1
            raise self._error("Expected value but found new line")
        if character == _END and not separated and not nested:
            at = self._node(self.position)
            raise ConfigurationError(f"config is invalid ({at.place})")
        node.value = self._value(node)
        into[key] = node

    def _key(self, *, nested: bool) -> tuple[str, int]:
        mark = self._peek()
        if mark in "\"'":
            begin = self.position + 1
            end = self.text.find(mark, begin)
            if end < 0:
                self.position = len(self.text)
                quotes = "double quoted" if mark == '"' else "quoted"
                raise self._error(f"Unexpected EOF processing {quotes} map key." if nested else "Unexpected EOF.")
            self.position = end + 1
            return self.text[begin:end], begin
        begin = self.position
        match = _BARE_KEY.match(self.text, begin)
        self.position = match.end() if match else begin
        if nested and self.position == len(self.text):
            raise self._error("Unexpected EOF processing map key.")
        return self.text[begin : self.position], begin

    def _end_of_entry(self) -> None:
        """Checks the end of a top-level value."""
        self._skip(_BLANKS)
        if self._comment():
            return
        character = self._peek()
        if character != _END and character not in "\r\n,;}":
            found_instead = f"but got {shown(character)} instead."
            raise self._error(f"Expected a top-level value to end with a new line, comment or EOF, {found_instead}")
        self.position += 1

    def _value(
        self, node: ConfigNode
    ) -> str | bool | int | float | datetime | list[ConfigNode] | dict[str, ConfigNode]:
        character = self._peek()
        if character == "{":
            self.position += 1
            return self._map()
        if character == "[":
            self.position += 1
            return self._array()
        if character == '"':
            return self._double_quoted()
        if character == "'":
            begin = self.position + 1
            end = self.text.find("'", begin)
            if end < 0:
                self.position = len(self.text)
                raise self._error("Unexpected EOF.")
            self.position = end + 1
            return self.text[begin:end]
        if character == "(":
            return self._block()
        if character == "-":
            return self._number(self.position)
        if character in _DIGITS:
            return self._number(self.position)
        if character == ".":
            raise self._error("Floats must start with a digit")
        begin = self.position
        word = self._word()
        if word.startswith("$") and "\\" not in self.text[begin : self.position]:
            return self._variable(word[1:])
        return _BOOLS.get(word.lower(), word)

    def _array(self) -> list[ConfigNode]:
        found: list[ConfigNode] = []
        # Arrays are no scope for variables, but count for the depth.
        self.scopes.append({})
        if len(self.scopes) > MAX_DEPTH:
            raise self._error(f"Maps and arrays are nested deeper than {MAX_DEPTH} levels")
        while True:
            self._skip_blank_lines()
            character = self._peek()
            if character == "]":
                break
            if character == ",":
                raise self._error("Unexpected array value terminator ','.")
            if character == _END:
                raise self._no_end_of_array(character)
            node = self._node(self.position + (character in "\"'"))
            node.value = self._value(node)
            found.append(node)
            self._skip(_BLANKS)
            if not self._comment():
                character = self._peek()
                if character == "]":
                    break
                if character == _END or character not in "\r\n,":
                    raise self._no_end_of_array(character)
                self.position += 1
        self.position += 1
        self.scopes.pop()
        return found

    def _no_end_of_array(self, character: str) -> ConfigurationError:
        return self._error(
            f'Expected an array value terminator "," or an array terminator "]", but got {shown(character)} instead.'
        )

    def _double_quoted(self) -> str:
        self.position += 1
        parts: list[str] = []
        while True:
            begin = self.position
            while (character := self._peek()) not in ('"', "\\", _END):
                self.position += 1
            parts.append(self.text[begin : self.position])
            if character == _END:
                raise self._error("Unexpected EOF.")
            self.position += 1
            if character == '"':
                return "".join(parts)
            parts.append(self._escape())

    def _word(self) -> str:
        parts: list[str] = []
        while True:
            match = _WORD.match(self.text, self.position)
            if match:
                parts.append(match.group())
                self.position = match.end()
            if self._peek() == "'":
                self.position += 1
                return "".join(parts)
            if self._peek() != "\\":
                return "".join(parts)
            self.position += 1
            parts.append(self._escape())

    def _escape(self) -> str:
        character = self._peek()
        if character == "x":
            digits = _HEX.match(self.text, self.position + 1)
            if not digits:
                found = self.text[self.position + 1 : self.position + 3]
                raise self._error(f"Expected two hexadecimal digits after '\\x', but got '{found}'")
            self.position += 3
            return bytes((int(digits.group(), 16),)).decode("utf-8", "surrogateescape")
        if character == _END or character not in _ESCAPES:
            raise self._error(
                f"Invalid escape character {shown(character)}. Only the following escape characters are allowed: "
                '\\xXX, \\t, \\n, \\r, \\", \\\\.'
            )
        self.position += 1
        return _ESCAPES[character]

    def _block(self) -> str:
        """Reads `(` … `)`; the closing parenthesis is alone on its line."""
        begin = self.position + 1
        end = self.text.find("\n)", begin - 1)
        while end >= 0 and end + 2 < len(self.text) and self.text[end + 2] not in _LINE_ENDS:
            end = self.text.find("\n)", end + 1)
        if end < 0:
            self.position = len(self.text)
            raise self._error("Unexpected EOF processing block.")
        self.position = end + 2
        return self.text[begin : end + 1]

    def _number(self, begin: int) -> int | float | str | datetime:
        """Reads a value that begins with a digit, or with `-` and a digit."""
        try:
            value, self.position = scan_number(self.text, begin)
        except NumberError as problem:
            self.position = problem.position
            raise self._error(problem.text) from None
        # Digits with other characters are a word, which includes the first other character in any case.
        return self.text[begin : self.position] + self._word() if value is None else value

    def _variable(self, name: str) -> str | bool | int | float | datetime | list[ConfigNode] | dict[str, ConfigNode]:
        if name.startswith("2a$"):
            return f"${name}"
        for scope in reversed(self.scopes):
            if (found := scope.get(name)) is not None:
                found.used = True
                return found.value
        surroundings = self.surroundings
        value = surroundings.environ.get(name) if name else None
        if value is None:
            raise ConfigurationError(f"variable reference for '{name}' on line {self._line()} can not be found")
        if name in surroundings.resolving:
            raise ConfigurationError(f"variable reference for '{name}' on line {self._line()} refers to itself")
        surroundings.resolving.append(name)
        try:
            parsed = _Scanner(f"{_VARIABLE}={value}", self.source, self.directory, surroundings).document()
        except ConfigurationError as problem:
            raise ConfigurationError(
                f"variable reference for '{name}' on line {self._line()} could not be parsed: {problem.message}"
            ) from None
        finally:
            surroundings.resolving.pop()
        return parsed[_VARIABLE].value

    def _include(self, into: dict[str, ConfigNode]) -> None:
        self._skip(_BLANKS)
        character = self._peek()
        if character != _END and character in _LINE_ENDS:
            self.position += 1
            raise self._error("Expected include value but found new line")
        if character == "[":
            raise self._error("Expected include value but found start of an array")
        if character == "{":
            raise self._error("Expected include value but found start of a map")
        if character in ('"', "'"):
            end = self.text.find(character, self.position + 1)
            if end < 0:
                self.position = len(self.text)
                raise self._error("Unexpected EOF in quoted include")
            name = self.text[self.position + 1 : end]
            self.position = end + 1
        else:
            match = _BARE_INCLUDE.match(self.text, self.position)
            name = match.group() if match else ""
            self.position += len(name)
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
            raise ConfigurationError(f"error parsing include file '{name}', {problem.message}") from None
        into.update(found)

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _skip(self, characters: str) -> None:
        text, position = self.text, self.position
        while position < len(text) and text[position] in characters:
            position += 1
        self.position = position

    def _comment(self) -> bool:
        """Skips a comment to the end of its line."""
        if not (self._peek() == "#" or self.text.startswith("//", self.position)):
            return False
        match = _COMMENT.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return True

    def _skip_blank_lines(self) -> None:
        self._skip(_SPACE)
        while self._comment():
            self._skip(_SPACE)

    def _line(self) -> int:
        return bisect.bisect_left(self.newlines, self.position) + 1

    def _node(self, position: int) -> ConfigNode:
        line = bisect.bisect_left(self.newlines, position)
        begin = self.newlines[line - 1] if line else 0
        column = len(self.text[begin:position].encode("utf-8", "surrogateescape"))
        return ConfigNode("", line + 1, column, self.source)

    def _error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"Parse error on line {self._line()}: '{problem}'")


_VARIABLE: Final = "value"
