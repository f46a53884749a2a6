"""Replay as fast as possible, whole command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peers
import stores
from measure import MB, run, stantools, table
from streams import Bench, Options, prepared

#: Of a hundred messages so many are replayed, and so many published one by one.
_SHARE, _ONE_BY_ONE = 20, 1
_UNIT = "nats-py js.publish, one by one"


def section(options: Options) -> str:
    """Measures both sizes of messages."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with options.directory() as place, Bench(place) as bench:
            store = stores.make_store(place / "store", max(count * _SHARE // 100, 1000), size)
            parts.append(_compare(bench, place, store, size, options.rounds))
    return "\n\n".join(parts)


def _compare(bench: Bench, place: Path, store: Path, size: int, rounds: int) -> str:
    (stream,) = prepared(store)
    count = stream.source.count
    least = max(count * _ONE_BY_ONE // _SHARE, 1000)
    subject = stream.plan.config["subjects"][0]
    peer = (bench.server.url, stream.name, subject, stores.payloads(size))
    states = iter(range(1 << 30))

    def replay(kind: str) -> None:
        if kind == "jetstream":
            bench.run(bench.js.create_stream({"name": stream.name, "subjects": [subject]}))
        words = ("--to", bench.server.url, "--as", kind, "--speed", "max", "--progress", "none")
        run(stantools("replay", store, *words, "--state", place / f"state{next(states)}"))

    ways: dict[str, tuple[Callable[[], object], int]] = {
        _UNIT: (lambda: bench.run(peers.publish_one_by_one(*peer, least)), least),
        "replay --as core, whole command": (lambda: replay("core"), count),
        "replay --as jetstream, whole command": (lambda: replay("jetstream"), count),
    }
    results = bench.race({name: work for name, (work, _) in ways.items()}, rounds, store)
    unit = results[_UNIT].seconds / least
    rows = []
    for name, (_, messages) in ways.items():
        took = results[name]
        rate = messages / took.seconds
        figures = f"{rate / 1000:.1f}", f"{rate * size / MB:.0f}", f"{rate * unit:.1f}", f"{took.others:.1f}"
        rows.append((name, f"{messages:,}", took.seconds, took.processor, took.server, *figures))
    headers = ("", "messages", "s", "CPU s", "server CPU s", "k msgs/s", "MB/s", "× one by one", "others")
    return f"**{size} bytes, nats-server {bench.server.version}**\n\n{table(headers, rows)}"
