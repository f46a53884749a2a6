"""The forecast of a nats-server's start on a JetStream directory.

It executes the server's own steps on the files without changing them. `versions` is the table of the differences
between servers; `recovery` opens a store by it, `reading` looks messages up, `consumers` and `losses` follow.
"""
