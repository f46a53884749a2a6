"""Options of streams, as the configuration gives them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StreamsOptions:
    """What streams may take, and where."""

    store_dir: Path  #: their directory; `jetstream` is added
    max_mem: int = 0  #: bytes of messages in memory; 0 for three quarters of the machine's memory
    max_file: int = 0  #: bytes of messages in files; 0 for three quarters of what is free
    from_channels: bool = False  #: each channel is a stream, too
