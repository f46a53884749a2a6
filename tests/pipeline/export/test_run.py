"""Whole exports: every row of the golden stores, in order, in every kind of target; failures leave nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from stantools.errors import StoreUnreadableError, StoreUnwritableError
from stantools.pipeline.export import run, targets, text
from stantools.pipeline.export.export_layout import DATABASES, Compression, ExportLayout, Format
from stantools.pipeline.export.request import Export, ExportOptions
from stantools.pipeline.tables.model import STORE_TABLES, Mode, TableName
from stantools.pipeline.tables.planning import ReadPlan, plan
from stantools.pipeline.tables.read import read_split
from stantools.pipeline.tables.schema import schema_of
from stantools.pipeline.tables.storetables import READERS
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.atomic import json_object
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import KINDS_OF_STORES, golden_cases, others_slow

ALL = ExportLayout()
NDJSON = ExportLayout(format=Format.NDJSON, compression=Compression.NONE)


class Read(NamedTuple):
    """What is exported."""

    options: TableOptions
    plan: ReadPlan
    rows: pa.Table

    def export(self, layout: ExportLayout, target: Path | str = "-", *, overwrite: bool = False) -> Export:
        options = replace(self.options, table=layout.table, columns=layout.read_columns)
        return Export(ExportOptions(str(target), overwrite=overwrite), layout, options, self.plan)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(sorted(KINDS_OF_STORES), id="kinds"),
        pytest.param(golden_cases(), marks=pytest.mark.slow, id="all"),
    ],
)
def stores(request: pytest.FixtureRequest, golden: Path) -> Read:
    """Golden stores together, in many small parts."""
    paths = tuple(str(golden / case / "datastore") for case in request.param)
    return read(TableOptions(paths, archived=True, partition_bytes=1 << 20))


def read(options: TableOptions) -> Read:
    planned = plan(options)
    batches = (batch for split in planned.splits for batch in read_split(split, options))
    return Read(options, planned, pa.Table.from_batches(batches, schema_of(options.table)))


@pytest.fixture
def sample(tmp_path: Path) -> Read:
    write_sample(tmp_path / "store", SampleOptions(channels=3, messages=600))
    return read(TableOptions((str(tmp_path / "store"),), partition_bytes=1 << 17))


def test_every_row_of_every_golden_store_in_order(stores: Read, tmp_path: Path) -> None:
    splits, count = len(stores.plan.splits), stores.rows.num_rows
    assert splits > 10 and count > 1_000
    done: list[int] = []
    result = run.export_to_directory(stores.export(ALL, tmp_path / "out"), progress=done.append)
    written, rows = result.written, stores.rows
    assert pa.concat_tables(pq.read_table(tmp_path / "out" / f.path) for f in written.files).equals(rows)
    assert [f.size for f in written.files] == [(tmp_path / "out" / f.path).stat().st_size for f in written.files]
    assert sum(f.rows for f in written.files) == written.rows == rows.num_rows
    assert written.tally == Counter(rows.column("status").to_pylist()) and not result.clean
    assert sum(done) == sum(split.cost for split in stores.plan.splits)
    # What every reader of directories does.
    assert ds.dataset(tmp_path / "out", format="parquet").count_rows() == rows.num_rows
    manifest = json_object(tmp_path / "out" / targets.MANIFEST, own=True)
    assert manifest["rows"] == rows.num_rows and manifest["bytes"] == written.size
    assert [f["path"] for f in manifest["files"]] == [f.path for f in written.files]
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_by_store_channel_and_day(stores: Read, tmp_path: Path) -> None:
    layout = ExportLayout(
        by=("store", "channel", "date"), columns=("store", "channel", "seq", "slice", "offset", "status")
    )
    run.export_to_directory(stores.export(layout, tmp_path / "out"))
    kinds = pa.schema([("store", pa.string()), ("channel", pa.string()), ("date", pa.string())])
    hive = ds.partitioning(kinds, flavor="hive")
    rows = ds.dataset(tmp_path / "out", format="parquet", partitioning=hive).to_table().to_pylist()
    names = ("store", "channel", "seq", "slice", "offset", "status")
    days = [t.date().isoformat() if t else None for t in stores.rows.column("timestamp").to_pylist()]
    wanted = [(*(r[n] for n in names), day) for r, day in zip(stores.rows.to_pylist(), days, strict=True)]
    same = Counter(tuple(r[n] for n in (*names, "date")) for r in rows) == Counter(wanted)
    assert same


@pytest.mark.parametrize("workers", [1, 3])
def test_single_files_and_streams(stores: Read, tmp_path: Path, workers: int) -> None:
    wanted = b"".join(bytes(text.encode(batch, Format.NDJSON)) for batch in stores.rows.to_batches())
    done: list[int] = []
    how = {"workers": workers, "progress": done.append}
    result = run.export_to_file(stores.export(NDJSON, tmp_path / "x.ndjson"), **how)
    assert (tmp_path / "x.ndjson").read_bytes() == wanted
    assert result.written.tally == Counter(stores.rows.column("status").to_pylist())
    assert [(f.path, f.rows, f.size) for f in result.written.files] == [("x.ndjson", stores.rows.num_rows, len(wanted))]
    assert sum(done) == sum(split.cost for split in stores.plan.splits)
    pieces: list[bytes] = []
    run.export_to_stream(stores.export(NDJSON), lambda data: pieces.append(bytes(data)), workers=workers)
    assert b"".join(pieces) == wanted
    run.export_to_file(stores.export(ALL, tmp_path / "x.parquet"), workers=workers)
    assert pq.read_table(tmp_path / "x.parquet").equals(stores.rows)


@pytest.mark.parametrize("table", others_slow(STORE_TABLES, list(STORE_TABLES)[::2]))
def test_every_table_in_every_format(sample: Read, tmp_path: Path, table: TableName) -> None:
    options = replace(sample.options, table=table)
    tables = read(options)
    for format in (each for each in Format if each not in DATABASES):
        layout = ExportLayout(table, format, Compression.ZSTD)
        result = run.export_to_directory(tables.export(layout, tmp_path / format))
        assert result.written.rows == tables.rows.num_rows and result.clean
        if format is Format.PARQUET:
            assert ds.dataset(tmp_path / format, format="parquet").to_table().equals(tables.rows)


def test_without_rows_there_is_a_file_with_the_columns(sample: Read, tmp_path: Path) -> None:
    options = replace(sample.options, channels=("nobody",))
    for layout in (ALL, ExportLayout(by=("channel",))):
        result = run.export_to_directory(read(options).export(layout, tmp_path / f"out{len(layout.by)}"))
        assert [f.path for f in result.written.files] == ["part-00000.parquet"]
        assert pq.read_table(tmp_path / f"out{len(layout.by)}" / "part-00000.parquet").equals(
            ALL.file_schema.empty_table()
        )


def test_mode_failfast_leaves_nothing(stores: Read, tmp_path: Path) -> None:
    options = replace(stores.options, mode=Mode.FAILFAST)
    before = set(threading.enumerate())
    for layout, export in ((ALL, run.export_to_directory), (NDJSON, run.export_to_file), (ALL, run.export_to_file)):
        with pytest.raises(StoreUnreadableError):
            export(stores._replace(options=options).export(layout, tmp_path / "out"))
        assert list(tmp_path.iterdir()) == []
    for left in set(threading.enumerate()) - before:
        left.join(60)
        assert not left.is_alive()


def test_a_failure_in_one_thread_stops_all(sample: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "read_split", lambda split, *_: broken(split, sample))

    def broken(split: Any, of: Read) -> Any:
        yield of.rows.to_batches()[0]
        if split is of.plan.splits[0]:
            raise StoreUnwritableError("no room", "make some")
        while True:  # ends because the other has failed
            yield of.rows.to_batches()[0]

    planned = sample.plan
    assert len(planned.splits) > 1
    for layout, export in ((ALL, run.export_to_directory), (NDJSON, run.export_to_file)):
        with pytest.raises(StoreUnwritableError, match="no room"):
            export(sample.export(layout, tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_reader_that_goes_away_ends_the_threads(stores: Read) -> None:
    def closed(_data: Any) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run.export_to_stream(stores.export(NDJSON), closed)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("export")]


def test_what_cannot_be_read_is_a_row(sample: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(part: Any) -> Any:
        raise StoreUnreadableError(f"{part.part.channel}: no permission", "ask")

    monkeypatch.setitem(READERS, TableName.SUBSCRIPTIONS, unreadable)
    subs = read(replace(sample.options, table=TableName.SUBSCRIPTIONS))
    result = run.export_to_directory(subs.export(ExportLayout(TableName.SUBSCRIPTIONS), tmp_path / "out"))
    assert not result.clean
    assert result.written.damaged(TableName.SUBSCRIPTIONS) == 4
    assert json_object(tmp_path / "out" / targets.MANIFEST, own=True)["status"] == {"unreadable": 4}


@pytest.mark.parametrize("by", [(), ("channel",)])
def test_a_task_syncs_the_files_of_its_attempt(
    sample: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: tuple[str, ...]
) -> None:
    """A sync by the driver, on another machine, does not cover them."""
    synced, fsync = set(), os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    layout, (split, *_) = replace(ALL, by=by), sample.plan.splits
    done = run.write_split(run.ExportTask(0, split, sample.options, layout, tmp_path / "out", attempts))
    places = [done.directory, *(done.directory / file.path for file in done.written.files)]
    assert len(places) > 1 and {each.stat().st_ino for each in places} <= synced


#: Forks an export for each line, [step, words], and prints how it ended; what it needs is loaded once.
KILLED = """
import json, os, signal, sys
from pathlib import Path
import stantools.cli.export, stantools.pipeline.export.run
from stantools.cli.main import main
def deadly(function):
    def call(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return call
steps = ((os, "fsync"), (os, "mkdir"), (Path, "rename"), (Path, "replace"), (Path, "unlink"), (Path, "touch"))
for line in sys.stdin:
    left, words = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for place, name in steps:
            setattr(place, name, deadly(getattr(place, name)))
        sys.argv = ["stantools", *words]
        try:
            main()
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def killed_at() -> Iterator[Callable[..., bool]]:
    """Runs an export that is killed before its n-th step; returns whether it was."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        requests, answers = program.stdin, program.stdout
        assert requests and answers

        def killed(step: int, *words: object) -> bool:
            print(json.dumps([step, list(map(str, words))]), file=requests, flush=True)
            code = int(answers.readline())
            assert code in (0, -signal.SIGKILL), code
            return code != 0

        yield killed
        requests.close()


@pytest.mark.parametrize(
    ("name", "first", "step"),
    [
        ("out", 4, 50),
        ("x.ndjson", 1, 50),
        ("x.sqlite", 1, 50),
        pytest.param("out", 1, 1, marks=pytest.mark.slow),
        pytest.param("x.ndjson", 1, 1, marks=pytest.mark.slow),
        pytest.param("x.parquet", 1, 1, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_step_it_is_there_as_a_whole_or_not_at_all(
    sample: Read, killed_at: Callable[..., bool], tmp_path: Path, name: str, first: int, step: int
) -> None:
    target, rows = tmp_path / name, sample.rows.num_rows
    command = ("export", sample.options.paths[0], "--to", target)
    while killed_at(first, *command):
        if target.exists():
            break
        first += step
    assert count(target) == rows
    replaced, step = 1, max(step, 3)
    while killed_at(replaced, *command, "--overwrite", "--seq", "1:2"):
        assert count(target) in (rows, 6)
        replaced += step
    assert count(target) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["store", name])


def count(target: Path) -> int:
    if target.is_dir():
        assert (
            json_object(target / targets.MANIFEST, own=True)["rows"]
            == ds.dataset(target, format="parquet").count_rows()
        )
        return ds.dataset(target, format="parquet").count_rows()
    if target.suffix == ".parquet":
        return pq.read_metadata(target).num_rows
    if target.suffix == ".sqlite":
        with closing(sqlite3.connect(target)) as connection:
            return connection.execute("SELECT count(*) FROM messages").fetchone()[0]
    return len([json.loads(line) for line in target.read_text().splitlines()])


def test_no_room(sample: Read, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        into_file = [(each, run.export_to_file) for each in (NDJSON, ALL, ExportLayout(format=Format.SQLITE))]
        for layout, export in ((ALL, run.export_to_directory), *into_file):
            layout = replace(layout, compression=Compression.NONE)
            with pytest.raises(StoreUnwritableError, match="No space left on device") as caught:
                export(sample.export(layout, place / "out"))
            assert "free some space" in caught.value.remedy
            assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", place], check=True)
