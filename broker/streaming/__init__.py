"""The rules of NATS Streaming: clients, channels, subscriptions, delivery and redelivery. Sans-IO."""
