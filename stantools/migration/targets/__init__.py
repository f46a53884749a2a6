"""Targets of a migration: running servers, backups, store directories of stopped servers."""
