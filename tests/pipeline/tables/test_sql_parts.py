"""SQL stores as parts of tables: together they have the rows of the whole store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import StoreUnreadableError, UsageError
from stantools.pipeline.tables import sql_parts
from stantools.pipeline.tables.model import Mode, SqlPart, TableName
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.sql_parts import check_password
from stantools.pipeline.tables.table_options import TableOptions
from stantools.secret import Secret
from tests.sqlstore.cases import expected

pytest.importorskip("pyarrow")

from stantools.pipeline.tables.read import read_split


def rows(options: TableOptions) -> list[dict[str, Any]]:
    return [row for split in plan(options).splits for batch in read_split(split, options) for row in batch.to_pylist()]


def intact(golden_sql: Path, case: str) -> dict[str, int]:
    facts = expected(golden_sql, case)["rows"]
    names = {each["id"]: each["name"] for each in facts["Channels"]}
    return {
        names[each["id"]]: sum(last - first + 1 for first, last in each["intact"])
        for each in facts["Messages"]
        if each["intact"]
    }


@pytest.mark.parametrize("case", ["m_basic", "p_basic"])
def test_parts_have_all_intact_messages(golden_sql: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_parts, "_LEAST", 1 << 9)
    dump = golden_sql / case / "dump.sql"
    options = TableOptions((str(dump),), partitions=8, partition_bytes=1)
    parts = [part for split in plan(options).splits for part in split.parts]
    assert len(parts) > len(intact(golden_sql, case))
    assert any(len(part.channels) > 1 for part in parts if isinstance(part, SqlPart))
    found: dict[str, list[int]] = {}
    for row in rows(options):
        assert (row["store"], row["status"]) == (str(dump), "ok")
        found.setdefault(row["channel"], []).append(row["seq"])
    assert {name: len(set(each)) for name, each in found.items()} == intact(golden_sql, case)
    assert all(each == sorted(set(each)) for each in found.values())


def test_options_choose_channels_and_sequences(golden_sql: Path) -> None:
    dump = str(golden_sql / "m_durables" / "dump.sql")
    whole = rows(TableOptions((dump,)))
    channel = whole[0]["channel"]
    some = rows(TableOptions((dump,), channels=(channel,), columns=("seq",)))
    assert [row["seq"] for row in some] == [row["seq"] for row in whole if row["channel"] == channel]
    subscriptions = rows(TableOptions((dump,), table=TableName.SUBSCRIPTIONS))
    assert {row["store"] for row in subscriptions} == {dump}


def test_rows_that_are_not_intact_are_named(golden_sql: Path) -> None:
    dump = golden_sql / "m_cut_data" / "dump.sql"
    options = TableOptions((str(dump),))
    failed = plan(options).unreadable
    assert failed
    assert all("left out, not intact" in each.message for each in failed)
    assert [row["status"] for row in rows(options)].count("unreadable") == len(failed)
    assert {row["status"] for row in rows(replace(options, mode=Mode.DROPMALFORMED))} == {"ok"}
    with pytest.raises(StoreUnreadableError, match="left out, not intact"):
        plan(replace(options, mode=Mode.FAILFAST))


def test_findings_are_those_of_the_rows(golden_sql: Path) -> None:
    dump = str(golden_sql / "m_cut_data" / "dump.sql")
    found = rows(TableOptions((dump,), table=TableName.FINDINGS))
    assert {row["store"] for row in found} == {dump}
    assert "sql-message-damaged" in {row["code"] for row in found}


def test_a_cut_dump_is_named_among_others(golden_sql: Path, tmp_path: Path) -> None:
    whole, cut = golden_sql / "p_basic" / "dump.sql", tmp_path / "cut.sql"
    cut.write_bytes(whole.read_bytes()[:-100])
    found = plan(TableOptions((str(whole), str(cut))))
    assert [each.root for each in found.unreadable] == [str(cut)]


def test_a_password_is_not_sent_to_tasks() -> None:
    with pytest.raises(UsageError, match="postgres://u@h/db: Spark would write the password") as raised:
        check_password("postgres://u:secret@h/db")
    assert "secret@" not in str(raised.value)
    check_password("postgres://u@h/db")
    assert "pw" not in repr(TableOptions((), sql_password=Secret(b"pw")))
