"""The rules that decide when a log is compacted (filestore.md sections 8 and 11)."""

from __future__ import annotations

from dataclasses import dataclass

from stantools.errors import UsageError
from stantools.server_options import BOOL, INT, SIZE, server_field


@dataclass(frozen=True)
class CompactionRules:
    enabled: bool = server_field(
        BOOL, "Compact the logs of clients and subscriptions", "file_compact_enabled", "compact compact_enabled", True
    )
    fragmentation: int = server_field(
        INT, "Minimum percentage of dead records for a compaction", "file_compact_frag",
        "compact_frag compact_fragmentation", 50,
    )  # fmt: skip
    interval: float = server_field(
        INT, "Minimum seconds between two compactions of a file", "file_compact_interval", "compact_interval", 300
    )
    min_size: int = server_field(
        SIZE, "Minimum size of a file for a compaction", "file_compact_min_size", "compact_min_size", 1 << 20
    )

    def __post_init__(self) -> None:
        if self.fragmentation <= 0:
            raise UsageError("compact fragmentation value must at least be 1")
        if self.interval <= 0:
            raise UsageError("compact interval value must at least be 1 seconds")
        if self.min_size < 0:
            raise UsageError("compact minimum file size value must be a positive number")
