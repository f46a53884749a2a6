"""Stream archives: the bytes that a JetStream server takes a whole stream from. Pure functions over buffers."""
