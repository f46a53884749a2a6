"""Flaws of a stream's files: facts with a place, which higher layers turn into findings.

Facts: jetstream-store.md sections 15 to 20 and 25.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FlawKind(enum.Enum):
    META_MISSING = enum.auto()
    META_SUM = enum.auto()
    META_JSON = enum.auto()
    BLOCK_HASH = enum.auto()
    BLOCK_LENGTH = enum.auto()
    BLOCK_CUT = enum.auto()
    BLOCK_ZEROS = enum.auto()
    BLOCK_TAIL = enum.auto()
    BLOCK_EMPTY = enum.auto()
    BLOCK_MISSING = enum.auto()
    BLOCK_NUMBER = enum.auto()
    BLOCK_ORDER = enum.auto()
    BLOCK_UNREADABLE = enum.auto()
    BLOCK_COMPRESSED = enum.auto()
    ERASE_BUG = enum.auto()
    BLOCK_KEY = enum.auto()
    BORDER = enum.auto()
    INDEX_HASH = enum.auto()
    OLD_INDEX = enum.auto()
    CONSUMER_META = enum.auto()
    CONSUMER_SUM = enum.auto()
    CONSUMER_STATE = enum.auto()
    KEY_WRONG = enum.auto()
    KEY_MISSING = enum.auto()


@dataclass(frozen=True, slots=True)
class FileFlaw:
    kind: FlawKind
    file: str  #: path relative to the stream's directory; "" for the directory itself
    detail: str
    offset: int | None = None  #: in the file; in its plain content if it is compressed
    length: int | None = None
    sequence: int | None = None
    consumer: str | None = None
