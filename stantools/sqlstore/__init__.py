"""SQL stores of NATS Streaming servers (`-st SQL`): tables in MySQL, MariaDB or PostgreSQL, read live or from dumps.

Facts: docs/reference/sql-stores.md.
"""
