"""Bytes that come in pieces of any size, taken in sizes that the reader wants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stantools.migration.archive.errors import ArchiveError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Pull:
    """Takes bytes from an iterator of pieces. A piece is not looked at again after the next one was asked for.

    Args:
        pieces: The bytes.
        name: What they are, for messages.

    Attributes:
        position: How many bytes were taken.
    """

    def __init__(self, pieces: Iterator[ReadableBuffer], name: str) -> None:
        self.name = name
        self.position = 0
        self._pieces = pieces
        self._piece = memoryview(b"")

    def _more(self) -> bool:
        """Makes sure that there is a byte, unless the end is reached."""
        while not len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._piece = memoryview(piece).cast("B")
        return True

    def at_end(self) -> bool:
        """Tells whether nothing follows."""
        return not self._more()

    def take(self, size: int) -> bytearray:
        """Returns the next `size` bytes.

        Raises:
            ArchiveError: There are not that many.
        """
        taken = bytearray()
        while len(taken) < size:
            if not self._more():
                raise ArchiveError(f"{self.name} ends at byte {self.position}, {size - len(taken)} bytes are missing")
            part = self._piece[: size - len(taken)]
            taken += part
            self._piece = self._piece[len(part) :]
            self.position += len(part)
        return taken

    def rest(self) -> Iterator[memoryview]:
        """Takes everything up to the end, piece by piece."""
        while self._more():
            piece, self._piece = self._piece, memoryview(b"")
            self.position += len(piece)
            yield piece
