"""Messages with a known place in a stream, published many at a time, and the server's answers to them."""
