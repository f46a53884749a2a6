"""Routes: links to other NATS servers, over which a message reaches clients that are connected there.

wire     the protocol between servers, without sockets
link     one connection: handshake, whether the other end still answers
mesh     all of them: listening, connecting, who is interested in what, telling servers about each other

Facts: high-availability.md section R.
"""
