"""Options of streams, as configured, and what clients learn of the API.

Facts: jetstream-server.md section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: The version of nats-server whose JetStream this is; clients go by it. And the level of its API.
VERSION: Final = "2.11.0"
LEVEL: Final = 1
#: Of what clients of the preview have made: the name in its metadata of which dialect they speak.
PREVIEW: Final = "preview_api"
_REQUIRED: Final = b"Nats-Required-Api-Level:"


@dataclass(frozen=True, slots=True)
class StreamsOptions:
    """What streams may take, and where."""

    store_dir: Path  #: their directory; `jetstream` is added
    max_mem: int = 0  #: bytes of messages in memory; 0 for three quarters of the machine's memory
    max_file: int = 0  #: bytes of messages in files; 0 for three quarters of what is free
    from_channels: bool = False  #: each channel is a stream, too
    temporary: bool = False  #: the directory was not configured; it is in the system's temporary one
    preview: bool = False  #: requests of the preview of 2019 and 2020 are answered, too


def beyond(header: bytes) -> bool:
    """Returns whether a request says in its header block that it needs a higher level of the API than there is."""
    if _REQUIRED not in header:
        return False
    needed = [line[len(_REQUIRED) :].strip() for line in header.split(b"\r\n") if line.startswith(_REQUIRED)]
    return any(not each.isdigit() or len(each) > len(b"99") or int(each) > LEVEL for each in needed)


def with_level(config: Mapping[str, Any], needed: int) -> dict[str, Any]:
    """Returns a configuration as answers have it: its metadata say what it needs, and what there is."""
    said = {"_nats.level": str(LEVEL), "_nats.req.level": str(needed), "_nats.ver": VERSION}
    return {**config, "metadata": {**config.get("metadata", {}), **said}}
