"""What is measured on Spark: functions that run in a driver of its own process (`sparkdrivers`), each with the session.

They return what was counted, so that a way that is fast because it reads too little is noticed.
"""

from __future__ import annotations

import os
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stantools.pipeline.tables.table_options import TableOptions

#: As the jobs plan on this machine.
_PARTITIONS = 2


def serve(connection: Connection, master: str, conf: dict[str, str]) -> None:
    """Starts Spark and runs the requests that arrive, until the other end is closed.

    Args:
        connection: Takes how long the start took; gives functions of this module and their arguments, and takes whether
            they succeeded, and their results.
        master: The master.
        conf: Spark's settings.
    """
    # Compiled modules are kept, as in any installation: workers would compile each of them again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    from stantools.pipeline.spark.session import close_session, open_session

    begin = time.perf_counter()
    spark = open_session(master, name="stantools benchmarks", conf=conf)
    connection.send(time.perf_counter() - begin)
    try:
        while True:
            function, arguments, named = connection.recv()
            try:
                connection.send((True, function(spark, *arguments, **named)))
            except Exception:
                connection.send((False, traceback.format_exc()))
    except EOFError:
        pass
    finally:
        close_session(spark)


def nothing(spark: SparkSession) -> int:
    """Sends two numbers to Python and back: what any job costs."""

    def same(batches: Any) -> Any:
        yield from batches

    return spark.range(0, 2, 1, 2).mapInArrow(same, "id long").count()


def count(spark: SparkSession, *stores: Path, **options: Any) -> int:
    """Counts the messages."""
    return _table(spark, stores, options).count()


def payload_bytes(spark: SparkSession, *stores: Path, where: str = "", **options: Any) -> tuple[int, int]:
    """Counts messages, and the bytes of their payloads by looking at these."""
    from pyspark.sql import functions as f

    frame = _table(spark, stores, options)
    if where:
        frame = frame.where(where)
    row = frame.agg(f.count("*"), f.sum(f.length("data"))).first()
    return int(row[0]), int(row[1] or 0)


def group(spark: SparkSession, *stores: Path, **options: Any) -> int:
    """Counts messages and their bytes by channel and status."""
    from pyspark.sql import functions as f

    frame = _table(spark, stores, options).groupBy("channel", "status").agg(f.count("*"), f.sum("size"))
    return sum(int(row[2]) for row in frame.collect())


def verify(spark: SparkSession, *stores: Path) -> int:
    """Runs the job `verify`; returns how many messages are intact."""
    from stantools.pipeline.jobs.verify import plan_verify, run_verify
    from stantools.pipeline.spark.tasks import SparkWork
    from stantools.pipeline.tables.model import TableName

    options = _options(stores, table=TableName.FINDINGS)
    result = run_verify(SparkWork(spark), plan_verify(options))
    if not result.clean:
        raise AssertionError("a healthy store was found to be damaged")
    return sum(log.intact_messages for store in result.stores for log in store.verdict.logs)


def stats(spark: SparkSession, *stores: Path) -> int:
    """Runs the job `stats`; returns how many messages were counted."""
    from stantools.pipeline.jobs.stats.summary import run_stats
    from stantools.pipeline.spark.tasks import SparkWork
    from stantools.pipeline.tables.planning import plan

    options = _options(stores)
    return sum(channel.messages for channel in run_stats(SparkWork(spark), plan(options), options).channels)


def export(spark: SparkSession, target: Path, *stores: Path, by_spark: bool = False) -> int:
    """Runs the job `export`; returns how many rows were written."""
    from stantools.pipeline.export.request import ExportOptions
    from stantools.pipeline.export.run import export_to_directory
    from stantools.pipeline.jobs.export import export_by_spark
    from stantools.pipeline.spark.tasks import SparkWork

    exporting = ExportOptions(str(target), directory=True)
    planned = exporting.planned(tuple(map(str, stores)), _options(stores), _PARTITIONS)
    written = export_by_spark(spark, planned) if by_spark else export_to_directory(planned, work=SparkWork(spark))
    return written.written.rows


def _options(stores: tuple[Path, ...], **values: Any) -> TableOptions:
    from stantools.pipeline.tables.table_options import TableOptions

    return TableOptions(tuple(map(str, stores)), **values)


def _table(spark: SparkSession, stores: tuple[Path, ...], options: dict[str, Any]) -> DataFrame:
    from stantools.pipeline.spark.read import read

    return read(spark, *stores, **options)
