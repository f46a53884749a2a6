"""Options of stores. Times are nanoseconds unless said otherwise.

Facts: server-operations.md sections 3, 7 and 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stantools.format.crc import IEEE
from stantools.server_options import BOOL, DURATION, INT, SIZE, STRING, as_bytes, server_field
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import SliceLimits


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options of the file store."""

    directory: Path
    buffer_size: int = server_field(
        SIZE, "Write buffer of a channel; 0 writes at once", "file_buffer_size", "buffer_size", 2 << 20,
        least=0, problem="buffer size value must be a positive number",
    )  # fmt: skip
    read_buffer_size: int = server_field(
        SIZE, "Bytes to read ahead", "file_read_buffer_size", "file_read_buffer_size read_buffer_size", 2 << 20,
        least=0, problem="read buffer size value must be a positive number",
    )  # fmt: skip
    crc: bool = server_field(BOOL, "Check the CRCs of records read", "file_crc", "crc do_crc", True)
    polynomial: int = server_field(
        INT, "Polynomial of the CRCs", "file_crc_poly", "crc_poly", IEEE,
        least=1, most=0xFFFFFFFF, problem="crc polynomial should be between 1 and 4294967295",
    )  # fmt: skip
    sync: bool = server_field(BOOL, "Sync files on every flush", "file_sync", "sync do_sync sync_on_flush", True)
    auto_sync: int = server_field(
        DURATION, "Interval of syncing all files; 0 or less for never", "file_auto_sync", "file_auto_sync auto_sync",
        60_000_000_000,
    )  # fmt: skip
    #: limits of a slice; zeros of count and bytes mean the channel's limits
    slices: SliceLimits = field(default_factory=SliceLimits)
    slice_archive_script: str = server_field(
        STRING, "Program that receives removed slices", "file_slice_archive_script",
        "slice_archive_script slice_archive slice_script",
    )  # fmt: skip
    compaction: CompactionRules = field(default_factory=CompactionRules)
    fds_limit: int = server_field(
        INT, "Limit of open files; 0 for none", "file_fds_limit", "file_descriptors_limit fds_limit",
        least=0, problem="file descriptor limit must be a positive number",
    )  # fmt: skip
    parallel_recovery: int = server_field(
        INT, "Channels recovered in parallel", "file_parallel_recovery", "parallel_recovery", 1,
        least=1, problem="parallel recovery value must be at least 1",
    )  # fmt: skip
    truncate_bad_eof: bool = server_field(
        BOOL, "Truncate damaged ends of files at the start", "file_truncate_bad_eof",
        remark="not in two consecutive starts; no key in the file",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EncryptionOptions:
    """Encryption at rest; the key is never logged."""

    key: bytes = server_field(
        STRING, "Key of the encryption", "encryption_key", "encryption_key", repr=False, convert=as_bytes,
        remark="implies --encrypt; overridden by the key in the file, and both by NATS_STREAMING_ENCRYPTION_KEY",
    )  # fmt: skip
    cipher: str = server_field(
        STRING, "AES or CHACHA; the default depends on the machine", "encryption_cipher", "encryption_cipher",
        convert=str.upper,
    )  # fmt: skip
