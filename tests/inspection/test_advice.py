"""The sentence about a start, the advice, and the outlook of each subscription, against what the real server did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.inspection.advice import advise
from stantools.inspection.findings import Severity
from stantools.inspection.forecast import Forecast, forecast_both
from stantools.inspection.forecast.startup import subscription_outlook
from stantools.inspection.start_verdict import StartVerdict, judge_start
from stantools.inspection.verify import Verdict, verify
from stantools.store.directory import open_datastore
from stantools.store.locks import StoreUse
from stantools.store.read_options import open_store
from stantools.store.sublog import SubStatus
from tests.conftest import cases_by_kind, load_expected
from tests.inspection import forecast_golden as g


def _forecast(case: str, golden: Path, golden_copy: Callable[[str], Path]) -> tuple[Path, Forecast]:
    expected = load_expected(case)
    path = golden_copy(case) if expected["setup"] else golden / case / "datastore"
    access = {"access": g.STRANGER} if "opened_as" in expected else {}
    if access:
        prepared = {step["path"] for step in expected["setup"]}
        for each in [path, *path.rglob("*")]:
            if str(each.relative_to(path)) not in prepared:
                each.chmod(0o777 if each.is_dir() else 0o666)
    return path, forecast_both(open_datastore(path), g.options_of(expected["open_args"], **access))[0]


@pytest.mark.parametrize("case", cases_by_kind())
def test_the_sentence_says_what_the_server_did(case: str, golden: Path, golden_copy: Callable[[str], Path]) -> None:
    theirs = load_expected(case)["server_open"]
    path, ours = _forecast(case, golden, golden_copy)
    found = verify(open_store(path))
    start = judge_start(ours, found.outcomes)
    said = start.sentence()
    assert said.isprintable()
    assert said.count("\n") == 0
    if not theirs["started"]:
        assert said.startswith(f"Started now, the server would exit with code {theirs['exit_code']}")
        assert theirs.get("error", "") in said.replace("\\\\", "\\") or not theirs.get("error")
        assert not start.harmless
    elif not theirs.get("recovered", True):
        assert said.endswith("start over as if the store were empty")
        assert not start.harmless
    else:
        cut = [
            name
            for name, change in theirs["files_changed_by_recovery"].items()
            if name.endswith(".dat") and (change["size_after"] or 0) < (change["size_before"] or 0)
        ]
        assert start.shortened == sorted(cut)
        assert ("cut or remove" in said) == bool(cut)
        assert ("stall in" in said) == bool(theirs.get("replay_log"))
        assert start.delivers == said.startswith("Started now, the server would start and deliver every message")
        assert start.harmless == (start.delivers and "message in the store" not in said)
    _check_advice(path, found, start)


def _check_advice(path: Path, found: Verdict, start: StartVerdict) -> None:
    findings = found.findings
    advice = advise(path, findings, start)
    bad = any(finding.severity is Severity.ERROR for finding in findings)
    missing = any(each.missing or each.suspected for each in start.channels.values())
    missing = missing or any(each.code == "subs-missing" for each in findings)
    if not bad and (start.forecast.error or "").endswith("permission denied"):
        assert advice.command == ()
        assert "start the server differently" in advice.text
    elif bad or not start.delivers:
        assert advice.command[:2] == ("stantools", "salvage")
        assert str(path.parent / f"{path.name}.salvaged") in advice.command
        stops = start.destructive or (bad and not start.forecast.starts)
        assert advice.text.startswith("Do not start the server") == stops
    elif any(finding.severity is Severity.WARNING for finding in findings):
        assert advice.command[1] == "salvage"
        assert ("at risk" in advice.text) == (not missing)
    elif missing:
        assert "Look for the missing messages" in advice.text
    else:
        assert advice.command[1] == "migrate"
        assert "--dry-run" in advice.command
    used = advise(path, findings, start, [StoreUse("lock", "a server holds the lock")])
    assert used.command == ()
    assert "stop the server" in used.text


@pytest.mark.parametrize("case", cases_by_kind())
def test_the_outlook_of_each_subscription(case: str, golden: Path, golden_copy: Callable[[str], Path]) -> None:
    expected = load_expected(case)
    theirs = expected["server_open"]
    _, ours = _forecast(case, golden, golden_copy)
    state = theirs if "channels" in theirs else expected
    for name, channel in state.get("channels", {}).items():
        for each in channel["subscriptions"]:
            said = subscription_outlook(ours, name, each["ID"])
            assert said.isprintable()
            if not theirs["started"]:
                assert said.startswith("the server does not start")
            elif not theirs.get("recovered", True):
                assert said == "not seen: the server starts over"
            else:
                assert said.startswith(("kept", "deleted", "dropped"))
    if ours.starts and ours.recovered:
        for forecast in ours.channels.values():
            for one in forecast.subscriptions:
                said = subscription_outlook(ours, forecast.name, one.state.id)
                deleted = one.status is SubStatus.GHOST
                assert said.startswith("deleted") == deleted
                if one.status is SubStatus.ACTIVE and one.pending:
                    assert f"{len(one.pending)} pending sent again" in said
        assert subscription_outlook(ours, "no such channel", 1).startswith("not seen")
        assert all(subscription_outlook(ours, name, 10**9).startswith("not seen") for name in ours.channels)


def test_names_in_the_sentence_are_harmless() -> None:
    hostile = "\x1b[31m[bold]‮"
    failed = Forecast("0.23.2", False, starts=False, exit_code=1, error=hostile)
    assert judge_start(failed, {}).sentence().isprintable()
    assert subscription_outlook(failed, "c", 1).isprintable()
