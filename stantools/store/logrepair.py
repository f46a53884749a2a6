"""The type of a record of clients.dat or subs.dat, from its payload instead of its header.

The CRC of a record covers its payload only (filestore.md section 2.2), so a damaged size or type byte
leaves a payload that still proves itself:

* `proven_size` finds the size under which the stored CRC matches. Payloads are protobuf fields one after the other,
  so only the ends of fields come into question.
* `recognise` identifies the message by its fields. The messages of a log never look alike: a subscription has inboxes,
  a sent or acknowledged message an id and a sequence, a deletion nothing but an id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError as UpbError
from google.protobuf.message import Message

from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE, ClientRecord, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.store.mapping import Buffer

#: A payload with more fields, or whose last field ends later, is not searched for its size. Real ones are far below.
_MAX_FIELDS = 64
_MAX_PAYLOAD = 1 << 16


@dataclass(frozen=True)
class Shape:
    """A message by which a payload can be determined, and the record types that have it."""

    types: tuple[int, ...]  #: record types; where there are two, only the state of the log decides which one it was
    message: type[Message]  #: the message class
    always: tuple[str, ...]  #: fields that are set in every such message that a server writes


@dataclass(frozen=True)
class LogLayout:
    """One of the two kinds of log file."""

    name: str  #: file name
    types: type[ClientRecord | SubRecord]  #: record types
    messages: Mapping[int, type[Message]]  #: record type to message class
    shapes: Sequence[Shape]  #: what distinguishes payloads
    unknown_type: str  #: the server's error text for another type

    @property
    def max_type(self) -> int:
        """The highest record type."""
        return max(self.messages)

    def type_name(self, code: int) -> str:
        """Returns what a record type is called; "" if there is none of the number."""
        return self.types(code).name.lower() if code in self.messages else ""


CLIENTS_LOG = LogLayout(
    "clients.dat",
    ClientRecord,
    {ClientRecord.ADD: pb.ClientInfo, ClientRecord.DELETE: pb.ClientDelete},
    (
        Shape((ClientRecord.ADD,), pb.ClientInfo, ("id", "hb_inbox")),
        Shape((ClientRecord.DELETE,), pb.ClientDelete, ("id",)),
    ),
    "invalid client record type: {}",
)

SUBS_LOG = LogLayout(
    "subs.dat",
    SubRecord,
    {
        SubRecord.NEW: pb.SubState,
        SubRecord.UPDATE: pb.SubState,
        SubRecord.DELETE: pb.SubStateDelete,
        SubRecord.ACK: pb.SubStateUpdate,
        SubRecord.MSG: pb.SubStateUpdate,
    },
    (
        Shape((SubRecord.NEW, SubRecord.UPDATE), pb.SubState, ("id", "inbox", "ack_inbox")),
        Shape((SubRecord.ACK, SubRecord.MSG), pb.SubStateUpdate, ("id", "seqno")),
        Shape((SubRecord.DELETE,), pb.SubStateDelete, ("id",)),
    ),
    "unexpected record type: {}",
)


@dataclass(frozen=True, slots=True)
class PayloadReading:
    """What a payload is by its fields, whatever the header says."""

    types: tuple[int, ...]  #: the record types it can have
    message: Message  #: the decoded payload
    retyped: bool = False  #: the type byte in the header says something else


def recognise(layout: LogLayout, payload: Buffer) -> PayloadReading | None:
    """Identifies a payload by its fields; None if it is nothing that a server writes to this log."""
    data = bytes(payload)
    for shape in layout.shapes:
        message = shape.message()
        try:
            message.ParseFromString(data)
        except UpbError:
            continue
        message.DiscardUnknownFields()
        if message.SerializeToString() == data and all(getattr(message, name) for name in shape.always):
            return PayloadReading(shape.types, message)
    return None


def read_payload(layout: LogLayout, kind: int, payload: Buffer) -> PayloadReading | None:
    """Decodes a payload whose CRC is right, and doubts the type byte where the payload contradicts it.

    Args:
        layout: Which log it is from.
        kind: Type in the record's header.
        payload: The payload.

    Returns:
        What it is. Where the payload says one thing and the type byte another, the payload is right: it is covered by
        the CRC. None if neither makes sense.
    """
    known = recognise(layout, payload)
    if known is not None:
        if kind in known.types:
            return PayloadReading((kind,), known.message)
        return PayloadReading(known.types, known.message, retyped=True)
    if kind not in layout.messages:
        return None
    try:
        message = gogo.decode(layout.messages[kind], payload)
    except gogo.DecodeError:
        return None
    return PayloadReading((kind,), message) if getattr(message, "id", None) else None


def proven_size(buffer: Buffer, offset: int, limit: int, crc: Crc) -> int | None:
    """Finds the payload size under which a record's CRC matches, whatever size its header names.

    Args:
        buffer: The file.
        offset: Of the record's header, which must be there.
        limit: Where the file ends.
        crc: The store's CRC.

    Returns:
        The size in bytes, at least 1; None if no size is proven.
    """
    _, stored = RECORD_HEADER.unpack_from(buffer, offset)
    begin = offset + RECORD_HEADER_SIZE
    data = buffer[begin : min(limit, begin + _MAX_PAYLOAD)]
    at = computed = 0
    for _ in range(_MAX_FIELDS):
        if at >= len(data):
            return None
        try:
            end = gogo.skip_field(data, at)
        except gogo.DecodeError:
            return None
        computed = crc(data[at:end], computed)
        at = end
        if computed == stored:
            return at
    return None
