"""Demonstrations with real servers: the rescue of a store, and a cluster of which nodes die."""
