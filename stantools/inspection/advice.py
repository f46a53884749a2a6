"""The verdict on a store, from the results of verify and forecast, and the one safe step to take next."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.errors import StantoolsError
from stantools.escaping import beside, escape, fill_in
from stantools.inspection.ciphertext import CiphertextReport
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.forecast.channel_forecast import Forecast, Harm
from stantools.inspection.outcomes import ChannelOutcome, OutcomeTotals, missing_sentence
from stantools.inspection.start_verdict import HARMFUL, StartFlawKind, StartVerdict, judge_start
from stantools.inspection.verify import Verdict
from stantools.notation import counted, some_of
from stantools.store.locks import StoreUse
from stantools.store.names import SUBS_FILE
from stantools.store.read_options import ReadOptions, open_store
from stantools.store.serverinfo import stored_cluster_id

#: Placeholder for a cluster id that the store no longer contains; salvage refuses it.
PLACEHOLDER = "<cluster-id>"

#: Findings after which the cluster id may be lost.
_IDENTITY_GONE = ("server-missing", "server-damaged", "file-version", "file-unreadable")

#: channels and files that a sentence names
_NAMED = 3

#: Errors of a start that need no repair.
_NO_DAMAGE = re.compile(r'permission denied$|^cluster ID ".*" does not match')


@dataclass(frozen=True)
class Advice:
    """A next step that cannot make things worse."""

    text: str  #: what to do and why, in one sentence
    command: tuple[str, ...] = ()  #: the command as separate words; empty if no command of ours does it


def advise(
    path: Path,
    findings: Sequence[Finding] | None,
    start: StartVerdict | None,
    uses: Sequence[StoreUse] = (),
    outcomes: Mapping[str, ChannelOutcome] | None = None,
    place: Path | None = None,
) -> Advice:
    """Chooses the next step.

    `path` is the store as the user wrote it, `place` its directory if that differs. `start` is None if the
    forecast is unknown. Without `outcomes`, those of the start count.
    """
    if uses:
        return Advice(f"{uses[0].detail}: stop the server before you change anything, then check again")
    forecast = start.forecast if start else None
    damaged = [finding for finding in findings or () if finding.severity is Severity.ERROR]
    if forecast is not None and not damaged:
        if forecast.error and _NO_DAMAGE.search(forecast.error):
            return Advice(f"Nothing to repair; start the server differently: {escape(forecast.error)}")
        if forecast.destroys and all(loss.how is Harm.REMOVED for loss in forecast.destroys):
            return Advice("Start the server with limits that keep the messages (0: no limit)")
    salvage: tuple[str, ...] = ("stantools", "salvage", str(path), "--out", str(beside(path, "salvaged")))
    new_store = "write the intact data to a new store"
    if _needs_cluster_id(place or path, findings, forecast):
        salvage += ("--cluster-id", PLACEHOLDER)
        new_store += f" (replace {PLACEHOLDER} by the cluster id that clients connect with)"
    known = outcomes or (start.channels if start else {})
    if any(each.archived & each.intact.holes() for each in known.values()):
        salvage += ("--archived",)
        new_store += "; --archived includes the messages of archived slices"
    notes = _salvage_notes(start, known, _without_subscriptions(findings or ()))
    new_store += notes
    if (start and start.destructive) or (damaged and (forecast is None or not forecast.starts)):
        why = "its effect cannot be determined" if forecast is None else "it would destroy data"
        why = "the start would fail" if forecast is not None and not forecast.starts else why
        return Advice(f"Do not start the server on this store ({why}): {new_store}", salvage)
    flawed = any(finding.severity is not Severity.INFO for finding in findings or ())
    if damaged or start is None or not start.delivers:
        why = counted(len(damaged), "place", "is/are") + " damaged" if damaged else "A start would not be harmless"
        return Advice(f"{why}: {new_store}", salvage)
    if notes and not flawed:
        text = (
            "Look for the missing messages in backups and copies: a salvage cannot restore them; "
            "subscribers skip the gaps"
        )
        return Advice(text, ("stantools", "verify", str(path)))
    if notes:
        return Advice(new_store[0].upper() + new_store[1:], salvage)
    if flawed:
        what = "No message" if start.harmless else "No remaining message"
        return Advice(f"{what} is at risk. A salvaged copy is free of these findings", salvage)
    return Advice(
        "Nothing to repair; see what a move to JetStream would look like",
        ("stantools", "migrate", str(path), "--out", str(beside(path, "backups")), "--dry-run"),
    )


def _without_subscriptions(findings: Sequence[Finding]) -> list[str]:
    """Returns the channels whose durables are lost with their file."""
    return [finding.channel for finding in findings if finding.code == "subs-missing" and finding.channel]


def _salvage_notes(start: StartVerdict | None, outcomes: Mapping[str, ChannelOutcome], forgotten: Sequence[str]) -> str:
    """Returns the steps before and after a salvage: a search for missing data, positions to check."""
    parts = []
    if any(each.kind is StartFlawKind.AHEAD for each in (start.flaws if start else ())):
        parts.append("in the new store, subscriptions stand at the last message, so that they receive new ones")
    if any(each.missing or each.suspected for each in outcomes.values()):
        parts.append("first look for the missing messages in backups and copies: a salvage cannot restore them")
    if forgotten:
        files = some_of([escape(f"{each}/{SUBS_FILE}") for each in forgotten], _NAMED)
        parts.append(f"first look for {files} in backups and copies: nothing else knows the durables")
    return "".join(f"; {part}" for part in parts)


def _needs_cluster_id(path: Path, findings: Sequence[Finding] | None, forecast: Forecast | None) -> bool:
    """Returns whether salvage will ask for the cluster id because the store no longer contains it."""
    suspected = any(finding.code in _IDENTITY_GONE for finding in findings or ())
    if not suspected and (forecast is None or forecast.recovered):
        return False
    store = open_store(path, ReadOptions(accept_unreadable=True))
    return stored_cluster_id(store.server, store.crc) is None


def remedies(findings: Sequence[Finding], root: Path) -> list[str]:
    """Returns the remedies of findings, each once.

    In their commands, CHANNEL and FILE become the first place that a remedy is for. STORE and NEW stay.
    """
    helpful: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.remedy and finding.severity is not Severity.INFO:
            helpful.setdefault(finding.remedy, []).append(finding)
    # "Do this" is redundant next to "do this, which also …".
    unique = [each for each in helpful if not any(other != each and other.startswith(each) for other in helpful)]
    return [_fill_names(each, helpful[each], root) for each in unique]


def _fill_names(remedy: str, findings: Sequence[Finding], root: Path) -> str:
    """Fills in the first place that a remedy is for, and the number of other places."""
    channels = list(dict.fromkeys(each.channel for each in findings if each.channel))
    files = list(dict.fromkeys(each.file for each in findings if each.file))
    text = remedy
    for word, names in (("CHANNEL", channels), ("FILE", [str(root / file) for file in files])):
        if names and (filled := fill_in(text, {word: names[0]})) != text:
            others = len(names) - 1
            text = filled + (f" (and the same for {counted(others, f'other {word.lower()}')})" if others else "")
    return text


class Health(enum.StrEnum):
    HEALTHY = "healthy"  #: no findings, and a start is harmless
    FLAWED = "flawed"  #: nothing is damaged, but something differs from what a healthy server leaves
    DAMAGED = "damaged"  #: data is damaged or missing, or the server does not start or not deliver every message
    IN_DANGER = "in danger"  #: a start would destroy intact data


@dataclass(frozen=True)
class Diagnosis:
    path: Path  #: directory, as the user wrote it
    state: Health
    verdict: str  #: one sentence without a full stop
    verified: Verdict  #: result of verify
    #: For each server version with a different outcome, the requested one first: the forecast of a normal start, and of
    #: one with the truncate option. Empty if it cannot be determined.
    starts: Sequence[tuple[StartVerdict, StartVerdict]]
    outcomes: Mapping[str, ChannelOutcome]  #: the messages of each channel, compared with a normal start
    uses: Sequence[StoreUse]  #: signs that a program uses the store
    advice: Advice
    encryption: CiphertextReport = CiphertextReport()  #: channels with payloads that may be encrypted
    start_problem: StantoolsError | None = None  #: reason why starts cannot be predicted

    @property
    def totals(self) -> OutcomeTotals:
        return OutcomeTotals.of(self.outcomes.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "state": self.state.value,
            "verdict": self.verdict,
            "clean": self.state is Health.HEALTHY,
            "lost": {name: each.missing.as_json() for name, each in self.outcomes.items() if each.missing},
            "messages": self.totals.as_json(),
            "channels": {name: each.as_json() for name, each in self.outcomes.items()},
            "findings": self.verified.severity_counts(),
            "starts": [
                {
                    "server_version": one.forecast.server_version,
                    "truncate": one is truncating,
                    "starts": one.forecast.starts,
                    "exit_code": one.forecast.exit_code,
                    "error": one.forecast.error,
                    "harmless": one.harmless,
                    "says": one.sentence(),
                    "destroys": [loss.as_json() for loss in one.forecast.destroys],
                    "flaws": [flaw.as_json() for flaw in one.flaws],
                }
                for normal, truncating in self.starts
                for one in (normal, truncating)
            ],
            "encryption": self.encryption.as_json(),
            "in_use": [use.detail for use in self.uses],
            "next": {"text": self.advice.text, "command": list(self.advice.command)},
        }


def diagnose(
    path: Path,
    verified: Verdict,
    starts: Sequence[tuple[Forecast, Forecast]],
    uses: Sequence[StoreUse] = (),
    place: Path | None = None,
) -> Diagnosis:
    """Judges a store; the verdict names the worst problem first.

    `path` is the store as the user wrote it, `starts` is as in `Diagnosis`, `place` its directory if that differs.
    """
    outcomes = verified.outcomes
    judged = [(judge_start(one, outcomes), judge_start(two, outcomes)) for one, two in starts]
    normals = [normal for normal, _ in judged]
    errors = sum(each.severity is Severity.ERROR for each in verified.findings)
    missing = any(each.missing or each.suspected for each in outcomes.values())
    lost = errors or any((each.missing - each.gaps) or each.suspected for each in outcomes.values())
    dangers = [one for one in normals if one.forecast.starts and (one.forecast.destroys or not one.forecast.recovered)]
    if dangers:
        harms = "; it would ".join(dangers[0].harms()) or dangers[0].outlook()
        state = Health.IN_DANGER
        outlook = f"do not start the server on it: a start would destroy data: the server would {harms}"
    elif not normals:
        state, outlook = Health.DAMAGED, "the effect of a start cannot be determined"
    elif not normals[0].forecast.starts:
        state, outlook = Health.DAMAGED, "the server does not start on it"
    elif not normals[0].delivers:
        harmful = lost or normals[0].undelivered or any(each.kind in HARMFUL for each in normals[0].flaws)
        state = Health.DAMAGED if harmful else Health.FLAWED
        outlook = f"a start is not harmless: the server would {'; it would '.join(normals[0].harms())}"
    else:
        state = (
            Health.DAMAGED
            if errors
            else Health.HEALTHY
            if verified.clean and normals[0].harmless and not missing
            else Health.FLAWED
        )
        forgotten = _without_subscriptions(verified.findings)
        outlook = "a start is harmless" if normals[0].harmless else "a start delivers every message in the store"
        if forgotten:
            names = some_of([escape(each) for each in forgotten], _NAMED)
            outlook = f"a start delivers every message in the store, and knows no durables of {names}: they are lost"
    data = missing_sentence(outcomes)
    parts = (outlook, data) if state is Health.IN_DANGER else (data, outlook)
    advice = advise(path, verified.findings, normals[0] if normals else None, uses, outcomes, place)
    shown = normals[0].channels if normals else outcomes
    return Diagnosis(path, state, "; ".join(parts), verified, judged, shown, uses, advice)
