"""Numbers in the files of a stream: varints of seven bits per byte; a zigzag number has its sign in the lowest bit."""

from __future__ import annotations

from typing import Final

from stantools.streamfiles.layout import ArchiveError

_MAX_VARINT: Final = 10


class VarintReader:
    """Reads successive numbers; every method raises ArchiveError at the end, which names the data by `noun`."""

    def __init__(self, data: bytes, position: int, noun: str = "it") -> None:
        self._data = data
        self._noun = noun
        self.position = position  #: where the next number begins

    def take(self) -> int:
        value = shift = 0
        for byte in self._data[self.position : self.position + _MAX_VARINT]:
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if value >> 64:
                    break
                return value
        raise ArchiveError(f"{self._noun} has no number before byte {self.position} of {len(self._data)}")

    def signed(self) -> int:
        value = self.take()
        return value >> 1 ^ -(value & 1)

    def raw(self, size: int) -> bytes:
        if size > len(self._data) - self.position:
            raise ArchiveError(f"{self._noun} ends at byte {len(self._data)}")
        self.position += size
        return self._data[self.position - size : self.position]

    def bounded(self, count: int, size: int) -> int:
        """Returns the count, if that many entries of at least `size` bytes can follow."""
        if count > (len(self._data) - self.position) // size:
            raise ArchiveError(f"{self._noun} claims {count} entries and ends at byte {len(self._data)}")
        return count


def put(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def zigzag(value: int) -> int:
    """Returns a signed number in its unsigned encoding."""
    return value << 1 if value >= 0 else (-value << 1) - 1
