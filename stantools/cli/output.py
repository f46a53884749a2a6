r"""Data on stdout in the user's format: tables for people; json, ndjson and csv for programs.

No name can break a table or a csv line, or contain a terminal escape. In json, bytes that are not UTF-8 appear as
the four characters `\xNN`, since json has no bytes.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from stantools.cli import console
from stantools.cli.console import escape
from stantools.errors import ExitCode
from stantools.escaping import known
from stantools.notation import cut

if TYPE_CHECKING:
    from stantools.inspection.report import ReportColumn

SCHEMA = 1
#: Minimum width of a text column; width at which most texts can still be read.
_MIN_WIDTH = 4
_READABLE = 14

_TOKENS = re.compile(r"[^\s./_-]*[\s./_-]|[^\s./_-]+")
#: Rows that determine the column widths of a table.
_BLOCK = 1000
#: bytes in a line of a dump
_HEX_WIDTH = 16

_Item = TypeVar("_Item")

_quoted = json.encoder.encode_basestring_ascii
_encode_line = json.JSONEncoder(separators=(",", ":")).encode


def print_json(value: Mapping[str, Any]) -> None:
    _stream({"schema": SCHEMA, **value}, "\n")
    sys.stdout.write("\n")


def show_items(
    head: Mapping[str, Any],
    noun: str,
    items: Iterable[_Item],
    line: Callable[[_Item], None],
    columns: Sequence[str],
    as_object: Callable[[_Item], Mapping[str, Any]],
) -> None:
    """Prints a long list item by item.

    Args:
        head: Members of the json document before the list, which is called `noun`.
        line: Prints an item for people.
        columns: Members of an object that csv has.
        as_object: Converts an item for programs.
    """
    output, objects = console.output(), map(as_object, items)
    if output == "table":
        for item in items:
            line(item)
    elif output == "ndjson":
        print_ndjson(objects)
    elif output == "csv":
        print_csv(columns, ([each.get(name) for name in columns] for each in objects))
    else:
        write = sys.stdout.write
        write(f'{json.dumps(plain({"schema": SCHEMA, **head}))[:-1]}, "{noun}": [')
        try:
            for number, each in enumerate(objects):
                write((",\n  " if number else "\n  ") + _encode_line(plain(each)))
        finally:
            write("\n]}\n")


def show_records(
    head: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    line: Callable[[Mapping[str, Any]], None],
    columns: Sequence[str],
    as_object: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> ExitCode:
    """Prints the records of a log as `show_items` does; returns the exit code for those that are not `ok`."""
    code = ExitCode.CLEAN

    def watched() -> Iterator[Mapping[str, Any]]:
        nonlocal code
        for each in records:
            if not each["ok"]:
                code = ExitCode.FINDINGS
            yield each

    show_items(head, "records", watched(), line, columns, as_object)
    return code


def stream_ndjson(values: Iterable[Mapping[str, Any]]) -> None:
    """Prints one json object per line, which may hold iterators; without them `print_ndjson` is faster."""
    for value in values:
        _stream(value, "")
        sys.stdout.write("\n")


def _stream(value: Any, line: str) -> None:
    """Writes a value as json piece by piece: iterators become lists without being held in memory.

    `line` is the beginning of each line; empty puts all on one line.
    """
    write, inner = sys.stdout.write, line and line + "  "
    if isinstance(value, Mapping):
        begin, end, colon = "{", "}", ": " if line else ":"
        items: Iterable[tuple[str, Any]] = ((_text(key) + colon, each) for key, each in value.items())
    elif isinstance(value, list | tuple | Iterator):
        begin, end, items = "[", "]", (("", each) for each in value)
    else:
        write(_text(value))
        return
    between = begin + inner
    for name, each in items:
        write(between + name)
        _stream(each, inner)
        between = "," + inner
    write(begin + end if between[0] == begin else line + end)


def _text(value: Any) -> str:
    if type(value) is str and value.isascii():
        return _quoted(known(value))
    return repr(value) if type(value) is int else _encode_line(plain(value))


def print_ndjson(values: Iterable[Mapping[str, Any]]) -> None:
    for value in values:
        sys.stdout.write(_encode_line(plain(value)) + "\n")


def plain(value: Any) -> Any:
    """Converts bytes to base64, and text that is not valid Unicode to valid text."""
    if isinstance(value, str):
        value = known(value)
        if value.isascii():
            return value
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return "".join(f"\\x{ord(c) - 0xDC00:02x}" if "\ud800" <= c <= "\udfff" else c for c in value)
        return value
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, int):  # first the cheapest test: most values of long outputs are numbers
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def print_csv(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints comma separated values with a heading; lines end with a line feed."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(headers)
    for row in rows:
        writer.writerow([_cell(value) for value in row])


def print_table(columns: Sequence[ReportColumn], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table for people; a cell that is None is empty."""
    left = iter(rows)
    text = table_text(columns, itertools.islice(left, _BLOCK))
    sys.stdout.write(text)
    # A long table is not kept in memory. In a terminal its headings are repeated; in a file, where nothing is cut,
    # cells wider than all of the first rows stand out.
    if console.width():
        while text := table_text(columns, itertools.islice(left, _BLOCK)):
            sys.stdout.write("\n" + text)
        return
    widths = [len(rule) for rule in text.split("\n", 2)[1].split()] if text else []
    sides = (">" if column.number else "<" for column in columns)
    layout = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=False))
    while rest := list(itertools.islice(left, _BLOCK)):
        lines = (layout.format(*[_cell(value) for value in row]).rstrip() for row in rest)
        sys.stdout.write("\n".join(lines) + "\n")


