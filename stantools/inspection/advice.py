"""What verify and forecast come to: the verdict on a store, and the one safe step to take next."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.escaping import beside, escape, fill_in
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.forecast.model import ChannelForecast, Forecast, Harm
from stantools.inspection.forecast.options import DEFAULT_CLUSTER_ID
from stantools.inspection.verify import Verdict
from stantools.notation import counted
from stantools.store.locks import Use
from stantools.store.options import open_store
from stantools.store.ranges import Ranges
from stantools.store.serverinfo import stored_cluster_id
from stantools.store.sublog import SubStatus


def losses(forecast: Forecast) -> list[str]:
    """Returns the files that a start would shorten or remove, indexes that are rebuilt aside."""
    lost = []
    for path, (before, after) in forecast.files_changed().items():
        if path.endswith(".dat") and before is not None and (after is None or after < before):
            lost.append(path)
    return lost


def stalling(forecast: Forecast) -> list[ChannelForecast]:
    """Returns the channels in which some message could not be delivered, or not the right one."""
    return [
        channel
        for channel in forecast.channels.values()
        if channel.stalls_at is not None or channel.lookups.failing or channel.lookups.wrong
    ]


def harmless(forecast: Forecast) -> bool:
    """Returns whether a start works, destroys nothing, keeps every durable, and can deliver every message."""
    loses = losses(forecast) or forecast.destroys or ghosts(forecast)
    return forecast.starts and forecast.recovered and not stalling(forecast) and not loses


def ghosts(forecast: Forecast) -> int:
    """Returns how many durable queue members a start would delete."""
    return sum(channel.subscriptions.count(SubStatus.GHOST) for channel in forecast.channels.values())


def sentence(forecast: Forecast) -> str:
    """Says in one sentence what the server would do if it were started now.

    Names in it are safe to show.
    """
    if not forecast.starts:
        reason = f": {escape(forecast.error)}" if forecast.error else ""
        return f"Started now, the server would exit with code {forecast.exit_code}{reason}"
    if not forecast.recovered:
        return "Started now, the server would start over as if the store were empty"
    parts = []
    if lost := losses(forecast):
        parts.append(f"cut or remove {counted(len(lost), 'file')}, {escape(lost[0])} first")
    if anew := [loss for loss in forecast.destroys if loss.how is Harm.ANEW]:
        where = f"{escape(anew[0].channel)} from sequence {anew[0].at} on"
        parts.append(f"assign sequences of {counted(len(anew), 'channel')} a second time: {where}")
    stalled = stalling(forecast)
    stops = [channel for channel in stalled if channel.stalls_at is not None]
    if stops:
        first = stops[0]
        where = f"{escape(first.name)} at sequence {first.stalls_at}"
        parts.append(f"stall in {counted(len(stops), 'channel')}: {where}")
    elif stalled:
        parts.append(f"fail to deliver messages of {counted(len(stalled), 'channel')}, {escape(stalled[0].name)} first")
    if deleted := ghosts(forecast):
        parts.append(f"delete {counted(deleted, 'durable queue member')} whose client is gone")
    if not parts:
        return "Started now, the server would start and deliver every message"
    return f"Started now, the server would start, and would {'; it would '.join(parts)}"


#: Findings that say where missing messages were.
_SLICE_GONE = ("slice-missing", "index-without-data")

#: Findings after which the cluster id may be lost.
_IDENTITY_GONE = ("server-missing", "server-damaged", "file-version", "file-unreadable")

#: Errors of a start that no repair is needed for.
_NO_DAMAGE = re.compile(r'permission denied$|^cluster ID ".*" does not match')


@dataclass(frozen=True)
class Advice:
    """A step that makes nothing worse."""

    text: str  #: what to do and why, in one sentence
    command: tuple[str, ...] = ()  #: the command that does it, as separate words; empty where no command of ours does


def advise(
    path: Path, findings: Sequence[Finding] | None, forecast: Forecast | None, uses: Sequence[Use] = ()
) -> Advice:
    """Chooses the next step.

    Args:
        path: The store's directory, as the user wrote it.
        findings: What verify found; None if it was not asked.
        forecast: What a normal start would do; None if that cannot be determined.
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
    salvage: tuple[str, ...] = ("stantools", "salvage", str(path), "--out", str(beside(path, "salvaged")))
    new_store = "write what is intact to a new store"
    if _nameless(path, findings, forecast):
        salvage += ("--cluster-id", DEFAULT_CLUSTER_ID)
        new_store += f" (with the cluster id that clients connect with, if it is not {DEFAULT_CLUSTER_ID})"
    destroys = forecast is not None and bool(losses(forecast) or forecast.destroys)
    if destroys or ((damaged or findings is None) and (forecast is None or not forecast.starts)):
        why = "what it would do cannot be determined" if forecast is None else "it would destroy data"
        why = "the start would fail" if forecast is not None and not forecast.starts else why
        return Advice(f"Do not start the server on this store ({why}): {new_store}", salvage)
    if damaged or forecast is None or not harmless(forecast):
        why = f"{len(damaged)} places are damaged" if len(damaged) != 1 else "one place is damaged"
        new_store = new_store[0].upper() + new_store[1:]
        return Advice(f"{new_store}: {why if damaged else 'a start would not be harmless'}", salvage)
    if findings is None:
        return Advice("A start would be harmless; read everything to be sure", ("stantools", "verify", str(path)))
    if any(finding.severity is Severity.WARNING for finding in findings):
        return Advice("Nothing is lost; a new store has none of what was found", salvage)
    return Advice(
        "Nothing to repair; see what a move to JetStream would look like",
        ("stantools", "migrate", str(path), "--out", str(beside(path, "backups")), "--dry-run"),
    )


