"""Where one frame of an archive ends and the next begins (jetstream-migration.md section 7), while it goes by.

Every chunk begins with its type, a byte, and the length of the rest, three bytes little-endian. Between two chunks
another stream identifier may stand, which means nothing: that is how a restore shows that it is alive.
"""

from __future__ import annotations

from typing import Final

STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_HEAD = 4


class FrameTracker:
    """Follows the chunks of a framed stream that comes in pieces of any size."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def between(self) -> bool:
        """Whether the last piece ended where a chunk ends."""
        return not self._head and not self._left

    def feed(self, piece: bytes) -> None:
        """Takes note of the next piece."""
        position, size = 0, len(piece)
        while position < size:
            if self._left:
                step = min(self._left, size - position)
                self._left -= step
                position += step
                continue
            taken = piece[position : position + _HEAD - len(self._head)]
            self._head += taken
            position += len(taken)
            if len(self._head) == _HEAD:
                self._left = int.from_bytes(self._head[1:], "little")
                self._head = b""
