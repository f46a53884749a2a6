"""What servers of which version know (jetstream-api.md section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OLDEST_TRIED: Final = (2, 9, 10)
NEWEST_TRIED: Final = (2, 15, 1)

#: Option of a stream -> the first version that knows it. Older ones ignore it, without a word, or refuse the request.
_SINCE: Final = {
    "compression": (2, 10, 0),
    "consumer_limits": (2, 10, 0),
    "first_seq": (2, 10, 0),
    "metadata": (2, 10, 0),
    "subject_transform": (2, 10, 0),
    "allow_msg_ttl": (2, 11, 0),
    "subject_delete_marker_ttl": (2, 11, 0),
    "allow_atomic": (2, 12, 0),
    "allow_msg_counter": (2, 12, 0),
    "allow_msg_schedules": (2, 12, 0),
    "persist_mode": (2, 12, 0),
    "allow_batched": (2, 14, 0),
}


def knows(option: str, version: tuple[int, int, int]) -> bool:
    """Tells whether servers of a version know an option of streams; one that is not known is taken for a new one."""
    return version == (0, 0, 0) or version >= _SINCE.get(option, version)


def unknown_options(config: Mapping[str, Any], version: tuple[int, int, int]) -> list[tuple[str, str]]:
    """Returns the options of a stream that a server does not know, each with the version that brought it."""
    return [
        (name, ".".join(map(str, _SINCE[name][:2])))
        for name, value in config.items()
        if name in _SINCE and value and not knows(name, version)
    ]
