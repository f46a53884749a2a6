"""Building an archive from a store, without any server, and the hash that guards each record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import stores
from measure import MB, race, reread, table, verdict
from streams import Options, prepared

from stantools.migration.prepared_stream import PreparedStream
from stantools.streamfiles import kernels as archive_kernels

_KEY = bytes(range(32))
#: What the hash of a record goes over: with subjects and headers of usual length, payloads of 128, 1024 and 10 KiB.
_HASHED = (154, 1050, 10250)
_HASHED_BYTES = 32 << 20
_BUILD = "archive, stored"


def section(options: Options) -> str:
    """Measures building for both sizes of messages, and hashing."""
    parts = []
    for count, size, target in ((options.small, 128, 800_000), (options.large, 1024, None)):
        with options.directory() as place:
            store = stores.make_store(place / "store", count, size)
            parts.append(_build(store, size, target, options.rounds))
    return "\n\n".join([*parts, _hash(options.rounds)])


def _build(store: Path, size: int, messages_target: int | None, rounds: int) -> str:
    (stream,) = prepared(store)
    files = stores.data_files(store)
    ways: dict[str, Callable[[], object]] = {
        "reading the source alone": lambda: sum(map(len, stream.source.read())),
        "measure (numbers for the request)": stream.measure,
        _BUILD: lambda: _bytes(stream, "stored"),
        "archive, snappy": lambda: _bytes(stream, "snappy"),
    }
    results = race(ways, rounds, before=lambda: reread(files))
    rows = []
    for name, took in ((name, results[name]) for name in ways):
        rate, volume = stream.source.count / took.seconds, stream.source.count * size / took.seconds / MB
        target = ""
        if name == _BUILD:
            target = (
                verdict(f"≥ {messages_target // 1000}k msgs/s", rate >= messages_target)
                if messages_target
                else verdict("≥ 400 MB/s", volume >= 400)
            )
        rows.append(
            (name, took.seconds, took.processor, f"{rate / 1000:.0f}", f"{volume:.0f}", f"{took.others:.1f}", target)
        )
    sizes = f"archive {_bytes(stream, 'stored') / MB:.0f} MB stored, {_bytes(stream, 'snappy') / MB:.0f} MB snappy"
    headers = ("", "s", "CPU s", "k msgs/s", "MB/s of payload", "others", "target")
    return f"**{stream.source.count:,} messages of {size} bytes: {sizes}**\n\n{table(headers, rows)}"


def _bytes(stream: PreparedStream, compression: str) -> int:
    archive = stream.archive(stream.plan.loading_config, compression)
    return sum(map(len, stream.pieces(archive)))


def _hash(rounds: int) -> str:
    rows = []
    for size in _HASHED:
        count = _HASHED_BYTES // size
        texts = np.random.default_rng(size).integers(0, 256, (count, size), np.uint8)
        views = [texts[number] for number in range(count)]
        ways: dict[str, Callable[[], object]] = {
            "compiled, one call for each": lambda views=views: [archive_kernels.hash64(view, _KEY) for view in views],
        }
        results = race(ways, rounds)
        for name, took in results.items():
            rate = count / took.seconds
            rows.append(
                (f"{size} bytes, {name}", f"{rate / 1000:.0f}", f"{rate * size / MB:.0f}", f"{took.others:.1f}")
            )
    return f"**HighwayHash-64 alone**\n\n{table(('', 'k records/s', 'MB/s', 'others'), rows)}"
