"""The messages table of every golden store is what `stantools messages` and `stantools verify` say, however it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from stantools.format.crc import IEEE
from stantools.inspection.messages import Selection
from stantools.pipeline.tables.options import Bounds, TableOptions
from stantools.store.directory import open_datastore
from stantools.store.options import ReadOptions, resolve_crc
from tests.conftest import MUTATION_SETS, golden_cases, load_expected
from tests.mutations import mutated_stores
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

BOUNDS = [(3, 9), (7, None), (None, 6), (5, 5), (10_000, None), (2, 30)]


def check_store(root: Path, key: bytes | None = None) -> None:
    polynomial = resolve_crc(open_datastore(root), ReadOptions()).polynomial
    for files in channels_of(root):
        slices = [(each, ref_of(root, files.name, each, polynomial)) for each in slices_of(files)]
        whole = TableOptions((str(root),), key=key)
        rows = {each.name: rows_of(ref, whole) for each, ref in slices}
        found = [row for each, _ in slices for row in rows[each.name]]
        expected = expected_messages(files, polynomial, key, Selection())
        assert found_messages(found) == expected, files.name
        for each, ref in slices:
            survey = surveyed(each, files.name, polynomial)
            assert found_damages(rows[each.name]) == expected_damages(survey), each.name
            good = sum(row["status"] in ("ok", "sealed", "out-of-range") for row in rows[each.name])
            assert good == sum(run.count for run in survey.runs), each.name
            for size in (1, 60, 300, 4000):
                cut = TableOptions((str(root),), key=key, split_bytes=size)
                assert rows_of(ref, cut) == rows[each.name], (each.name, size)
            times = [row["timestamp_ns"] for row in rows[each.name] if row["timestamp_ns"] is not None]
            check_bounds(ref, key, rows[each.name], times)


def check_bounds(ref, key, rows, times) -> None:  # type: ignore[no-untyped-def]
    every = [Bounds(first, last) for first, last in BOUNDS]
    if times:
        middle = times[len(times) // 2]
        every += [Bounds(since=middle), Bounds(until=middle), Bounds(2, 9, middle - 10**9, middle + 10**9)]
    for bounds in every:
        options = TableOptions(("",), bounds=bounds, key=key)
        found = rows_of(ref, options)
        wanted = [row for row in rows if row["timestamp_ns"] is not None and within(row, bounds)]
        assert [row for row in found if row["timestamp_ns"] is not None] == wanted, bounds
        assert all(row in rows for row in found), bounds
        for size in (1, 100):
            cut = TableOptions(("",), bounds=bounds, key=key, split_bytes=size)
            assert rows_of(ref, cut) == found, (bounds, size)


def within(row, bounds: Bounds) -> bool:  # type: ignore[no-untyped-def]
    seq = 2**63 if row["seq"] is None else row["seq"]
    return (
        (bounds.first is None or seq >= bounds.first)
        and (bounds.last is None or seq <= bounds.last)
        and (bounds.since is None or row["timestamp_ns"] >= bounds.since)
        and (bounds.until is None or row["timestamp_ns"] < bounds.until)
    )


@pytest.mark.parametrize("case", golden_cases())
def test_golden(case: str, golden: Path, golden_copy) -> None:  # type: ignore[no-untyped-def]
    expected = load_expected(case)
    root = golden_copy(case) if expected["setup"] else golden / case / "datastore"
    encryption = expected["options"].get("encryption")
    print(case, encryption)
    check_store(root)


@pytest.mark.parametrize("case", MUTATION_SETS)
def test_mutations(case: str, golden: Path, tmp_path: Path) -> None:
    for mutation, root in mutated_stores(case, tmp_path):
        try:
            check_store(root)
        except AssertionError as error:
            raise AssertionError(mutation) from error
