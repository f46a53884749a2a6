"""Stores in which things lie that no server puts there: each is said, none hangs or hides what is good."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.pipeline.tables.counter import ReadCounter
from stantools.pipeline.tables.model import Mode, SliceRef, StoreRef, Table
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.pieces import split_slice
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.read import read_split
from stantools.store.limits import SliceLimits
from stantools.store.sample import SampleOptions, write_sample
from tests.pipeline.tables.tablerows import table


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    write_sample(root, SampleOptions(["orders", "audit"], 40, slices=SliceLimits(max_msgs=10)))
    return root


def read(root: Path, kind: Table) -> tuple[int, list[str]]:
    """How many rows there are, and what could not be read where no row can say so."""
    options = TableOptions((str(root),), table=kind)
    counter, rows = ReadCounter(), 0
    for split in plan(options).splits:
        rows += sum(batch.num_rows for batch in read_split(split, options, counter))
    return rows, [each.path for each in counter.unreadable]


def test_a_pipe_among_slices_without_a_store(store: Path, tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    os.mkfifo(loose / "msgs.1.dat.bak")
    shutil.copy(store / "orders" / "msgs.2.dat", loose / "msgs.2.dat.bak")
    statuses = {(row["slice"], row["status"]) for row in table(loose)}
    assert statuses == {("msgs.1.dat.bak", "unreadable"), ("msgs.2.dat.bak", "ok")}


def test_a_directory_in_the_place_of_a_slice(store: Path) -> None:
    path = store / "orders" / "msgs.2.dat"
    path.unlink()
    path.mkdir()
    odd = [row["slice"] for row in table(store) if row["status"] != "ok"]
    assert odd == ["orders/msgs.2.dat"]
    with pytest.raises(StoreUnreadableError, match="is not a regular file"):
        table(store, mode="FAILFAST")


def test_a_link_to_a_directory_above_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    with pytest.raises(StoreUnreadableError):
        table(tmp_path / "a")


@pytest.mark.parametrize("odd", ["directory", "pipe", "garbage"])
def test_subscriptions_that_cannot_be_read_are_said(store: Path, odd: str) -> None:
    before = read(store, Table.CLIENTS)[0]
    path = store / "orders" / "subs.dat"
    path.unlink()
    if odd == "directory":
        path.mkdir()
    elif odd == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"garbage that is no record")
    rows, said = read(store, Table.SUBSCRIPTIONS)
    assert (rows > 0, said) == (True, [str(path)])
    rows, said = read(store, Table.CLIENTS)
    assert (rows <= before, rows > 0, said) == (True, True, [str(path)])
    for kind in (Table.SUBSCRIPTIONS, Table.CLIENTS):
        with pytest.raises(StoreUnreadableError, match=r"subs\.dat"):
            table(store, kind.value, mode=Mode.FAILFAST.value)


def test_a_hole_is_searched_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store / "orders" / "msgs.2.dat"
    with path.open("r+b") as file:
        file.truncate(64 << 20)
    searches = []
    search = kernels.find_record
    monkeypatch.setattr(kernels, "find_record", lambda *words: searches.append(words[1]) or search(*words))
    ref = SliceRef(StoreRef(str(store), 0xEDB88320), "orders", 2, False, str(path), None, 64 << 20, 0)
    assert len(split_slice(ref, TableOptions((str(store),), split_bytes=1 << 20))) == 1
    assert len(searches) == 1
