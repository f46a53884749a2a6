"""Statistics on Spark: every task sums up what it reads, Spark adds the sums up, the driver puts them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from stantools.pipeline.jobs.stats.summary import Stats, summarise
from stantools.pipeline.jobs.stats.sums import SCHEMA, Kind
from stantools.pipeline.spark.failures import clear_errors
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.planning import Plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_KEY = ("store", "channel", "kind", "bucket")
#: Kinds whose rows are added up by Spark; the others are few.
_ADDED = (Kind.HOUR.value, Kind.SIZE.value, Kind.INTERVAL.value)


def run_stats(
    spark: SparkSession, plan: Plan, options: TableOptions, *, progress: Callable[[int], object] | None = None
) -> Stats:
    """Makes the statistics of what was planned.

    Args:
        spark: The session.
        plan: What is read (`tables.planning.plan`).
        options: How.
        progress: Told the bytes of everything when all is done.

    Raises:
        StantoolsError: Spark cannot do it.
    """
    if not plan.splits:
        return summarise(())
    with clear_errors():
        stats = summarise(_rows(_added(_sums(spark, plan, options))))
    if progress:
        progress(sum(split.cost for split in plan.splits))
    return stats


def _sums(spark: SparkSession, plan: Plan, options: TableOptions) -> DataFrame:
    """One partition a split, one row a sum."""
    from pyspark import cloudpickle
    from pyspark.sql.pandas.types import from_arrow_schema

    dumps = cast("Callable[[Any], bytes]", cloudpickle.dumps)
    packed = [dumps((split, options)) for split in plan.splits]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        from stantools.pipeline.jobs.stats.sums import sums_of
        from stantools.pipeline.spark.failures import telling
        from stantools.pipeline.spark.tasks import begin_task

        begin_task()
        with telling():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from sums_of(*pickle.loads(packed[number]))

    frame = spark.range(0, len(packed), 1, len(packed))
    return frame.mapInArrow(work, from_arrow_schema(SCHEMA))


def _added(sums: DataFrame) -> DataFrame:
    """Adds up the rows of hours and histograms; those of pieces stay as they are."""
    from pyspark.sql import functions as f

    # One aggregation keeps the work of the tasks in one pass: pieces have a key of their own each.
    def own(name: str) -> Column:
        return f.when(f.col("kind").isin(*_ADDED), None).otherwise(f.col(name)).alias(name)

    kept = [name for name in SCHEMA.names if name not in (*_KEY, "messages", "bytes")]
    keys = [*map(f.col, _KEY), *map(own, kept)]
    added = sums.groupBy(*keys).agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    return added.select(*SCHEMA.names)


def _rows(frame: DataFrame) -> Iterator[dict[str, Any]]:
    for batch in frame.toArrow().to_batches():
        yield from batch.to_pylist()
