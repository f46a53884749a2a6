"""Tables of stores as DataFrames and views, with options that are written as Python writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stantools.errors import UsageError
from stantools.pipeline.spark.options import PUSHDOWN, source_options
from stantools.pipeline.spark.source import FORMAT, register
from stantools.pipeline.tables.model import Table
from stantools.pipeline.tables.texts import Value, spark_name, spark_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, *paths: str | os.PathLike[str], **options: Value | Mapping[str, str]) -> DataFrame:
    """Returns a table of stores.

    Args:
        spark: The session; `format("stan")` is made known to it.
        paths: Stores, slices or directories of them; glob patterns and URLs are taken.
        options: As `option(…)` takes them, written in Python's way: `check_crc=False`, `columns=["seq", "channel"]`,
            `storage={"anon": "true"}`.

    Raises:
        UsageError: An option is not known or makes no sense. What is wrong with the stores is said by the query.
    """
    values = _texts(paths, options)
    if "partitions" not in values and (cores := _cores(spark)):
        values["partitions"] = str(cores)
    source_options(values)
    register(spark)
    frame = spark.read.format(FORMAT).options(**values).load()
    if values.get(PUSHDOWN, "").lower() == "true":
        # Never false: but with a condition in every query, Spark plans each of them anew.
        for column in {"store", "status"} & set(frame.columns):
            frame = frame.where(frame[column].isNotNull())
    return frame


def views(
    spark: SparkSession, *paths: str | os.PathLike[str], prefix: str = "stan_", **options: Value | Mapping[str, str]
) -> dict[str, DataFrame]:
    """Makes a temporary view of each table, so that SQL can be asked: `stan_messages`, `stan_subscriptions` and so on.

    Args:
        spark: The session.
        paths: As `read` takes them.
        prefix: What the names of the views begin with.
        options: As `read` takes them, but neither `table` nor `columns`.

    Returns:
        The tables by the names of their views.

    Raises:
        UsageError: As `read`.
    """
    for name in ("table", "columns"):
        if name in options:
            raise UsageError(f"the option {name} makes no sense for all tables at once", "use read for a single table")
    made = {}
    for table in Table:
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


def _cores(spark: SparkSession) -> int:
    """Returns how many tasks run at once; 0 where that is not to be had, which is Spark Connect."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return 0
    return int(spark.sparkContext.defaultParallelism)
