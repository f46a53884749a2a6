"""Reading YAML that people have edited: every mistake is reported with file, line and what was expected.

Values are read from the text that stands in the file, not from what YAML 1.1 makes of it: a stream may be named `on`,
and `10:30` is not a number.
"""

from __future__ import annotations

import base64
import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from stantools.errors import StoreUnreadableError, UsageError

_T = TypeVar("_T")
#: What reads YAML: compiled where PyYAML has it so.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: A file larger than this is none that people edit.
LARGEST = 256 << 20
_DEEPEST = 30
_BINARY = "tag:yaml.org,2002:binary"
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


class Value:
    """A value in a document, and where it stands.

    Args:
        node: The value.
        name: What it is called in messages.
    """

    def __init__(self, file: Path, node: yaml.Node, name: str) -> None:
        self.file = file
        self.node = node
        self.name = name

    @property
    def line(self) -> int:
        """The line that it begins in, from 1."""
        return int(self.node.start_mark.line) + 1

    def wrong(self, expected: str, remedy: str = "") -> UsageError:
        """Returns the error for a value that is not what was expected."""
        shown = f"{self.name} is " if self.name else ""
        return UsageError(
            f"{self.file}, line {self.line}: {shown}{_found(self.node)}, expected {expected}",
            remedy or "correct the line, then run it again",
        )

    def fail(self, problem: str, remedy: str = "") -> UsageError:
        """Returns the error for a value that is understood and cannot be."""
        where = f"{self.file}, line {self.line}: "
        return UsageError(where + problem, remedy or "correct the line, then run it again")

    def text(self) -> str:
        """Returns the text of a scalar.

        Raises:
            UsageError: It is none, or empty and not in quotes.
        """
        if not isinstance(self.node, yaml.ScalarNode) or (not self.node.value and not self.node.style):
            raise self.wrong("a text")
        if self.node.tag != _BINARY:
            return str(self.node.value)
        try:
            return os.fsdecode(base64.b64decode(self.node.value, validate=True))
        except ValueError as problem:
            raise self.wrong("base64 after `!!binary`") from problem

    def read(self, parse: Callable[[str], _T]) -> _T:
        """Returns what a function makes of the text; its ValueError says what was expected."""
        try:
            return parse(self.text())
        except ValueError as problem:
            raise self.wrong(str(problem)) from problem

    def choice(self, *possible: str) -> str:
        """Returns the text, which has to be one of several."""
        text = self.text() if isinstance(self.node, yaml.ScalarNode) else ""
        if text not in possible:
            raise self.wrong(" or ".join(possible))
        return text

    def flag(self) -> bool:
        """Returns whether it says yes."""
        text = self.text().lower() if isinstance(self.node, yaml.ScalarNode) else ""
        if text not in _TRUE + _FALSE:
            raise self.wrong("yes or no")
        return text in _TRUE

    def items(self) -> list[Value]:
        """Returns the values of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong("a list")
        return [Value(self.file, node, self.name) for node in self.node.value]

    def section(self) -> Section:
        """Returns it as a mapping."""
        return Section(self.file, self.node, self.name)

    def sections(self) -> list[Section]:
        """Returns the mappings of a list."""
        return [item.section() for item in self.items()]


class Section(Value):
    """A mapping, whose members are asked for one by one; at the end none may be left.

    Raises:
        UsageError: The node is no mapping, or a key is there twice.
    """

    def __init__(self, file: Path, node: yaml.Node, name: str) -> None:
        super().__init__(file, node, name)
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong("a group of `key: value`")
        self._members: dict[str, Value] = {}
        self._known: set[str] = set()
        for key, value in node.value:
            text = Value(file, key, "a key").text()
            if text in self._members:
                raise Value(file, key, "").fail(f"`{text}` is there twice", "keep one of the two")
            self._members[text] = Value(file, value, f"`{text}`")

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def take(self, key: str) -> Value:
        """Returns a member that must be there.

        Raises:
            UsageError: It is not.
        """
        value = self.get(key)
        if value is None:
            raise self.fail(f"`{key}` is missing", f"add a line `{key}: …` there")
        return value

    def get(self, key: str) -> Value | None:
        """Returns a member if it is there."""
        self._known.add(key)
        return self._members.get(key)

    def rest(self) -> Iterator[tuple[str, Value]]:
        """Yields all other members."""
        others = [key for key in self._members if key not in self._known]
        self._known.update(others)
        return ((key, self._members[key]) for key in others)

    def finish(self) -> None:
        """Checks that every member was asked for.

        Raises:
            UsageError: One was not.
        """
        for key in self._members:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(sorted(self._known))}"
                raise self._members[key].fail(f"`{key}` is not known here", hint)


def load(path: Path, what: str) -> Section:
    """Reads a YAML file that holds one mapping.

    Args:
        path: The file.
        what: What it is, in messages.

    Raises:
        StoreUnreadableError: It cannot be read.
        UsageError: It is not YAML, or holds something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as problem:
        raise StoreUnreadableError(
            f"{path}: {what} cannot be read: {problem.strerror or type(problem).__name__}", "check the path"
        ) from problem
    if len(data) > LARGEST:
        raise UsageError(f"{path}: is larger than {LARGEST >> 20} MiB, {what} is not", "name another file")
    return parse(data, path, what)


