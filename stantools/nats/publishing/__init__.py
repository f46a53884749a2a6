"""Messages with a known place in a stream, published in bulk, and the server's answers to them."""
