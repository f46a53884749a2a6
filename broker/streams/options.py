"""Options of streams, as the configuration gives them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StreamsOptions:
    """What streams may take, and where.

    Attributes:
        store_dir: Their directory; `jetstream` is added.
        max_mem: Bytes of messages in memory; 0 for three quarters of the machine's memory.
        max_file: Bytes of messages in files; 0 for three quarters of what is free.
    """

    store_dir: Path
    max_mem: int = 0
    max_file: int = 0
