"""Tables of stores as DataFrames and views, and their data source `stan`.

    from stantools.pipeline.spark.read import read

    read(spark, "/data/stores/*", table="subscriptions")        # or
    spark.read.format("stan").option("table", "subscriptions").load("/data/stores/*")

Spark calls the source in Python processes beside the driver (schema, planning) and in the tasks (reading); only
pickled values survive between these calls. `tables.planning` makes the plan, `tables.read` reads.

`pushdown` evaluates conditions of a query (`WHERE`) where that is safe. Up to 4.3, Spark keeps the plan of one query
in the table that all queries on the same DataFrame or view share: a later query, or another branch of the same
query, then reads too little. There, push-down must be requested (option `pushdown`), for a DataFrame that is used in
one query; the options `channels`, `seq`, `since` and `until` narrow the read safely everywhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from stantools.errors import UsageError
from stantools.pipeline.spark.failures import plain_errors
from stantools.pipeline.spark.pushdown import PushedFilters, understands
from stantools.pipeline.spark.stream_options import (
    PUSHDOWN,
    STREAM_OPTIONS,
    may_push,
    source_options,
    spark_schema,
    with_schema,
)
from stantools.pipeline.spark.tasks import begin_task
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.option_texts import Value, spark_name, spark_text
from stantools.pipeline.tables.table_options import TableOptions, check_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceWriter
    from pyspark.sql.types import StructType


FORMAT = "stan"

#: Maximum bytes read by one task without payloads, about: its result is a fiftieth of that.
_MAX_PARTITION_BYTES = 512 << 20

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


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
            if _in_pushdown_worker() and may_push(self.options):
                return PushingReader(options, schema.names)
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
        self._pushed = PushedFilters(options.table)

    def partitions(self) -> list[InputPartition]:
        with plain_errors():
            from stantools.pipeline.tables.planning import plan

            options = self._pushed.narrow(self.options)
            if options is None:
                return []
            return [InputPartition(split) for split in plan(options).splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads a partition in Arrow batches, rows in the order of the files."""
        options = self._pushed.narrow(self.options)
        if partition.value is None or options is None:  # Spark makes one such partition if there are none
            return
        begin_task()
        with plain_errors():
            from stantools.pipeline.tables.read import read_split

            for batch in read_split(partition.value, options):
                kept = self._pushed.select(batch)
                if kept.num_rows:
                    yield kept if kept.schema.names == self._names else kept.rename_columns(self._names)


class PushingReader(StanReader):
    """A reader that evaluates conditions for Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        """Accepts the conditions that can be evaluated exactly; yields the others."""
        taken = []
        for filter_ in filters:
            mine = _rename_column(filter_, self._names, self.options.columns)
            if understands(self.options.table, self.options.columns, mine):
                taken.append(mine)
            else:
                yield filter_
        self._pushed = PushedFilters(self.options.table, tuple(taken))


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


def _in_pushdown_worker() -> bool:
    """Returns whether Spark asks for a reader that accepts conditions; it refuses such a reader anywhere else."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER


def _rename_column(filter_: Any, names: list[str], columns: tuple[str, ...]) -> Any:
    """Returns the condition with the table's own name of the column; case in the query may differ."""
    if hasattr(filter_, "child"):
        return replace(filter_, child=_rename_column(filter_.child, names, columns))
    path = filter_.attribute
    if len(path) == 1 and path[0] in names:
        return replace(filter_, attribute=(columns[names.index(path[0])],))
    return filter_


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
    frame = spark.read.format(FORMAT).options(**values).load()
    if values.get(PUSHDOWN, "").lower() == "true":
        # Never false: a condition in every query makes Spark plan each of them anew.
        for column in {"store", "status"} & set(frame.columns):
            frame = frame.where(frame[column].isNotNull())
    return frame


def views(
    spark: SparkSession, *paths: str | os.PathLike[str], prefix: str = "stan_", **options: Value | Mapping[str, str]
) -> dict[str, DataFrame]:
    """Makes a temporary view of each table for SQL: `stan_messages`, `stan_subscriptions` and so on.

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
    for table in TableName:
        frame = read(spark, *paths, **{**options, "table": str(table)})
        frame.createOrReplaceTempView(f"{prefix}{table}")
        made[f"{prefix}{table}"] = frame
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
        absolute = [str(path) if "://" in str(path) else os.path.abspath(path) for path in paths]  # noqa: PTH100
        values["paths"] = json.dumps(absolute)
    return values
