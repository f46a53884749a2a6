"""Reading one message record as the server does, with the server's error texts (filestore.md sections 7.2 and 7.6)."""

from __future__ import annotations

from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.envelope import EOF_TEXT, PADDED_TEXT, crc_error_text
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.store.mapping import Buffer

#: What reading at the very end of a file gives.
END_TEXT = "EOF"


def read_payload(
    buffer: Buffer, offset: int, limit: int, crc: Crc, *, check_crc: bool = True, size: int | None = None
) -> tuple[Buffer, str]:
    """Reads the payload of the record at an offset.

    Args:
        buffer: The data file.
        offset: Of the record's header; any number.
        limit: Where the file ends.
        crc: The server's CRC.
        check_crc: Refuse records whose CRC is wrong.
        size: Take this for the payload's size, whatever the header says: so the server does when it reads ahead.

    Returns:
        The payload and "", or nothing and the error text.
    """
    nothing = buffer[:0]
    left = limit - offset
    if offset < 0 or left <= 0:
        return nothing, END_TEXT
    if left < RECORD_HEADER_SIZE:
        return nothing, EOF_TEXT
    announced, stored = RECORD_HEADER.unpack_from(buffer, offset)
    if size is None:
        if announced == 0 and stored == 0:
            return nothing, PADDED_TEXT
        size = announced
    left -= RECORD_HEADER_SIZE
    if size > left:
        return nothing, EOF_TEXT if left else END_TEXT
    begin = offset + RECORD_HEADER_SIZE
    payload = buffer[begin : begin + size]
    if check_crc and (computed := crc(payload)) != stored:
        return nothing, crc_error_text(stored, computed)
    return payload, ""


def decode_message(payload: Buffer) -> tuple[pb.MsgProto | None, str]:
    """Decodes a message; returns it and "", or None and the server's error text."""
    try:
        return gogo.decode(pb.MsgProto, payload), ""
    except gogo.DecodeError as error:
        return None, str(error)


def check_last_message(buffer: Buffer, sequence: int, offset: int, size: int, crc: Crc, *, since_0_25: bool) -> str:
    """Checks the last message of a slice against its index record (filestore.md section 7.6).

    Args:
        buffer: The data file.
        sequence: Sequence in the index record.
        offset: Offset in the index record.
        size: Size in the index record.
        crc: The server's CRC; it is checked even where the server was told not to.
        since_0_25: The server is 0.25.0 or later.

    Returns:
        "" if they agree, else the error text without its prefix.
    """
    if offset < 0:
        return f"unable to set position to {offset}"
    if since_0_25 and size and len(buffer) - offset >= RECORD_HEADER_SIZE:
        announced, stored = RECORD_HEADER.unpack_from(buffer, offset)
        if announced != size and (announced or stored):
            return f"unable to read last record: expected record size to be {size} bytes, got {announced} bytes"
    payload, error = read_payload(buffer, offset, len(buffer), crc)
    if error:
        return f"unable to read last record: {error}"
    message, error = decode_message(payload)
    if message is None:
        return f"error decoding message: {error}"
    if not since_0_25 and len(payload) != size:
        return f"last message size in index is {size}, data file is {len(payload)}"
    if message.sequence != sequence:
        return f"last message sequence in index is {sequence}, data file is {message.sequence}"
    return ""