def table_text(columns: Sequence[ReportColumn], rows: Iterable[Sequence[Any]], *, indent: int = 0) -> str:
    """Returns a table for people; see `print_table`. Its lines begin with `indent` spaces."""
    from tabulate import tabulate

    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return ""
    shown = [_ShownColumn(column, each) for column, each in zip(columns, zip(*cells, strict=True), strict=True)]
    width = console.width()
    if width and _total(shown) > width - indent:
        shown = _fit(shown, width - indent)
    height = max(len(each.title) for each in shown)
    sides = ["right" if each.column.number else "left" for each in shown]
    # Titles and rules are rows: the library adds space to headers, which a narrow terminal does not have.
    text: str = tabulate(
        zip(*[each.lines(height) for each in shown], strict=True),
        tablefmt="plain",
        disable_numparse=True,
        colalign=sides,
    )
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in text.split("\n"))


class _ShownColumn:
    """One column of a table, as wide as its cells, and somewhat wider than its title."""

    def __init__(self, column: ReportColumn, cells: Sequence[str]) -> None:
        self.column = column
        self.cells = cells
        self.width = max(len(column.title) + 2, *map(len, cells))

    @property
    def least(self) -> int:
        """Minimum width, with every word of the title."""
        return max(_MIN_WIDTH, *map(len, self.column.title.split() or [""]))

    @property
    def full(self) -> int:
        """Width of the cells and of the title's words."""
        return max(map(len, (*self.column.title.split(), *self.cells)))

    @property
    def title(self) -> list[str]:
        return textwrap.wrap(self.column.title, self.width)

    def lines(self, height: int) -> list[str]:
        """Returns the title, which ends above the rule, the rule and the cells, each cut or wrapped to the width."""
        above = [""] * (height - len(self.title))
        return [*above, *self.title, "-" * self.width, *map(self._fit, self.cells)]

    def _fit(self, text: str) -> str:
        if len(text) <= self.width:
            return text
        if self.column.fold:
            return textwrap.fill(text, self.width)
        if self.column.key:
            return _wrapped_name(text, self.width)
        console.tell_cut()
        return cut(text, self.width)


def _wrapped_name(name: str, width: int) -> str:
    """Wraps a name, if possible after its separators."""
    lines = [""]
    for token in _TOKENS.findall(name):
        for part in (token[begin : begin + width] for begin in range(0, len(token), width)):
            if len(lines[-1]) + len(part) > width:
                lines.append("")
            lines[-1] += part
    return "\n".join(lines)


def _total(columns: Sequence[_ShownColumn]) -> int:
    return sum(each.width + 2 for each in columns) - 2


def _fit(columns: Sequence[_ShownColumn], width: int) -> list[_ShownColumn]:
    """Fits a table into a terminal without cutting numbers, nor what identifies a row or is its state.

    Empty columns are dropped, titles are wrapped, texts shrink as long as they can be read, and details are left out.
    If that is not enough, texts shrink further, and at last keys, which are wrapped.
    """
    kept = [each for each in columns if any(each.cells)]
    for each in kept:
        each.width = each.full
    texts = [each for each in kept if not each.column.number]
    free = [each for each in texts if not each.column.key]
    _shrink(kept, free, width, _READABLE)
    for each in sorted((each for each in kept if each.column.detail), key=lambda each: each.column.detail):
        if _total(kept) <= width:
            break
        kept.remove(each)
        console.tell_cut(each.column.title)
    _grow(kept, [each for each in free if each in kept], width)
    _shrink(kept, [each for each in free if each in kept], width)
    _shrink(kept, [each for each in texts if each in kept], width)
    return kept


def _shrink(columns: Sequence[_ShownColumn], texts: Sequence[_ShownColumn], width: int, least: int = 0) -> None:
    """Makes the widest of some columns narrower, until all of them fit or have the least width."""
    while _total(columns) > width:
        wide = [each for each in texts if each.width > max(least, each.least)]
        if not wide:
            break
        max(wide, key=lambda each: each.width).width -= 1


def _grow(columns: Sequence[_ShownColumn], texts: Sequence[_ShownColumn], width: int) -> None:
    """Makes columns wider again, up to their texts, where columns that were left out made room."""
    for each in texts:
        each.width += min(max(width - _total(columns), 0), each.full - each.width)


def _cell(value: Any) -> str:
    if type(value) is int:  # first, because most values of long outputs are numbers
        return str(value)
    if isinstance(value, str | bytes):
        return escape(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(json.dumps(plain(value))) if isinstance(value, dict) else str(value)


def rows_as(output: str, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints plain rows as csv or ndjson, with the headers as names."""
    if output == "csv":
        print_csv(headers, rows)
    else:
        print_ndjson(dict(zip(headers, row, strict=True)) for row in rows)


def payload_text(data: bytes, data_format: str) -> str:
    """Returns a payload for programs: base64, hex or text."""
    if data_format == "base64":
        return base64.b64encode(data).decode("ascii")
    return data.hex() if data_format == "hex" else data.decode("utf-8", "surrogateescape")


def hex_dump(data: bytes) -> str:
    out = io.StringIO()
    for at in range(0, len(data), _HEX_WIDTH):
        part = data[at : at + _HEX_WIDTH]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        out.write(f"  {at:06x}  {part.hex(' '):<{_HEX_WIDTH * 3 - 1}}  {text}\n")
    return out.getvalue()
