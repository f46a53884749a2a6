"""Salvage of JetStream directories: a new store directory, or backups, of what their files and Raft logs hold."""
