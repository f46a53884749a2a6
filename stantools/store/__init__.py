"""A datastore directory: listing, reading slices as batches, folding logs into state, writing slices, limits, locks."""
