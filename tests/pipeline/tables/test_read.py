"""Reading the tables that are not about messages: modes, columns, batches."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError
from stantools.pipeline.tables.model import STORE_TABLES, TableName
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.schema import schema_of
from stantools.pipeline.tables.table_options import table_options
from stantools.store.sample import SampleOptions, write_sample
from tests.pipeline.tables.tablerows import table


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("read") / "store"
    write_sample(root, SampleOptions(names=["a", "b"], messages=40, size=100))
    return root


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    root = tmp_path / "damaged"
    write_sample(root, SampleOptions(names=["a", "b"], messages=40, size=100))
    for path in (root / "clients.dat", root / "a" / "subs.dat", root / "a" / "msgs.1.dat"):
        content = bytearray(path.read_bytes())
        content[20] ^= 0xFF
        path.write_bytes(content)
    return root


@pytest.mark.parametrize("name", STORE_TABLES)
def test_columns_come_as_asked_for(store: Path, name: TableName) -> None:
    whole = table(store, name)
    names = schema_of(name).names
    for wanted in ([names[-1]], names[::-1], names[2:4]):
        rows = table(store, name, columns=",".join(wanted))
        assert rows == [{column: row[column] for column in wanted} for row in whole]


@pytest.mark.parametrize("name", STORE_TABLES)
def test_batches_are_as_big_as_asked_for(store: Path, name: TableName) -> None:
    options = table_options({"path": str(store), "table": name, "batchRows": "3"})
    (split,) = plan(options).splits
    sizes = [batch.num_rows for batch in read_split(pickle.loads(pickle.dumps(split)), options)]
    assert sum(sizes) == len(table(store, name))
    assert max(sizes, default=0) <= 3
    # Small parts come together.
    assert len(sizes) <= sum(sizes) // 2 + 1


def test_payloads_of_records_limit_a_batch(store: Path) -> None:
    options = table_options({"path": str(store), "table": "records", "batchBytes": "2000"})
    sizes = [batch.num_rows for split in plan(options).splits for batch in read_split(split, options)]
    assert max(sizes) < 100
    assert len(sizes) > sum(sizes) // 100 + 10


def test_payloads_of_records_are_not_made_when_not_wanted(store: Path) -> None:
    rows = table(store, "records", columns="type,fields")
    assert json.loads(rows[-2]["fields"])
    assert {tuple(row) for row in rows} == {("type", "fields")}


def test_damage_in_every_mode(damaged: Path) -> None:
    everything = table(damaged, "records")
    bad = [row for row in everything if row["status"] == "damaged"]
    assert {row["file"] for row in bad} == {"clients.dat", "a/subs.dat", "a/msgs.1.dat"}
    assert table(damaged, "records", mode="DROPMALFORMED") == [r for r in everything if r["status"] == "ok"]
    with pytest.raises(StoreUnreadableError) as failed:
        table(damaged, "records", mode="FAILFAST")
    assert f"{damaged}/clients.dat: damaged at offset 4" in failed.value.message
    # What is intact is shown; verify's table says what is not.
    for name in ("clients", "subscriptions"):
        rows = table(damaged, name)
        bad = [row for row in rows if row["status"] == "damaged"]
        assert [row["detail"].partition(": ")[0] for row in bad] == [
            f"{damaged}/{file}" for file in sorted(("clients.dat", "a/subs.dat"), reverse=name == "clients")
        ]
        assert {row["channel"] for row in bad} == {"a", None} if name == "subscriptions" else True
        assert len(rows) > len(bad)
        assert table(damaged, name, mode="DROPMALFORMED") == [row for row in rows if row not in bad]
    assert {row["file"] for row in table(damaged, "findings")} >= {"clients.dat", "a/subs.dat", "a/msgs.1.dat"}
    for name, file in (("clients", "clients.dat"), ("subscriptions", "a/subs.dat")):
        with pytest.raises(StoreUnreadableError, match=file):
            table(damaged, name, mode="FAILFAST")
    assert table(damaged, "findings", mode="FAILFAST") == table(damaged, "findings")


def test_a_channel_that_is_gone_since_it_was_planned(damaged: Path) -> None:
    options = table_options({"path": str(damaged), "table": "slices"})
    (split,) = plan(options).splits
    for path in (damaged / "b").iterdir():
        path.unlink()
    (damaged / "b").rmdir()
    rows = [row for batch in read_split(split, options) for row in batch.to_pylist()]
    assert [row["messages"] for row in rows if row["channel"] == "b"] == [0] * 4
    assert all("cannot be read" in row["problems"][0] for row in rows if row["channel"] == "b")
