"""Plans and results as reports: tables, findings, remarks, facts, a verdict, and the next step.

The library makes a report once; the command line prints it (`stantools.cli.reporttext`), the browser shows it
(`tui.plans.account`). Cells of tables are values, which the renderers format and escape. In texts, names are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stantools.errors import ExitCode
from stantools.escaping import escape, escape_line, shell_word
from stantools.inspection.findings import Finding, worst_first
from stantools.notation import counted, describe_sequences

#: Meaning of a text: plain, good, warning, bad, secondary, emphasised, selectable.
Role = Literal["", "good", "warn", "bad", "dim", "strong", "accent"]


@dataclass(frozen=True)
class ReportColumn:
    title: str
    number: bool = False  #: aligned right
    role: Role = ""  #: meaning of a value other than zero
    fold: bool = False  #: wrapped instead of cut if the terminal is too narrow
    #: identifies a row, or is its state: shrinks last, and is wrapped instead of cut
    key: bool = False
    #: left out, the smallest first, if the terminal is too narrow; 0 stays
    detail: int = 0


def columns(
    *titles: str,
    numbers: Sequence[str] = (),
    roles: Mapping[str, Role] | None = None,
    fold: Sequence[str] = (),
    keys: Sequence[str] = (),
    details: Sequence[str] = (),
) -> list[ReportColumn]:
    """Returns columns; `numbers` are aligned right.

    `keys` are those that identify a row or are its state, by default the first one; `details` are left out in this
    order if a terminal is too narrow.
    """
    keys, order = keys or titles[:1], {title: number for number, title in enumerate(details, 1)}
    return [
        ReportColumn(
            title, title in numbers, (roles or {}).get(title, ""), title in fold, title in keys, order.get(title, 0)
        )
        for title in titles
    ]


@dataclass
class ReportTable:
    columns: Sequence[ReportColumn]
    rows: Sequence[Sequence[Any]] = ()
    limit: int | None = None  #: number of rows that are printed; 0 leaves the table to the browser
    noun: str = ""  #: a row, if some are left out
    rest: str = ""  #: where to find the others
    more: int = 0  #: number of rows that are not here
    stream: Iterator[Sequence[Any]] | None = None  #: rows that are too many to be held


@dataclass(frozen=True)
class ReportRemark:
    word: str  #: its kind: "missing before", "changed", "warning"
    text: str
    role: Role = "dim"  #: meaning of the word
    remedy: str = ""


@dataclass(frozen=True)
class RemarkList:
    remarks: Sequence[ReportRemark]
    noun: str = ""  #: a remark, if some are left out
    rest: str = ""  #: where to find the others
    limit: int = 20  #: number of remarks that are printed
    width: int | None = None  #: columns of the words, if the list is indented below a verdict


@dataclass(frozen=True)
class NextStep:
    text: str
    commands: Sequence[str] = ()  #: pasteable lines
    template: bool = False  #: placeholders in the text stay


@dataclass
class ReportSection:
    """A part of a report with a conclusion of its own, such as one start of a server."""

    label: str = ""  #: subject of the verdict
    verdict: str = ""  #: the most important fact, in a sentence
    role: Role = ""  #: meaning of the verdict
    facts: list[tuple[str, str]] = field(default_factory=list)  #: label and value
    tables: list[ReportTable] = field(default_factory=list)
    findings: Sequence[Finding] = ()
    remarks: list[RemarkList] = field(default_factory=list)  #: facts that do not fit into a table
    next: list[NextStep] = field(default_factory=list)
    leads: bool = True  #: verdict, facts and remarks precede the tables
    apart: bool = True  #: an empty line precedes it
    indent: int | None = 2  #: of its tables; an empty line follows tables without one
    heading: str = ""
    store: str = ""  #: store in the commands of its findings, if it is not the user's

    def remark(self, word: str, text: str, role: Role = "dim") -> None:
        self.remarks.append(RemarkList([ReportRemark(word, text, role)]))

    def list_remarks(self, remarks: Iterable[ReportRemark], noun: str, rest: str = "") -> None:
        """Adds remarks of one kind; of many, the renderers show the first."""
        if listed := list(remarks):
            self.remarks.append(RemarkList(listed, noun, rest))

    def list_details(
        self, remarks: Iterable[ReportRemark], *, width: int = 0, limit: int = 8, noun: str = "", rest: str = ""
    ) -> None:
        """Adds remarks below the verdict; their texts may have several lines."""
        if listed := list(remarks):
            self.remarks.append(RemarkList(listed, noun, rest, limit, width))


def findings_section(findings: Sequence[Finding]) -> ReportSection | None:
    """Returns the findings of a verdict, the worst first; None without any."""
    if not findings:
        return None
    section = ReportSection(verdict="wrong:")
    section.list_details(map(_wrong, worst_first(findings)), noun="finding", rest=": `stantools verify STORE`")
    return section


def _wrong(finding: Finding) -> ReportRemark:
    place = escape(finding.file) + (f" at {finding.offset}" if finding.offset is not None else "")
    text = f"{escape_line(finding.detail)} ({finding.code})"
    return ReportRemark("", f"{place}: {text}" if place else text)


@dataclass
class Report(ReportSection):
    """A plan or a result.

    `document` makes its json; `records` are its names and rows for csv and, without `objects`, for ndjson.
    """

    leads: bool = False
    indent: int | None = None
    code: ExitCode = ExitCode.CLEAN
    lead: list[tuple[str, Role]] = field(default_factory=list)  #: sentences that come first, and their meaning
    empty: str = ""  #: the note to a reader, on stderr, that there is nothing to list
    warnings: list[ReportRemark] = field(default_factory=list)  #: remarks that every format of the output has on stderr
    sections: list[ReportSection] = field(default_factory=list)
    document: Callable[[], Mapping[str, Any]] = dict
    records: tuple[Sequence[str], Iterable[Sequence[Any]]] = ((), ())
    objects: Iterable[Mapping[str, Any]] | None = None


#: Columns of a finding in csv and ndjson.
FINDING_COLUMNS = ("code", "severity", "file", "offset", "length", "channel", "seq", "detail", "remedy")
#: Columns of a difference.
DIFFERENCE_COLUMNS = ("code", "severity", "file", "channel", "seq", "detail", "remedy")


def finding_records(
    findings: Iterable[Finding], names: Sequence[str] = FINDING_COLUMNS
) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    """Returns findings as names and rows, for csv and ndjson."""
    return names, ([values.get(name) for name in names] for values in (each.as_json() for each in findings))


def listing(name: str, values: Sequence[Mapping[str, Any]], *, fold: Sequence[str] = ()) -> Report:
    """Returns a report that only lists values: a table whose columns are their names, and json with the list."""
    rows = (list(each.values()) for each in values)
    table = ReportTable(columns(*(values[0] if values else ()), fold=fold), stream=rows)
    return Report(tables=[table], document=lambda: {name: values})


def command_line(*words: str) -> str:
    return " ".join(map(shell_word, words))


def place_text(file: str, offset: int | None, length: int, reason: str, sequences: Iterable[Sequence[int]]) -> str:
    """Describes data that was left out, and its place."""
    place = escape(file) + (f" at {offset}" if offset is not None and offset >= 0 else "")
    place += f", {counted(length, 'byte')}" if length else ""
    return f"{place}: {reason}" + (f" ({describe_sequences(sequences, 4)})" if sequences else "")
