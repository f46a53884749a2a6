"""Three nodes of a cluster: how fast they are, and how long clients wait when one dies, beside the original's three.

    python benchmarks/cluster.py [--only SECTION] [--update] [--data PLACE] [--count N] [--rounds N]

Sections: cluster-speed (publishes, many under way and one at a time, with the processor time of brokers and
nats-servers), cluster-takeover (the broker of the node that leads is killed, its nats-server, both; how long until a
publish is acknowledged again, and how many messages come again).
Everything runs on this machine: three brokers, their nats-servers, and the clients. --update writes the tables into
RESULTS.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from brokerruns import Options, Run, Runs, load
from clusternodes import Nodes, running
from clustertakeover import takeover
from measure import table, timed, verdict
from report import report

#: The original's three nodes as the study has measured them (high-availability.md section C.9), messages a second and
#: microseconds, and what part of the rate of a stream with three replicas that was, in the same run.
_ORIGINAL = {
    "publish, 128 B": 80_000,
    "publish, 128 B, 4 connections": 92_000,
    "publish, 1 KB": 31_000,
    "publish, 128 B, 50 channels": 52_000,
    "one at a time, 16 clients": 5_600,
}
_SYNC = 720, 1900
_PART = {"publish, 128 B": 31 / 63, "publish, 1 KB": 12 / 31}
_LATENCY_GOAL = 1.3
_RAW = "a stream with 3 replicas, "
_ONE = "one at a time, 1 client"


def speed(options: Options) -> str:
    """Publishes to three nodes, and to a stream of their nats-servers with three replicas."""
    count = options.count
    loads: dict[str, tuple[str, dict[str, object]]] = {
        "publish, 128 B": ("publish", {"count": count}),
        "publish, 128 B, 4 connections": ("publish", {"count": count, "connections": 4}),
        "publish, 1 KB": ("publish", {"count": count // 4, "size": 1024}),
        "publish, 128 B, 50 channels": ("publish", {"count": count // 2, "channels": 50}),
        "one at a time, 16 clients": ("sync", {"count": count // 20, "connections": 16}),
        _ONE: ("sync", {"count": count // 60}),
        f"{_RAW}128 B": ("jetstream", {"count": count, "replicas": 3}),
        f"{_RAW}1 KB": ("jetstream", {"count": count // 4, "size": 1024, "replicas": 3}),
    }
    found = {name: Runs() for name in loads}
    brokers: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(options.rounds):
        with running(options.place) as nodes:
            for number, (name, (mode, more)) in enumerate(loads.items()):
                run, share = _measured(nodes, mode, {**more, "channel": f"load{number}"})
                found[name].runs.append(run)
                brokers[name].append(share)
    rows = []
    for name, runs in found.items():
        cpu = f"{runs.median('cpu'):.1f} ({sorted(brokers[name])[len(brokers[name]) // 2]:.1f})"
        row = [name, f"{runs.rate / 1000:.1f} ({runs.spread})", _answer(runs), f"{runs.median('others'):.1f}", cpu]
        rows.append((*row, *_compared(name, found)))
    headers = ("3 nodes, R3", "k/s", "p50 / p99 ms", "others", "CPU µs (brokers)", "original k/s", "× original")
    return table((*headers, "× original, by streams", "target"), rows)


def _answer(runs: Runs) -> str:
    return f"{runs.median('p50') / 1000:.2f} / {runs.median('p99') / 1000:.2f}" if runs.median("p50") else ""


def _compared(name: str, found: dict[str, Runs]) -> tuple[str, str, str, str]:
    """The original's figure, ours as a multiple of it, the same in relation to streams, and whether it is enough."""
    runs = found[name]
    if name == _ONE:
        ratio = runs.median("p50") / _SYNC[0]
        text = f"p50 {_SYNC[0] / 1000:.2f}, p99 {_SYNC[1] / 1000:.1f} ms"
        return text, f"p50 {ratio:.2f}", "", verdict(f"≤ {_LATENCY_GOAL} × its p50", ratio <= _LATENCY_GOAL)
    if name not in _ORIGINAL:
        return "", "", "", ""
    ratio = runs.rate / _ORIGINAL[name]
    part = _PART.get(name)
    raw = found.get(_RAW + name.rpartition(", ")[2])
    related = f"{runs.rate / raw.rate / part:.2f}" if part and raw else ""
    return f"{_ORIGINAL[name] / 1000:.1f}", f"{ratio:.2f}", related, verdict("≥ 1 ×", ratio >= 1)


def _measured(nodes: Nodes, mode: str, more: dict[str, object]) -> tuple[Run, float]:
    """Runs a load on the node that leads. Returns it, and the microseconds of the brokers for a message."""
    leads = nodes.leader()
    if mode != "jetstream":
        # Streams of new channels are made; that is not what is measured.
        load("publish", leads.port, leads.pid, **{**more, "count": 2000, "connections": 1})
    before = nodes.processor()
    results: list[dict[str, float]] = []
    sample = timed(lambda: results.append(load(mode, leads.port, leads.pid, **more)), lambda: sum(nodes.processor()))
    result = results[0]
    count = result["messages"]
    brokers, streams = ((now - then) / count * 1e6 for now, then in zip(nodes.processor(), before, strict=True))
    times = result.get("p50") or 0.0, result.get("p99") or 0.0
    return Run(result["rate"], brokers + streams, result["client_cpu"], *times, sample.others), brokers


_SECTIONS: dict[str, Callable[[Options], str]] = {"cluster-speed": speed, "cluster-takeover": takeover}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="speed of three nodes, and what a client notices when one dies")
    parser.add_argument("--only", action="append", choices=_SECTIONS, help="only this section; may be repeated")
    parser.add_argument("--update", action="store_true", help="put the tables into RESULTS.md")
    parser.add_argument("--data", type=Path, help="where to write the data; default: a temporary directory")
    parser.add_argument("--count", type=int, default=300_000, help="messages of 128 bytes")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.data, prefix="bench-") as place:
        options = Options(Path(place), given.count, given.rounds)
        for name in given.only or _SECTIONS:
            report(name, partial(_SECTIONS[name], options), options.rounds, update=given.update)


if __name__ == "__main__":
    main()
