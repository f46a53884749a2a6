"""How the streaming server talks to NATS: the embedded server, or an external one."""
