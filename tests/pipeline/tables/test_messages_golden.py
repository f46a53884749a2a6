"""The messages table of every golden store is what `messages` and `verify` say of it, however it is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stantools.inspection.stored_messages import Selection
from stantools.pipeline.tables.model import SliceRef
from stantools.pipeline.tables.table_options import TableOptions
from stantools.secret import Secret
from stantools.store.directory import open_datastore
from stantools.store.ranges import Bounds
from stantools.store.read_options import ReadOptions, resolve_crc
from tests.conftest import GOLDEN, MUTATION_SETS, cases_by_kind, load_expected
from tests.mutations import apply_mutation, fresh_copy
from tests.pipeline.tables.reading import (
    channels_of,
    expected_damages,
    expected_messages,
    found_damages,
    found_messages,
    ref_of,
    rows_of,
    slices_of,
    surveyed,
)

BOUNDS = [(3, 9), (7, None), (None, 6), (5, 5), (10_000, None)]
#: Slices of a store that are cut into pieces and read with bounds.
MOST_CUT = 5


def check_store(root: Path, key: bytes | None = None, sizes: tuple[int, ...] = (60, 300)) -> None:
    polynomial = resolve_crc(open_datastore(root), ReadOptions()).polynomial
    cut = 0
    for files in channels_of(root):
        slices = [(each, ref_of(root, files.name, each, polynomial)) for each in slices_of(files)]
        options = TableOptions((str(root),), key=Secret(key))
        rows = {each.name: rows_of(ref, options) for each, ref in slices}
        found = [row for each, _ in slices for row in rows[each.name]]
        assert found_messages(found) == expected_messages(files, polynomial, key, Selection()), files.name
        for each, ref in slices:
            survey = surveyed(each, files.name, polynomial)
            assert found_damages(rows[each.name]) == expected_damages(survey), each.name
            good = sum(row["status"] in ("ok", "sealed", "out-of-range") for row in rows[each.name])
            assert good == sum(run.count for run in survey.runs), each.name
            cut += 1
            if sizes and cut <= MOST_CUT:
                for size in sizes:
                    assert rows_of(ref, replace(options, split_bytes=size)) == rows[each.name], (each.name, size)
                check_bounds(ref, options, rows[each.name], sizes[1:])


def check_bounds(ref: SliceRef, options: TableOptions, rows: list[dict[str, Any]], sizes: tuple[int, ...]) -> None:
    bounds = [Bounds(first, last) for first, last in BOUNDS]
    if times := [row["timestamp_ns"] for row in rows if row["timestamp_ns"] is not None]:
        middle = times[len(times) // 2]
        bounds += [Bounds(since=middle), Bounds(2, 9, until=middle)]
    for each in bounds:
        found = rows_of(ref, replace(options, bounds=each))
        assert [row for row in found if row["timestamp_ns"] is not None] == [r for r in rows if within(r, each)], each
        assert all(row in rows for row in found), each
        for size in sizes:
            assert rows_of(ref, replace(options, bounds=each, split_bytes=size)) == found, (each, size)


def within(row: dict[str, Any], bounds: Bounds) -> bool:
    time = row["timestamp_ns"]
    seq = 2**63 if row["seq"] is None else row["seq"]
    return (
        time is not None
        and (bounds.first is None or seq >= bounds.first)
        and (bounds.last is None or seq <= bounds.last)
        and (bounds.since is None or time >= bounds.since)
        and (bounds.until is None or time < bounds.until)
    )


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden(case: str, golden: Path, golden_copy: Callable[[str], Path]) -> None:
    expected = load_expected(case)
    root = golden_copy(case) if expected["setup"] else golden / case / "datastore"
    check_store(root)
    if encryption := expected["options"]["encryption"]:
        check_store(root, encryption["key"].encode())
        check_store(root, b"a wrong key", ())


def check_mutations(case: str, work: Path, every: int) -> None:
    for number, mutation in enumerate(load_expected(case)["mutations"][::every]):
        root = fresh_copy(GOLDEN / case / "datastore", work / "store")
        apply_mutation(root, mutation)
        try:
            check_store(root, sizes=(60, 300) if number % 16 == 0 else ())
        except AssertionError as error:
            raise AssertionError(mutation) from error


@pytest.mark.parametrize("case", MUTATION_SETS)
def test_some_mutations(case: str, golden: Path, tmp_path: Path) -> None:
    check_mutations(case, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.parametrize("case", MUTATION_SETS)
def test_mutations(case: str, golden: Path, tmp_path: Path) -> None:
    check_mutations(case, tmp_path, 1)
