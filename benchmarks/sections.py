"""What is measured: one function a section of RESULTS.md, each returns its text."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import measure
import stores
from isal import isal_zlib
from measure import Series, python, race, reread, run, table

from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.inspection.overview import overview
from stantools.inspection.verify import verify
from stantools.recovery.compact import CompactOptions, apply_compaction, plan_compaction
from stantools.recovery.salvage import SalvageOptions, apply_salvage, plan_salvage
from stantools.recovery.truncate import plan_truncation
from stantools.store.directory import open_datastore
from stantools.store.limits import StoreLimits

MB = 1_000_000
_CRC = Crc()
_COMMAND = ("-m", "stantools")


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        place: Where data is written.
        small: Messages of 128 bytes.
        large: Messages of 1 KiB.
        rounds: Rounds of a race.
        channels: The most channels in the table of growth.
        large_bytes: Size of the store for which memory is measured.
    """

    place: Path
    small: int
    large: int
    rounds: int
    channels: int
    large_bytes: int


@dataclass(frozen=True)
class Way:
    """One row of a table.

    Attributes:
        work: What is run.
        files: What it has to read, or writes: for the rate, and for the ratio to `cat` of the same files.
        cat: The way that reads the same files by `cat`.
        target: The highest ratio to the CRC of the data files (`crc`) or to `cat` that is wanted.
    """

    work: Callable[[], object]
    files: Sequence[Path]
    cat: str = ""
    target: tuple[str, float] | None = None


def server(store: Path) -> ServerOptions:
    """The server that the stores were written for."""
    del store
    return ServerOptions(cluster_id=stores.CLUSTER_ID, limits=StoreLimits(max_channels=0))


def whole_crc(files: Sequence[Path]) -> None:
    """One CRC over each whole mapped file, by isal: what the machine can do at best with one thread."""
    for path in files:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
            isal_zlib.crc32(mapping)
            mapping.close()


