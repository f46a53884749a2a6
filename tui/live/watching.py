"""What is watched: a server's monitoring, its streams, or both; for several views, and one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stantools.nats.options import ConnectOptions
from tui.jobs import Job
from tui.live.endpoint import Address
from tui.live.monitor import Monitor
from tui.live.pace import Pace
from tui.live.streams import Streams


class Watching:
    """What is watched.

    Args:
        monitor: URL of a server's monitoring.
        connecting: How to reach a NATS server with JetStream.

    Attributes:
        monitor: The server as its monitoring shows it, if that is watched.
        streams: Its streams, if they are.

    Raises:
        UsageError: The URL is none.
    """

    def __init__(self, monitor: str | None, connecting: ConnectOptions | None) -> None:
        self.monitor = Monitor(Address.parse(monitor)) if monitor else None
        self.streams = Streams(connecting) if connecting else None
        self._monitoring, self._streaming = threading.Lock(), threading.Lock()

    def jobs(self) -> list[Job[None]]:
        """Returns the jobs that ask the servers; they run until they are cancelled."""
        jobs: list[Job[None]] = []
        if self.monitor is not None:
            monitor = self.monitor
            jobs.append(Job("monitor", _alone(self._monitoring, lambda job: monitor.run(job.check))))
        if self.streams is not None:
            jobs.append(Job("streams", _alone(self._streaming, self.streams.run)))
        return jobs

    @property
    def paces(self) -> list[Pace]:
        """How often they are asked."""
        return [each.pace for each in (self.monitor, self.streams) if each is not None]

    @property
    def pace(self) -> Pace:
        """How often they are asked; it is the same for both."""
        return self.paces[0]

    @property
    def revision(self) -> tuple[int, int]:
        """Differs whenever something is new."""
        return self.monitor.revision if self.monitor else 0, self.streams.revision if self.streams else 0


def _alone(lock: threading.Lock, run: Callable[[Job[None]], None]) -> Callable[[Job[None]], None]:
    """Makes work wait until a job of an earlier view has ended: each model is filled by one thread at a time."""

    def work(job: Job[None]) -> None:
        while not lock.acquire(timeout=0.1):
            job.check()
        try:
            run(job)
        finally:
            lock.release()

    return work
