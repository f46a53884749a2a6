"""The NATS protocol, for clients and for the broker: frames, subjects, logging in; a client, and the JetStream API."""
