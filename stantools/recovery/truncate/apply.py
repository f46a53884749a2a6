"""Applying a planned repair: the backup first, then each file in one step, the witness file last.

Every step leaves a file in its old or in its new state, and is synced before the next one. After an interruption, a
new plan contains only the remaining steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stantools.errors import ExitCode, RefusedError
from stantools.escaping import shell_word
from stantools.format.crc import Crc
from stantools.inspection.forecast import Forecast, Harm, forecast
from stantools.inspection.forecast.changes import Change
from stantools.progress import Progress
from stantools.recovery.changes import carry_out
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.truncate.backup import save, saved_bytes
from stantools.recovery.truncate.plan import TruncationPlan
from stantools.store.directory import open_datastore
from stantools.store.durable import writing
from stantools.store.locks import check_not_in_use, hold_ft_lock

#: Bytes for the backup's manifest, partial blocks, and the longest index that is rebuilt.
_EXTRA_BYTES = 1 << 20


@dataclass(frozen=True)
class TruncationResult:
    backup: Path | None  #: directory with the removed bytes; None if there are none
    changed: tuple[str, ...]  #: changed files, relative to the store, in the order of the changes
    after: Forecast  #: forecast of a start without the truncate option now


def apply_truncation(
    plan: TruncationPlan,
    backup_dir: Path,
    *,
    force: bool = False,
    quiet: float | None = None,
    progress: Progress | None = None,
) -> TruncationResult:
    """Applies a plan to an unchanged store.

    `backup_dir` is a directory outside of the store. `force` overrides the plan's refusals, and the check that no
    server uses the store, which must be unchanged for `quiet` seconds (`QUIET_SECONDS` of `stantools.store.locks` by
    default). `progress` is called with bytes of the backup; an exception from it ends the repair before anything is
    changed. Raises `RefusedError` if the plan has refusals, the store is in use or has changed, or there is no space
    for the backup. After `StoreUnwritableError` the store is in a valid state; a new plan finishes the repair.
    """
    root = plan.store.path
    if plan.refusals and not force:
        raise refusal(plan)
    name = "truncate-bad-eof"
    backup = apply_changes(
        root, plan.steps, backup_dir, name, plan.options.crc, force=force, quiet=quiet, progress=progress
    )
    after = forecast(open_datastore(root), plan.options, lookups=False)
    return TruncationResult(backup, tuple(change.path for change in plan.steps), after)


def apply_changes(
    root: Path,
    steps: list[Change],
    backup_dir: Path,
    name: str,
    crc: Crc | None = None,
    *,
    force: bool = False,
    quiet: float | None = None,
    progress: Progress | None = None,
) -> Path | None:
    """Makes planned changes to an unused, unchanged directory; returns the backup of the removed bytes.

    `name` is that of the repair, for the backup; see `apply_truncation`.
    """
    check_outside(root, backup_dir)
    check_room(backup_dir / "1", _EXTRA_BYTES + saved_bytes(steps))
    check_not_in_use(root, force=force, quiet=quiet)
    with hold_ft_lock(root):
        _check_unchanged(root, steps)
        backup = save(root, steps, backup_dir, progress, name=name) if saved_bytes(steps) else None
        for change in steps:
            with writing(root / change.path, f"bytes removed before are in {backup or backup_dir}"):
                carry_out(root, change, crc or Crc())
    return backup


def refusal(plan: TruncationPlan) -> RefusedError:
    """Returns why a plan with refusals is not applied, and what to do instead."""
    path = plan.store.path
    return RefusedError(
        f"{path}: not repaired: {'; '.join(plan.refusals)}",
        f"`stantools salvage {shell_word(str(path))} --out NEW` keeps all intact data; to insist: --force",
    )


def exit_code(plan: TruncationPlan, result: TruncationResult | None) -> ExitCode:
    """Returns the exit code of a plan; without a result, the exit code that applying it would have."""
    after = result.after if result else plan.forecast
    if after.starts and any(cut.intact for cut in plan.cuts):
        return ExitCode.LOSS
    destroys = any(loss.how is not Harm.CUT for loss in after.destroys)
    return ExitCode.FINDINGS if destroys or not after.starts else ExitCode.CLEAN


def _check_unchanged(root: Path, steps: list[Change]) -> None:
    for change in steps:
        path = root / change.path
        now = path.stat().st_size if path.exists() else None
        if now != change.before:
            raise RefusedError(
                f"{path}: has {_size(now)} now, had {_size(change.before)} when the repair was planned",
                "make sure that no program writes to the store, and plan again",
            )


def _size(size: int | None) -> str:
    return "no content" if size is None else f"{size} bytes"
