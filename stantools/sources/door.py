"""One door to everything that a verb can be given as STORE: it is recognised, and opened as a source."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from stantools.sources import directories, files
from stantools.sources.source import PathFacts, RecognisedPath, Source, SourceRequest


def recognise(path: Path) -> RecognisedPath:
    """Recognises a path from little: names in directories, and the first bytes of a file."""
    facts = PathFacts(path)
    kinds = directories.KINDS if stat.S_ISDIR(facts.mode) else (directories.NODE, *files.KINDS)
    return next(found for kind in kinds if (found := kind.recognise(facts)))


def open_source(path: Path, request: SourceRequest | None = None) -> Source:
    """Opens a source; looking never changes anything.

    Raises:
        NotAStoreError: What the path looks like, and the command that works with it.
    """
    return open_recognised(recognise(path), request)


def open_recognised(found: RecognisedPath, request: SourceRequest | None = None) -> Source:
    if found.kind.open is None:
        raise found.problem()
    return found.kind.open(found, replace(request or SourceRequest(), open=open_source))
