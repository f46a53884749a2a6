"""What a session finds out of a store is what the command line says of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError
from stantools.inspection.overview import overview
from stantools.inspection.verify import verify
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import cases_by_kind, load_expected
from tui.jobs import JobState
from tui.session import ScanStage
from tui.store_session import StoreSession


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden(case: str, golden: Path) -> None:
    session = StoreSession(golden / case / "datastore")
    job = session.start()
    assert job.wait(60)
    assert job.state is JobState.DONE, job.problem
    assert session.stage is ScanStage.COMPLETE
    verdict = verify(session.store)
    assert list(session.findings()) == verdict.findings
    assert [facts.verdict for facts in session.channels.values()] == verdict.channels
    looked = overview(session.store)
    assert session.overview is not None
    assert session.overview.as_json() == looked.as_json()
    assert session.forecasts is not None
    seen = load_expected(case)["server_open"]
    if not load_expected(case)["open_args"] and not load_expected(case)["setup"]:
        assert session.forecasts[0].starts == seen["started"]
    advice = session.advice()
    assert advice is not None
    start = session.start_verdict()
    assert start is not None
    assert session.outcomes == verdict.outcomes
    if not verdict.clean or not start.delivers:
        assert advice.command[:2] == ("stantools", "salvage")
    elif any(each.missing for each in session.outcomes.values()):
        assert advice.command[:2] == ("stantools", "verify")
    else:
        assert advice.command[:2] == ("stantools", "migrate")


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreadableError):
        StoreSession(tmp_path / "nothing")


def test_a_scan_can_be_stopped_and_begun_again(tmp_path: Path) -> None:
    write_sample(tmp_path / "datastore", SampleOptions(channels=20, messages=2000))
    session = StoreSession(tmp_path / "datastore")
    session.start()
    session.close()
    assert session.job is not None
    assert session.job.state in (JobState.CANCELLED, JobState.DONE)
    job = session.rescan()
    assert job.wait(60)
    assert job.state is JobState.DONE
    assert session.scanned


def test_a_channel_that_goes_while_it_is_scanned(tmp_path: Path) -> None:
    write_sample(tmp_path / "datastore", SampleOptions(channels=3, messages=10))
    session = StoreSession(tmp_path / "datastore")
    shutil.rmtree(tmp_path / "datastore" / session.store.channel_names[1])
    job = session.start()
    assert job.wait(60)
    assert job.state is JobState.DONE, job.problem
    gone = session.channels[session.store.channel_names[1]]
    assert gone.overview is not None
    assert gone.overview.problems


def test_a_store_that_is_gone_leaves_what_is_known(tmp_path: Path) -> None:
    write_sample(tmp_path / "datastore", SampleOptions(channels=3, messages=10))
    session = StoreSession(tmp_path / "datastore")
    assert session.start().wait(60)
    shutil.rmtree(tmp_path / "datastore")
    with pytest.raises(StoreUnreadableError):
        session.rescan()
    assert len(session.channels) == 3
    assert session.scanned


def test_a_start_that_cannot_be_forecast_leaves_the_rest(tmp_path: Path) -> None:
    write_sample(tmp_path / "datastore", SampleOptions(channels=2, messages=10))
    session = StoreSession(tmp_path / "datastore")
    subs = tmp_path / "datastore" / session.store.channel_names[0] / "subs.dat"
    subs.unlink()
    subs.symlink_to("/dev/null")
    job = session.rescan()
    assert job.wait(60)
    assert job.state is JobState.DONE, job.problem
    assert session.stage is ScanStage.COMPLETE
    assert session.scanned
    assert "not a regular file" in session.forecast_problem
    advice = session.advice()
    assert advice is not None
    assert advice.command[1] == "salvage"
