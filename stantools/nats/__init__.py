"""The NATS protocol, for clients and for the broker: frames, subjects, a session, credentials, receiving in bulk."""
