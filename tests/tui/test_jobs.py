"""Jobs: done, failed, cancelled, and told how far they are by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import StantoolsError
from tui.jobs import Cancelled, Job, JobState


def run(work: Callable[[Job[int]], int], total: int = 0) -> Job[int]:
    """Runs a job to its end."""
    job: Job[int] = Job("test", work, total=total)
    assert job.state is JobState.WAITING
    assert not job.wait(0)
    assert job.seconds == 0
    assert job.start() is job
    assert job.wait(20)
    assert not job.running
    assert job.seconds >= 0
    return job


def test_done() -> None:
    def work(job: Job[int]) -> int:
        job.begin_phase("first", 10)
        job.advance(4)
        job.begin_phase("second", 8)
        job.advance(6)
        return 42

    job = run(work)
    assert (job.state, job.result, job.phase) == (JobState.DONE, 42, "second")
    assert (job.done, job.total, job.share) == (6, 8, 0.75)
    assert job.problem is None


def test_nobody_knows_how_much_there_is() -> None:
    job = run(lambda job: job.done)
    assert job.share is None


def test_more_than_there_was_is_all_of_it() -> None:
    def work(job: Job[int]) -> int:
        job.advance(30)
        return 0

    assert run(work, total=10).share == 1.0


def fails(error: BaseException) -> Job[int]:
    def work(_job: Job[int]) -> int:
        raise error

    job = run(work)
    assert job.state is JobState.FAILED
    with pytest.raises(RuntimeError, match="the job test is failed"):
        assert job.result
    return job


def test_failed_with_an_error_of_ours() -> None:
    error = StantoolsError("no room", "make room")
    assert fails(error).problem is error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/a/b"), "/a/b: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("odd"), "odd"),
        (MemoryError(), "out of memory"),
    ],
)
def test_failed_with_an_error_of_the_system(error: BaseException, message: str) -> None:
    problem = fails(error).problem
    assert problem is not None
    assert problem.message == message


def test_a_mistake_of_ours_is_told_as_one() -> None:
    error = ZeroDivisionError("division by zero")
    problem = fails(error).problem
    assert problem is not None
    assert "unexpected ZeroDivisionError: division by zero" in problem.message
    assert "please report it" in problem.remedy
    assert problem.__cause__ is error


def test_a_missing_file_names_it(tmp_path: Path) -> None:
    def work(_job: Job[int]) -> int:
        return len((tmp_path / "missing").read_bytes())

    problem = run(work).problem
    assert problem is not None
    assert str(tmp_path / "missing") in problem.message


@pytest.mark.parametrize("step", ["advance", "check", "begin_phase"])
def test_cancelled_at_its_next_step(step: str) -> None:
    begun = threading.Event()
    cleaned: list[str] = []

    def work(job: Job[int]) -> int:
        try:
            begun.set()
            while True:
                if step == "advance":
                    job.advance(1)
                elif step == "check":
                    job.check()
                else:
                    job.begin_phase("again")
        except Cancelled:
            cleaned.append("taken back")
            raise

    job: Job[int] = Job("test", work)
    job.start()
    assert begun.wait(20)
    assert job.running
    assert not job.cancelling
    job.cancel()
    assert job.wait(20)
    assert (job.state, job.problem, cleaned) == (JobState.CANCELLED, None, ["taken back"])
    assert job.cancelling


def test_a_job_that_is_through_before_it_is_cancelled_is_done() -> None:
    job = run(lambda _job: 1)
    job.cancel()
    assert job.state is JobState.DONE
    assert job.result == 1


def test_cancelling_is_no_error_that_code_could_swallow() -> None:
    assert not issubclass(Cancelled, Exception)


def test_progress_from_several_threads_adds_up() -> None:
    def work(job: Job[int]) -> int:
        def count() -> None:
            for _ in range(5000):
                job.advance(1)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return job.done

    job = run(work, total=20_000)
    assert job.result == 20_000
    assert job.share == 1.0


async def test_the_end_of_a_job_is_told_once(golden: Path, browse: Callable[..., Any]) -> None:
    """A timer that was stopped ticks once more when its next tick was due within half a millisecond."""

    async with browse(golden / "basic" / "datastore") as pilot:
        screen = pilot.app.screen
        ticks: list[Callable[[], None]] = []
        timer = screen.set_interval(1000, lambda: None)
        screen.set_interval = lambda _seconds, tick: ticks.append(tick) or timer
        told: list[JobState] = []
        job = screen.watch_job(Job("quick", lambda _: None), lambda: told.append(job.state))
        assert job.wait(10) and screen.working
        for tick in ticks * 2:
            tick()
        assert told == [JobState.DONE] and not screen.working
