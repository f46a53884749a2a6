"""The files of JetStream streams as a nats-server has them: records, blocks, indexes, archives. Opens no file."""
