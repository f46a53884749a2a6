"""Options of stores. Times are nanoseconds unless said otherwise.

Facts: server-operations.md sections 3, 7 and 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stantools.format.crc import IEEE
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import SliceLimits

_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options of the file store.

    Attributes:
        buffer_size: Bytes of a channel that are gathered before they are written; 0 writes at once.
        read_buffer_size: Bytes that are read ahead.
        crc: Check the CRCs of records that are read.
        polynomial: Their polynomial, as the original's option has it.
        sync: Make every flush durable.
        auto_sync: Time after which everything is flushed and synced anyway; 0 or less for never.
        slices: When a slice is full; zeros of count and bytes mean the channel's limits.
        slice_archive_script: Program that gets removed slices.
        fds_limit: Files that may be open; 0 for no limit.
        parallel_recovery: Channels that are recovered at a time.
        truncate_bad_eof: Cut a damaged end off a file at recovery, once.
    """

    directory: Path
    buffer_size: int = 2 * _MEGABYTE
    read_buffer_size: int = 2 * _MEGABYTE
    crc: bool = True
    polynomial: int = IEEE
    sync: bool = True
    auto_sync: int = 60_000_000_000
    slices: SliceLimits = field(default_factory=SliceLimits)
    slice_archive_script: str = ""
    compaction: CompactionRules = field(default_factory=CompactionRules)
    fds_limit: int = 0
    parallel_recovery: int = 1
    truncate_bad_eof: bool = False


@dataclass(frozen=True, slots=True)
class EncryptionOptions:
    """Encryption at rest.

    Attributes:
        key: The key as given by the operator; it is never logged.
        cipher: `AES` or `CHACHA`; empty for the machine's default.
    """

    key: bytes = field(repr=False)
    cipher: str = ""
