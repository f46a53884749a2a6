"""Stores as tables: Arrow batches, export to files, Spark data sources and jobs over many stores.

Inside, arrows point down: `jobs` (heavy verbs on a cluster) → `spark` (data sources, sinks, the session) and
`export` (Parquet, ndjson, csv without Spark) → `tables` (columns, planning, reading) → `stantools.migration` and the
layers below it. Only `spark` and `jobs` import pyspark; pyarrow is imported on first use.
"""
