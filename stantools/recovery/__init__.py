"""Answers that change: truncate-bad-eof, salvage, compact. Plan, apply, verify."""
