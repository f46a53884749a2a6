"""From a store into a running system: exact JetStream streams and consumers, and replay."""
