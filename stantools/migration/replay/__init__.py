"""Replay: messages of a store published again, at the original or another pace."""
