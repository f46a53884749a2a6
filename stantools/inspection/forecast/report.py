r"""The texts that the server logs about a bad record, and its way of quoting (filestore.md section 7.8).

Unexpected EOF for file "/store/foo/msgs.1.dat"          Corrupted record in file "...": corrupted data, ...
It is recommended that you make a copy ...               (only where it could be cut and is not)
Restart with the ContinueOnUnexpectedEOF flag ...        (same)
Dataloss may occur. Details ...                          (same)
Record header:
 Bytes:
42 00 00 00 17 b2 59 9e
 Type: 1                                                 (typed files, whole header)
 Size: 66                                                (whole header)
 CRC : 0x9e59b217                                        (whole header)
Record payload:                                          (whole header)
08 25 12                                                    - .%.
record payload expected to be 66 bytes, only read 3      (only where it could be cut and is not)
"""

from __future__ import annotations

from collections.abc import Iterator

from stantools.format.layout import MAX_TYPED_PAYLOAD, RECORD_HEADER, RECORD_HEADER_SIZE
from stantools.format.quoting import quote
from stantools.store.mapping import Buffer

_DUMP_BYTES = 20
_DUMP_WIDTH = 59
#: A damaged size field can announce gigabytes, all of which the server prints. Lines beyond this number are dropped.
_DUMP_LINES = 500

#: Replacement for the server's text for byte 128: it writes the bare byte.
_BARE_BYTE = "\N{REPLACEMENT CHARACTER}"


def error(line: str) -> str:
    return f"[ERR] STREAM: {line}"


def warning(line: str) -> str:
    return f"[WRN] STREAM: {line}"


def info(line: str) -> str:
    return f"[INF] STREAM: {line}"


def torn_record(buffer: Buffer, offset: int, *, file: str, store: str, typed: bool, truncate: bool) -> list[str]:
    """Returns the log lines about a record that the end of the file cuts off, at `offset`.

    `file` and `store` are full paths as the server names them. `typed`: the file has typed records. A server with
    the `truncate` option shows the record and no advice.
    """
    lines = [error(f"Unexpected EOF for file {quote(file)}")]
    if not truncate:
        lines += [
            error(f"It is recommended that you make a copy of the whole datatstore {quote(store)}."),
            error(f"Restart with the ContinueOnUnexpectedEOF flag to truncate this file to this offset: {offset}."),
            error("Dataloss may occur. Details about the first corrupted record follows..."),
        ]
    lines += _record(buffer, offset, typed=typed)
    if truncate:
        return lines
    left = len(buffer) - offset
    if left < RECORD_HEADER_SIZE:
        missing = f"record header expected to be {RECORD_HEADER_SIZE} bytes, only read {left}"
    else:
        size = _size(buffer, offset, typed=typed)
        missing = f"record payload expected to be {size} bytes, only read {left - RECORD_HEADER_SIZE}"
    return [*lines, error(missing)]


def cluster_id_error(configured: str, recovered: str) -> str:
    return f"cluster ID {quote(configured)} does not match recovered value of {quote(recovered)}"


def repaired(file: str, offset: int) -> list[str]:
    """Returns the log line about a file that was cut."""
    return [info(f"File {quote(file)} has been truncated to offset: {offset}"), info("Recovery resumes...")]


def corrupted_record(buffer: Buffer, offset: int, *, file: str, reason: str, typed: bool) -> list[str]:
    """Returns the log lines about a record with a wrong CRC; `reason` is the CRC error."""
    return [error(f"Corrupted record in file {quote(file)}: {reason}"), *_record(buffer, offset, typed=typed)]


def _size(buffer: Buffer, offset: int, *, typed: bool) -> int:
    word: int = RECORD_HEADER.unpack_from(buffer, offset)[0]
    return word & MAX_TYPED_PAYLOAD if typed else word


def _record(buffer: Buffer, offset: int, *, typed: bool) -> list[str]:
    header = bytes(buffer[offset : offset + RECORD_HEADER_SIZE])
    lines = ["Record header:", " Bytes:", header.hex(" ")]
    if len(header) == RECORD_HEADER_SIZE:
        word, crc = RECORD_HEADER.unpack(header)
        size = _size(buffer, offset, typed=typed)
        if typed:
            lines.append(f" Type: {word >> 24}")
        lines += [f" Size: {size}", f" CRC : 0x{crc:08x}", "Record payload:"]
        begin = offset + RECORD_HEADER_SIZE
        lines += _dump(buffer[begin : begin + size])
    return [error(line) for line in lines]


def _dump(payload: Buffer) -> Iterator[str]:
    shown = min(len(payload), _DUMP_LINES * _DUMP_BYTES)
    for start in range(0, shown, _DUMP_BYTES):
        part = bytes(payload[start : min(start + _DUMP_BYTES, shown)])
        yield f"{part.hex(' '):<{_DUMP_WIDTH}} - {''.join(map(_character, part))}"
    if shown < len(payload):
        yield f"... {-(-(len(payload) - shown) // _DUMP_BYTES)} lines ..."


def _character(byte: int) -> str:
    if byte == 128:
        return _BARE_BYTE
    return chr(byte) if 32 <= byte < 128 else "."
