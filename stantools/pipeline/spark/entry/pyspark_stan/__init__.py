"""Spark's entry to `format("stan")`: Spark searches packages with the prefix `pyspark_` for this class."""

from stantools.pipeline.spark.read import StanDataSource as DefaultSource

__all__ = ["DefaultSource"]