def parse(data: bytes, path: Path, what: str) -> Section:
    """Reads YAML; see `load`."""
    remedy = f"name {what}, or correct the file"
    try:
        _check_nesting(data, path)
        node = yaml.compose(data.decode("utf-8"), Loader=LOADER)
    except UnicodeDecodeError as problem:
        number = data.count(b"\n", 0, problem.start) + 1
        raise UsageError(f"{path}, line {number}: is not UTF-8, expected {what}", remedy) from problem
    except yaml.MarkedYAMLError as problem:
        where = _at(path, problem.problem_mark or problem.context_mark)
        said = " ".join(part for part in (problem.context, problem.problem) if part)
        raise UsageError(f"{where}: is not YAML: {said}", remedy) from problem
    except (yaml.YAMLError, ValueError, OverflowError) as problem:
        # Characters that YAML does not take, and escapes of code points that do not exist.
        said = str(problem).splitlines()[0]
        raise UsageError(f"{path}: is not YAML: {said}", remedy) from problem
    if node is None:
        raise UsageError(f"{path}: is empty, expected {what}", remedy)
    return Section(path, node, "")


def _check_nesting(data: bytes, path: Path) -> None:
    """Refuses what is nested absurdly deep, before the parser recurses into it."""
    depth = 0
    for event in yaml.parse(data.decode("utf-8"), Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise UsageError(
                    f"{_at(path, event.start_mark)}: is nested more than {_DEEPEST} levels deep",
                    "correct the file",
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise UsageError(
                f"{_at(path, event.start_mark)}: refers to another place with `*`, which is not understood",
                "write the value out, or put it in quotes",
            )


def _at(path: Path, mark: Any) -> str:
    return f"{path}, line {mark.line + 1}" if mark else str(path)


def _found(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a group of `key: value`"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    return repr(text if len(text) <= 60 else f"{text[:60]}…") if text else "empty"


_WORDS = frozenset(("~", "null", "y", "n", "none", "true", "false", "yes", "no", "on", "off"))
_PLAIN_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/$")
_PLAIN = _PLAIN_START | frozenset("0123456789.-+=()")


def quoted(text: str) -> str:
    """Returns a text as YAML: as it is where nothing can be misread, else in double quotes.

    What is not UTF-8 (surrogate escapes, as in file names) becomes base64.
    """
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return f"!!binary {base64.b64encode(os.fsencode(text)).decode()}"
    if text and text[0] in _PLAIN_START and _PLAIN.issuperset(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
