"""The work on many messages at once: reading publishes and acknowledgements, writing records."""
