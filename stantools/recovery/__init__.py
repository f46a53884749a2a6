"""Verbs that write: truncate-bad-eof, salvage, merge, compact. Each one plans, applies and verifies."""
