"""The reference broker: a NATS server with the NATS Streaming server on it, in one process.

Imports lead downwards only: `cli` → `process` → `monitoring` → `bus` → `config` → `nats`, `streaming` → `stores` →
`blocks`. `nats` is independent of streaming; `streaming` uses no sockets or files, only the store interface and the
bus.
"""

from stantools import compiled_modules

compiled_modules.check()
