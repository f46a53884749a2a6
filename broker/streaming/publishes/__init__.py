"""Kernels for many messages at once: they read publishes and acknowledgements, and write records."""
