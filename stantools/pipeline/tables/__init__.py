"""Tables over stores: schemas, options, which files belong to them, how they are split, reading them as Arrow batches.

Nothing here knows Spark; the local export and the Spark sources read the same tables through the same functions.
"""
