"""Index files as numpy arrays, in place (msgs.N.idx, filestore.md section 2.3).

4 bytes version | 32 bytes a message: sequence u64, offset i64, timestamp i64, size u32, crc u32
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from stantools.format.layout import FILE_HEADER_SIZE, INDEX_DTYPE, INDEX_RECORD_SIZE
from stantools.lazy_numpy import np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray


@cache
def dtype() -> np.dtype[Any]:
    return np.dtype(INDEX_DTYPE)


def view(buffer: ReadableBuffer, count: int) -> NDArray[Any]:
    """Returns the first `count` records of a whole index file, not copied and not checked."""
    data = memoryview(buffer)
    if not 0 <= count <= (data.nbytes - FILE_HEADER_SIZE) // INDEX_RECORD_SIZE and count:
        raise ValueError(f"{count} index records in {data.nbytes} bytes")
    if not count:
        return np.empty(0, dtype())
    return np.frombuffer(data, dtype(), count, FILE_HEADER_SIZE)
