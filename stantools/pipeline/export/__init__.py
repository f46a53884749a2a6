"""Export without Spark: Parquet, ndjson and csv files from the tables, through Arrow.

`files` and `text` write one file, `hive` says which rows go into which directory, `parts` writes what one task has to
write, here or on a cluster; `targets` makes it appear as a whole, and `run` puts these together with threads.
"""
