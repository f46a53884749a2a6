"""Routes: links to other NATS servers, over which messages reach the clients connected there.

wire     the protocol between servers, without sockets link     one connection: handshake and keep-alive mesh     all
of them: listening, connecting, interest, announcements of servers to each other

Facts: high-availability.md section R.
"""
