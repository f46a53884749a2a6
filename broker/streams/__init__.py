"""The rules of JetStream streams, without sockets and files."""
