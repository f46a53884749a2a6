"""The NATS text protocol and subject matching, sans-IO."""
