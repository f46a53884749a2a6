"""stantools: recovery, inspection and migration of NATS Streaming file stores."""

__version__ = "0.1.0"
