r"""Data on stdout in the format that the user chose: tables for people; json, ndjson and csv for programs.

Names stay names: whatever is in them, a table or a csv line cannot be broken by it and no terminal escape
gets through. In json, bytes that are not UTF-8 appear as the four characters `\xNN`, since json has no bytes.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stantools.cli.console import escape

SCHEMA = 1

_encode_line = json.JSONEncoder(separators=(",", ":")).encode


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one json document, with the version of its schema first."""
    json.dump({"schema": SCHEMA, **plain(value)}, sys.stdout, indent=2)
    sys.stdout.write("\n")


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
    if isinstance(value, int):  # before what takes longer to find out: most values of long outputs are numbers
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


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Prints a table for people.

    Args:
        headers: One a column.
        rows: Cells; None is shown as nothing.
        right: Columns that are aligned to the right, by header.
    """
    sys.stdout.write(table_text(headers, rows, right=right))


def table_text(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> str:
    """Returns a table for people; see `print_table`."""
    from tabulate import tabulate

    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return ""
    sides = ["right" if header in right else "left" for header in headers]
    text: str = tabulate(cells, list(headers), tablefmt="simple", disable_numparse=True, colalign=sides)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | bytes):
        return escape(value)
    return str(value)


def rows_as(output: str, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints plain rows as csv or ndjson, with the headers as names."""
    if output == "csv":
        print_csv(headers, rows)
    else:
        print_ndjson(dict(zip(headers, row, strict=True)) for row in rows)


def hex_dump(data: bytes, width: int = 16) -> str:
    """Returns bytes as lines of offset, hexadecimal and text."""
    out = io.StringIO()
    for at in range(0, len(data), width):
        part = data[at : at + width]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        out.write(f"  {at:06x}  {part.hex(' '):<{width * 3 - 1}}  {text}\n")
    return out.getvalue()
