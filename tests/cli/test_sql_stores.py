"""Verbs on dumps of SQL stores: what they give, and what they refuse in one sentence."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.sqlstore.cases import expected


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["messages", "DUMP", "events", "--follow"], 2, "is a SQL dump, which is read as it is now"),
        (["records", "DUMP"], 3, "is a SQL dump; it cannot be used for the history of single records"),
        (["compact", "DUMP", "--out", "new"], 3, "is a SQL dump; it cannot be used for a compaction"),
        (["verify", "u:pw9@tcp(h:3306)/db", "--sql-driver", "postgres"], 2, "is an address of mysql, not of postgres"),
        (["export", "postgres://u:pw9@h/db", "--to", "out", "--engine", "spark"], 2, "would write the password"),
    ],
)
def test_what_does_not_work_is_told(run, golden_sql: Path, arguments: list[str], code: int, words: str) -> None:
    dump = str(golden_sql / "m_durables" / "dump.sql")
    outcome = run(*(dump if each == "DUMP" else each for each in arguments))
    assert outcome.code == code
    assert words in outcome.err
    assert "pw9" not in outcome.err


def test_findings_and_names_in_an_export(run, golden_sql: Path, tmp_path: Path) -> None:
    dump = golden_sql / "m_cut_data" / "dump.sql"
    found = run("export", dump, "--table", "findings", "--to", tmp_path / "findings.csv", "--columns", "code,store")
    assert found.code == 1
    rows = list(csv.reader((tmp_path / "findings.csv").read_text().splitlines()))
    assert ["sql-message-damaged", str(dump)] in rows
    assert run("export", dump, "--to", tmp_path / "out").code == 1
    manifest = json.loads((tmp_path / "out" / "_stantools-export.json").read_bytes())
    assert manifest["stores"] == [str(dump)]


def test_a_salvaged_dump_is_a_store(run, golden_sql: Path, tmp_path: Path) -> None:
    dump, new = golden_sql / "p_durables" / "dump.sql", tmp_path / "new"
    assert run("salvage", dump, "--out", new).code == 0
    assert run("diff", dump, new).code == 0
    wanted = expected(golden_sql, "p_durables")["rows"]["row_counts"]["Messages"]
    assert sum(each["messages"] for each in run("verify", new, "-o", "json").json()["channels"]) == wanted
