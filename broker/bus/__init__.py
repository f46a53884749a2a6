"""The streaming server's connections to NATS: the embedded server, or an external one."""
