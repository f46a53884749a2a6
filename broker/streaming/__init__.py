"""The rules of NATS Streaming: clients, channels, subscriptions, delivery, redelivery. Sans-IO."""