def _nameless(path: Path, findings: Sequence[Finding] | None, forecast: Forecast | None) -> bool:
    """Returns whether salvage asks for the cluster id, because nothing in the store names it any more."""
    suspected = any(finding.code in _IDENTITY_GONE for finding in findings or ())
    if not suspected and (forecast is None or forecast.recovered):
        return False
    store = open_store(path)
    return stored_cluster_id(store.server, store.crc) is None


def remedies(findings: Sequence[Finding], root: Path) -> list[str]:
    """Returns what helps against findings, each remedy once.

    Args:
        findings: What was found.
        root: The store's directory, as the user wrote it.

    Returns:
        Texts in whose commands CHANNEL and FILE have become the first place that a remedy is for. STORE and NEW stay.
    """
    helpful: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.remedy and finding.severity is not Severity.INFO:
            helpful.setdefault(finding.remedy, []).append(finding)
    # "Do this" is redundant beside "do this, which also …".
    said = [each for each in helpful if not any(other != each and other.startswith(each) for other in helpful)]
    return [_with_names(each, helpful[each], root) for each in said]


def _with_names(remedy: str, findings: Sequence[Finding], root: Path) -> str:
    """Fills in the first place that a remedy is for, and says for how many others it holds as well."""
    channels = list(dict.fromkeys(each.channel for each in findings if each.channel))
    files = list(dict.fromkeys(each.file for each in findings if each.file))
    text = remedy
    for word, names in (("CHANNEL", channels), ("FILE", [str(root / file) for file in files])):
        if names and (filled := fill_in(text, {word: names[0]})) != text:
            others = len(names) - 1
            text = filled + (f" (and so on for {counted(others, f'other {word.lower()}')})" if others else "")
    return text


class Health(enum.StrEnum):
    """How a store is, in a word."""

    HEALTHY = "healthy"  #: nothing was found, and a start is harmless
    FLAWED = "flawed"  #: nothing is damaged, but something is not as a healthy server leaves it
    DAMAGED = "damaged"  #: records are damaged, or the server does not start
    IN_DANGER = "in danger"  #: a start would destroy what is intact


