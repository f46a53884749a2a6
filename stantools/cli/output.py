r"""Data on stdout in the format that the user chose: tables for people; json, ndjson and csv for programs.

Names stay names: whatever is in them, a table or a csv line cannot be broken by it and no terminal escape
gets through. In json, bytes that are not UTF-8 appear as the four characters `\xNN`, since json has no bytes.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stantools.cli import console
from stantools.cli.console import escape
from stantools.errors import ExitCode
from stantools.notation import describe_sequences

SCHEMA = 1
#: Columns of text are not cut any further.
_NARROWEST = 4

#: Rows that decide how wide the columns of a table are.
_BLOCK = 1000
#: Bytes in a line of a dump.
_HEX_WIDTH = 16

_quoted = json.encoder.encode_basestring_ascii
_encode_line = json.JSONEncoder(separators=(",", ":")).encode


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one json document, with the version of its schema first."""
    _stream({"schema": SCHEMA, **value}, "\n")
    sys.stdout.write("\n")


def show(
    document: Callable[[], Mapping[str, Any]],
    table: Callable[[], object],
    headers: Sequence[str] = (),
    rows: Iterable[Sequence[Any]] = (),
) -> None:
    """Prints a result in the format that the user chose.

    Args:
        document: Makes the json document.
        table: Prints it for people.
        headers: The names of the columns in csv and ndjson.
        rows: Their values; may be an iterator.
    """
    output = console.output()
    if output == "json":
        print_json(document())
    elif output == "table":
        table()
    else:
        rows_as(output, headers, rows)


def show_records(
    path: str, headers: Sequence[str], rows: Iterable[Sequence[Any]], line: Callable[[Sequence[Any]], None]
) -> ExitCode:
    """Prints what a log holds record by record; returns the exit code, which says whether all of it is good.

    Args:
        path: The store.
        headers: Names of the values; one is `ok`, and the last are the record's fields, which csv leaves out.
        rows: The values of each record; may be an iterator.
        line: Prints one for people.
    """
    output, ok, code = console.output(), headers.index("ok"), ExitCode.CLEAN

    def watched() -> Iterator[Sequence[Any]]:
        nonlocal code
        for row in rows:
            if not row[ok]:
                code = ExitCode.FINDINGS
            yield row

    if output == "json":
        print_json({"path": path, "records": (dict(zip(headers, row, strict=True)) for row in watched())})
    elif output == "table":
        for row in watched():
            line(row)
    elif output == "csv":
        rows_as(output, headers[:-1], (row[:-1] for row in watched()))
    else:
        rows_as(output, headers, watched())
    return code


def stream_ndjson(values: Iterable[Mapping[str, Any]]) -> None:
    """Prints one json object a line, in which there may be iterators; without them `print_ndjson` is faster."""
    for value in values:
        _stream(value, "")
        sys.stdout.write("\n")


def _stream(value: Any, line: str) -> None:
    """Writes a value as json bit by bit: iterators become lists without ever being whole."""
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
    """Returns the json of a value that contains no others."""
    if type(value) is str and value.isascii():
        return _quoted(value)
    return repr(value) if type(value) is int else _encode_line(plain(value))


def print_ndjson(values: Iterable[Mapping[str, Any]]) -> None:
    """Prints one json object a line."""
    for value in values:
        sys.stdout.write(ndjson_line(value))


def ndjson_line(value: Mapping[str, Any]) -> str:
    """Returns one line of ndjson, with its line break."""
    return _encode_line(plain(value)) + "\n"


def plain(value: Any) -> Any:
    """Turns bytes into base64 and takes care of text that is not valid Unicode."""
    if isinstance(value, str):
        return value if value.isascii() else _valid(value)
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, int):  # before what takes longer to decide: most values of long outputs are numbers
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _valid(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join(f"\\x{ord(c) - 0xDC00:02x}" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def print_csv(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints comma separated values with a heading; lines end with a line feed."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(headers)
    for row in rows:
        writer.writerow([_cell(value) for value in row])


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), fold: Sequence[str] = ()
) -> None:
    """Prints a table for people.

    Args:
        headers: One a column.
        rows: Cells; None is shown as nothing.
        right: Columns that are aligned to the right, by header.
        fold: Columns whose text continues in further lines where the terminal is too narrow, instead of being cut.
    """
    left = iter(rows)
    text = table_text(headers, itertools.islice(left, _BLOCK), right=right, fold=fold)
    sys.stdout.write(text)
    # A long table is not kept. In a terminal its headings come again; in a file, where nothing is cut, what is wider
    # than all of the first rows stands out.
    if console.width():
        while text := table_text(headers, itertools.islice(left, _BLOCK), right=right, fold=fold):
            sys.stdout.write("\n" + text)
        return
    widths = [len(rule) for rule in text.split("\n", 2)[1].split()] if text else []
    sides = (">" if header in right else "<" for header in headers)
    layout = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=False))
    while rest := list(itertools.islice(left, _BLOCK)):
        lines = (layout.format(*[_cell(value) for value in row]).rstrip() for row in rest)
        sys.stdout.write("\n".join(lines) + "\n")


