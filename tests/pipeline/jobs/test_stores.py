"""What a job over many stores ends with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stantools.errors import ExitCode, UsageError
from stantools.migration.journal import StreamOutcome, StreamResult
from stantools.pipeline.jobs.migrate import MigrateResult
from stantools.pipeline.jobs.stores import worst
from stantools.pipeline.tables.model import FailedRead


def test_the_worst_of_all_stores_counts() -> None:
    rows: list[tuple[list[ExitCode], ExitCode]] = [
        ([], ExitCode.CLEAN),
        ([ExitCode.CLEAN, ExitCode.LOSS], ExitCode.LOSS),
        ([ExitCode.LOSS, ExitCode.FINDINGS, ExitCode.CLEAN], ExitCode.FINDINGS),
        ([ExitCode.FINDINGS, ExitCode.USAGE], ExitCode.USAGE),
        ([ExitCode.USAGE, ExitCode.REFUSED], ExitCode.REFUSED),
        ([ExitCode.REFUSED, ExitCode.UNREACHABLE], ExitCode.UNREACHABLE),
    ]
    for codes, code in rows:
        assert worst(codes) is code, (codes, code)
        assert worst(codes[::-1]) is code, (codes, code)


def test_a_stream_that_cannot_be_made_as_asked_is_no_success() -> None:
    store: Any = SimpleNamespace(plan=SimpleNamespace(lossy=False))
    good = StreamResult("A", StreamOutcome.MIGRATED)
    wrong = StreamResult("B", error=UsageError("stream B: it cannot be filled"))
    assert MigrateResult([(store, [good])], changed=True).exit_code is ExitCode.CLEAN
    assert MigrateResult([(store, [good, wrong])], changed=True).exit_code is ExitCode.USAGE
    assert MigrateResult([(store, [good])], [FailedRead("/x", "no")], changed=True).exit_code is ExitCode.FINDINGS
