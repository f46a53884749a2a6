"""Servers that run: what their monitoring and their JetStream tell, kept as models. Nothing here knows the terminal."""
