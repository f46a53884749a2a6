"""What a browser watches: a server's monitoring, its streams, or both; for several views, and one after the other."""

from __future__ import annotations

from stantools.nats.options import ConnectOptions
from tui.live.endpoint import Address
from tui.live.jetstream import Streams
from tui.live.monitor import Monitor
from tui.live.source import LiveSource, Pace


class Watching:
    """What is watched.

    Args:
        monitor: URL of a server's monitoring.
        connecting: How to reach a NATS server with JetStream.

    Raises:
        UsageError: The URL is none.
    """

    def __init__(self, monitor: str | None, connecting: ConnectOptions | None) -> None:
        self.pace = Pace()  #: how often both are asked
        #: The server as its monitoring shows it, if that is watched.
        self.monitor = Monitor(Address.parse(monitor), self.pace) if monitor else None
        self.streams = Streams(connecting, self.pace) if connecting else None  #: its streams, if they are
        #: Both, as far as they are watched.
        self.sources: list[LiveSource] = [each for each in (self.monitor, self.streams) if each is not None]

    @property
    def revision(self) -> tuple[int, ...]:
        """Differs whenever something is new."""
        return tuple(each.revision for each in self.sources)
