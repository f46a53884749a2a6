"""Runs for the speed of the broker: a fresh server and a load generator for each, and the medians."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import natsserver
from measure import REPOSITORY, timed

_LOAD = Path(__file__).with_name("broker") / "load.py"
#: The load generator for streams.
STREAMS = _LOAD.with_name("streamload.py")
_ATTACK = _LOAD.with_name("attack.py")
_PATIENCE = 60.0
_READY = b"Streaming Server is ready"
#: Stores, by the name in the tables, and what the command line says for them.
STORES = {
    "MEMORY": ("-st", "memory"),
    "FILE, no sync": ("-st", "file", "--file_sync=false"),
    "FILE": ("-st", "file"),
}


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        place: Where data is written.
        count: Messages of 128 bytes; fewer are sent where they are large, or one at a time.
        rounds: Rounds.
    """

    place: Path
    count: int
    rounds: int


@dataclass(frozen=True)
class Run:
    """What a run of the load generator came to; see `broker/load.py`.

    Attributes:
        rate: Messages a second.
        cpu: Microseconds of the server's processor time for a message.
        client_cpu: The same of the load generator.
        p50: Microseconds until the answer, in the middle; 0 if many are under way.
        p99: The same, of the slowest hundredth.
        others: Cores that were busy with something else.
        memory: What the server had at the end, in MiB, if that was looked at.
        longest: Milliseconds that an innocent client waited at most, if there was one.
    """

    rate: float
    cpu: float
    client_cpu: float
    p50: float
    p99: float
    others: float
    memory: float = 0.0
    longest: float = 0.0


Way = Callable[[], dict[str, float]]


@dataclass
class Runs:
    """All runs of a way."""

    runs: list[Run] = field(default_factory=list)

    def median(self, attribute: str) -> float:
        """The median of one of the attributes of `Run`."""
        return statistics.median(getattr(run, attribute) for run in self.runs)

    @property
    def rate(self) -> float:
        """The median of the rates."""
        return self.median("rate")

    @property
    def spread(self) -> str:
        """The lowest and the highest rate, in thousands."""
        rates = sorted(run.rate for run in self.runs)
        return f"{rates[0] / 1000:.1f}-{rates[-1] / 1000:.1f}"


@dataclass(frozen=True)
class Broker:
    """A running broker.

    Attributes:
        port: Where it listens.
        pid: Its process.
        start: Seconds from the command until it is ready.
    """

    port: int
    pid: int
    start: float

    def memory(self) -> float:
        """The memory that it has at the moment, in MiB."""
        return memory(self.pid)


def memory(pid: int) -> float:
    """Returns the memory that a process has at the moment, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell")


@contextmanager
def broker(place: Path, store: Sequence[str]) -> Iterator[Broker]:
    """Starts a broker without limits; it runs as long as the `with` block.

    Its files stay: where thousands were deleted ext4 is slow for a while, and that would be the next run's.

    Args:
        place: Where its store and its files are made. Somebody removes it when all runs are over.
        store: Options for the store.
    """
    folder = tempfile.mkdtemp(dir=place, prefix="broker-")
    ports = Path(folder, "ports")
    ports.mkdir()
    config = Path(folder, "broker.conf")
    config.write_text(f'ports_file_dir: "{ports}"\n')
    command = [sys.executable, "-m", "broker", "-c", str(config), "-a", "127.0.0.1", "-p", "-1"]
    command += ["-mc", "0", "-mm", "0", "-mb", "0", *store]
    if "file" in store:
        command += ["-dir", str(Path(folder, "store"))]
    if "-js" in store:
        command += ["-sd", str(Path(folder, "streams"))]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        start = _wait(process, begin)
        note = json.loads(next(ports.glob("*.ports")).read_text())
        yield Broker(int(note["nats"][0].rpartition(":")[2]), process.pid, start)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], begin: float) -> float:
    """Waits until a broker is ready. What it says later is thrown away."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if _READY in line:
            start = time.perf_counter() - begin
            threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
            return start
    raise RuntimeError(f"the broker does not start: {b''.join(said).decode(errors='replace')}")


@contextmanager
def nats(place: Path, version: str) -> Iterator[tuple[int, int]]:
    """Starts a real nats-server; yields its port and its process."""
    with (
        tempfile.TemporaryDirectory(dir=place, prefix="nats-") as folder,
        natsserver.running(Path(folder, "streams"), version) as server,
    ):
        yield int(server.url.rpartition(":")[2]), server.pid


def load(mode: str, port: int, pid: int, *, program: Path = _LOAD, **options: object) -> dict[str, float]:
    """Runs a load generator; `options` are those of its command line.

    Raises:
        RuntimeError: It ended with an error.
    """
    command = [mode, "--port", str(port), "--pid", str(pid)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return _json(program, command)


def attack(name: str, port: int) -> dict[str, float]:
    """Runs an attack; see `broker/attack.py`.

    Raises:
        RuntimeError: It ended with an error.
    """
    return _json(_ATTACK, [name, "--port", str(port)])


@contextmanager
def watched(port: int) -> Iterator[dict[str, float]]:
    """Has an innocent client ask all the time; yields what holds, behind the `with` block, how long it waited."""
    command = [sys.executable, str(_ATTACK), "nothing", "--port", str(port)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        found: dict[str, float] = {}
        yield found
        found |= json.loads(process.communicate(timeout=_PATIENCE)[0])


def processor(pid: int) -> float:
    """The seconds that a process was on a processor; 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def _json(program: Path, words: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, str(program), *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{command[2:]}: {done.stderr.decode(errors='replace')[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def race(ways: dict[str, Way], rounds: int) -> dict[str, Runs]:
    """Runs every way once a round, round after round. Each starts what it needs and ends it again."""
    found = {name: Runs() for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            # What the run before has left to be written is not this one's.
            os.sync()
            results: list[dict[str, float]] = []
            sample = timed(lambda work=work, results=results: results.append(work()))  # type: ignore[misc]
            result = results[0]
            found[name].runs.append(
                Run(
                    result["rate"],
                    result["cpu"],
                    result["client_cpu"],
                    result.get("p50") or 0.0,
                    result.get("p99") or 0.0,
                    sample.others,
                    result.get("memory", 0.0),
                    result.get("longest", 0.0),
                )
            )
    return found
