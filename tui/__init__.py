"""The browser for the terminal: see a store, understand the damage, act safely (needs the extra `tui`)."""
