"""What can be configured about monitoring (server-operations.md section 14)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What the monitoring server serves; where is up to `MonitoringServer.start`.

    Attributes:
        base_path: In front of the paths of the NATS server; empty or `/` for nothing. Those of the streaming server
            do not have it.
        metrics: Serve `/metrics`.
        live: Serve the live page `/streaming/ui`.
    """

    base_path: str = ""
    metrics: bool = True
    live: bool = True
