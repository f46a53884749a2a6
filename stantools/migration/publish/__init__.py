"""The online way: messages published one by one, for servers where a restore is not permitted."""

from stantools.migration.publish.gaps import missing
from stantools.migration.publish.loader import FILLER_LIMIT, Publishing, Window
from stantools.migration.publish.resume import NotOursError
from stantools.migration.publish.stream import Published, publish_stream

__all__ = ["FILLER_LIMIT", "NotOursError", "Published", "Publishing", "Window", "missing", "publish_stream"]
