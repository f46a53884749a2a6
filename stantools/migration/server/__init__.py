"""A nats-server at the other end: what it can do, one of our own, sending it an archive. Knows nothing of stores."""
