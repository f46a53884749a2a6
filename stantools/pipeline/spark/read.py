"""Tables of stores as DataFrames and views, and their data source `stan`.

    from stantools.pipeline.spark.read import read

    read(spark, "/data/stores/*", table="subscriptions")        # or
    spark.read.format("stan").option("table", "subscriptions").load("/data/stores/*")

Spark calls the source in Python processes beside the driver (schema, planning) and in the tasks (reading); only
pickled values survive between these calls. `tables.planning` makes the plan, `tables.read` reads.

Spark evaluates the conditions of a query (`WHERE`); the options `channels`, `seq`, `since` and `until` narrow the read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from stantools.errors import UsageError
from stantools.pipeline.spark.failures import plain_errors
from stantools.pipeline.spark.stream_options import STREAM_OPTIONS, source_options, spark_schema, with_schema
from stantools.pipeline.spark.tasks import begin_task
from stantools.pipeline.tables.model import STORE_TABLES, TableName
from stantools.pipeline.tables.option_texts import Value, spark_name, spark_text
from stantools.pipeline.tables.source_kinds import holds_streams
from stantools.pipeline.tables.table_options import TableOptions, check_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceWriter
    from pyspark.sql.types import StructType


FORMAT = "stan"

#: Maximum bytes read by one task without payloads, about: its result is a fiftieth of that.
_MAX_PARTITION_BYTES = 512 << 20


class StanDataSource(DataSource):
    """The data source for `format("stan")`; `stantools.pipeline.tables.table_options` lists the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        with plain_errors():
            options = source_options(self.options)
            return spark_schema(replace(options, columns=check_columns(options.table, options.columns)))

    def reader(self, schema: StructType) -> StanReader:
        """Returns the reader of a table with these columns."""
        with plain_errors():
            for name in STREAM_OPTIONS:
                if name in self.options:
                    raise UsageError(
                        f"the option {name} is for readStream only", "leave it out, or use spark.readStream"
                    )
            options = _with_larger_partitions(with_schema(source_options(self.options), schema))
            return StanReader(options, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from stantools.pipeline.spark.stream import StanStreamReader

        with plain_errors():
            return StanStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuses: Spark does not write stores."""
        with plain_errors():
            raise UsageError(
                "Spark cannot write stores",
                'write to JetStream with format("jetstream"), or to files with format("parquet")',
            )


class StanReader(DataSourceReader):
    """Plans the partitions of a table and reads one.

    `names` are the query's names of the columns of `options`, in the same order.
    """

    def __init__(self, options: TableOptions, names: list[str]) -> None:
        self.options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        with plain_errors():
            from stantools.pipeline.tables.planning import plan

            return [InputPartition(split) for split in plan(self.options).splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads a partition in Arrow batches, rows in the order of the files."""
        if partition.value is None:  # Spark makes one such partition if there are none
            return
        begin_task()
        with plain_errors():
            from stantools.pipeline.tables.read import read_split

            for batch in read_split(partition.value, self.options):
                yield batch if batch.schema.names == self._names else batch.rename_columns(self._names)


def register(spark: SparkSession) -> None:
    """Makes `format("stan")` known to a session; may be repeated."""
    spark.dataSource.register(StanDataSource)


def _with_larger_partitions(options: TableOptions) -> TableOptions:
    """Returns options with larger partitions for a table without payloads, unless the user gave a size.

    A task of the usual size would take longer to start than to read.
    """
    if options.table is not TableName.MESSAGES or "data" in options.columns:
        return options
    if options.partition_bytes != TableOptions(()).partition_bytes:
        return options
    return replace(options, largest_partition=_MAX_PARTITION_BYTES)


def read(spark: SparkSession, *paths: str | os.PathLike[str], **options: Value | Mapping[str, str]) -> DataFrame:
    """Returns a table of stores.

    Args:
        spark: The session; `format("stan")` is made known to it.
        paths: Stores, slices or directories of them; glob patterns and URLs are allowed.
        options: As for `option(…)`, with Python names: `check_crc=False`, `columns=["seq", "channel"]`,
            `storage={"anon": "true"}`.

    Raises:
        UsageError: An option is unknown or invalid. The query reports problems of the stores.
    """
    values = _texts(paths, options)
    # With Spark Connect the number of tasks that run at once is unknown.
    if "partitions" not in values and not type(spark).__module__.startswith("pyspark.sql.connect"):
        values["partitions"] = str(int(spark.sparkContext.defaultParallelism))
    source_options(values)
    register(spark)
    return spark.read.format(FORMAT).options(**values).load()


def views(
    spark: SparkSession, *paths: str | os.PathLike[str], prefix: str = "stan_", **options: Value | Mapping[str, str]
) -> dict[str, DataFrame]:
    """Makes a temporary view of each table for SQL: `stan_messages`, `stan_subscriptions` and so on.

    Of JetStream directories there is one: `stan_stream_messages`.

    Args:
        spark: The session.
        paths: As for `read`.
        prefix: Prefix of the views' names.
        options: As for `read`, without `table` and `columns`.

    Returns:
        The tables by the names of their views.
    """
    for name in ("table", "columns"):
        if name in options:
            raise UsageError(f"the option {name} cannot apply to all tables at once", "use read for a single table")
    made = {}
    for table in (TableName.STREAM_MESSAGES,) if holds_streams(tuple(map(str, paths))) else STORE_TABLES:
        name = f"{prefix}{table}".replace("-", "_")
        made[name] = read(spark, *paths, **{**options, "table": str(table)})
        made[name].createOrReplaceTempView(name)
    return made


def _texts(
    paths: tuple[str | os.PathLike[str], ...], options: Mapping[str, Value | Mapping[str, str]]
) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            values |= {f"{name}.{each}": str(text) for each, text in value.items()}
        elif value is not None:
            values[spark_name(name)] = spark_text(value)
    if paths:
        values["paths"] = json.dumps(TableOptions(()).of([str(path) for path in paths]).paths)
    return values
