"""A datastore directory: discover, read slices as batches, fold logs into state, write slices, limits, locks."""
