"""Export with Spark's own writer of Parquet; tasks that write files themselves are `export.run.export_to_directory`.

Spark's writer can also write where only Spark can, such as `s3a://` or `hdfs://`, with its own commit protocol: an
incomplete directory has no `_SUCCESS`. Each task sorts its rows by directory, otherwise in table order, so that
minima and maxima of row groups are narrow; timestamps have a type with minima and maxima.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import UsageError
from stantools.pipeline.export import targets
from stantools.pipeline.export.export_layout import DATE, ExportedPart, ExportLayout, Format, Result, WrittenFile
from stantools.pipeline.export.parts import NOTHING
from stantools.pipeline.export.request import Export
from stantools.pipeline.export.run import finished
from stantools.pipeline.spark.tasks import frame_of
from stantools.pipeline.tables.batches import RowStatus
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.read import read_split
from stantools.store.durable import writing
from stantools.store.resync import DamageKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY: Final = 86_400_000_000
_ROW: Final = "_stantools_row"
#: Values of `status` that mark damage in tables other than messages.
_NOT_GOOD: Final = ("damaged", "unreadable")
#: Spark's default type for times has no minima and maxima.
_TIMES: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def export_by_spark(spark: SparkSession, export: Export) -> Result:
    """Writes a table as Parquet with Spark's own writer.

    The target is a local directory, built and renamed as that of tasks, or a URL that Spark can write.
    """
    import pyarrow.parquet as pq

    export_options, layout, unreadable = export.export_options, export.layout, export.unreadable
    if layout.format is not Format.PARQUET:
        raise UsageError(f"Spark's writer is for Parquet here, not for {layout.format}", "leave --writer out")
    if "://" in export_options.to:
        if export_options.overwrite:
            raise UsageError("--overwrite is for local directories", "remove the existing target first")
        return Result(export_options.to, layout, _write(spark, export, export_options.to, "errorifexists"), unreadable)
    target = export_options.target.absolute()
    targets.check_outside(target, export.plan)
    with targets.new_export(target, overwrite=export_options.overwrite) as directory:
        written = _write(spark, export, directory.as_uri(), "append")
        with writing(directory):
            for checksum in directory.rglob(".*.crc"):  # of Hadoop's local file system
                checksum.unlink()
            written.files = [
                WrittenFile(str(path.relative_to(directory)), pq.read_metadata(path).num_rows, path.stat().st_size)
                for path in sorted(directory.rglob("*.parquet"))
            ]
        return finished(directory, Result(str(target), layout, written, unreadable), export.options)


def _write(spark: SparkSession, export: Export, place: str, mode: str) -> ExportedPart:
    from pyspark.sql import Observation

    from stantools.pipeline.spark.stream_options import spark_schema

    counted = Observation()
    layout, options = export.layout, export.options
    frame = frame_of(spark, functools.partial(read_split, options=options), export.plan.splits, spark_schema(options))
    frame = frame.observe(counted, *_counts(layout))
    with _setting(spark, *_TIMES):
        writer = _divided(frame, layout).write.mode(mode).partitionBy(*layout.by)
        writer.option("compression", layout.compression.value).parquet(place)
    counts: dict[str, Any] = counted.get
    written = ExportedPart(rows=counts.pop("rows"))
    written.tally.update({what: count for what, count in counts.items() if count})
    return written


def _counts(layout: ExportLayout) -> list[Any]:
    from pyspark.sql import functions as sql

    counts = [sql.count(sql.lit(1)).alias("rows")]
    if layout.table is TableName.SLICES:
        bad = sql.size("problems") > 0
        return [*counts, sql.count_if(~bad).alias("ok"), sql.count_if(bad).alias("problems")]
    for name in layout.health_columns:
        known = [*RowStatus, *DamageKind] if layout.table is TableName.MESSAGES else [*layout.good, *_NOT_GOOD]
        column = sql.coalesce(sql.col(name), sql.lit(""))
        counts += [sql.count_if(column == str(value)).alias(str(value)) for value in known]
        counts.append(sql.count_if(~column.isin([str(value) for value in known])).alias("other"))
    return counts


def _divided(frame: DataFrame, layout: ExportLayout) -> DataFrame:
    """Adds the directory levels and sorts by them; rows of one directory keep their order."""
    from pyspark.sql import functions as sql

    if not layout.by:
        return frame.select(*layout.file_columns)
    # Arithmetic, because date functions depend on the time zone of the session.
    micros = "unix_micros(timestamp)"
    day = sql.expr(f"date_from_unix_date(cast(({micros} - pmod({micros}, {_DAY})) div {_DAY} as int))")
    for name in layout.by:
        value = day if name == DATE else sql.col(name)
        text = value.cast("string")
        # Never null: Spark would sort nullable columns once more, without our order.
        frame = frame.withColumn(name, sql.when(text.isNull() | (text == ""), NOTHING).otherwise(text))
        frame = frame.withColumn(name, sql.coalesce(sql.col(name), sql.lit(NOTHING)))
    frame = frame.withColumn(_ROW, sql.monotonically_increasing_id()).sortWithinPartitions(*layout.by, _ROW)
    return frame.select(*layout.file_columns, *layout.by)


@contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
