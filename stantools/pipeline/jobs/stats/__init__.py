"""`pipeline stats`: how many messages of what size came when, for each channel and hour; what is missing in between.

Every task makes sums of what it reads (`sums`), Spark adds them up, and what is known of a channel is put together from
the ends of its pieces (`summary`). `files` shows it.
"""
