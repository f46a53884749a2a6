"""The NATS protocol, for clients and for the broker: frames, subjects, login; a client, and the JetStream API."""

from stantools import compiled_modules

compiled_modules.check()
