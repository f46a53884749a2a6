"""The one safe step to take next, as far as verify and forecast know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stantools.escaping import escape
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.forecast.judgement import harmless, losses
from stantools.inspection.forecast.model import Forecast, Harm
from stantools.store.locks import Use

#: Errors of a start that no repair is needed for.
_NO_DAMAGE = re.compile(r'permission denied$|^cluster ID ".*" does not match')


@dataclass(frozen=True)
class Advice:
    """A step that makes nothing worse.

    Attributes:
        text: What to do and why, in one sentence.
        command: The command that does it, as separate words; empty where no command of ours does.
    """

    text: str
    command: tuple[str, ...] = ()


def advise(
    path: Path, findings: Sequence[Finding] | None, forecast: Forecast | None, uses: Sequence[Use] = ()
) -> Advice:
    """Chooses the next step.

    Args:
        path: The store's directory, as the user wrote it.
        findings: What verify found; None if it was not asked.
        forecast: What a normal start would do; None if that cannot be told.
        uses: Signs that somebody is using the store.
    """
    if uses:
        return Advice(f"{uses[0].detail}: stop the server before anything is changed, and look again")
    damaged = [finding for finding in findings or () if finding.severity is Severity.ERROR]
    if forecast is not None and not damaged:
        if forecast.error and _NO_DAMAGE.search(forecast.error):
            return Advice(f"Nothing to repair; the server has to be started differently: {escape(forecast.error)}")
        if forecast.destroys and all(loss.how is Harm.REMOVED for loss in forecast.destroys):
            return Advice("Start the server with limits that leave the messages where they are (0 is without limit)")
    new = path.parent / f"{path.name}.salvaged"
    salvage = ("stantools", "salvage", str(path), "--out", str(new))
    destroys = forecast is not None and bool(losses(forecast) or forecast.destroys)
    if destroys or ((damaged or findings is None) and (forecast is None or not forecast.starts)):
        why = "nobody can tell what it would do" if forecast is None else "it would destroy data"
        why = "the start would fail" if forecast is not None and not forecast.starts else why
        return Advice(f"Do not start the server on this store ({why}): write what is intact to a new store", salvage)
    if damaged or forecast is None or not harmless(forecast):
        why = f"{len(damaged)} places are damaged" if len(damaged) != 1 else "one place is damaged"
        return Advice(
            f"Write what is intact to a new store: {why if damaged else 'a start would not be harmless'}", salvage
        )
    if findings is None:
        return Advice("A start would be harmless; read everything to be sure", ("stantools", "verify", str(path)))
    if any(finding.severity is Severity.WARNING for finding in findings):
        return Advice("Nothing is lost; a new store has none of what was found", salvage)
    return Advice(
        "Nothing to repair; see what a move to JetStream would make of it",
        ("stantools", "migrate", str(path), "--out", f"{path.name}.backups", "--dry-run"),
    )
