"""Carrying out a planned repair: the backup first, then each file in one step, the witness file last.

Every step leaves a file either as it was or as it is to be, and is synced before the next one. After an interruption
a new plan finds what is left to do; steps that were done already are not done again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stantools.errors import ExitCode, RefusedError
from stantools.escaping import shell_word
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

#: Room for the backup's manifest, blocks that are not full, and the longest index that is rebuilt.
_SPARE = 1 << 20


@dataclass(frozen=True)
class TruncationResult:
    """What was done."""

    backup: Path | None  #: directory with what was removed; None if nothing was
    changed: tuple[str, ...]  #: files that were changed, relative to the store, in the order in which it was done
    after: Forecast  #: what a start without the truncate option would do now


def apply_truncation(
    plan: TruncationPlan,
    backup_dir: Path,
    *,
    force: bool = False,
    quiet: float | None = None,
    progress: Progress | None = None,
) -> TruncationResult:
    """Carries out a plan.

    Args:
        plan: What to do; the store must not have changed since.
        backup_dir: Where to save what is removed; outside of the store.
        force: Also against the plan's refusals, and if a server seems to be using the store.
        quiet: Seconds that the store must have been left alone; `QUIET_SECONDS` of `stantools.store.locks` by default.
        progress: Called with the number of bytes that are saved; what it raises ends it before anything is changed.

    Raises:
        RefusedError: The plan has refusals, the store is in use or has changed, or there is no room for the backup.
        StoreUnwritableError: Something cannot be written. What was done up to there is a valid state of the store;
            plan again to finish.
    """
    root = plan.store.path
    if plan.refusals and not force:
        raise refusal(plan)
    check_outside(root, backup_dir)
    check_room(backup_dir / "1", _SPARE + saved_bytes(plan.steps))
    check_not_in_use(root, force=force, quiet=quiet)
    with hold_ft_lock(root):
        _check_unchanged(root, plan.steps)
        backup = save(root, plan.steps, backup_dir, progress) if saved_bytes(plan.steps) else None
        crc = plan.options.crc
        for change in plan.steps:
            with writing(root / change.path, f"what was removed before is in {backup or backup_dir}"):
                carry_out(root, change, crc)
    after = forecast(open_datastore(root), plan.options, lookups=False)
    return TruncationResult(backup, tuple(change.path for change in plan.steps), after)


def refusal(plan: TruncationPlan) -> RefusedError:
    """Returns why a plan with refusals is not carried out, and what to do instead."""
    path = plan.store.path
    return RefusedError(
        f"{path}: not repaired: {'; '.join(plan.refusals)}",
        f"`stantools salvage {shell_word(str(path))} --out NEW` keeps everything that is intact; to insist: --force",
    )


def exit_code(plan: TruncationPlan, result: TruncationResult | None) -> ExitCode:
    """Returns the exit code that says what became of a plan, or what would become of it if it were carried out.

    Args:
        plan: The plan.
        result: What was done; None if nothing was.
    """
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
                "make sure that nobody writes to the store, and plan again",
            )


def _size(size: int | None) -> str:
    return "no content" if size is None else f"{size} bytes"
