"""Where messages, subscriptions and clients are kept: the interface, memory, files."""
