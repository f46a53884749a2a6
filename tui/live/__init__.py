"""Servers that run: what monitoring and JetStream report, kept as models. Nothing here knows the terminal."""
