"""Export without Spark: Parquet, ndjson and csv files from the tables, through Arrow.

`files` and `text` write one file; `parts` divides rows into directories and writes the files of one task, here or on
a cluster; `targets` makes the result appear as a whole; `run` joins these with threads.
"""
