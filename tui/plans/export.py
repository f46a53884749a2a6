"""Export: the tables of a store as Parquet, ndjson or csv."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stantools.errors import ExitCode
from stantools.notation import format_size, format_time
from stantools.pipeline.export.model import Layout, Result, WrittenFile
from stantools.pipeline.export.request import STDOUT, Exporting, check_channels, check_target, export
from stantools.pipeline.export.targets import MANIFEST
from stantools.pipeline.tables.model import Piece, Unreadable
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.planning import Plan
from stantools.pipeline.tables.planning import plan as make_plan
from stantools.recovery.place import free_bytes
from tui.cells import counted, name_text, number
from tui.jobs import Job
from tui.plans.form import FieldError, Form, field_of
from tui.plans.wizard import Outcome, Preview, Remark, Source, Wizard, attempt
from tui.rows import Column, count_column


@dataclass
class _ChannelParts:
    """What is read of a channel; of the store's own files, if it has no name."""

    name: str
    parts: int = 0
    size: int = 0


_COLUMNS: Sequence[Column[_ChannelParts]] = (
    Column("channel", 20, lambda each: name_text(each.name) or ("the store's own files", "dim"), grows=True),
    count_column("parts", 8, lambda each: each.parts, zero=True),
    Column("to read", 12, lambda each: format_size(each.size), right=True),
)
_WRITTEN: Sequence[Column[WrittenFile]] = (
    Column("file", 30, lambda file: name_text(file.path), grows=True),
    count_column("rows", 12, lambda file: file.rows, zero=True),
    Column("size", 12, lambda file: format_size(file.size), right=True),
)
#: Fields of the form, and what they do.
_FIELDS = {
    "to": "a new directory, or a file if the name ends in .parquet, .ndjson or .csv (.gz, .zst)",
    "table": "which table",
    "channels": "only channels that match, with * and >; several with blanks",
    "sequences": "only these sequences of each channel: 10:20, 10: or :20",
    "since": "not older: 2026-11-21T03:00:00Z, or an age such as 1d3h",
    "until": "older than this",
    "format": "kind of files; what the name says, else parquet",
    "compression": "snappy in Parquet, none of text",
    "columns": "only these columns, with commas; all if empty",
    "by": "directories such as channel=orders/date=2026-11-21: store, channel, date, with commas",
    "file_size": "bytes of the store that become one file, about",
    "mode": "damaged places: as rows, left out, or the end of it",
    "archived": "read .bak slices as well",
    "overwrite": "replace an earlier export, when the new one is complete",
}
_MEANINGS = {
    ExitCode.CLEAN: "everything was intact",
    ExitCode.FINDINGS: "done; damage was met, or something could not be read",
}


class ExportWizard(Wizard):
    """Writes a table of the store."""

    VERB = "export"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.form = Form(
            *(field_of(Exporting, name, help) for name, help in _FIELDS.items()),
        )
        self.form.fields["to"].value = source.beside(".messages")
        self._planned: tuple[Exporting, Layout, TableOptions, Plan] | None = None

    def command(self) -> list[str]:
        """Returns the command line that does the same."""
        words = ["stantools", self.VERB, os.fspath(self.source.path), *self.form.words()]
        return [*words, *self.source.reading_words(unchecked=True)]

    def preview(self, job: Job[Preview]) -> Preview:
        """Finds out what has to be read; see `Wizard.preview`."""
        self._planned = None
        exporting = self._exporting()
        layout = exporting.layout()
        workers, given = self.source.workers, self.source.reading
        reading = TableOptions((), polynomial=given.polynomial, check_crc=given.check_crc, key=given.encryption_key)
        options = exporting.options((os.fspath(self.source.path),), reading, layout, 1 if exporting.single else workers)
        preview = Preview(columns=_COLUMNS)
        job.begin_phase("planning")
        plan = make_plan(options)
        job.check()
        check_channels(options, plan)
        attempt(preview, partial(check_target, exporting, plan))
        self._planned = exporting, layout, options, plan
        _describe(exporting, layout, options, plan, preview)
        return preview

    def _exporting(self) -> Exporting:
        form = self.form
        to = form.needed("to", "where is it to go?")
        if to == STDOUT or "://" in to:
            raise FieldError("to", "the browser writes to directories and files of this machine", "name one of them")
        if to.startswith("~"):
            to = os.path.expanduser(to)  # noqa: PTH111 (a slash at the end means something)
        return form.taken(Exporting, to=to)

    def question(self) -> str:
        """Says what is going to be done."""
        assert self._planned is not None
        exporting, layout, _, _ = self._planned
        replaced = " An earlier export there is replaced." if exporting.overwrite else ""
        return (
            f"The table {layout.table.value} goes to {name_text(exporting.to)} as {_kind(layout)}. "
            f"{name_text(os.fspath(self.source.path))} is only read.{replaced}"
        )

    def run(self, job: Job[Outcome]) -> Outcome:
        """Writes the files; see `Wizard.run`."""
        assert self._planned is not None
        exporting, layout, options, plan = self._planned
        job.begin_phase("writing", sum(split.cost for split in plan.splits))
        result = export(exporting, plan, options, layout, workers=self.source.workers, progress=job.advance)
        return _outcome(exporting, result)


