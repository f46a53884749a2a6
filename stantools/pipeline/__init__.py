"""Stores as tables: Arrow batches, export to files, Spark data sources and jobs over many stores.

Inside, arrows point down: `jobs` (heavy verbs on a cluster) → `spark` (data sources, sinks, the session) and `export`
(Parquet, ndjson, csv without Spark) → `tables` (what is in which column, planning, reading) → `stantools.migration`
and what lies below it. Only `spark` and `jobs` import pyspark, only what is called imports pyarrow.
"""
