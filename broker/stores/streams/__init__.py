"""Stores of streams: the table of messages (`contents`), payloads in memory (`memory`) or in files (`files`)."""
