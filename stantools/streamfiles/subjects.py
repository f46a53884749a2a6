"""Subjects of a stream's messages, compared by their hashes; and borders of subject and headers that were moved.

The hash of a record covers neither the size of the subject nor that of the headers: a message whose border was moved
keeps a valid hash. It shows by headers without their form, or by a subject that nothing else names
(jetstream-store.md section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stantools.streamfiles import kernels
from stantools.streamfiles.layout import HASH_SIZE, HEADER_LENGTH_SIZE, RECORD_HEAD_SIZE, RecordColumns
from stantools.streamfiles.record_batch import RecordBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: distinct subjects that are counted
_MAX_SUBJECTS: Final = 1 << 21
#: counted subjects for which a part of them takes as much memory
_PART_COST: Final = 16
#: bits of a subject's size that may have flipped
_SIZE_BITS: Final = 16
_HEADER_BEGIN: Final = b"NATS/1.0"
_HEADER_END: Final = b"\r\n\r\n"
_MIN_HEADERS: Final = len(_HEADER_BEGIN + _HEADER_END)


class SubjectCounts:
    """How often each subject occurs, by its hash."""

    def __init__(self) -> None:
        self.hashes: NDArray[np.uint64] = np.zeros(0, np.uint64)  #: rising
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._new: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self._waiting = 0
        self.overflow = False  #: there are too many to be counted

    def add(self, hashes: NDArray[np.uint64]) -> None:
        if self.overflow or not len(hashes):
            return
        unique, counts = np.unique(hashes, return_counts=True)
        self._new.append((unique, counts))
        self._waiting += len(unique)
        if self._waiting + _PART_COST * len(self._new) > max(1 << 16, len(self.hashes)):
            self.settle()

    def settle(self) -> None:
        hashes = np.concatenate([self.hashes, *(each for each, _ in self._new)])
        counts = np.concatenate([self.counts, *(each for _, each in self._new)])
        self.hashes, places = np.unique(hashes, return_inverse=True)
        self.counts = np.bincount(places.reshape(-1), counts, len(self.hashes)).astype(np.int64)
        self._new, self._waiting = [], 0
        self.overflow = self.overflow or len(self.hashes) > _MAX_SUBJECTS


def contains(sorted_hashes: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    if not len(sorted_hashes):
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(sorted_hashes, hashes), len(sorted_hashes) - 1)
    found: NDArray[np.bool_] = sorted_hashes[places] == hashes
    return found


def hashes_of(text: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    columns = RecordColumns(0)
    columns.subject_start, columns.subject_size = starts, sizes.astype(np.uint32)
    return kernels.subject_hashes(text, columns)


def without_header_form(rows: RecordBatch) -> list[int]:
    """Returns the sequences of messages whose headers do not have their form."""
    headed = np.flatnonzero(rows.header_start > 0)
    if not len(headed):
        return []
    array = np.frombuffer(rows.buffer, np.uint8)
    starts, sizes = rows.header_start[headed], rows.header_size[headed].astype(np.int64)
    good = sizes >= _MIN_HEADERS
    begins = np.where(good, starts, 0)
    ends = np.where(good, starts + sizes, _MIN_HEADERS)
    for at, byte in enumerate(_HEADER_BEGIN):
        good &= array[begins + at] == byte
    for at, byte in enumerate(_HEADER_END):
        good &= array[ends - len(_HEADER_END) + at] == byte
    return [int(each) for each in rows.sequence[headed[~good]]]


def fitting_borders(rows: RecordBatch, row: int, names: NDArray[np.uint64]) -> int:
    """Returns how many sizes of the subject that differ in one bit give a known subject."""
    size, start = int(rows.subject_size[row]), int(rows.subject_start[row])
    left = int(rows.length[row]) - RECORD_HEAD_SIZE - HASH_SIZE
    if rows.header_start[row]:
        left -= HEADER_LENGTH_SIZE
    sizes = [each for bit in range(_SIZE_BITS) if 0 < (each := size ^ 1 << bit) <= left]
    if not sizes or rows.header_start[row]:
        return 0
    text = bytes(rows.buffer[start : start + max(sizes)])
    hashes = hashes_of(text, np.zeros(len(sizes), np.int64), np.array(sizes, np.int64))
    return int(np.count_nonzero(contains(names, hashes)))
