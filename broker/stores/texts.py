"""Log lines and other texts of the original that stores share."""

from __future__ import annotations

from stantools.format.quoting import quote
from stantools.store.limits import ChannelLimits

_UNITS = "KMGTPE"


def limits_reached(name: bytes, count: int, size: int, limits: ChannelLimits) -> tuple[str, ...]:
    """Returns format and arguments of the line about the first messages that limits remove.

    Facts: filestore.md section 5.4.
    """
    return (
        "Reached limits for store %s (msgs=%s/%s bytes=%s/%s), dropping old messages to make room for new ones",
        quote(name),
        str(count),
        str(limits.max_msgs),
        friendly_bytes(size),
        friendly_bytes(limits.max_bytes),
    )


def friendly_bytes(size: int) -> str:
    """Returns a number of bytes as the original prints it: `1000 B`, `5.06 KB`."""
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), -1
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_UNITS[unit]}B"
