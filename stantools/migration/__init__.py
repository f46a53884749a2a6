"""From a store into a running system: JetStream streams and consumers, exactly, and replay."""
