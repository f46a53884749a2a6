"""Lets Spark find `format("stan")`, which looks for packages with this prefix and for this class."""

from stantools.pipeline.spark.read import StanDataSource as DefaultSource

__all__ = ["DefaultSource"]
