"""`pipeline stats`: number and size of messages for each channel and hour; gaps in the sequences.

Every task sums up its messages (`sums`), Spark adds the sums, and `summary` joins each channel from the ends of its
pieces. `files` shows the result.
"""
