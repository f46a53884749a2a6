"""What fills the terminal: a screen for each view of a store, and those that are shown above it."""
