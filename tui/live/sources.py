"""The servers that a browser watches: a server's monitoring, a JetStream account, or both. Views share them."""

from __future__ import annotations

from stantools.nats.connect_options import ConnectOptions
from stantools.nats.monitoring import Address
from tui.live.monitor import Monitor
from tui.live.source import LiveSource, PollInterval
from tui.live.streams_source import StreamsSource


class LiveSources:
    """The watched servers. `monitor` is the URL of a monitoring, `connecting` names a NATS server with JetStream."""

    def __init__(self, monitor: str | None, connect_options: ConnectOptions | None) -> None:
        self.pace = PollInterval()  #: polling interval of both
        #: the server seen through its monitoring
        self.monitor = Monitor(Address.parse(monitor), self.pace) if monitor else None
        self.streams = StreamsSource(connect_options, self.pace) if connect_options else None  #: its streams
        #: the watched servers
        self.sources: list[LiveSource] = [each for each in (self.monitor, self.streams) if each is not None]

    @property
    def revision(self) -> tuple[int, ...]:
        """Differs from the last value whenever a source has news."""
        return tuple(each.revision for each in self.sources)
