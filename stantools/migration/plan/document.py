"""YAML edited by people: every mistake is reported with file, line and expectation.

Scalars are taken as written, without the types of YAML 1.1: a stream may be named `on`, and `10:30` is not a number.
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
from stantools.notation import cut

_T = TypeVar("_T")
#: the compiled loader where PyYAML has one
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: bytes; no file edited by people is larger
MAX_BYTES = 256 << 20
_MAX_DEPTH = 30
_BINARY = "tag:yaml.org,2002:binary"
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


class Value:
    """A value in a document, with its place.

    `name` is its path in messages.
    """

    def __init__(self, file: Path, node: yaml.Node, name: str) -> None:
        self.file = file
        self.node = node
        self.name = name

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def wrong(self, expected: str, remedy: str = "") -> UsageError:
        shown = f"{self.name} is " if self.name else ""
        return UsageError(
            f"{self.file}, line {self.line}: {shown}{_found(self.node)}, expected {expected}",
            remedy or "correct the line, then run it again",
        )

    def fail(self, problem: str, remedy: str = "") -> UsageError:
        """Returns the error for a value of the right form that is not allowed."""
        where = f"{self.file}, line {self.line}: "
        return UsageError(where + problem, remedy or "correct the line, then run it again")

    def text(self) -> str:
        """Returns the text of a scalar; an empty one must be in quotes."""
        if not isinstance(self.node, yaml.ScalarNode) or (not self.node.value and not self.node.style):
            raise self.wrong("a text")
        if self.node.tag != _BINARY:
            return str(self.node.value)
        try:
            return os.fsdecode(base64.b64decode(self.node.value, validate=True))
        except ValueError as problem:
            raise self.wrong("base64 after `!!binary`") from problem

    def read(self, parse: Callable[[str], _T]) -> _T:
        """Returns `parse(text)`; its ValueError names the expected value."""
        try:
            return parse(self.text())
        except ValueError as problem:
            raise self.wrong(str(problem)) from problem

    def choice(self, *possible: str) -> str:
        text = self.text() if isinstance(self.node, yaml.ScalarNode) else ""
        if text not in possible:
            raise self.wrong(" or ".join(possible))
        return text

    def flag(self) -> bool:
        text = self.text().lower() if isinstance(self.node, yaml.ScalarNode) else ""
        if text not in _TRUE + _FALSE:
            raise self.wrong("yes or no")
        return text in _TRUE

    def items(self) -> list[Value]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong("a list")
        return [Value(self.file, node, self.name) for node in self.node.value]

    def section(self) -> PlanSection:
        return PlanSection(self.file, self.node, self.name)

    def sections(self) -> list[PlanSection]:
        return [item.section() for item in self.items()]


class PlanSection(Value):
    """A mapping. Callers take its members one by one; `finish` refuses members that are left."""

    def __init__(self, file: Path, node: yaml.Node, name: str) -> None:
        super().__init__(file, node, name)
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong("a group of `key: value`")
        self._members: dict[str, Value] = {}
        self._known: set[str] = set()
        for key, value in node.value:
            text = Value(file, key, "a key").text()
            if text in self._members:
                raise Value(file, key, "").fail(f"`{text}` occurs twice", "keep one of them")
            self._members[text] = Value(file, value, f"`{text}`")

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def take(self, key: str) -> Value:
        """Returns a required member."""
        value = self.get(key)
        if value is None:
            raise self.fail(f"`{key}` is missing", f"add a line `{key}: …` there")
        return value

    def get(self, key: str) -> Value | None:
        self._known.add(key)
        return self._members.get(key)

    def rest(self) -> Iterator[tuple[str, Value]]:
        others = [key for key in self._members if key not in self._known]
        self._known.update(others)
        return ((key, self._members[key]) for key in others)

    def finish(self) -> None:
        for key in self._members:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(sorted(self._known))}"
                raise self._members[key].fail(f"`{key}` is not known here", hint)


def load(path: Path, noun: str, remedy: str = "") -> PlanSection:
    """Reads a YAML file that holds one mapping. `noun` names the kind of file in messages, `remedy` finds it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as problem:
        reason = f"cannot be read as {noun}: {problem.strerror or type(problem).__name__}"
        if isinstance(problem, IsADirectoryError):
            reason = f"is a directory, expected {noun}, a file"
        elif isinstance(problem, FileNotFoundError):
            reason = "no such file"
        raise StoreUnreadableError(f"{path}: {reason}", remedy or "check the path") from problem
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"{path}: larger than {MAX_BYTES >> 20} MiB, which is too large for {noun}", "name another file"
        )
    return parse(data, path, noun)


def parse(data: bytes, path: Path, noun: str) -> PlanSection:
    remedy = f"name {noun}, or correct the file"
    try:
        _check_nesting(data, path)
        node = yaml.compose(data.decode("utf-8"), Loader=LOADER)
    except UnicodeDecodeError as problem:
        number = data.count(b"\n", 0, problem.start) + 1
        raise UsageError(f"{path}, line {number}: not UTF-8, expected {noun}", remedy) from problem
    except yaml.MarkedYAMLError as problem:
        where = _at(path, problem.problem_mark or problem.context_mark)
        said = " ".join(part for part in (problem.context, problem.problem) if part)
        raise UsageError(f"{where}: not YAML: {said}", remedy) from problem
    except (yaml.YAMLError, ValueError, OverflowError) as problem:
        # characters that YAML does not allow, and escapes of code points that do not exist
        said = str(problem).splitlines()[0]
        raise UsageError(f"{path}: not YAML: {said}", remedy) from problem
    if node is None:
        raise UsageError(f"{path}: empty, expected {noun}", remedy)
    return PlanSection(path, node, "")


def _check_nesting(data: bytes, path: Path) -> None:
    """Refuses absurdly deep nesting before the parser recurses into it."""
    depth = 0
    for event in yaml.parse(data.decode("utf-8"), Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise UsageError(
                    f"{_at(path, event.start_mark)}: nested more than {_MAX_DEPTH} levels deep",
                    "correct the file",
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise UsageError(
                f"{_at(path, event.start_mark)}: `*` refers to another place, which is not supported",
                "repeat the value there, or put the text in quotes",
            )


def _at(path: Path, mark: Any) -> str:
    return f"{path}, line {mark.line + 1}" if mark else str(path)


def _found(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a group of `key: value`"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    return repr(cut(text, 61)) if text else "empty"
