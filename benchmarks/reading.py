"""verify, forecast and info against `cat` and one CRC over all data."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import stores
from isal import isal_zlib
from measure import MB, Options, race, reread, run, stantools, table, verdict

from stantools.inspection.forecast import forecast
from stantools.inspection.overview import overview
from stantools.inspection.verify import verify
from stantools.store.directory import open_datastore

_CAT, _CRC = "cat", "CRC"


@dataclass(frozen=True)
class _Way:
    """One row of a table.

    Attributes:
        work: What is run.
        reads: Which files it has to read, a key of `_files`.
        target: The highest ratio that is wanted, and to what.
    """

    work: Callable[[], object]
    reads: str
    target: tuple[float, str] | None = None


def section(options: Options) -> str:
    """Measures both sizes of messages."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with options.directory("reading") as place:
            store = stores.make_store(place / "store", count, size, channels=4)
            parts.append(
                _compare(store, f"{count:,} messages of {size} bytes", 7 if size < 1024 else 2, options.rounds)
            )
    return "\n\n".join(parts)


def _compare(store: Path, title: str, limit: int, rounds: int) -> str:
    server = stores.SERVER
    bare = stores.without_indexes(store, store.with_name("bare"))
    healthy, without = open_datastore(store), open_datastore(bare)
    data, indexes = stores.data_files(store), stores.index_files(store)
    files = {"data": data, "indexes": indexes, "data and indexes": [*data, *indexes]}
    crc_name = "one CRC over each data file, 1 thread"
    ways = {
        **{f"{_CAT} {name}": _Way(lambda paths=paths: run([_CAT, *paths]), name) for name, paths in files.items()},
        crc_name: _Way(lambda: _whole_crc(data), "data"),
        "verify, 1 worker": _Way(lambda: verify(healthy, workers=1), "data and indexes"),
        "verify, 2 workers": _Way(lambda: verify(healthy, workers=2), "data and indexes", (limit, _CRC)),
        "verify, whole command": _Way(lambda: run(stantools("verify", store)), "data and indexes"),
        "forecast of the start": _Way(lambda: forecast(healthy, server, lookups=False), "indexes", (1.2, _CAT)),
        "the same without indexes": _Way(lambda: forecast(without, server, lookups=False), "data", (1.2, _CAT)),
        "forecast of start and delivery": _Way(lambda: forecast(healthy, server), "data and indexes", (1.2, _CAT)),
        "the same without any index": _Way(lambda: forecast(without, server), "data", (1.2, _CAT)),
        "info": _Way(lambda: overview(healthy), "indexes"),
        "info, whole command": _Way(lambda: run(stantools("info", store)), "indexes"),
    }
    works = {name: way.work for name, way in ways.items()}
    results = race(works, rounds, before=lambda: reread(files["data and indexes"]), warm=works.values())
    rows = []
    for name, way in ways.items():
        took = results[name]
        ratios = {
            _CRC: took.seconds / results[crc_name].seconds,
            _CAT: took.seconds / results[f"{_CAT} {way.reads}"].seconds,
        }
        rate = stores.total_size(files[way.reads]) / took.seconds / MB
        figures = f"{rate:.0f}", f"{ratios[_CRC]:.2f}", f"{ratios[_CAT]:.2f}", f"{took.others:.1f}"
        rows.append((name, took.seconds, took.processor, *figures, _judge(way.target, ratios)))
    headers = ("", "s", "CPU s", "MB/s", "× CRC of data", "× cat of the same", "others", "target")
    sizes = ", ".join(f"{stores.total_size(files[name]) / MB:.0f} MB of {name}" for name in ("data", "indexes"))
    return f"**{title}: {sizes}**\n\n{table(headers, rows)}"


def _judge(target: tuple[float, str] | None, ratios: dict[str, float]) -> str:
    if target is None:
        return ""
    limit, unit = target
    return verdict(f"≤ {limit:g} × {unit}", ratios[unit] <= limit)


def _whole_crc(files: Sequence[Path]) -> None:
    """One CRC over each whole mapped file, by isal: what the machine can do at best with one thread."""
    for path in files:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
            isal_zlib.crc32(mapping)
            mapping.close()
