"""The reference broker: a NATS server and the NATS Streaming server on it, in one process.

Arrows point down only: `cli` → `process` → `monitoring` → `bus` → `config` → `nats`, `streaming` → `stores` → `blocks`.
`nats` knows nothing of streaming; `streaming` knows neither sockets nor files, only the store interface and the bus.
"""
