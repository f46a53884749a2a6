"""The nats-server of a migration: its abilities, an embedded server, restoring an archive. Knows nothing of stores."""
