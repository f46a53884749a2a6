"""Streams of JetStream directories as tables: every intact message once, losses as rows, the same values everywhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stantools.errors import ExitCode, StoreUnreadableError
from stantools.inspection.stored_messages import Selection, StoredMessage
from stantools.inspection.stream_messages import StreamMessageReader
from stantools.pipeline.tables.model import FailedRead, Mode
from stantools.pipeline.tables.planning import plan
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.table_options import TableOptions, table_options
from stantools.sources.door import open_source
from stantools.streamfiles.headers import header_fields
from tests.pipeline.jobs.jobcommand import run

CASES = ("ok_blocks15", "ok_s2_15", "ok_deletes15", "dmg_flip_payload_idx", "dmg_missing_mid_idx", "dmg_zero_all_last")


def rows(options: TableOptions) -> Iterator[dict[str, Any]]:
    for split in plan(options).splits:
        for batch in read_split(split, options):
            yield from batch.to_pylist()


def options_of(path: Path, **values: str) -> TableOptions:
    return table_options({"path": str(path), **values})


@pytest.mark.parametrize("case", CASES)
def test_rows(case: str, golden_jetstream: Path) -> None:
    """The intact rows are the messages that `stantools messages` prints."""
    place = golden_jetstream / case / "store" / "jetstream"
    found = list(rows(options_of(place, batchRows="7")))
    for stream in open_source(place).streams:
        messages = [m for m in StreamMessageReader(stream).read(Selection()) if isinstance(m, StoredMessage)]
        mine = [row for row in found if row["stream"] == stream.name and row["state"] == "ok"]
        assert [(row["sequence"], row["time_ns"], row["subject"].encode(), row["payload"]) for row in mine] == [
            (m.sequence, m.timestamp, m.subject, m.data) for m in messages
        ]
        assert [dict(row["headers"]) for row in mine] == [header_fields(m.headers or b"") for m in messages]
        assert all((row["account"], row["size"]) == (stream.account, len(row["payload"])) for row in mine)
        assert [(row["block"], row["offset"]) for row in mine] == [(m.file, m.offset) for m in messages]
    assert case.startswith("ok_") == all(row["state"] == "ok" for row in found)


def test_selection(golden_jetstream: Path) -> None:
    place = golden_jetstream / "dmg_flip_payload_idx" / "store" / "jetstream"
    every = [row for row in rows(options_of(place)) if row["stream"] == "ORDERS" and row["state"] == "ok"]
    middle = every[len(every) // 2]
    some = options_of(
        place, channels="ORDERS", seq=f"1:{middle['sequence']}", columns="sequence,payload", mode="DROPMALFORMED"
    )
    assert list(rows(some)) == [
        {"sequence": row["sequence"], "payload": row["payload"]}
        for row in every
        if row["sequence"] <= middle["sequence"]
    ]
    since = options_of(place, channels="ORDERS", since=middle["time"].isoformat().replace("+00:00", "Z"))
    later = {row["sequence"] for row in rows(since) if row["state"] == "ok"}
    assert later == {row["sequence"] for row in every if row["time"] >= middle["time"]}
    with pytest.raises(StoreUnreadableError, match="js-block-hash"):
        list(rows(options_of(place, mode=Mode.FAILFAST.value)))


def test_unreadable(golden_jetstream: Path, tmp_path: Path) -> None:
    """What is no such directory is named; the rest is read."""
    place = golden_jetstream / "ok_blocks15" / "store" / "jetstream"
    paths = json.dumps([str(place), str(tmp_path)])
    planned = plan(table_options({"paths": paths, "table": "stream-messages"}))
    assert [type(each) for each in planned.unreadable] == [FailedRead]
    assert sum(len(split.parts) for split in planned.splits) > 1


def test_export(golden_jetstream: Path, tmp_path: Path) -> None:
    place = golden_jetstream / "ok_blocks15" / "store" / "jetstream"
    wanted = list(rows(options_of(place)))
    run("export", place, "--to", tmp_path / "messages.parquet", code=ExitCode.CLEAN)
    assert pq.read_table(tmp_path / "messages.parquet").to_pylist() == wanted
    lines = run("export", place, "--to", "-", "--format", "ndjson", code=ExitCode.CLEAN).stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert [(each["sequence"], each["headers"]) for each in told] == [
        (row["sequence"], dict(row["headers"])) for row in wanted
    ]
    run("export", place, "--to", f"{tmp_path / 'by'}/", "--by", "stream,date", code=ExitCode.CLEAN)
    assert any(tmp_path.glob("by/stream=ORDERS/date=*/*.parquet"))


def test_stats(golden_jetstream: Path) -> None:
    """Deleted messages are not missing; the subjects with the most messages are named."""
    place = golden_jetstream / "dmg_missing_mid_idx" / "store" / "jetstream"
    done = run("stats", place, "-o", "json", code=ExitCode.FINDINGS)
    channels = {each["name"]: each for each in json.loads(done.stdout)["stores"][0]["channels"]}
    found = [row for row in rows(options_of(place)) if row["stream"] == "ORDERS" and row["state"] == "ok"]
    from stantools.streamfiles.survey import StreamSurvey

    survey = StreamSurvey(open_source(place).stream("ORDERS"))
    orders = channels["ORDERS"]
    assert (orders["messages"], orders["missing"]) == (len(found), (survey.missing | survey.damaged).count())
    subject, count, size = orders["subjects"][0]
    assert count == sum(row["subject"] == subject for row in found)
    assert size == sum(row["size"] for row in found if row["subject"] == subject)


def test_sql(golden_sql: Path) -> None:
    """The intact rows of a dump are exported and counted as the messages of a store are."""
    dump = golden_sql / "p_gap_at_limit" / "dump.sql"
    expected = json.loads((golden_sql / "p_gap_at_limit" / "expected.json").read_text())
    done = run("export", dump, "--to", "-", "--format", "ndjson", code=ExitCode.CLEAN)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["store"] for each in told} == {str(dump)}, done.stderr
    counted = json.loads(run("stats", dump, "-o", "json", code=ExitCode.CLEAN).stdout)["stores"][0]["channels"]
    assert {each["name"]: each["messages"] for each in counted} == {
        name: sum(each["channel"] == name for each in told) for name in {each["channel"] for each in told}
    }
    assert expected
