"""What can be configured about monitoring (operations section 14)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MonitoringOptions:
    """Options of the monitoring server.

    Attributes:
        base_path: In front of the paths of the NATS server; those of the streaming server do not have it.
        metrics: Serve `/metrics`.
        page: Serve the page `/streaming/ui`.
    """

    base_path: str = ""
    metrics: bool = True
    page: bool = True
