"""How fast the scan kernels are, as ratios to the limits of the machine, all measured in one run.

    python benchmarks/kernels.py [--small 4000000] [--large 700000] [--directory PLACE] [--rounds 5]

Makes message slices of about 64 MB (128 byte and 1 KiB payloads) in the page cache, then reads all of them in turn by
`cat`, by one CRC over each mapped file, and by the kernels: chain of headers, CRC and fields of every record, into
columns of 16384 rows. Each way maps the files anew, so page faults are in all figures. Best of the rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import ScanStop
from stantools.store.mapping import mapped

SLICE_BYTES = 64 << 20
CHANNEL = b"orders.eu.created"
TIME = 1795219649260503021
BATCH = 1000


def make_slices(directory: Path, count: int, size: int, crc: Crc) -> list[Path]:
    """Writes `count` messages of `size` bytes into slices of about 64 MB; prints the speed of encoding."""
    source = random.Random(size)
    text = source.randbytes(size * 64).hex().encode()
    starts = [source.randrange(len(text) - size) for _ in range(BATCH)]
    payloads = [text[start : start + size] for start in starts]
    paths: list[Path] = []
    encoding = 0.0
    for first in range(1, count + 1, BATCH):
        sequences = np.arange(first, min(first + BATCH, count + 1), dtype=np.uint64)
        times = TIME + sequences.astype(np.int64) * 10_007
        begin = time.perf_counter()
        data, _ = kernels.encode_messages(CHANNEL, sequences, times, None, payloads[: len(sequences)], crc)
        encoding += time.perf_counter() - begin
        if not paths or paths[-1].stat().st_size >= SLICE_BYTES:
            paths.append(directory / f"msgs.{len(paths) + 1}.dat")
            paths[-1].write_bytes(b"\x01\0\0\0")
        with paths[-1].open("ab") as file:
            file.write(data)
    print(f"encode_messages: {encoding / count * 1e9:.0f} ns a message, {BATCH} at a time")
    return paths


def cat(paths: list[Path]) -> int:
    """Reads the files as `cat FILES > /dev/null` does."""
    subprocess.run(["cat", *paths], stdout=subprocess.DEVNULL, check=True)
    return 0


def whole_crc(path: Path, crc: Crc) -> int:
    """One CRC over the whole mapped file."""
    with mapped(path, sequential=True) as data:
        return crc(data)


def scan(path: Path, crc: Crc, scan_messages: Callable[..., tuple[int, int, ScanStop]], limit: int = 1 << 62) -> int:
    """Everything the kernel checks, over one file; returns the number of messages."""
    columns = MessageColumns()
    total, offset, stop = 0, 4, ScanStop.FULL
    with mapped(path, sequential=True) as data:
        while stop == ScanStop.FULL:
            rows, offset, stop = scan_messages(data, offset, limit, crc, CHANNEL, columns)
            total += rows
    if stop not in (ScanStop.END, ScanStop.SHORT_PAYLOAD, ScanStop.SHORT_HEADER):
        raise AssertionError(f"{path}: {stop!r} at {offset}")
    return total


def best(rounds: int, work: Callable[[], object]) -> tuple[float, float]:
    """Shortest elapsed time and shortest processor time (children included) of the rounds, in seconds."""
    elapsed, used = [], []
    for _ in range(rounds):
        before, begin = os.times(), time.perf_counter()
        work()
        elapsed.append(time.perf_counter() - begin)
        used.append(sum(os.times()[:4]) - sum(before[:4]))
    return min(elapsed), min(used)


def measure(directory: Path, count: int, size: int, rounds: int) -> None:
    """Makes one data set and prints its table."""
    crc = Crc()
    print(f"\n{count} messages of {size} bytes")
    paths = make_slices(directory, count, size, crc)
    total = sum(path.stat().st_size for path in paths)

    def with_threads(number: int, function: Callable[[Path], int]) -> int:
        if number == 1:
            return sum(map(function, paths))
        with ThreadPoolExecutor(number) as pool:
            return sum(pool.map(function, paths))

    def by_kernel(path: Path) -> int:
        return scan(path, crc, kernels.scan_messages)

    if with_threads(2, by_kernel) != count:
        raise AssertionError("not all messages were read")
    results = {
        "cat FILES > /dev/null": best(rounds, lambda: cat(paths)),
        "one CRC over each mapped file": best(rounds, lambda: with_threads(1, lambda path: whole_crc(path, crc))),
        "kernel, 1 thread": best(rounds, lambda: with_threads(1, by_kernel)),
        "kernel, 2 threads": best(rounds, lambda: with_threads(2, by_kernel)),
    }
    unit = results["one CRC over each mapped file"][0]
    print(f"{'':38}{'seconds':>9}{'CPU s':>8}{'GB/s':>8}{'M msg/s':>9}{'ratio':>8}")
    for name, (elapsed, used) in results.items():
        rates = f"{total / elapsed / 1e9:8.2f}{count / elapsed / 1e6:9.2f}{elapsed / unit:8.2f}"
        print(f"{name:38}{elapsed:9.3f}{used:8.2f}{rates}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="speed of the scan kernels")
    parser.add_argument("--small", type=int, default=4_000_000, help="messages of 128 bytes")
    parser.add_argument("--large", type=int, default=700_000, help="messages of 1 KiB")
    parser.add_argument("--directory", help="where to write the data; default: the system's place for temporary files")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for count, size in ((options.small, 128), (options.large, 1024)):
        if count:
            with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                measure(Path(directory), count, size, options.rounds)


if __name__ == "__main__":
    main()
