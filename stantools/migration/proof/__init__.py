"""Proof: messages and consumers of a stream compared one by one with those of a store; two stores compared."""
