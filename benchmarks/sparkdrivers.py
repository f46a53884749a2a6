"""Drivers of Spark, each in a process of its own, so that several masters can take turns in one race."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sparkwork
from measure import Memory

_TICK = os.sysconf("SC_CLK_TCK")
#: Little memory for Java, so that all of them fit beside each other.
CONF = {"spark.driver.memory": "1g", "spark.executor.memory": "768m"}
#: Seconds between two looks at the memory of workers.
_LOOK = 0.02
#: Resets the highest memory of a process (proc(5)).
_RESET = "5"


class Driver:
    """A session of Spark.

    Args:
        master: Its master.
        conf: More settings.

    Attributes:
        started: Seconds that Java, Spark and the application took to start.
    """

    def __init__(self, master: str, conf: dict[str, str] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=sparkwork.serve, args=(theirs, master, {**CONF, **(conf or {})}))
        self._process.start()
        theirs.close()
        self.started: float = self._connection.recv()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join()

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Runs a function of `sparkwork` there.

        Raises:
            RuntimeError: It failed.
        """
        self._connection.send((function, arguments, named))
        succeeded, result = self._connection.recv()
        if not succeeded:
            raise RuntimeError(result)
        return result

    def checked(self, expected: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[[], None]:
        """Returns something to be timed: runs a function and compares what comes out."""

        def work() -> None:
            result = self.run(function, *arguments, **named)
            if result != expected:
                raise AssertionError(f"{function.__name__}: {result} instead of {expected}")

        return work

    def watched(self, work: Callable[[], object]) -> tuple[float, Memory, float]:
        """Runs something and watches the processes meanwhile.

        Returns:
            Seconds; the most that any of the Python workers had, whose highest memory is the kernel's own figure; and
            the most that any Java process had, in MiB.
        """
        for pid in descendants(self._process.pid or 0):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET)
        most: dict[str, int] = {}
        done = threading.Event()

        def watch() -> None:
            while True:
                for pid in descendants(self._process.pid or 0):
                    with contextlib.suppress(OSError):
                        _look(pid, most)
                if done.wait(_LOOK):
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        begin = time.perf_counter()
        try:
            work()
        finally:
            seconds = time.perf_counter() - begin
            time.sleep(2 * _LOOK)
            done.set()
            watcher.join()
        worker = Memory(*(most.get(f"worker {name}", 0) / 1024 for name in ("VmHWM", "RssAnon", "RssFile")))
        return seconds, worker, most.get("java VmHWM", 0) / 1024


class Drivers:
    """The drivers of a run, started when they are first asked for."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._drivers: dict[str, Driver] = {}

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def on(self, master: str) -> Driver:
        """Returns the driver of a master."""
        if master not in self._drivers:
            self._drivers[master] = self._stack.enter_context(Driver(master))
        return self._drivers[master]


def processor() -> float:
    """Processor time of all processes that descend from this one, in seconds; of those that have ended as well."""
    return sum(_used(pid) for pid in descendants(os.getpid()))


def descendants(parent: int) -> Iterator[int]:
    """Gives the process ids of the children of a process, their children and so on."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    waiting = children.get(parent, [])
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _used(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK  # its own and of children that have ended


def _look(pid: int, most: dict[str, int]) -> None:
    """Notes the memory of a process, if it is a Python worker or Java."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    kind = "worker" if b"pyspark" in command and b"java" not in command else "java" if b"java" in command else ""
    if not kind:
        return
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmHWM", "RssAnon", "RssFile"):
            key = f"{kind} {name}"
            most[key] = max(most.get(key, 0), int(value.split()[0]))
