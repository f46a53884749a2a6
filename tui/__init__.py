"""The terminal browser: shows a store, explains damage, carries out plans after confirmation (extra `tui`)."""
