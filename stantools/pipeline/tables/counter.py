"""Counting what is read, so that it can be shown how little that is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ReadCounter:
    """What was looked at.

    Attributes:
        data_bytes: Bytes of data files.
        index_bytes: Bytes of index files.
    """

    data_bytes: int = 0
    index_bytes: int = 0

    def data(self, size: int) -> None:
        """Counts bytes of a data file."""
        self.data_bytes += size

    def index(self, size: int) -> None:
        """Counts bytes of an index file."""
        self.index_bytes += size
