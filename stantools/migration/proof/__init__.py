"""Proof: messages and consumers of a stream against those of a store, or of two stores, compared one by one."""
