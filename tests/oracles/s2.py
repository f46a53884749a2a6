"""Decompression of S2 in Python, which the compiled one is compared with.

A block of snappy is one of S2 as well. S2 adds one form: a copy with an offset of one byte that is 0 repeats the
last offset, and has more lengths.
"""

from __future__ import annotations

from typing import Final

#: lengths of a copy that repeats the last offset, by the field of the tag: bytes of the length, and the number added to
#: it
_LONGER: Final = {5: (1, 8), 6: (2, 260), 7: (3, 65540)}


def decompress(data: bytes, limit: int) -> bytearray:
    """Returns the content of a block; ValueError if it is damaged, or larger than `limit` bytes."""
    size, at = _varint(data)
    if size > limit:
        raise ValueError(f"it claims {size} bytes uncompressed, at most {limit} are expected")
    out = bytearray()
    offset = 0
    end = len(data)
    while at < end and len(out) <= size:
        tag = data[at]
        at += 1
        field = tag >> 2
        match tag & 3:
            case 0:
                if field >= 60:
                    more = field - 59
                    field = int.from_bytes(data[at : at + more], "little")
                    at += more
                out += data[at : at + field + 1]
                at += field + 1
                continue
            case 1:
                field &= 7
                near = (tag & 0xE0) << 3 | (data[at] if at < end else 0)
                at += 1
                if near:
                    offset, length = near, field + 4
                else:
                    more, base = _LONGER.get(field, (0, field + 4))
                    length = base + int.from_bytes(data[at : at + more], "little")
                    at += more
            case kind:
                width = 2 if kind == 2 else 4
                offset, length = int.from_bytes(data[at : at + width], "little"), field + 1
                at += width
        if not 0 < offset <= len(out) or length > size - len(out):
            raise ValueError(f"it has an impossible copy at byte {at}")
        begin = len(out) - offset
        piece = out[begin : begin + length]
        out += piece if length <= offset else (piece * (length // offset + 1))[:length]
    if at != end or len(out) != size:
        raise ValueError(f"it ends at byte {at} with {len(out)} bytes, {size} are expected")
    return out


def _varint(data: bytes) -> tuple[int, int]:
    value = 0
    for at, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, at + 1
    raise ValueError("it has no size")
