"""The journal: what it remembers across killed runs, and what it refuses."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from stantools.errors import RefusedError, StoreUnreadableError, StoreUnwritableError
from stantools.migration.journal import FollowState, Journal, StepLog, StreamState, journal_path, remembered_streams
from tests.broker.stores.power import Machine


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return tmp_path / "plan.yaml"


def test_a_new_journal_lies_beside_the_plan(plan: Path) -> None:
    with Journal(plan, "d", "nats://a") as journal:
        assert not journal.resumed
        assert journal.state("orders") is None
        assert journal.facts("orders") == {}
    assert journal_path(plan) == plan.with_name("plan.yaml.journal")
    (line,) = journal_path(plan).read_text().splitlines()
    assert json.loads(line).items() >= {"event": "begin", "plan": "d", "target": "nats://a"}.items()


def test_the_next_run_goes_on(plan: Path) -> None:
    with Journal(plan, "d", "t") as journal:
        journal.note("orders", StreamState.STARTED, way="publish", seen="host")
        journal.note("orders", StreamState.LOADED, messages=7)
        journal.note("telemetry", StreamState.STARTED)
        journal.note("gone", StreamState.PROVEN)
        journal.forget("gone")
    with Journal(plan, "d", "t") as journal:
        assert journal.resumed
        assert journal.state("orders") is StreamState.LOADED
        assert [journal.facts("orders")[name] for name in ("messages", "way", "seen")] == [7, "publish", "host"]
        assert journal.state("telemetry") is StreamState.STARTED
        assert journal.state("gone") is None


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_half_a_line_is_a_step_not_taken(plan: Path, cut: int) -> None:
    with Journal(plan, "d", "t") as journal:
        journal.note("orders", StreamState.STARTED)
        journal.note("orders", StreamState.PROVEN)
    whole = journal_path(plan).read_bytes()
    journal_path(plan).write_bytes(whole[:-cut])
    with Journal(plan, "d", "t") as journal:
        assert journal.state("orders") is StreamState.STARTED
        journal.note("orders", StreamState.LOADED)
    with Journal(plan, "d", "t") as journal:
        assert journal.state("orders") is StreamState.LOADED


def test_a_step_survives_a_loss_of_power(tmp_path: Path) -> None:
    machine = Machine(random.Random(1))
    with machine.watched():
        (folder := tmp_path / "plans").mkdir()
        with Journal(folder / "plan.yaml", "d", "t") as journal:
            for state in StreamState:
                journal.note("orders", state)
                for number, how in enumerate(("contents", "names", "synced", "some", "some")):
                    machine.image(folder, left := tmp_path / f"{state}{number}", how)
                    assert remembered_streams(left / "plan.yaml")["orders"]["state"] == state


def test_even_the_first_line_may_be_cut(plan: Path) -> None:
    journal_path(plan).write_bytes(b'{"event": "beg')
    with Journal(plan, "d", "t") as journal:
        assert not journal.resumed


@pytest.mark.parametrize(("digest", "target", "says"), [("e", "t", "plan was changed"), ("d", "u", "not for u")])
def test_another_migration_is_refused(plan: Path, digest: str, target: str, says: str) -> None:
    with Journal(plan, "d", "t"):
        pass
    with pytest.raises(RefusedError, match=says):
        Journal(plan, digest, target)


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"[]\n",
        b'{"event": "stream", "stream": "a", "state": "started"}\n',
        b'{"event": "begin", "plan": "d", "target": "t"}\n{"event": "stream", "stream": "a", "state": "later"}\n',
        b'{"event": "begin", "plan": "d", "target": "t"}\n{"event": "other"}\n',
        b'{"event": "begin", "plan": "d", "target": "t"}\n{"event": "stream", "stream": 5, "state": "started"}\n',
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_journal_is_left_alone(plan: Path, content: bytes) -> None:
    journal_path(plan).write_bytes(content)
    with pytest.raises(StoreUnreadableError, match="line"):
        Journal(plan, "d", "t")
    assert journal_path(plan).read_bytes() == content


def test_only_one_run_at_a_time(plan: Path) -> None:
    code = (
        "import sys, pathlib; from stantools.migration.journal import Journal; "
        "Journal(pathlib.Path(sys.argv[1]), 'd', 't')"
    )
    with Journal(plan, "d", "t"):
        other = subprocess.run([sys.executable, "-c", code, str(plan)], capture_output=True, text=True, check=False)
        assert "RefusedError" in other.stderr
        assert "another migration with this plan is running" in other.stderr
    assert subprocess.run([sys.executable, "-c", code, str(plan)], check=False).returncode == 0


def test_no_place_for_it(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritableError, match="journal"):
        Journal(tmp_path / "missing" / "plan.yaml", "d", "t")


def test_steps_that_are_taken_elsewhere(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    with Journal(plan, "digest", "server") as journal:
        journal.note("orders", StreamState.STARTED, way="publish")
        journal.note("audit", StreamState.STARTED)
        steps = StepLog({"orders": journal.facts("orders")})
        assert steps.state("orders") is StreamState.STARTED and steps.state("audit") is None
        steps.note("orders", StreamState.LOADED, messages=7)
        steps.forget("orders")
        steps.note("orders", StreamState.PROVEN)
        assert journal.state("orders") is StreamState.STARTED
        journal.take_over(steps.taken[:1])
        assert journal.state("orders") is StreamState.LOADED and journal.facts("orders")["way"] == "publish"
        journal.take_over(steps.taken[1:2])
        assert journal.state("orders") is None
        journal.take_over(steps.taken[2:])
    with Journal(plan, "digest", "server") as journal:
        assert (journal.state("orders"), journal.state("audit")) == (StreamState.PROVEN, StreamState.STARTED)


def test_a_bad_line_is_named(plan: Path) -> None:
    with Journal(plan, "d", "t") as journal:
        journal.note("orders", StreamState.STARTED)
    good = journal_path(plan).read_text()
    for bad, problem in (("x", "it is not json"), ('{"event":"stream"}', "it is not a step of a migration")):
        journal_path(plan).write_text(f"{good}{bad}\n")
        with (
            pytest.raises(StoreUnreadableError, match=f"line 3 does not belong .*: {problem}"),
            Journal(plan, "d", "t"),
        ):
            pass
    journal_path(plan).write_text(good.partition("\n")[2])
    with pytest.raises(StoreUnreadableError, match=r"line 1 .* must begin a migration"), Journal(plan, "d", "t"):
        pass


def test_how_far_the_streams_of_a_followed_store_are() -> None:
    assert FollowState(2, 0, 999.7, 0, ending=False).describe(1000.0) == "in step: 0 behind, last message 0.3 s ago"
    assert FollowState(2, 1234, 1001.0, 0, ending=False).describe(1000.0) == "1,234 behind, last message 0.0 s ago"
    assert FollowState(2, 0, None, 0, ending=True).describe(1000.0) == "in step: 0 behind"
