"""Messages into a stream: by nats-py, by publishing, by restoring an archive, by the whole command."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import peers
import stores
from measure import MB, run, stantools, table, verdict
from streams import Bench, Options, prepared

from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.publish.stream_publish import publish_stream

#: The other ways take too long for all messages: so many of a hundred.
_ONE_BY_ONE, _PUBLISHED = 1, 15
_UNIT = "nats-py js.publish, one by one"


@dataclass(frozen=True)
class _Way:
    """One row of a table.

    Attributes:
        work: What is run.
        messages: How many messages it puts into the stream.
        target: The least ratio to publishing one by one that is wanted.
    """

    work: Callable[[], object]
    messages: int
    target: float | None = None


def section(options: Options) -> str:
    """Measures both sizes of messages."""
    parts = []
    for count, size, target in ((options.small, 128, 100), (options.large, 1024, 20)):
        with options.directory() as place, Bench(place) as bench:
            store = stores.make_store(place / "store", count, size)
            less = stores.make_store(place / "less", max(count * _PUBLISHED // 100, 1000), size)
            parts.append(_compare(bench, place, store, less, size, target, options.rounds))
    return "\n\n".join(parts)


def _compare(bench: Bench, place: Path, store: Path, less: Path, size: int, target: float, rounds: int) -> str:
    (stream,), (few,) = prepared(store), prepared(less)
    count, fewer = stream.source.count, few.source.count
    least = max(fewer * _ONE_BY_ONE // _PUBLISHED, 1000)
    built = [bytes(piece) for piece in stream.pieces(stream.archive(stream.plan.loading_config))]
    texts = stores.payloads(size)
    peer = (bench.server.url, stream.name, stream.plan.config["subjects"][0], texts)
    numbers = itertools.count()

    def command(*more: object) -> None:
        plan = place / f"plan{next(numbers)}.yaml"
        words = ("migrate", store, "--server", bench.server.url, "--plan", plan, "--yes", "--progress", "none", *more)
        run(stantools(*words), accept=(0,))

    ways = {
        _UNIT: _Way(lambda: bench.run(peers.publish_one_by_one(*peer, least)), least),
        "nats-py js.publish_async, 2000 outstanding": _Way(
            lambda: bench.run(peers.publish_async(*peer, fewer // 2)), fewer // 2
        ),
        "nats-py nc.publish, one inbox, window 8192": _Way(
            lambda: bench.run(peers.publish_windowed(*peer, fewer)), fewer
        ),
        "publish_stream": _Way(lambda: _publish(bench, few), fewer, 12),
        "restore, from request to last answer": _Way(lambda: bench.restore(stream), count, target),
        "restore of an archive built before": _Way(lambda: bench.send(stream, built), count),
        "measure and restore (apply)": _Way(lambda: bench.apply([stream], prove=False), count),
        "measure, restore and prove (apply)": _Way(lambda: bench.apply([stream], prove=True), count),
        "stantools migrate --proof counts, whole command": _Way(lambda: command("--proof", "counts"), count),
        "stantools migrate, whole command": _Way(command, count),
    }
    results = bench.race({name: way.work for name, way in ways.items()}, rounds, store)
    unit = results[_UNIT].seconds / ways[_UNIT].messages
    rows = []
    for name, way in ways.items():
        took = results[name]
        ratio = unit * way.messages / took.seconds
        rows.append(
            (
                name,
                f"{way.messages:,}",
                took.seconds,
                took.processor,
                took.server,
                f"{way.messages / took.seconds / 1000:.1f}",
                f"{way.messages * size / took.seconds / MB:.0f}",
                f"{ratio:.1f}",
                f"{took.others:.1f}",
                verdict(f"≥ {way.target:g} ×", ratio >= way.target) if way.target else "",
            )
        )
    headers = ("", "messages", "s", "CPU s", "server CPU s", "k msgs/s", "MB/s", "× one by one", "others", "target")
    return f"**{size} bytes, nats-server {bench.server.version}**\n\n{table(headers, rows)}"


def _publish(bench: Bench, stream: PreparedStream) -> None:
    plan = stream.plan
    work = publish_stream(bench.js, plan.name, plan.loading_config, stream.source, stream.positions())
    bench.run(work)
