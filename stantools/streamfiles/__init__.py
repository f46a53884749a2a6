"""The files of JetStream streams as a nats-server writes them: records, blocks, indexes, archives.

`directory` and `survey` read a stream's directory; the others open no file.
"""
