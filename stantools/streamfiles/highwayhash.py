"""Keys of HighwayHash-64 (jetstream-migration.md section 6), which guards every record and file of a stream archive.

The keys are SHA-256 sums of names, so a stream cannot be renamed once its archive is built.
"""

from __future__ import annotations

import hashlib
from typing import Final

KEY_SIZE: Final = 32
HASH_SIZE: Final = 8


def stream_key(stream: str) -> bytes:
    return _key(stream)


def block_key(stream: str, index: int) -> bytes:
    """Returns the key for the records of a message block; `index` is the number in its file name."""
    return _key(f"{stream}-{index}")


def consumer_key(stream: str, consumer: str) -> bytes:
    return _key(f"{stream}/{consumer}")


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
