"""Every table of the golden stores says what the local verb says."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.escaping import fill_in, store_names
from stantools.inspection.records import kind_of
from tests.conftest import cases_by_kind, load_expected
from tests.pipeline.tables.tablerows import table

Row = dict[str, Any]


def local(*arguments: object) -> Any:
    result = CliRunner().invoke(cli, [*map(str, arguments), "-o", "json"], prog_name="stantools")
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def named(remedy: str, root: Path, finding: Row) -> str:
    """A remedy with the places that it is for, as they can be pasted."""
    names = {"CHANNEL": finding["channel"], "FILE": finding["file"] and str(root / finding["file"])}
    return fill_in(remedy, {**store_names(root), **{word: name for word, name in names.items() if name}})


def findings(root: Path, polynomial: str) -> None:
    expected = local("verify", root, "--crc-poly", polynomial)["findings"]
    rows = table(root, "findings", crcPoly=polynomial)
    assert [without(row, "store", "remedy") for row in rows] == [without(each, "remedy") for each in expected]
    assert [row["remedy"] for row in rows] == [named(each["remedy"], root, each) for each in expected]
    assert {row["store"] for row in rows} <= {str(root)}


def subscriptions(root: Path, polynomial: str) -> None:
    names = {"q_group": "queue_group"}
    expected = []
    damaged = set()
    for channel in local("subs", root, "--crc-poly", polynomial)["channels"]:
        damaged |= {channel["name"]} if channel["problems"] else set()
        for each in channel["subscriptions"]:
            row = {"store": str(root), "channel": channel["name"]}
            row |= {names.get(name, name): value for name, value in each.items()}
            more = {"pending_count": len(each["pending"]), "ghost": each["status"] == "ghost", "detail": None}
            expected.append(row | more)
    rows = table(root, "subscriptions", crcPoly=polynomial)
    assert [row for row in rows if row["detail"] is None] == expected
    assert {row["channel"] for row in rows if row["detail"] is not None} - {None} == damaged


def clients(root: Path, polynomial: str) -> None:
    expected = [
        {"store": str(root), **each, "conn_id": base64.b64decode(each["conn_id"]), "status": "ok", "detail": None}
        for each in local("clients", root, "--crc-poly", polynomial)["clients"]
    ]
    rows = table(root, "clients", crcPoly=polynomial)
    assert [row for row in rows if row["status"] == "ok"] == expected
    assert all(row["detail"] for row in rows if row["status"] != "ok")


def slices(root: Path, polynomial: str) -> None:
    expected: list[Row] = []
    for channel in local("info", root, "--crc-poly", polynomial)["channels"]:
        both = [(each, False) for each in channel["slices"]] + [(each, True) for each in channel["archived"]]
        for each, archived in sorted(both, key=lambda pair: (pair[0]["number"], not pair[1])):
            filled = each["count"] > 0
            expected.append(
                {
                    "store": str(root),
                    "channel": channel["name"],
                    "slice": f"{channel['name']}/{each['data']}",
                    "number": each["number"],
                    "archived": archived,
                    "first_seq": each["first_seq"] if filled else None,
                    "last_seq": each["last_seq"] if filled else None,
                    "first_timestamp": each["first_timestamp_ns"] // 1000 if filled else None,
                    "last_timestamp": each["last_timestamp_ns"] // 1000 if filled else None,
                    "messages": each["count"],
                    **{name: each[name] for name in ("bytes", "data_size", "index_size", "source", "problems")},
                }
            )
    rows = table(root, "slices", crcPoly=polynomial, archived="true")
    assert [without(row, "encrypted") for row in rows] == [without(row, "encrypted") for row in expected]


def records(root: Path, polynomial: str) -> None:
    rows = table(root, "records", crcPoly=polynomial, archived="true")
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        assert row["store"] == str(root)
        by_file.setdefault(row["file"], []).append(row)
    channels = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    files = [*root.iterdir(), *(path for channel in channels for path in channel.iterdir())]
    assert set(by_file) == {str(path.relative_to(root)) for path in files if path.is_file() and kind_of(path.name)}
    for file, found in _telling(by_file).items():
        channel = file.rpartition("/")[0] or None
        expected = local("records", root / file, "--crc-poly", polynomial)["records"]
        assert [(row["channel"], without(row, "store", "file", "channel", "fields")) for row in found] == [
            (
                channel,
                {
                    "offset": each["offset"],
                    "type": each["type"],
                    "size": each["length"],
                    "status": "ok" if each["ok"] else "damaged",
                    "stored_crc": each["crc"],
                    "computed_crc": each["computed_crc"],
                    "detail": each["detail"],
                },
            )
            for each in expected
        ]
        assert [json.loads(row["fields"]) for row in found] == [each["fields"] for each in expected]


def _telling(by_file: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Every damaged file, and one good one of each kind: the others tell nothing new, and there are thousands."""
    good = {kind_of(Path(file).name): file for file, rows in by_file.items() if all(r["status"] == "ok" for r in rows)}
    return {
        file: rows
        for file, rows in by_file.items()
        if file in good.values() or any(row["status"] != "ok" for row in rows)
    }


@pytest.mark.parametrize("case", cases_by_kind())
def test_tables_are_what_the_verbs_say(case: str, golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy(case)
    polynomial = str(load_expected(case)["options"]["file_crc_poly"])
    for check in (findings, subscriptions, clients, slices, records):
        check(root, polynomial)
