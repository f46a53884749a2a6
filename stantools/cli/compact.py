"""`stantools compact`: the same store without dead records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.cli.click_options import (
    ChangeMode,
    consent_options,
    folded,
    given,
    limit_options,
    options_of,
    reading_options,
    store_argument,
    verb,
)
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import agreed, show, show_plan
from stantools.errors import UsageError
from stantools.options import FORCE, SliceOptions, declared
from stantools.recovery.recovery_options import CompactOptions, CompactTarget

if TYPE_CHECKING:
    from stantools.store.limits import SliceLimits
    from stantools.store.read_options import ReadOptions


def _slices(**given: int | None) -> SliceLimits | None:
    from stantools.store.limits import SliceLimits

    return SliceLimits.given(SliceOptions(**given))


_slice_options = folded("slices", _slices, dict(declared(SliceOptions)))


@verb("compact", "table", "json")
@store_argument
@options_of(CompactTarget, "where")
@options_of(CompactOptions, "options", limit_options(unlimited=True), _slice_options)
@given(force=FORCE)
@consent_options
@reading_options(unchecked=False)
def command(
    store: Path,
    where: CompactTarget,
    options: CompactOptions,
    force: bool,
    consent: ChangeMode,
    read_options: ReadOptions,
) -> int:
    """Rewrite STORE without dead records in clients.dat and subs.dat, and without messages beyond the limits.

    Logs keep only live records. With --max-msgs, --max-bytes or --max-age, messages beyond the server's limits are
    removed for good. Small slices are merged and big ones split; indexes are rebuilt. The server recovers the same
    state; this is checked before the new store appears.

    The result is a new directory, or with --in-place it replaces STORE, which is then kept under another name. A
    damaged store is refused: salvage it first.
    """
    from stantools.cli.opening import check_stopped, open_source
    from stantools.recovery.compact import (
        apply_compaction,
        compact_in_place,
        finish_replacement,
        plan_compaction,
    )
    from stantools.recovery.compact.compaction_report import compaction_report
    from stantools.sources.source import Capability

    out, in_place = where.out, where.in_place
    if (out is None) == (not in_place) and not consent.dry_run:
        raise UsageError(
            "the place of the result is missing", "add either --out NEW or --in-place; or --dry-run for the plan"
        )
    if where.backup and not in_place:
        raise UsageError("--backup applies to --in-place only: it names the replaced store", "add --in-place")
    replaces = in_place and not consent.dry_run
    if replaces and (finished := finish_replacement(store)):
        console.note(f"first finished an interrupted run; the old store is {console.escape(str(finished))}")
    source = open_source(store, read_options, Capability.COMPACTION, *((Capability.CHANGE,) if replaces else ()))
    opened, store = source.store(), source.path
    if not consent.dry_run and not in_place:
        check_stopped([source], force=force)
    with ByteProgress("plan", lambda: opened.data_size(opened.channel_names)) as shown:
        plan = plan_compaction(opened, options, progress=shown.advance)
    if consent.dry_run:
        return show_plan(compaction_report(plan))
    question = f"Replace {console.escape(str(store))} (a copy is kept beside it)?"
    if not agreed(compaction_report(plan), question, yes=consent.yes or not in_place):
        return console.declined()
    with ByteProgress("write", plan.bytes_before) as shown:
        if out is not None:
            result = apply_compaction(plan, out, progress=shown.advance)
        else:
            result = compact_in_place(plan, backup=where.backup, force=force, progress=shown.advance)
    return show(compaction_report(plan, result))
