"""The rules that decide when a log is compacted (filestore.md sections 8 and 11)."""

from __future__ import annotations

from dataclasses import dataclass

from stantools.errors import UsageError


@dataclass(frozen=True)
class CompactionRules:
    enabled: bool = True
    fragmentation: int = 50  #: minimum percentage of dead records
    interval: float = 300  #: minimum seconds between two compactions of a file
    min_size: int = 1024 * 1024  #: minimum bytes of records; 0 for any size

    def __post_init__(self) -> None:
        if self.fragmentation <= 0:
            raise UsageError("compact fragmentation value must at least be 1")
        if self.interval <= 0:
            raise UsageError("compact interval value must at least be 1 seconds")
        if self.min_size < 0:
            raise UsageError("compact minimum file size value must be a positive number")
