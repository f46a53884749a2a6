"""A client of NATS Streaming servers: `connect` in `stantools.streaming.client`, and its parts."""
