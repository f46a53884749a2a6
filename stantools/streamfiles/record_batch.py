"""Records of a block on their way into a stream: columns, and the buffer that they point into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stantools.format.envelope import Buffer
from stantools.streamfiles.layout import RecordColumns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Messages as records of a block, in rising order. Valid until the next batch is requested."""

    buffer: Buffer | bytes
    columns: RecordColumns

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def sequence(self) -> npt.NDArray[np.uint64]:
        return self.columns.sequence

    @property
    def stream_sequence(self) -> npt.NDArray[np.uint64]:
        return self.columns.sequence

    @property
    def timestamp(self) -> npt.NDArray[np.int64]:
        return self.columns.timestamp
