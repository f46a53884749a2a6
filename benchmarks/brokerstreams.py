"""The streams of the broker against those of a real nats-server: speed, and what many of them cost at rest."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from brokerruns import STREAMS, Options, Runs, Way, broker, load, memory, nats, race
from measure import table, verdict

from tests import servers

_CONNECTIONS = (1, 8)
#: Title, mode of the load generator, what part of the count is sent, how many times the real server's rate is wanted.
_LOADS = (
    ("publish, many under way", "publish", 1, 2),
    ("publish, one at a time", "sync", 50, 1),
    ("pull what is stored", "pull", 1, 2),
    ("ordered consumer", "ordered", 1, 2),
    ("key-value put", "put", 50, 1),
    ("key-value get", "get", 50, 1),
)
#: Streams in the table of rest, each with ten consumers; cores and MiB that they may take.
_STREAMS = 1000
_REST_GOAL = 0.05
_MEMORY_GOAL = 300
_OURS = "broker"


def _name() -> str:
    return f"nats-server {servers.NEWEST}"


@contextmanager
def _server(options: Options, name: str) -> Iterator[tuple[int, int]]:
    """Starts the broker, or a real server; yields port and process."""
    if name != _OURS:
        with nats(options.place, servers.NEWEST) as found:
            yield found
        return
    with broker(options.place, ("-st", "memory", "-js")) as server:
        yield server.port, server.pid


def _run(options: Options, name: str, mode: str, **more: object) -> dict[str, float]:
    with _server(options, name) as (port, pid):
        result = load(mode, port, pid, program=STREAMS, **more)
        return {**result, "memory": memory(pid)}


def streams(options: Options) -> str:
    """Streams in files of 128-byte messages, of one connection and of eight."""
    rows = []
    for title, mode, part, goal in _LOADS:
        for connections in _CONNECTIONS:
            more = {"count": options.count // part, "connections": connections}
            ways: dict[str, Way] = {name: partial(_run, options, name, mode, **more) for name in (_OURS, _name())}
            found = race(ways, options.rounds)
            ours, theirs = found[_OURS], found[_name()]
            ratio = ours.rate / theirs.rate
            cpu = "{:.2f} / {:.2f}".format(*(each.median("cpu") for each in (ours, theirs)))
            others = f"{statistics.mean(each.median('others') for each in (ours, theirs)):.1f}"
            target = verdict(f"≥ {goal} ×", ratio >= goal)
            rows.append((f"{title}, {connections}", _rate(ours), _rate(theirs), others, cpu, f"{ratio:.2f}", target))
    headers = ("streams in files, connections", "broker k/s", f"{_name()} k/s", "others", "CPU µs", "broker / nats")
    return f"{table((*headers, 'target'), rows)}\n\n{_rest(options)}"


def _rate(runs: Runs) -> str:
    return f"{runs.rate / 1000:.1f} ({runs.spread})"


def _rest(options: Options) -> str:
    rows = []
    for name in (_OURS, _name()):
        found = _run(options, name, "rest", count=_STREAMS)
        cores = found["cpu"] / 1e6
        met = cores <= _REST_GOAL and found["memory"] <= _MEMORY_GOAL
        goal = verdict(f"≤ {_REST_GOAL:.0%}, ≤ {_MEMORY_GOAL} MiB", met)
        made = f"{found['rate']:.0f}"
        rows.append((name, made, f"{cores:.1%}", f"{found['memory']:.0f}", goal if name == _OURS else ""))
    headers = (
        f"{_STREAMS:,} streams in memory, 10 consumers each, at rest",
        "consumers made a second",
        "CPU",
        "MiB",
        "target",
    )
    return table(headers, rows)
