"""The server at the other end: how to reach it, what it can do, its JetStream interface. Knows nothing of stores."""
