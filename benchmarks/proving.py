"""The proof: a stream read back and compared with its store; and two stores compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import peers
import stores
from measure import MB, race, reread, run, stantools, table, verdict
from streams import Bench, Options, prepared

from stantools.inspection.verify import verify
from stantools.migration.prepared_stream import PreparedStream
from stantools.migration.proof.stores import compare_stores
from stantools.migration.targets.stream_load import prove
from stantools.store.directory import open_datastore

_PROOF = "proof: sequence, time, subject, headers, payload"
_READBACK = "nats-py readback, payloads compared"
_RATE = 150_000


def section(options: Options) -> str:
    """Measures both sizes of messages."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with options.directory() as place:
            store = stores.make_store(place / "store", count, size)
            with Bench(place) as bench:
                parts.append(_prove(bench, store, size, options.rounds))
            parts.append(_diff(store, stores.linked(store, place / "other", lambda _: True), size, options.rounds))
    return "\n\n".join(parts)


def _prove(bench: Bench, store: Path, size: int, rounds: int) -> str:
    (stream,) = prepared(store)
    bench.restore(stream)
    count, few = stream.source.count, stream.source.count // 5

    def proof() -> None:
        found = bench.run(prove(bench.js, stream, published=False))
        if not found.clean or found.messages != count:
            raise RuntimeError(f"the proof failed: {found.findings}")

    def command() -> None:
        run(stantools("diff", store, f"{bench.server.url}#{stream.name}"))

    ways: dict[str, tuple[Callable[[], object], int]] = {
        _READBACK: (lambda: bench.run(peers.read_back(bench.server.url, stream.name, _payloads(stream), few)), few),
        _PROOF: (proof, count),
        "stantools diff STORE URL#STREAM, whole command": (command, count),
    }
    results = bench.race({name: work for name, (work, _) in ways.items()}, rounds, store, clear=False)
    unit = results[_READBACK].seconds / few
    rows = []
    for name, (_, messages) in ways.items():
        took = results[name]
        rate = messages / took.seconds
        target = verdict(f"≥ {_RATE // 1000}k msgs/s", rate >= _RATE) if name == _PROOF and size < 1024 else ""
        figures = f"{rate / 1000:.0f}", f"{rate * size / MB:.0f}", f"{rate * unit:.1f}", f"{took.others:.1f}"
        rows.append((name, f"{messages:,}", took.seconds, took.processor, took.server, *figures, target))
    headers = ("", "messages", "s", "CPU s", "server CPU s", "k msgs/s", "MB/s", "× readback", "others", "target")
    return f"**{size} bytes, nats-server {bench.server.version}**\n\n{table(headers, rows)}"


def _payloads(stream: PreparedStream) -> Iterator[bytes]:
    for batch in stream.source.read():
        yield from map(batch.data, range(len(batch)))


def _diff(store: Path, other: Path, size: int, rounds: int) -> str:
    files = stores.data_files(store)
    volume = stores.total_size(files)
    sides = [open_datastore(path) for path in (store, other)]
    ways: dict[str, Callable[[], object]] = {
        "cat of both": lambda: run(["cat", *files, *stores.data_files(other)]),
        "verify of one": lambda: verify(open_datastore(store)),
        "diff of two stores": lambda: compare_stores(*sides),
        "stantools diff STORE STORE, whole command": lambda: run(stantools("diff", store, other)),
    }
    results = race(ways, rounds, before=lambda: reread(files))
    unit = results["cat of both"].seconds
    rows = [
        (
            name,
            took.seconds,
            took.processor,
            f"{2 * volume / took.seconds / MB:.0f}",
            f"{took.seconds / unit:.1f}",
            f"{took.others:.1f}",
        )
        for name, took in ((name, results[name]) for name in ways)
    ]
    headers = ("", "s", "CPU s", "MB/s of both", "× cat", "others")
    return f"**Two equal stores, {volume / MB:.0f} MB of data each, {size} bytes a message**\n\n{table(headers, rows)}"
