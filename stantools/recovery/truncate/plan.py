"""The plan of the repair, and the reasons against it. Nothing is changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stantools.escaping import escape
from stantools.inspection.forecast import Forecast, ServerOptions, forecast, forecast_both
from stantools.inspection.forecast.changes import Change, CutChange, RebuildIndex
from stantools.inspection.forecast.losses import CutFile, RemovedRecord
from stantools.progress import Progress
from stantools.store.directory import WITNESS_FILE, Datastore
from stantools.store.limits import UNLIMITED, StoreLimits
from stantools.store.ranges import Ranges


@dataclass(frozen=True)
class FileCut:
    """A file that the repair cuts, and the records that it removes."""

    file: str  #: relative to the store
    size_before: int  #: its size now
    size_after: int  #: its size afterwards, which is the offset of the first removed record
    kept: int  #: records before the cut
    intact: int  #: whole records after the cut, which salvage would keep
    sequences: Ranges = field(default_factory=Ranges)  #: their sequences, in a data file

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "size_before": self.size_before,
            "size_after": self.size_after,
            "records_kept": self.kept,
            "records_salvage_would_keep": self.kept + self.intact,
            "sequences_lost": self.sequences.as_json(),
        }


@dataclass(frozen=True)
class TruncationPlan:
    """The plan of the repair."""

    store: Datastore
    options: ServerOptions  #: the server's options, without limits: a repair must not remove messages as a limit would
    before: Forecast  #: forecast of a start without the option now
    forecast: Forecast  #: forecast of the start with the option; its changes are the repair
    cuts: tuple[FileCut, ...]  #: files of records that are cut
    refusals: tuple[str, ...]  #: reasons against the repair, with numbers

    @property
    def needed(self) -> bool:
        """The server does not start without the repair, and starts after it."""
        return not self.before.starts and self.forecast.starts

    @property
    def steps(self) -> list[Change]:
        """The changes in the order in which they are to be made.

        Cuts come first, then files rebuilt from the result, then the witness file. So after any interruption, the
        same repair still finds its remaining steps.
        """

        def order(change: Change) -> int:
            if change.path == WITNESS_FILE:
                return 2
            return 0 if isinstance(change.action, CutChange) else 1

        return sorted(self.forecast.changes.values(), key=order)

    @property
    def removed_bytes(self) -> int:
        """Bytes of records that are cut off."""
        return sum(cut.size_before - cut.size_after for cut in self.cuts)

    @property
    def to_do(self) -> list[str]:
        """The files to change; the witness file alone is no reason for a repair."""
        return [change.path for change in self.steps if change.path != WITNESS_FILE]

    @property
    def idle(self) -> str:
        """Why there is nothing to do, with the limits of that statement; "" if there is something to do or refuse."""
        if self.to_do or self.refusals:
            return ""
        path = escape(shlex.quote(str(self.store.path)))
        if self.before.destroys:
            loss = self.before.destroys[0].sentence()
            keeps = f"`stantools salvage {path} --out NEW` keeps the intact data"
            return f"nothing to repair by cutting, but a start destroys data ({loss}): {keeps}"
        return (
            "nothing to repair: no file ends inside a record; but only the ends were checked;"
            f" `stantools verify {path}` shows other damage"
        )

    def removed(self) -> Iterator[RemovedRecord]:
        """Yields every removed record and damaged range, file by file, in file order."""
        for cut in self.cuts:
            yield from _cut_file(self.store, self.options, cut.file, cut.size_after).records()

    def as_json(self) -> dict[str, Any]:
        """Returns the plan for json output, without the single records."""
        sizes = self.forecast.files_changed().items()
        return {
            "needed": self.needed,
            "starts_now": self.before.starts,
            "starts_afterwards": self.forecast.starts,
            "error": self.forecast.error,
            "refusals": list(self.refusals),
            "cuts": [cut.as_json() for cut in self.cuts],
            "files_changed": {path: {"size_before": a, "size_after": b} for path, (a, b) in sizes},
        }


def plan_truncation(
    store: Datastore, options: ServerOptions | None = None, *, progress: Progress | None = None
) -> TruncationPlan:
    """Plans the repair; limits in the options are ignored.

    `progress` is called with bytes of data files.
    """
    options = replace(options or ServerOptions(), limits=StoreLimits(0, UNLIMITED))
    refusals = []
    before, planned = forecast_both(store, options, lookups=False, progress=progress)
    if store.witness:
        refusals.append(
            f"{WITNESS_FILE} is there: the last start was already one with truncation, and two in a row are refused;"
            " a start without the option removes the file"
        )
        planned = forecast(replace(store, witness=False), options, truncate=True, lookups=False)
        planned.changes.pop(WITNESS_FILE, None)
    if not planned.starts:
        refusals.append(f"the server would not start after it either: {planned.error}")
    elif not planned.recovered and store.server_channel_names:
        refusals.append(
            "the server would start as if the store were empty, because server.dat holds no record: of"
            f" {len(store.server_channel_names)} channels it would recover 0, and start their sequences over in the old"
            " files"
        )
    cuts = tuple(
        _file_cut(store, options, change, planned)
        for change in planned.changes.values()
        if isinstance(change.action, CutChange) and not change.path.endswith(".idx")
    )
    refusals += [
        f"{cut.file}: truncation keeps {cut.kept} records, salvage would keep {cut.kept + cut.intact}"
        for cut in cuts
        if cut.intact
    ]
    return TruncationPlan(store, options, before, planned, cuts, tuple(refusals))


def _cut_file(store: Datastore, options: ServerOptions, file: str, offset: int) -> CutFile:
    return CutFile(store.path, file, offset, options.crc)


def _file_cut(store: Datastore, options: ServerOptions, change: Change, planned: Forecast) -> FileCut:
    assert change.before is not None and change.after is not None
    file = _cut_file(store, options, change.path, change.after)
    lost = next((loss for loss in planned.destroys if loss.file == change.path), None)
    if file.layout is not None:
        kept = file.rows_before()
    else:
        rebuilt = (each.action for each in planned.changes.values() if isinstance(each.action, RebuildIndex))
        kept = next((action.count for action in rebuilt if action.data_file == change.path), 0)
    intact, sequences = (lost.records, lost.sequences) if lost else (0, Ranges())
    return FileCut(change.path, change.before, change.after, kept, intact, sequences)
