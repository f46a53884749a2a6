"""Records of a block in batches: columns, and the buffer that they point into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self

from stantools.format.envelope import Buffer
from stantools.format.message_batch import text, texts
from stantools.streamfiles import kernels
from stantools.streamfiles.layout import EMPTY_RECORD_SIZE, RECORD_HEAD_SIZE, RecordColumns, RecordFlaw

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: rows of one batch
ROWS: Final = 65536


class RecordBatch(RecordColumns):
    """Records of a block, in the order of the block or of their sequences. Valid until the reader's next step."""

    __slots__ = ("buffer",)

    buffer: Buffer

    @classmethod
    def read(
        cls, buffer: Buffer, position: int, key: bytes, columns: RecordColumns | None = None
    ) -> tuple[Self, int, RecordFlaw]:
        """Reads records from a position up to the first that is not good; returns them, their end, and the reason.

        They are views of `columns`, if these are given.
        """
        if columns is None:
            columns = RecordColumns(min(ROWS, (len(buffer) - position) // EMPTY_RECORD_SIZE + 1))
        rows, end, flaw = kernels.scan_records(buffer, position, key, columns)
        batch = object.__new__(cls)
        batch.buffer = buffer
        batch._fill(columns, slice(rows))
        return batch, end, flaw

    def take(self, rows: int | slice | NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        part = super().take(rows)
        part.buffer = self.buffer
        return part

    @property
    def messages(self) -> Self:
        """The records that are messages."""
        return self.take(self.flags == 0)

    @property
    def stream_sequence(self) -> NDArray[np.uint64]:
        return self.sequence

    @property
    def offset(self) -> NDArray[np.int64]:
        """Where each record begins."""
        return self.subject_start - RECORD_HEAD_SIZE

    def subject(self, row: int) -> bytes:
        return text(self.buffer, self.subject_start, self.subject_size, row)

    def header(self, row: int) -> bytes:
        return text(self.buffer, self.header_start, self.header_size, row)

    def data(self, row: int) -> bytes:
        return text(self.buffer, self.data_start, self.data_size, row)

    def subjects(self) -> Iterator[bytes]:
        return texts(self.buffer, self.subject_start, self.subject_size)

    def headers(self) -> Iterator[bytes]:
        return texts(self.buffer, self.header_start, self.header_size)

    def payloads(self) -> Iterator[bytes]:
        return texts(self.buffer, self.data_start, self.data_size)

    def subject_hashes(self) -> NDArray[np.uint64]:
        """Returns a hash of each subject, which tells subjects of this process apart."""
        return kernels.subject_hashes(self.buffer, self)
