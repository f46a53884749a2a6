"""Many messages at once on a NATS connection: frames built and parsed in batches."""
