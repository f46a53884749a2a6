"""The embedded NATS server: connections, authorisation, TLS, interest."""
