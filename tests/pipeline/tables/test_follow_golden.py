"""Stores that real servers wrote and damaged: a stream gives the rows that the table has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stantools.pipeline.tables.discovery import discover
from stantools.pipeline.tables.follow import Limit, TableFollower
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.read import read_split, read_work
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store import growing_slice
from tests.conftest import KINDS_OF_STORES, golden_cases

_COLUMNS = ("channel", "slice", "offset", "seq", "timestamp_ns", "data", "size", "status")
#: Damage that is waited for at the end of the slice that a server goes on with: it may be a write in progress.
_AT_THE_END = {"torn", "zeros", "garbage", "unreadable"}


def followed(options: TableOptions, limit: Limit) -> list[tuple[Any, ...]]:
    stores = [store.ref for store in discover(options)[0]]
    follower = TableFollower(lambda: (stores, ()))
    rows: list[tuple[Any, ...]] = []
    at = follower.earliest()
    while True:
        follower.next_look = 0.0
        end = follower.latest(at, limit)
        if end == at:
            return rows
        for batch in read_work(follower.work(at, end), options):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
        at = end


def compare(golden: Path, cases: list[str], limits: list[Limit], most: int) -> None:
    waited = 0
    for case in cases:
        options = TableOptions((str(golden / case / "datastore"),), columns=_COLUMNS)
        batches = [each for split in plan(options).splits for each in read_split(split, options)]
        table = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        if len(table) > most:
            continue
        for limit in limits:
            stream = followed(options, limit)
            more, missing = Counter(stream) - Counter(table), Counter(table) - Counter(stream)
            assert {row[-1] for row in more} <= ({"removed"} if case == "dmg_middle_slice_missing" else set()), case
            assert {row[-1] for row in missing} <= _AT_THE_END, (case, limit)
            assert sum(missing.values()) <= 1, case
            waited += sum(missing.values())
            for channel in {row[0] for row in table}:
                expected = [row for row in table if row[0] == channel and row not in missing]
                assert [row for row in stream if row[0] == channel and row not in more] == expected, (case, limit)
    assert waited <= 20 * len(limits)


each_set = pytest.mark.parametrize(
    "cases",
    [
        pytest.param(sorted(KINDS_OF_STORES), id="kinds"),
        pytest.param(golden_cases(), marks=pytest.mark.slow, id="all"),
    ],
)


@each_set
def test_rows_of_golden_stores(golden: Path, monkeypatch: pytest.MonkeyPatch, cases: list[str]) -> None:
    monkeypatch.setattr(growing_slice, "SETTLED_SECONDS", -1.0)
    compare(golden, cases, [Limit()], 10_000)


@each_set
def test_rows_of_golden_stores_in_small_batches(
    golden: Path, monkeypatch: pytest.MonkeyPatch, cases: list[str]
) -> None:
    monkeypatch.setattr(growing_slice, "SETTLED_SECONDS", -1.0)
    compare(golden, cases, [Limit(bytes=700), Limit(rows=7), Limit(files=1)], 60)
