"""Migration to a running server by publishing, where a restore is not permitted."""
