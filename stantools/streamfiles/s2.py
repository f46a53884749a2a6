"""Decompression of S2, the dialect of snappy that real servers write (jetstream-server.md section 20).

A block of snappy is one of S2 as well. S2 adds one form: a copy with an offset of one byte that is 0 repeats the last
offset, and has more lengths. A framed stream of such blocks is described in `framing`.
"""

from __future__ import annotations

from typing import Final

from stantools.streamfiles import kernels

IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
#: maximum uncompressed bytes in a chunk
MAX_CHUNK: Final = 4 << 20
#: Bytes of a block that are taken into memory, compressed or not: a server's has 8 MiB and a record more.
MAX_CONTENT: Final = 64 << 20
_HEAD_SIZE: Final = 8
_COMPRESSED, _STORED = 0x00, 0x01


def decompress(data: bytes, limit: int) -> bytes:
    """Returns the content of a block; ValueError if it is damaged, or larger than `limit` bytes."""
    content, complete = kernels.decompress_s2(data, limit)
    if not complete:
        raise ValueError(f"it is damaged after {len(content)} bytes, or has more than {limit}")
    return content


def unframe(data: bytes, size_of_content: int | None = None, limit: int = MAX_CONTENT) -> bytes:
    """Returns the content of a framed stream; ValueError with a server's text at the first damage.

    With its size, nothing after that much of it is read. More than the limit is no content of a block.
    """
    out, position = bytearray(), 0
    while position < len(data) and (size_of_content is None or len(out) < size_of_content):
        if len(out) > limit:
            raise ValueError(f"it holds more than {limit} bytes")
        kind, size = data[position], int.from_bytes(data[position + 1 : position + 4], "little")
        end = position + 4 + size
        if end > len(data):
            raise ValueError("unexpected EOF")
        if kind in (_COMPRESSED, _STORED):
            if not 4 <= size <= MAX_CHUNK + 4:
                raise ValueError("s2: corrupt input")
            content, complete = data[position + _HEAD_SIZE : end], True
            if kind == _COMPRESSED:
                content, complete = kernels.decompress_s2(content, MAX_CHUNK)
            crc = kernels.crc32c(content)
            if not complete:
                raise ValueError("s2: corrupt input")
            stored = int.from_bytes(data[position + 4 : position + _HEAD_SIZE], "little")
            if (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF != stored:
                raise ValueError("s2: corrupt input, crc mismatch")
            out += content
        elif kind == IDENTIFIER[0] and data[position:end] != IDENTIFIER:
            raise ValueError("s2: corrupt input")
        elif kind < 0x80:
            raise ValueError("s2: unsupported input")
        position = end
    if size_of_content is not None and len(out) < size_of_content:
        raise ValueError("unexpected EOF")
    return bytes(out)


def unframe_leniently(data: bytes, position: int, end: int, limit: int) -> tuple[bytearray, int, list[int]]:
    """Returns what can be decompressed of a framed stream from `position` to `end`, without its checksums.

    The records in it prove themselves. Of a damaged chunk the content before the first impossible token is kept, and
    the next chunk follows it; a chunk that passes `end` is cut. Also returned: the end of the stream, and the offsets
    of the damaged chunks.
    """
    out, damaged = bytearray(), list[int]()
    while position + _HEAD_SIZE <= end and len(out) < limit:
        kind, size = data[position], int.from_bytes(data[position + 1 : position + 4], "little")
        if data.startswith(IDENTIFIER, position):
            position += len(IDENTIFIER)
            continue
        if not 4 <= size <= MAX_CHUNK + 4 or kind not in (_COMPRESSED, _STORED):
            break
        content, complete = data[position + _HEAD_SIZE : position + 4 + size], position + 4 + size <= end
        if kind == _COMPRESSED:
            content, decoded = kernels.decompress_s2(content, MAX_CHUNK)
            complete &= decoded
        out += content
        if not complete:
            damaged.append(position)
        position = min(position + 4 + size, len(data))
    return out, position, damaged
