"""Tables over stores: schemas, options, discovery of files, splitting, reading as Arrow batches.

Nothing here knows Spark; the local export and the Spark sources read the same tables through the same functions.
"""
