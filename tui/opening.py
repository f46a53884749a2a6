"""Opening what the user names as a session of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stantools.store.read_options import ReadOptions
from tui.session import SourceSession

if TYPE_CHECKING:
    from stantools.sources.source import Source


def session_of(source: Source, *, workers: int = 2) -> SourceSession:
    """Returns the session of an open source. Raises `StantoolsError`."""
    if source.holds_streams:
        from tui.stream_session import StreamSession

        return StreamSession(source, workers=workers)
    from tui.store_session import StoreSession

    path = source.store("the browser shows stores only").path
    return StoreSession(path, source.read_options, workers=workers, files=source.node, source=source)


def open_session(path: Path, read_options: ReadOptions | None = None, *, workers: int = 2) -> SourceSession:
    """Opens a source of any kind that the browser shows. Raises `StantoolsError`."""
    from stantools.sources.door import open_source
    from stantools.sources.source import SourceRequest

    return session_of(open_source(path, SourceRequest(read_options or ReadOptions())), workers=workers)
