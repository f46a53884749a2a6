"""The embedded NATS server: connections, authorization, TLS, interest."""
