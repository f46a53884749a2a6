"""The type of a record of clients.dat or subs.dat, determined from its payload instead of its header.

The CRC of a record covers its payload only (filestore.md section 2.2), so a damaged size or type byte leaves a
payload that still proves itself:

* `proven_size` finds the size under which the stored CRC matches. Payloads are successive protobuf fields,
  so only the ends of fields are candidates.
* `recognise` identifies the message by its fields. The messages of a log never look alike: a subscription has
  inboxes, a sent or acknowledged message an id and a sequence, a deletion only an id.
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

#: Limits of fields and bytes of a payload whose size is searched for; real ones are far below.
_MAX_FIELDS = 64
_MAX_PAYLOAD = 1 << 16


@dataclass(frozen=True)
class Shape:
    """The fields of a message that identify a payload, and its record types."""

    types: tuple[int, ...]  #: record types; if there are two, only the state of the log tells which one it was
    message: type[Message]
    always: tuple[str, ...]  #: fields that are set in every such message of a server


@dataclass(frozen=True)
class LogLayout:
    name: str  #: file name
    types: type[ClientRecord | SubRecord]
    messages: Mapping[int, type[Message]]  #: message class by record type
    shapes: Sequence[Shape]  #: shapes that distinguish payloads
    unknown_type: str  #: the server's error text for other types

    @property
    def max_type(self) -> int:
        return max(self.messages)

    def type_name(self, code: int) -> str:
        """Returns the name of a record type; "" if there is none of this number."""
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
    """The meaning of a payload by its fields, whatever the header says."""

    types: tuple[int, ...]  #: possible record types
    message: Message  #: the decoded payload
    retyped: bool = False  #: the type byte in the header disagrees


def recognise(layout: LogLayout, payload: Buffer) -> PayloadReading | None:
    """Identifies a payload by its fields; None if no server writes such a payload to this log."""
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
    """Decodes a payload with a right CRC; where payload and type byte disagree, the payload counts.

    The CRC covers the payload, not the type byte. None if neither makes sense.
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
    """Finds the payload size in bytes under which a record's CRC matches; None if there is none.

    `offset` is that of the record's header, which must be intact in the file; `limit` the end of the file.
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
