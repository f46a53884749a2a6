"""The byte layout of file store files: sizes, struct formats, column types and codes.

Facts: filestore.md section 2. All integers are little endian.

    every file      | version u32 = 1 |
    untyped record  | size u32            | crc u32 | payload: size bytes |   server.dat, msgs.N.dat
    typed record    | size u24 | type u8  | crc u32 | payload: size bytes |   clients.dat, subs.dat
    index record    | sequence u64 | offset i64 | timestamp i64 | size u32 | crc u32 of the 28 bytes before |
"""

from __future__ import annotations

import enum
import struct

FILE_VERSION = 1
FILE_HEADER = struct.Struct("<I")
FILE_HEADER_SIZE = FILE_HEADER.size

RECORD_HEADER = struct.Struct("<II")
RECORD_HEADER_SIZE = RECORD_HEADER.size
MAX_TYPED_PAYLOAD = 0xFFFFFF

INDEX_RECORD = struct.Struct("<QqqII")
INDEX_RECORD_SIZE = INDEX_RECORD.size

#: bytes that the server counts for a stored message besides its payload (filestore.md section 5.1)
MESSAGE_OVERHEAD = RECORD_HEADER_SIZE + INDEX_RECORD_SIZE

#: numpy type of one index record, to view an index file in place
INDEX_DTYPE = [("sequence", "<u8"), ("offset", "<i8"), ("timestamp", "<i8"), ("size", "<u4"), ("crc", "<u4")]


class ScanStop(enum.IntEnum):
    """Reasons of a scan to stop (filestore.md section 7.2)."""

    END = 0  #: the limit was reached at a record boundary
    FULL = 1  #: the columns are full; call again from where it stopped
    SHORT_HEADER = 2  #: 1 to 7 bytes are left
    ZEROS = 3  #: 8 zero bytes in place of a record header
    DANGLING = 4  #: a header that announces a payload, and nothing after it
    SHORT_PAYLOAD = 5  #: part of the payload is missing
    BAD_CRC = 6  #: the payload does not match its CRC
    BAD_DECODE = 7  #: the payload is not the expected protobuf message


class Flag(enum.IntFlag):
    """Bits of the `flags` column of a message batch."""

    FOREIGN_SUBJECT = 1  #: the subject is not the name of the channel
    HAS_REPLY = 2
    REDELIVERED = 4  #: fields 6, 7 or 10 are set, which no server stores
    UNUSUAL = 8  #: decodes, but differs from the server's encoding of these fields
    BAD_CRC = 16  #: the CRC differs (only set when a scan continues after bad CRCs)


class SubFlag(enum.IntFlag):
    """Properties of the state of a subscription (filestore.md section 3.4)."""

    HAS_CLIENT = 1
    HAS_GROUP = 2
    HAS_DURABLE = 4  #: the name of a durable
    IS_DURABLE = 8
    IS_CLOSED = 16
    USUAL = 32  #: the record is as the server's encoder writes it, with an id and both inboxes
    MOVED = 64  #: later records show more messages sent than this record


class ClientRecord(enum.IntEnum):
    """Record types in clients.dat (filestore.md section 3.3)."""

    ADD = 1
    DELETE = 2


class SubRecord(enum.IntEnum):
    """Record types in subs.dat (filestore.md section 3.4)."""

    NEW = 1
    UPDATE = 2
    DELETE = 3
    ACK = 4
    MSG = 5
