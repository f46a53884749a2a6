"""Where streams go: running servers, backups, store directories of stopped servers."""