def _kind(layout: Layout) -> str:
    return layout.format.value + ("" if layout.compression == "none" else f" ({layout.compression.value})")


def _describe(exporting: Exporting, layout: Layout, options: TableOptions, plan: Plan, preview: Preview) -> None:
    size = sum(split.cost for split in plan.splits)
    found: dict[str, _ChannelParts] = {}
    for part in (part for split in plan.splits for part in split.work):
        name = part.slice.channel if isinstance(part, Piece) else part.channel or ""
        each = found.setdefault(name, _ChannelParts(name))
        each.parts += 1
        each.size += part.cost
    text = f"the table {layout.table.value} of {counted(sum(1 for name in found if name), 'channel')}"
    preview.verdict = (f"{text} would be written; {format_size(size)} to read", "good")
    preview.facts = [
        ("to", name_text(exporting.to)),
        ("as", _kind(layout) + (", one file" if exporting.single else f", about {counted(len(plan.splits), 'file')}")),
        ("columns", name_text(", ".join(layout.file_columns)) if layout.columns else "all"),
    ]
    attempt(preview, lambda: preview.facts.append(("free", format_size(free_bytes(Path(exporting.to))))))
    bounds = options.bounds
    for label, bound in (("since", bounds.since), ("until", bounds.until)):
        if bound is not None:
            preview.facts.append((label, format_time(bound)))
    preview.rows = sorted(found.values(), key=lambda each: each.name)
    preview.remark([_unreadable(each) for each in plan.unreadable], "more that cannot be read")


def _unreadable(each: Unreadable) -> Remark:
    return Remark("cannot be read", f"{each.message}{f' ({each.remedy})' if each.remedy else ''}", "bad")


def _outcome(exporting: Exporting, result: Result) -> Outcome:
    layout, written = result.layout, result.written
    code = ExitCode.CLEAN if result.clean else ExitCode.FINDINGS
    outcome = Outcome(code=code, meaning=_MEANINGS[code], columns=_WRITTEN)
    text = f"{counted(written.rows, 'row')} of the table {layout.table.value} written"
    damaged = written.damaged(layout.table)
    outcome.verdict = (text, "good")
    if damaged:
        outcome.verdict = (f"{text}; {counted(damaged, 'row')} of these tell of damage", "warn")
    outcome.facts = [
        ("in", name_text(exporting.to)),
        ("files", number(len(written.files))),
        ("size", format_size(written.size)),
        ("as", _kind(layout)),
    ]
    if not exporting.single:
        outcome.facts.append(("account", MANIFEST))
    outcome.rows = written.files
    kinds = [f"{what} {number(count)}" for what, count in written.tally.most_common() if what not in layout.good]
    if kinds:
        outcome.remarks.append(Remark("status", f"{', '.join(kinds)}: see the findings of the store", "warn"))
    outcome.remark([_unreadable(each) for each in result.unreadable], "more that could not be read")
    return outcome