@dataclass(frozen=True)
class Diagnosis:
    """What is the matter with a store."""

    path: Path  #: its directory, as the user wrote it
    state: Health  #: in a word
    verdict: str  #: in a sentence, without full stop
    verified: Verdict  #: what verify found
    #: For each version of the server that would do otherwise, the first one first: the forecast of a normal start, and
    #: that of one with the truncate option. Empty if that cannot be determined.
    starts: Sequence[tuple[Forecast, Forecast]]
    #: The messages of each channel that are damaged and cannot be proven, or whose slice is gone.
    lost: Mapping[str, Ranges]
    uses: Sequence[Use]  #: signs that somebody is using the store
    advice: Advice  #: the next step

    def as_json(self) -> dict[str, Any]:
        """Returns the diagnosis for json output."""
        severities = [each.severity for each in self.verified.findings]
        return {
            "path": str(self.path),
            "state": self.state.value,
            "verdict": self.verdict,
            "clean": self.state is Health.HEALTHY,
            "lost": {name: ranges.as_json() for name, ranges in self.lost.items()},
            "findings": {each.value: severities.count(each) for each in Severity},
            "starts": [
                {
                    "server_version": one.server_version,
                    "truncate": one is truncating,
                    "starts": one.starts,
                    "exit_code": one.exit_code,
                    "error": one.error,
                    "harmless": harmless(one),
                    "says": sentence(one),
                    "destroys": [loss.as_json() for loss in one.destroys],
                }
                for normal, truncating in self.starts
                for one in (normal, truncating)
            ],
            "in_use": [use.detail for use in self.uses],
            "next": {"text": self.advice.text, "command": list(self.advice.command)},
        }


def diagnose(
    path: Path, verified: Verdict, starts: Sequence[tuple[Forecast, Forecast]], uses: Sequence[Use] = ()
) -> Diagnosis:
    """Says what is the matter with a store, what matters most first.

    Args:
        path: The store's directory, as the user wrote it.
        verified: What verify found.
        starts: What starts of the server would do, by version; see `Diagnosis`.
        uses: Signs that somebody is using the store.
    """
    gone = {each.channel for each in verified.findings if each.code in _SLICE_GONE}
    lost = {
        each.name: all_lost
        for each in verified.channels
        if (all_lost := (each.damaged - each.repairable) | (each.missing if each.name in gone else Ranges()))
    }
    normals = [normal for normal, _ in starts]
    errors = sum(each.severity is Severity.ERROR for each in verified.findings)
    if any(one.destroys or not one.recovered for one in normals if one.starts):
        state, start = Health.IN_DANGER, "do not start the server on it: a start would destroy data"
    elif not starts:
        state, start = Health.DAMAGED, "what the server would do cannot be determined"
    elif not normals[0].starts:
        state, start = Health.DAMAGED, "the server does not start on it"
    elif stalling(normals[0]):
        state, start = Health.DAMAGED, "the server starts on it, and cannot deliver every message"
    elif not harmless(normals[0]):
        state, start = Health.DAMAGED if errors else Health.FLAWED, "a start would not be harmless"
    else:
        state = Health.DAMAGED if errors else Health.HEALTHY if verified.clean else Health.FLAWED
        start = "a start is harmless"
    missed = sum(ranges.count() for ranges in lost.values())
    there = sum((each.intact | each.repairable).count() for each in verified.channels)
    if missed:
        data = f"{counted(missed, 'message')} of {missed + there} {'is' if missed == 1 else 'are'} lost"
    else:
        data = f"no message of {there} is lost" if there else "there are no messages in it"
    parts = (start, data) if state is Health.IN_DANGER else (data, start)
    advice = advise(path, verified.findings, normals[0] if normals else None, uses)
    return Diagnosis(path, state, "; ".join(parts), verified, starts, lost, uses, advice)
