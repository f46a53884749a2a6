"""Lets Spark find `format("jetstream")`, which looks for packages with this prefix and for this class."""

from stantools.pipeline.spark.jetstream import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
