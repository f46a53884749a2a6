"""Many clients that publish one message at a time, and what connections and channels cost, by their number."""

from __future__ import annotations

import resource
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from brokerruns import STORES, Broker, Options, Runs, Way, broker, load, processor, race, watched
from measure import table, verdict

#: Each with a durable on its own channel.
_DURABLES = 500
_PUBLISHERS = (16, 4, 1)
#: The original server with its Go client on another machine of 2 cores, thousands of messages a second by publishers.
_ORIGINAL = {"MEMORY": {1: 9.0, 4: 21.0}, "FILE, no sync": {1: 8.0, 4: 17.0}, "FILE": {1: 0.9, 4: 2.7}}
_CONNECTIONS = (1, 10, 100, 1000, 5000)
_CHANNELS = (1, 10, 100, 1000, 10_000)
#: What the project wants: microseconds of processor time a message, KiB a connection, cores without traffic.
_CPU_GOAL = 18
_CONNECTION_GOAL = 20
_IDLE_GOAL = 0.02
#: Seconds for which idle connections are looked at, and publishers beside them.
_IDLE = 3.0
_BESIDE = 16

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\nPING\r\n'


def _run(options: Options, store: str, mode: str, **more: object) -> dict[str, float]:
    """A run of the load generator, with an innocent client beside it."""
    with broker(options.place, STORES[store]) as server:
        with watched(server.port) as waits:
            result = load(mode, server.port, server.pid, **more)
        return {**result, "memory": server.memory(), "longest": waits["longest"]}


def clients(options: Options) -> str:
    """Publishes that wait for their acknowledgement, of few and of many clients."""
    ways: dict[str, Way] = {}
    original: dict[str, float] = {}
    for store in STORES:
        few = options.count // (100 if store == "FILE" else 20)
        name = f"{store}, {_DURABLES} clients, each with a durable on its own channel"
        ways[name] = partial(_run, options, store, "durables", count=max(few, 20 * _DURABLES), connections=_DURABLES)
        for publishers in _PUBLISHERS:
            name = f"{store}, {publishers} publisher{'' if publishers == 1 else 's'}"
            original[name] = _ORIGINAL[store].get(publishers, 0.0)
            ways[name] = partial(_run, options, store, "sync", count=max(few, 500), connections=publishers)
    rows = []
    for name, runs in race(ways, options.rounds).items():
        wanted = "durable" in name and name.startswith("MEMORY")
        target = verdict(f"≤ {_CPU_GOAL} µs", runs.median("cpu") <= _CPU_GOAL) if wanted else ""
        known = original.get(name, 0.0)
        against = (f"{known:g}", f"{runs.rate / known / 1000:.2f}") if known else ("", "")
        rows.append((name, *_measured(runs), *against, target))
    return table(("one message at a time, 128 B", *_MEASURED, "original k/s", "× original", "target"), rows)


_MEASURED = ("k/s", "others", "p50 µs", "p99 µs", "CPU µs", "MiB", "innocent waits ms")


def _measured(runs: Runs) -> Iterator[str]:
    yield f"{runs.rate / 1000:.1f} ({runs.spread})"
    yield f"{runs.median('others'):.1f}"
    for name in ("p50", "p99"):
        yield f"{runs.median(name):.0f}" if runs.median(name) else ""
    yield f"{runs.median('cpu'):.1f}"
    yield f"{runs.median('memory'):.0f}"
    yield f"{runs.median('longest'):.0f}"


def growth(options: Options) -> str:
    """Costs by the number of connections, and of channels."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    rows = []
    for count in _CONNECTIONS:
        found = [_beside(options, count) for _ in range(options.rounds)]
        each, idle, rate, p50, p99, cpu, memory, longest = (statistics.median(all) for all in zip(*found, strict=True))
        wanted = f"≤ {_CONNECTION_GOAL} KiB, ≤ {_IDLE_GOAL:.0%}"
        target = verdict(wanted, each <= _CONNECTION_GOAL and idle <= _IDLE_GOAL) if count == max(_CONNECTIONS) else ""
        times = f"{rate / 1000:.1f}", f"{p50:.0f}", f"{p99:.0f}", f"{cpu:.1f}"
        rows.append((f"{count:,}", f"{each:.1f}", f"{idle:.1%}", *times, f"{memory:.0f}", f"{longest:.0f}", target))
    headers = ("connections", "KiB each", "CPU idle", f"k/s of {_BESIDE} publishers", *_MEASURED[2:])
    connections = table((*headers, "target"), rows)
    ways: dict[str, Way] = {
        f"{store}, {count:,} channels": partial(
            _run, options, store, "publish", count=max(options.count // 4, 2 * count), channels=count
        )
        for store in ("MEMORY", "FILE")
        for count in _CHANNELS
    }
    rows = [(name, *_measured(runs)) for name, runs in race(ways, options.rounds).items()]
    return f"{connections}\n\n{table(('publishes to channels in turn, 128 B', *_MEASURED), rows)}"


def _beside(options: Options, count: int) -> tuple[float, ...]:
    """Opens connections: KiB each, cores; then, while others publish, rate, p50, p99, CPU, MiB, the longest wait."""
    with broker(options.place, STORES["MEMORY"]) as server:
        before = server.memory()
        with _connected(server, count):
            each = (server.memory() - before) * 1024 / count
            used = processor(server.pid)
            time.sleep(_IDLE)
            idle = (processor(server.pid) - used) / _IDLE
            with watched(server.port) as waits:
                result = load("sync", server.port, server.pid, count=options.count // 50, connections=_BESIDE)
            times = (result[name] for name in ("rate", "p50", "p99", "cpu"))
            return each, idle, *times, server.memory(), waits["longest"]


@contextmanager
def _connected(server: Broker, count: int) -> Iterator[None]:
    """So many clients, which say nothing while the `with` block runs."""
    open_now = []
    try:
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", server.port), 30)
            open_now.append(client)
            client.sendall(_CONNECT)
        for client in open_now:
            seen = b""
            while b"PONG\r\n" not in seen:
                part = client.recv(4096)
                if not part:
                    raise ConnectionError("the broker has closed a connection")
                seen += part
        yield
    finally:
        for client in open_now:
            client.close()
