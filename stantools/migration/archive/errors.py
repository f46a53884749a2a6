"""What is wrong with an archive."""

from __future__ import annotations

from stantools.errors import StantoolsError


class ArchiveError(StantoolsError):
    """Bytes are not a stream archive, or a damaged one; the message says where and what was expected."""
