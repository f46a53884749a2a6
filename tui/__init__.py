"""The terminal browser: shows a store, explains damage, carries out plans after confirmation (needs the extra `tui`)."""
