"""The kind of source that paths lead to, as far as it decides which table is read."""

from __future__ import annotations

from pathlib import Path

from stantools.sources.door import recognise
from stantools.sources.jetstream import JETSTREAM


def holds_streams(paths: tuple[str, ...]) -> bool:
    """Returns whether all of some paths are JetStream directories."""
    return bool(paths) and all("://" not in each and recognise(Path(each)).kind is JETSTREAM for each in paths)
