"""Export without Spark: Parquet, ndjson and csv files from the tables, through Arrow."""