def table_text(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    fold: Sequence[str] = (),
    indent: int = 0,
) -> str:
    """Returns a table for people; see `print_table`. Its lines begin with `indent` spaces."""
    from tabulate import tabulate

    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return ""
    columns = [
        _Column(header, each, number=header in right, fold=header in fold)
        for header, each in zip(headers, zip(*cells, strict=True), strict=True)
    ]
    width = console.width()
    if width and _total(columns) > width - indent:
        columns = _fitted(columns, width - indent)
    sides = ["right" if column.number else "left" for column in columns]
    # Titles and rules go as rows: to headers the library adds room, which a narrow terminal does not have.
    text: str = tabulate(
        zip(*[column.lines() for column in columns], strict=True),
        tablefmt="plain",
        disable_numparse=True,
        colalign=sides,
    )
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in text.split("\n"))


class _Column:
    """One column of a table, as wide as its cells are, and somewhat wider than its title."""

    def __init__(self, title: str, cells: Sequence[str], *, number: bool, fold: bool) -> None:
        self.title = title
        self.cells = cells
        self.number = number
        self._fold = fold
        self.width = max(len(title) + 2, *map(len, cells))

    def tighten(self) -> None:
        """Takes no more room than the cells and the words of the title need."""
        self.width = max(map(len, (*self.title.split(), *self.cells)))

    def lines(self) -> list[str]:
        """Returns the title, the rule under it, and every cell, each cut or broken into lines so that it fits."""
        return [textwrap.fill(self.title, self.width), "-" * self.width, *map(self._fitted, self.cells)]

    def _fitted(self, text: str) -> str:
        if len(text) <= self.width:
            return text
        if self._fold:
            return textwrap.fill(text, self.width)
        console.tell_cut()
        return text[: self.width - 1] + "…"


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + 2 for column in columns) - 2


def _fitted(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Makes a table fit a terminal, in which numbers are never cut.

    Columns without any value are left out, titles are folded, and the widest columns of text give way.
    """
    kept = [column for column in columns if any(column.cells)]
    for column in kept:
        column.tighten()
    texts = [column for column in kept if not column.number]
    while _total(kept) > width and texts:
        widest = max(texts, key=lambda column: column.width)
        if widest.width <= _NARROWEST:
            break
        widest.width -= 1
    return kept


def _cell(value: Any) -> str:
    if type(value) is int:  # first, because most values of long outputs are numbers
        return str(value)
    if isinstance(value, str | bytes):
        return escape(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def rows_as(output: str, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints plain rows as csv or ndjson, with the headers as names."""
    if output == "csv":
        print_csv(headers, rows)
    else:
        print_ndjson(dict(zip(headers, row, strict=True)) for row in rows)


def place_text(file: str, offset: int | None, length: str, reason: str, sequences: Iterable[Sequence[int]]) -> str:
    """Describes a place of which something is left behind."""
    place = escape(file) + (f" at {offset}" if offset is not None else "") + (f", {length}" if length else "")
    return f"{place}: {console.escape_line(reason)}" + (f" ({describe_sequences(sequences, 4)})" if sequences else "")


def payload_text(data: bytes, how: str) -> str:
    """Returns a payload as programs are shown it: base64, hex or text."""
    if how == "base64":
        return base64.b64encode(data).decode("ascii")
    return data.hex() if how == "hex" else data.decode("utf-8", "surrogateescape")


def hex_dump(data: bytes) -> str:
    """Returns bytes as lines of offset, hexadecimal and text."""
    out = io.StringIO()
    for at in range(0, len(data), _HEX_WIDTH):
        part = data[at : at + _HEX_WIDTH]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        out.write(f"  {at:06x}  {part.hex(' '):<{_HEX_WIDTH * 3 - 1}}  {text}\n")
    return out.getvalue()
