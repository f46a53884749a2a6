"""A report as rows: the table with the most rows, then the other tables and its remarks, wrapped."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from stantools.escaping import escape_line
from stantools.inspection.report import RemarkList, Report, ReportColumn, ReportRemark, ReportTable
from stantools.notation import and_more
from tui.cells import Cell, Role, name_text, number
from tui.rows import RowSource, TableColumn

if TYPE_CHECKING:
    from stantools.inspection.advice import Advice

#: Maximum number of remarks of one kind that are listed; beyond it, their number is shown.
MANY = 200
#: Rows that determine the widths of columns, and the width that a column of text needs at most.
_MEASURED = 100
_WIDEST = 20

_Row = Sequence[Any]


@dataclass(frozen=True)
class _Paragraph:
    text: str
    role: Role = ""


def advice_rows(advice: Advice, hint: str = "") -> Iterator[list[Cell]]:
    """Yields the next step and its command, if it has one, with a hint."""
    yield [("Next: ", "strong"), advice.text, (hint if advice.command else "", "dim")]
    if advice.command:
        yield [("  $ " + shlex.join(advice.command), "accent")]


class AccountRows(RowSource[Any]):
    """The rows of a report on a screen of `width` columns; `warnings` precede its remarks."""

    def __init__(self, report: Report, width: int, warnings: Sequence[ReportRemark] = ()) -> None:
        parts = [report, *report.sections]
        tables = [table for part in parts for table in part.tables]
        table = max(tables, key=lambda each: len(each.rows), default=None)
        self._rows: Sequence[_Row] = table.rows if table else ()
        columns = table_columns(table.columns, self._rows) if table else []
        # A row with a single cell needs at least two columns to span.
        spare: list[TableColumn[Any]] = [TableColumn("", 1, lambda _: "", grows=True)] * (2 - len(columns))
        self.columns = [*columns, *spare]
        lists = [RemarkList([*warnings, *report.warnings], "warning")]
        lists += [_remarks(each) for each in tables if each is not table]
        lists += [listed for part in parts for listed in part.remarks]
        self._paragraphs = [line for listed in lists for line in _lines(listed, max(width, 20))]
        if self._rows and self._paragraphs:
            self._paragraphs.insert(0, _Paragraph(""))

    def __len__(self) -> int:
        return len(self._rows) + len(self._paragraphs)

    def things(self, start: int, stop: int) -> Sequence[Any]:
        count = len(self._rows)
        below = self._paragraphs[max(start - count, 0) : max(stop - count, 0)]
        return [*self._rows[start:stop], *below]

    def heading(self, thing: Any) -> Cell | None:
        return (thing.text, thing.role) if isinstance(thing, _Paragraph) else None


def table_columns(columns: Sequence[ReportColumn], rows: Sequence[_Row]) -> list[TableColumn[_Row]]:
    """Returns the columns of a report's table; empty ones are left out."""
    found = []
    for place, column in enumerate(columns):
        cell = partial(_cell, place, column.role)
        width = max((len(_text(row[place])) for row in islice(rows, _MEASURED)), default=0)
        if not width and rows:
            continue
        width = max(len(column.title), width if column.number else min(width, _WIDEST))
        found.append(TableColumn(column.title, width, cell, right=column.number, grows=not column.number))
    return found


def _cell(place: int, role: Role, row: _Row) -> Cell:
    value = row[place]
    return (_text(value), role) if role and value else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int) else name_text(value)


def _remarks(table: ReportTable) -> RemarkList:
    """Returns a table beside a bigger one as remarks: the first cell, then the others with their titles."""
    titles = [each.title for each in table.columns[1:]]
    rows = [[_text(value) for value in row] for row in table.rows[:MANY]]
    texts = [", ".join(f"{title} {cell}" for title, cell in zip(titles, row[1:], strict=True) if cell) for row in rows]
    remarks = [ReportRemark(row[0], text, "") for row, text in zip(rows, texts, strict=True)]
    return RemarkList(remarks, table.noun, table.rest)


def _lines(listed: RemarkList, width: int) -> Iterator[_Paragraph]:
    for remark in listed.remarks[:MANY]:
        remedy = f" → {remark.remedy}" if remark.remedy else ""
        yield from _wrapped(f"{remark.word}: {remark.text}{remedy}", remark.role, width)
    if len(listed.remarks) > MANY:
        yield from _wrapped(and_more(len(listed.remarks) - MANY, listed.noun), "dim", width)


def _wrapped(text: str, role: Role, width: int) -> Iterable[_Paragraph]:
    parts = [
        part for line in text.split("\n") for part in textwrap.wrap(escape_line(line), width, subsequent_indent="    ")
    ]
    return (_Paragraph(part, "dim" if number else role) for number, part in enumerate(parts))
