"""Options of streams in the broker's configuration, and the level of the API.

Facts: jetstream-server.md section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stantools.server_options import BOOL, SIZE, STRING, not_negative, server_field

#: The emulated version of nats-server, on which clients rely, and its level of the API.
VERSION: Final = "2.11.0"
LEVEL: Final = 1
#: Name in a stream's metadata for the dialect of the preview client that created it.
PREVIEW: Final = "preview_api"
_REQUIRED: Final = b"Nats-Required-Api-Level:"


@dataclass(frozen=True, slots=True)
class StreamsOptions:
    store_dir: Path = server_field(
        STRING, "Directory of streams; `jetstream` is added", "sd store_dir", "store_dir storedir store", convert=Path,
        remark="default: the system's temporary directory",
    )  # fmt: skip
    max_mem: int = server_field(
        SIZE, "Limit of messages in memory, in bytes; 0: three quarters of all memory", "",
        "max_memory_store max_mem_store max_mem", convert=not_negative,
    )  # fmt: skip
    max_file: int = server_field(
        SIZE, "Limit of messages in files, in bytes; 0: three quarters of the free space", "",
        "max_file_store max_file", convert=not_negative,
    )  # fmt: skip
    from_channels: bool = server_field(
        BOOL, "Each channel is also a read-only stream", "streams_from_channels", "streams_from_channels"
    )
    temporary: bool = False  #: whether the directory is a default in the system's temporary one
    preview: bool = server_field(
        BOOL, "Support also JetStream's preview of 2019 and 2020", "preview_api", "preview_api"
    )


def beyond(header: bytes) -> bool:
    """Returns whether a header block requires a higher level of the API than this server has."""
    if _REQUIRED not in header:
        return False
    needed = [line[len(_REQUIRED) :].strip() for line in header.split(b"\r\n") if line.startswith(_REQUIRED)]
    return any(not each.isdigit() or len(each) > len(b"99") or int(each) > LEVEL for each in needed)


def with_level(config: Mapping[str, Any], needed: int) -> dict[str, Any]:
    """Returns a configuration as in answers: its metadata name the required level and the server's level."""
    levels = {"_nats.level": str(LEVEL), "_nats.req.level": str(needed), "_nats.ver": VERSION}
    return {**config, "metadata": {**config.get("metadata", {}), **levels}}
