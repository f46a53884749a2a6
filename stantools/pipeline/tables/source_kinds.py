"""The kind of source that paths lead to, as far as it decides which table is read."""

from __future__ import annotations

from pathlib import Path

from stantools.errors import NotPermittedError
from stantools.sources.door import recognise
from stantools.sources.jetstream import AROUND, JETSTREAM


def holds_streams(paths: tuple[str, ...]) -> bool:
    """Returns whether all of some paths are JetStream directories, as far as this user may read them."""
    try:
        return bool(paths) and all(
            "://" not in each and recognise(Path(each)).kind in (JETSTREAM, AROUND) for each in paths
        )
    except NotPermittedError:
        return False
