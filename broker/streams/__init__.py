"""The rules of JetStream streams: what becomes of requests and messages, without sockets and files."""