def reading(options: Options) -> str:
    """verify, forecast and info against `cat` and one CRC over all data."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with _directory(options.place / "reading") as place:
            store = stores.make_store(place / "store", count, size, channels=4)
            parts.append(_reading(store, count, size, options.rounds))
    return "\n\n".join(parts)


def _reading(store: Path, count: int, size: int, rounds: int) -> str:
    bare = stores.without_indexes(store, store.with_name("bare"))
    data, indexes = stores.data_files(store), stores.index_files(store)
    healthy, without = open_datastore(store), open_datastore(bare)
    limit = 7 if size < 1024 else 2
    ways = {
        "cat data": Way(lambda: run(["cat", *data]), data, "cat data"),
        "cat indexes": Way(lambda: run(["cat", *indexes]), indexes, "cat indexes"),
        "cat data and indexes": Way(lambda: run(["cat", *data, *indexes]), [*data, *indexes], "cat data and indexes"),
        "one CRC over each data file, 1 thread": Way(lambda: whole_crc(data), data, "cat data"),
        "verify, 1 worker": Way(
            lambda: verify(healthy, _CRC, workers=1), [*data, *indexes], "cat data and indexes"
        ),
        "verify, 2 workers": Way(
            lambda: verify(healthy, _CRC, workers=2), [*data, *indexes], "cat data and indexes", ("crc", limit)
        ),
        "verify, 2 workers, whole command": Way(
            lambda: run(python(*_COMMAND, "verify", store)), [*data, *indexes], "cat data and indexes"
        ),
        "forecast of the start": Way(
            lambda: forecast(healthy, server(store), lookups=False), indexes, "cat indexes", ("cat", 1.2)
        ),
        "forecast of the start, no indexes": Way(
            lambda: forecast(without, server(bare), lookups=False), data, "cat data", ("cat", 1.2)
        ),
        "forecast of start and delivery": Way(
            lambda: forecast(healthy, server(store)), [*data, *indexes], "cat data and indexes", ("cat", 1.2)
        ),
        "forecast of start and delivery, no indexes": Way(
            lambda: forecast(without, server(bare)), data, "cat data", ("cat", 1.2)
        ),
        "info": Way(lambda: overview(healthy, _CRC), indexes, "cat indexes"),
    }  # fmt: skip
    results = race({name: way.work for name, way in ways.items()}, rounds, before=lambda: reread([*data, *indexes]))
    unit = results["one CRC over each data file, 1 thread"]
    rows = []
    for name, way in ways.items():
        took = results[name]
        ratios = {"crc": took.seconds / unit.seconds, "cat": took.seconds / results[way.cat].seconds}
        volume = stores.total_size(list(way.files))
        rows.append(
            (name, took.seconds, took.processor, f"{volume / took.seconds / MB:.0f}", f"{ratios['crc']:.2f}",
             f"{ratios['cat']:.2f}", _judged(way.target, ratios), f"{took.others:.1f}")
        )  # fmt: skip
    title = f"{count:,} messages of {size} bytes, {stores.total_size(data) / MB:.0f} MB of data"
    headers = ("", "s", "CPU s", "MB/s", "× CRC of data", "× cat of the same", "target", "others")
    return f"**{title}, {stores.total_size(indexes) / MB:.0f} MB of indexes**\n\n{table(headers, rows)}"


def _judged(target: tuple[str, float] | None, ratios: dict[str, float]) -> str:
    if target is None:
        return ""
    kind, limit = target
    return f"≤ {limit:g} × {kind}: {'yes' if ratios[kind] <= limit else 'no'}"


def writing(options: Options) -> str:
    """salvage, compact and the plan of truncate-bad-eof against `cp -r` and `sync`."""
    parts = []
    for count, size in ((options.small, 128), (options.large, 1024)):
        with _directory(options.place / "writing") as place:
            store = stores.make_store(place / "store", count, size, channels=4)
            parts.append(_writing(store, f"{count:,} messages of {size} bytes", max(options.rounds * 3 // 5, 1)))
    return "\n\n".join(parts)


def _writing(store: Path, title: str, rounds: int) -> str:
    out = store.with_name("out")
    torn = stores.with_torn_end(store, store.with_name("torn"))
    files = stores.all_files(store)
    volume = stores.total_size(files)

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        reread([*files, *stores.data_files(torn)])

    ways: dict[str, Callable[[], object]] = {
        "cp -r and sync": lambda: (run(["cp", "-r", store, out]), run(["sync"])),
        "salvage, plan": lambda: plan_salvage(open_datastore(store), _CRC, SalvageOptions()),
        "salvage, plan and apply": lambda: salvage(store, out),
        "compact, plan and apply": lambda: apply_compaction(
            plan_compaction(open_datastore(store), _CRC, CompactOptions()), out
        ),
        "truncate-bad-eof, plan for a torn end": lambda: plan_truncation(open_datastore(torn), server(torn)),
    }
    results = race(ways, rounds, before=clear)
    clear()
    unit = results["cp -r and sync"].seconds
    rows = [
        (name, took.seconds, took.processor, f"{volume / took.seconds / MB:.0f}", f"{took.seconds / unit:.2f}",
         _fast_enough(name, volume / took.seconds / MB), f"{took.others:.1f}")
        for name, took in results.items()
    ]  # fmt: skip
    headers = ("", "s", "CPU s", "MB/s", "× cp and sync", "target", "others")
    return f"**{title}, {volume / MB:.0f} MB with indexes**\n\n{table(headers, rows)}"


def _fast_enough(name: str, rate: float) -> str:
    return f"≥ 400 MB/s: {'yes' if rate >= 400 else 'no'}" if name == "salvage, plan and apply" else ""


def salvage(store: Path, out: Path) -> None:
    """Plans and applies a salvage."""
    apply_salvage(plan_salvage(open_datastore(store), _CRC, SalvageOptions()), out)


def growth(options: Options) -> str:
    """Cost by the number of slices and of channels."""
    with _directory(options.place / "growth") as place:
        largest = stores.make_store(place / "slices", 64 * 16 * MB // 208, 128, slice_bytes=16 * MB)
        sizes = {count: stores.first_slices(largest, place / f"first{count}", count) for count in (1, 4, 16, 64)}
        slices = _growth(sizes, "slices", "ms", 1000, {count: options.rounds for count in sizes})
    parts = [f"**Slices of 16 MB, 128 bytes a message; ms a slice**\n\n{slices}"]
    with _directory(options.place / "growth") as place:
        counts = [count for count in (10, 100, 1000, 10_000) if count <= options.channels]
        sizes = {n: stores.make_store(place / f"channels{n}", 20 * n, 128, channels=n) for n in counts}
        rounds = {count: options.rounds if count < 1000 else 1 for count in counts}
        channels = _growth(sizes, "channels", "ms", 1000, rounds)
    parts.append(f"**Channels of 20 messages and one durable; ms a channel**\n\n{channels}")
    return "\n\n".join(parts)


def _growth(sizes: dict[int, Path], what: str, unit: str, factor: float, rounds: dict[int, int]) -> str:
    rows = []
    for count, store in sizes.items():
        out = store.with_name("out")
        files = stores.all_files(store)

        def clear(out: Path = out, files: list[Path] = files) -> None:
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            reread(files)

        results = race(_growing(store, out), rounds[count], before=clear)
        clear()
        rows.append((count, *(f"{_each(took, count, factor)}" for took in results.values()), _most_others(results)))
    headers = (what, *_growing(Path(), Path()), "others")
    del unit
    return table(headers, rows)


def _growing(store: Path, out: Path) -> dict[str, Callable[[], object]]:
    return {
        "verify": lambda: verify(open_datastore(store), _CRC),
        "forecast": lambda: forecast(open_datastore(store), server(store)),
        "info": lambda: overview(open_datastore(store), _CRC),
        "salvage": lambda: salvage(store, out),
        "cp -r and sync": lambda: (run(["cp", "-r", store, out]), run(["sync"])),
    }


def _each(took: Series, count: int, factor: float) -> str:
    return f"{took.seconds / count * factor:.2f}"


def _most_others(results: dict[str, Series]) -> str:
    return f"{max(took.others for took in results.values()):.1f}"


def memory(options: Options) -> str:
    """The most memory that commands take on a big store."""
    with _directory(options.place / "memory") as place:
        store = stores.make_large_store(place / "store", options.large_bytes)
        out = place / "out"
        files, indexes = stores.all_files(store), stores.index_files(store)
        commands = {
            "info": ("info", store),
            "verify": ("verify", store),
            "forecast": ("forecast", store, "--max-msgs", 0, "--max-bytes", 0),
            "salvage": ("salvage", store, "--out", out),
            "compact": ("compact", store, "--out", out),
            "truncate-bad-eof": ("truncate-bad-eof", store, "--dry-run"),
        }
        rows = []
        for name, arguments in commands.items():
            reread(indexes if name == "info" else files)
            seconds, most = measure.peak_memory(python(*_COMMAND, *arguments))
            shutil.rmtree(out, ignore_errors=True)
            limit = "≤ 300 MB, ≤ 2 s" if name == "info" else "≤ 300 MB"
            met = most.peak * 1.048576 <= 300 and (name != "info" or seconds <= 2)
            rows.append(
                (name, seconds, f"{most.peak:.0f}", f"{most.private:.0f}", f"{most.mapped:.0f}",
                 f"{limit}: {'yes' if met else 'no'}")
            )  # fmt: skip
        volume = stores.total_size(files)
    headers = ("whole command, 2 workers", "s", "most MiB", "private MiB", "mapped files MiB", "target")
    title = f"{volume / 1e9:.1f} GB, half of it in one slice with an index of {max(map(_size, indexes)) / MB:.0f} MB"
    return f"**{title}**\n\n{table(headers, rows)}"


def _size(path: Path) -> int:
    # The store is gone by now where this is called late; sizes are asked for while it is there.
    return path.stat().st_size


def start(options: Options) -> str:
    """What it takes to start."""
    ways = {
        "python -c pass": python("-c", "pass"),
        "stantools --help": python(*_COMMAND, "--help"),
        "stantools verify --help": python(*_COMMAND, "verify", "--help"),
        "python -c 'import numpy'": python("-c", "import numpy"),
    }
    results = race({name: (lambda command=command: run(command)) for name, command in ways.items()}, options.rounds * 4)
    unit = results["python -c pass"].seconds
    rows = []
    for name, took in results.items():
        target = f"≤ 200 ms: {'yes' if took.seconds <= 0.2 else 'no'}" if name == "stantools --help" else ""
        rows.append((name, f"{took.seconds * 1000:.0f}", f"{took.processor * 1000:.0f}", f"{took.seconds / unit:.1f}", target))
    return table(("", "ms", "CPU ms", "× python", "target"), rows)


class _directory:  # noqa: N801 - used like a function
    """A new directory for the length of the `with` block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir(parents=True)
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


KERNELS = kernels.NAME
