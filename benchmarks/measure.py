"""Timing of several ways in turn, with what the rest of the machine did meanwhile, and tables of the results."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# Servers and stores are made by the helpers of the tests.
sys.path.insert(0, str(REPOSITORY))
MB = 1_000_000
_TICK = os.sysconf("SC_CLK_TCK")
_CHUNK = 1 << 20
#: Compiled modules are kept, as in any installation; without them every start takes a quarter of a second more.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


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
        durables: Durables of the store for which their memory is measured.
        rows: Messages of a SQL store.
    """

    place: Path
    small: int
    large: int
    rounds: int
    channels: int
    large_bytes: int
    durables: int = 1_500_000
    rows: int = 1_000_000

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """Makes a new directory for the length of the `with` block."""
        path = self.place / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class Sample:
    """One run.

    Attributes:
        seconds: Time taken.
        processor: Processor time of this process and its children, in seconds.
        others: Cores that were busy with something else meanwhile.
        server: Processor time of the server that it was done with, in seconds.
    """

    seconds: float
    processor: float
    others: float
    server: float = 0.0


@dataclass
class Series:
    """All runs of one way."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median time."""
        return statistics.median(sample.seconds for sample in self.samples)

    @property
    def best(self) -> float:
        """The shortest time."""
        return min(sample.seconds for sample in self.samples)

    @property
    def processor(self) -> float:
        """The median of the processor time."""
        return statistics.median(sample.processor for sample in self.samples)

    @property
    def server(self) -> float:
        """The median of the server's processor time."""
        return statistics.median(sample.server for sample in self.samples)

    @property
    def others(self) -> float:
        """The median of what others used, in cores."""
        return statistics.median(sample.others for sample in self.samples)


def race(
    ways: dict[str, Callable[[], object]],
    rounds: int,
    *,
    before: Callable[[], object] | None = None,
    warm: Iterable[Callable[[], object]] = (),
    server: Callable[[], float] | None = None,
) -> dict[str, Series]:
    """Runs every way once a round, round after round, so that a noisy minute hits all of them.

    Args:
        ways: What to run, by name.
        rounds: How often.
        before: Run before each measurement, not measured: brings the files back into the page cache.
        warm: Run once before everything, not measured.
        server: Returns the processor time of a server so far, which does not count as other processes'.
    """
    series = {name: Series() for name in ways}
    for work in warm:
        work()
    for _ in range(rounds):
        for name, work in ways.items():
            if before:
                before()
            series[name].samples.append(timed(work, server))
    return series


def timed(work: Callable[[], object], server: Callable[[], float] | None = None) -> Sample:
    """Runs something once; `server` as for `race`."""
    served = server() if server else 0.0
    busy, own, begin = _busy(), _own(), time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    own, busy = _own() - own, _busy() - busy
    served = max(server() - served, 0.0) if server else 0.0  # less where a process has gone
    return Sample(seconds, own, max(busy - own - served, 0.0) / max(seconds, 1 / _TICK), served)


def _own() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _busy() -> float:
    """Processor time that was used on the whole machine, in seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / _TICK


def reread(files: Sequence[Path]) -> None:
    """Reads files, so that they are in the page cache."""
    buffer = bytearray(_CHUNK)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


@dataclass(frozen=True)
class Memory:
    """The most memory that a process had, in MiB: in all, private, and pages of mapped files."""

    peak: float
    private: float
    mapped: float


def python(*arguments: object) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *map(str, arguments)]


def stantools(*arguments: object) -> list[str]:
    """A command of stantools."""
    return python("-m", "stantools", *arguments)


def run(command: Sequence[object], *, accept: Sequence[int] = (0,)) -> None:
    """Runs a command from the repository's root; its output goes nowhere.

    Raises:
        RuntimeError: It ended with another exit code than the accepted ones.
    """
    done = subprocess.run(
        list(map(str, command)), cwd=REPOSITORY, env=_ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode not in accept:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")


def peak_memory(command: Sequence[object], *, accept: Sequence[int] = (0,)) -> tuple[float, Memory]:
    """Runs a command and watches its memory; returns the time it took and its memory.

    The peak is the kernel's own (`VmHWM`): what getrusage says of a child includes the process that it was forked
    from. The other two are the highest of what was seen every few milliseconds.

    Raises:
        RuntimeError: As from `run`.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        list(map(str, command)), cwd=REPOSITORY, env=_ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    seen: dict[str, int] = {}

    def watch() -> None:
        status = Path(f"/proc/{process.pid}/status")
        while process.returncode is None:
            try:
                lines = status.read_text().splitlines()
            except (OSError, ValueError):
                return
            for line in lines:
                name, _, value = line.partition(":")
                if name in ("VmHWM", "RssAnon", "RssFile"):
                    seen[name] = max(seen.get(name, 0), int(value.split()[0]))
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, errors = process.communicate()
    seconds = time.perf_counter() - begin
    watcher.join()
    if process.returncode not in accept:
        raise RuntimeError(f"{command} ended with {process.returncode}: {errors.decode(errors='replace')}")
    return seconds, Memory(*(seen.get(name, 0) / 1024 for name in ("VmHWM", "RssAnon", "RssFile")))


def verdict(target: str, met: bool) -> str:
    """Says whether a target is met."""
    return f"{target}: {'yes' if met else '**no**'}"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Formats a table in Markdown; numbers are aligned to the right."""
    cells = [list(headers), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = []
    for number, row in enumerate(cells):
        parts = [
            text.ljust(w) if c == 0 else text.rjust(w) for c, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(parts)} |")
        if number == 0:
            rule = ["-" * w if c == 0 else "-" * (w - 1) + ":" for c, w in enumerate(widths)]
            lines.append(f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:.1f}"
    return "" if cell is None else str(cell)
