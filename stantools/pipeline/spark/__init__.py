"""Spark: the session, data sources over `stantools.pipeline.tables`, and sinks. Needs pyspark and Java."""
