"""Where messages, subscriptions and clients are kept: the interface, memory, files."""

from broker.stores.opening import open_store

__all__ = ["open_store"]
