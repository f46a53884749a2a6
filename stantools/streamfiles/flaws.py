"""Flaws of a stream's files: facts with a place, which higher layers turn into findings.

The value of a kind is the code of its finding. Facts: jetstream-store.md sections 15 to 20 and 25.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FlawKind(enum.StrEnum):
    META_MISSING = "js-meta-missing"
    META_SUM = "js-meta-sum"
    META_JSON = "js-meta-json"
    META_NAME = "js-meta-name"
    META_UNKNOWN = "js-meta-unknown"
    META_LEVEL = "js-meta-level"
    META_CONFIG = "js-meta-config"
    BLOCK_HASH = "js-block-hash"
    BLOCK_LENGTH = "js-block-length"
    BLOCK_CUT = "js-block-cut"
    BLOCK_ZEROS = "js-block-zeros"
    BLOCK_TAIL = "js-block-tail"
    BLOCK_EMPTY = "js-block-empty"
    BLOCK_MISSING = "js-block-missing"
    BLOCK_NUMBER = "js-block-number"
    BLOCK_ORDER = "js-block-order"
    BLOCK_UNREADABLE = "js-block-unreadable"
    BLOCK_COMPRESSED = "js-block-compressed"
    ERASE_BUG = "js-block-erase-bug"
    BLOCK_KEY = "js-block-key"
    BORDER = "js-border"
    TOMBSTONES_LOST = "js-tombstones-lost"
    INDEX_HASH = "js-index-hash"
    INDEX_VERSION = "js-index-version"
    INDEX_TOTALS = "js-index-totals"
    INDEX_STALE = "js-index-stale"
    INDEX_AHEAD = "js-index-ahead"
    INDEX_MISSING = "js-index-missing"
    OLD_INDEX = "js-idx"
    TIMER_INDEX = "js-ttl-index"
    CONSUMER_META = "js-cons-meta"
    CONSUMER_SUM = "js-cons-sum"
    CONSUMER_STATE = "js-cons-state"
    CONSUMER_AHEAD = "js-cons-ahead"
    CONSUMERS_LOST = "js-cons-lost"
    KEY_WRONG = "js-key-wrong"
    KEY_MISSING = "js-key-missing"
    LEFTOVER = "js-leftover"
    FOREIGN_FILE = "js-foreign-file"
    DELETION = "js-delete-under-way"
    PURGE = "js-purge-under-way"


@dataclass(frozen=True, slots=True)
class FileFlaw:
    kind: FlawKind
    file: str  #: path relative to the stream's directory; "" for the directory itself
    detail: str
    offset: int | None = None  #: in the file; in its plain content if it is compressed
    length: int | None = None
    sequence: int | None = None
    consumer: str | None = None
