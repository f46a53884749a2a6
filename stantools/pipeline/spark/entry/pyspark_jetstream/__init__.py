"""Spark's entry to `format("jetstream")`: Spark searches packages with the prefix `pyspark_` for this class."""

from stantools.pipeline.spark.jetstream import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
