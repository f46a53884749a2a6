"""Stores in which things lie that no server puts there: each is said, none hangs or hides what is good."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError
from stantools.format import kernels
from stantools.pipeline.tables.model import Mode, SliceRef, StoreRef, TableName
from stantools.pipeline.tables.slice_pieces import split_slice
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.sample import SampleOptions, write_sample
from tests.pipeline.tables.tablerows import table


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    write_sample(root, SampleOptions(names=["orders", "audit"], messages=40, slice_msgs=10))
    return root


def read(root: Path, kind: TableName) -> tuple[int, list[tuple[str, str]]]:
    """How many rows there are of what is right, and what the others say."""
    rows = table(root, kind.value)
    odd = [(row["status"], row["detail"]) for row in rows if row["detail"] is not None]
    return len(rows) - len(odd), odd


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
    before = {kind: read(store, kind)[0] for kind in (TableName.SUBSCRIPTIONS, TableName.CLIENTS)}
    path = store / "orders" / "subs.dat"
    path.unlink()
    if odd == "directory":
        path.mkdir()
    elif odd == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"garbage that is not a record")
    for kind in (TableName.SUBSCRIPTIONS, TableName.CLIENTS):
        rows, ((status, detail),) = read(store, kind)
        assert 0 < rows <= before[kind]
        assert status == ("damaged" if odd == "garbage" else "unreadable")
        assert detail.startswith(f"{path}: ")
        assert len(table(store, kind.value, mode=Mode.DROPMALFORMED.value)) == rows
        with pytest.raises(StoreUnreadableError, match=r"subs\.dat"):
            table(store, kind.value, mode=Mode.FAILFAST.value)


def test_clients_that_cannot_be_told_are_said_once(store: Path) -> None:
    healthy = len(table(store, "subscriptions"))
    path = store / "clients.dat"
    path.write_bytes(path.read_bytes()[:-3])
    detail = f"{path}: the server stops reading at offset "
    for kind in (TableName.SUBSCRIPTIONS, TableName.CLIENTS):
        rows, ((status, said),) = read(store, kind)
        assert (status, said[: len(detail)]) == ("damaged", detail)
        assert rows == healthy or kind is TableName.CLIENTS
    path.unlink()
    assert read(store, TableName.SUBSCRIPTIONS) == (healthy, [("damaged", f"{path}: is missing")])
    assert read(store, TableName.CLIENTS)[1] == [("damaged", f"{path}: is missing")]
    assert read(store / "orders", TableName.CLIENTS)[1][0][0] == "unreadable"


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
