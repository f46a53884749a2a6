"""What the repair would do, and what speaks against it. Nothing is changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stantools.escaping import escape
from stantools.inspection.forecast import Forecast, ServerOptions, forecast, forecast_both
from stantools.inspection.forecast.changes import Change, Cut, RebuildIndex
from stantools.inspection.forecast.losses import CutFile, RemovedRecord
from stantools.progress import Progress
from stantools.store.directory import WITNESS_FILE, Datastore
from stantools.store.limits import UNLIMITED, StoreLimits
from stantools.store.ranges import Ranges


@dataclass(frozen=True)
class FileCut:
    """A file that the repair cuts, and what is cut off."""

    file: str  #: relative to the store
    size_before: int  #: its size now
    size_after: int  #: its size then, which is the offset of the first record that goes
    kept: int  #: records in front of the cut
    intact: int  #: whole records behind it, which salvage would keep
    sequences: Ranges = field(default_factory=Ranges)  #: the sequences of the latter, in a data file

    def as_json(self) -> dict[str, Any]:
        """Returns the cut for json output."""
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
    """What the repair would do."""

    store: Datastore
    options: ServerOptions  #: the server's options, without limits: a repair must not remove what a limit would
    before: Forecast  #: what a start without the option would do now
    forecast: Forecast  #: what the start with the option would do; its changes are the repair
    cuts: tuple[FileCut, ...]  #: files of records that are cut
    refusals: tuple[str, ...]  #: why it should not be done; each names the reason and the numbers

    @property
    def needed(self) -> bool:
        """The server does not start without the repair, and starts after it."""
        return not self.before.starts and self.forecast.starts

    @property
    def steps(self) -> list[Change]:
        """The changes in the order in which they are to be made.

        Cuts come first, then what is built from the result, then the witness file. So whenever it is interrupted, the
        same repair still sees what it has to do.
        """

        def order(change: Change) -> int:
            if change.path == WITNESS_FILE:
                return 2
            return 0 if isinstance(change.action, Cut) else 1

        return sorted(self.forecast.changes.values(), key=order)

    @property
    def removed_bytes(self) -> int:
        """Bytes of records that are cut off."""
        return sum(cut.size_before - cut.size_after for cut in self.cuts)

    @property
    def to_do(self) -> list[str]:
        """The files that have to be changed; the witness file alone is no reason to do anything."""
        return [change.path for change in self.steps if change.path != WITNESS_FILE]

    @property
    def idle(self) -> str:
        """Why there is nothing to do, and what that does not mean; "" if there is something to do, or to refuse."""
        if self.to_do or self.refusals:
            return ""
        path = escape(shlex.quote(str(self.store.path)))
        if self.before.destroys:
            loss = self.before.destroys[0].sentence()
            keeps = f"`stantools salvage {path} --out NEW` keeps what is intact"
            return f"nothing to repair by cutting, but a start destroys data ({loss}): {keeps}"
        return (
            "nothing to repair: no file ends inside a record; but only ends were looked at, and"
            f" `stantools verify {path}` shows what is damaged elsewhere"
        )

    def removed(self) -> Iterator[RemovedRecord]:
        """Yields every record, and every damaged range, that goes: file by file, in file order."""
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
    """Plans the repair.

    Args:
        store: The store.
        options: How the server is started. Its limits are left out.
        progress: Called with how many bytes of data files were dealt with.

    Raises:
        StoreUnreadableError: A file of the store cannot be read.
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
        if isinstance(change.action, Cut) and not change.path.endswith(".idx")
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
