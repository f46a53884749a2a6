"""Every record of a single file of a store: good, damaged, and the bytes in between.

The file may be anywhere: a `.bak` slice, a copy, a leftover of a compaction. Its kind follows from its name or is
given.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf.message import Message

from stantools.escaping import text
from stantools.format import gogo
from stantools.format.bbolt import Fault
from stantools.format.crc import Crc
from stantools.format.encryption import DataCipher
from stantools.format.envelope import check_file_version, read_record
from stantools.format.layout import (
    FILE_HEADER,
    FILE_HEADER_SIZE,
    INDEX_RECORD,
    INDEX_RECORD_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    Flag,
    ScanStop,
)
from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import EntryError, EntryType, RaftEntry, RaftFlaw, decode_configuration, decode_operation
from stantools.inspection.subscribers import fields_json
from stantools.inspection.survey import stop_text
from stantools.store.logrepair import CLIENTS_LOG, SUBS_LOG, LogLayout
from stantools.store.logscan import LogDamage, LogEntry, history, record_at
from stantools.store.mapping import Buffer
from stantools.store.raft import OpenLog
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile


class FileKind(enum.StrEnum):
    SERVER = "server"
    CLIENTS = "clients"
    SUBS = "subs"
    MESSAGES = "messages"
    INDEX = "index"
    BLOCK = "block"  #: of a JetStream stream; read by `stantools.inspection.block_records`


#: Layouts of logs, by kind.
LOGS: Final = {FileKind.CLIENTS: CLIENTS_LOG, FileKind.SUBS: SUBS_LOG}
_NAMES = (
    (re.compile(r"server\.dat"), FileKind.SERVER),
    (re.compile(r"clients\.dat[0-9]*"), FileKind.CLIENTS),
    (re.compile(r"subs(\.dat|[0-9]+)"), FileKind.SUBS),
    (re.compile(r"msgs\..*\.dat(\.bak)?"), FileKind.MESSAGES),
    (re.compile(r"msgs\..*\.idx(\.bak)?"), FileKind.INDEX),
    (re.compile(r"[1-9][0-9]*\.(blk(\.tmp)?|new)"), FileKind.BLOCK),
)
#: Fields of an index record, in their order.
INDEX_FIELDS: Final = ("sequence", "offset", "timestamp", "size")


def kind_of(name: str) -> FileKind | None:
    """Returns the kind of a file by its name; None if the name does not tell."""
    for pattern, kind in _NAMES:
        if pattern.fullmatch(name):
            return kind
    return None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A record, or a range of bytes that is none."""

    offset: int  #: first byte
    length: int  #: bytes, including the header
    type: str  #: name of the record's type; "version" for the file's first bytes
    ok: bool  #: the record is good
    crc: int | None = None  #: stored CRC; None if there is none
    computed: int | None = None  #: CRC of the payload; None if it cannot be determined
    detail: str = ""  #: damage
    fields: dict[str, Any] = field(default_factory=dict)  #: content of the record, by field name

    @property
    def sequence(self) -> int | None:
        """Sequence of the message that it refers to."""
        return self.fields.get("sequence", self.fields.get("seqno"))

    def as_json(self) -> dict[str, Any]:
        """Returns the record for json output; bytes stay bytes."""
        return {
            "offset": self.offset,
            "length": self.length,
            "type": self.type,
            "ok": self.ok,
            "crc": self.crc,
            "computed_crc": self.computed,
            "detail": self.detail,
            "fields": self.fields,
        }


def read_records(buffer: Buffer, kind: FileKind, crc: Crc, *, channel: bytes = b"") -> Iterator[FileRecord]:
    """Iterates over every record of a file of a store; together they cover all its bytes.

    With a `channel`, messages of another one are marked.
    """
    if error := check_file_version(buffer):
        yield FileRecord(0, min(len(buffer), FILE_HEADER_SIZE), "version", False, detail=error)
    else:
        yield FileRecord(0, FILE_HEADER_SIZE, "version", True, fields={"version": FILE_HEADER.unpack_from(buffer)[0]})
    if kind is FileKind.SERVER:
        yield from _server(buffer, crc)
    elif kind is FileKind.MESSAGES:
        yield from _messages(buffer, crc, channel)
    elif kind is FileKind.INDEX:
        yield from _index(buffer, crc)
    else:
        yield from _log(buffer, LOGS[kind], crc)


def read_raft_entries(buffer: Buffer, cipher: DataCipher | None = None) -> Iterator[FileRecord]:
    """Iterates over the entries of a Raft log and the damage in it, then over entries in free pages only."""
    log = OpenLog(buffer)
    yield from map(_flawed, log.faults)
    seen: list[tuple[int, int]] = []
    for each in log.entries():
        if not isinstance(each, RaftEntry):
            yield _flawed(each)
            continue
        if seen and seen[-1][1] + 1 == each.index:
            seen.append((seen.pop()[0], each.index))
        else:
            seen.append((each.index, each.index))
        yield _raft_record(each, cipher)
    in_tree = Ranges.of(seen)
    free: set[tuple[int, int]] = set()
    for each in log.free_entries():
        if each.index not in in_tree and (each.index, each.term) not in free:
            free.add((each.index, each.term))
            record = _raft_record(each, cipher)
            detail = f"in a free page{': ' if record.detail else ''}{record.detail}"
            yield replace(record, detail=detail, fields={"free": True} | record.fields)


def _flawed(flaw: Fault | RaftFlaw) -> FileRecord:
    fields = {"first": flaw.first, "last": flaw.last} if isinstance(flaw, RaftFlaw) else {}
    return FileRecord(flaw.offset or 0, flaw.length or 0, flaw.kind.value, False, detail=flaw.detail, fields=fields)


def _raft_record(entry: RaftEntry, cipher: DataCipher | None) -> FileRecord:
    fields: dict[str, Any] = {"index": entry.index, "term": entry.term}
    if entry.appended_ns is not None:
        fields["timestamp"] = entry.appended_ns
    kind, detail = entry.type_name, ""
    try:
        if entry.type == EntryType.CONFIGURATION:
            fields["servers"] = [each.id for each in decode_configuration(entry.data)]
        elif entry.type == EntryType.COMMAND:
            operation = decode_operation(entry.data, cipher)
            kind = pb.RaftOperation.Type.Name(operation.op_type).lower()
            fields |= _operation_fields(operation)
    except EntryError as error:
        detail = f"{error.message}; {error.remedy}" if error.remedy else error.message
        fields["size"] = len(entry.data)
    return FileRecord(entry.offset, entry.size, kind, not detail, detail=detail, fields=fields)


def _operation_fields(operation: pb.RaftOperation) -> dict[str, Any]:
    if operation.op_type == pb.RaftOperation.PUBLISH:
        messages = operation.publish_batch.messages
        if not messages:
            return {}
        return {
            "channel": text(messages[0].subject),
            "channel_id": operation.channel_id,
            "first": messages[0].sequence,
            "last": messages[-1].sequence,
            "size": sum(len(each.data) for each in messages),
            "data": b"".join(each.data for each in messages),
        }
    return {name: value for name, value in _set_fields(operation) if name != "op_type"}


def _set_fields(message: Message) -> Iterator[tuple[str, Any]]:
    """Iterates over the fields of a message that are set, including those of nested messages."""
    for descriptor, value in message.ListFields():
        if isinstance(value, Message):
            yield from _set_fields(value)
        elif isinstance(value, bytes):
            yield descriptor.name, value if descriptor.name == "conn_id" else text(value)
        else:
            yield descriptor.name, value if isinstance(value, int) else list(value)


def _server(buffer: Buffer, crc: Crc) -> Iterator[FileRecord]:
    stop, record = read_record(buffer, FILE_HEADER_SIZE, len(buffer), typed=False, crc=crc)
    at = FILE_HEADER_SIZE
    if stop is None and record is not None:
        at = record.end
        computed = crc(record.payload)
        try:
            fields = fields_json(gogo.decode(pb.ServerInfo, record.payload))
            yield FileRecord(
                record.offset, at - record.offset, "server", computed == record.crc, record.crc, computed, "", fields
            )
        except gogo.DecodeError as error:
            yield FileRecord(record.offset, at - record.offset, "server", False, record.crc, computed, str(error))
        if at < len(buffer):
            yield FileRecord(at, len(buffer) - at, "garbage", False, detail="nothing may follow the only record")
    elif at < len(buffer):
        stored = record.crc if record else None
        found = crc(record.payload) if record and stop is ScanStop.BAD_CRC else None
        detail = stop_text(stop) if stop else ""
        yield FileRecord(at, len(buffer) - at, "damaged", False, stored, found, detail)


def _log(buffer: Buffer, layout: LogLayout, crc: Crc) -> Iterator[FileRecord]:
    for entry in history(buffer, layout, crc):
        if isinstance(entry, LogDamage):
            if entry.offset == 0 and entry.length <= FILE_HEADER_SIZE:
                continue  # the version, shown already
            yield damage_record(entry, buffer, crc)
            continue
        yield entry_record(entry, buffer[entry.offset :], layout, crc)


def damage_record(damage: LogDamage, buffer: Buffer, crc: Crc) -> FileRecord:
    """Describes a damaged range of a log."""
    stored, computed = _crcs(buffer, damage.offset, damage.length, crc)
    fields = fields_json(damage.message) if damage.message else {}
    return FileRecord(damage.offset, damage.length, damage.kind.value, False, stored, computed, damage.detail, fields)


def entry_record(entry: LogEntry, buffer: Buffer, layout: LogLayout, crc: Crc) -> FileRecord:
    """Describes a log record that makes sense; its CRC may be wrong. `buffer` begins at the record's header."""
    _, _, stored, payload = record_at(buffer, 0)
    computed = crc(payload)
    return FileRecord(
        entry.offset,
        RECORD_HEADER_SIZE + entry.size,
        layout.type_name(entry.type),
        computed == stored,
        stored,
        computed,
        "" if computed == stored else "the payload does not match its CRC",
        fields_json(entry.message),
    )


def _messages(buffer: Buffer, crc: Crc, channel: bytes) -> Iterator[FileRecord]:
    if len(buffer) < FILE_HEADER_SIZE:
        return
    for part in SliceFile(buffer, channel, crc).records():
        if isinstance(part, DamagedRange):
            stored, computed = _crcs(buffer, part.offset, part.length, crc)
            fields = _message_fields(part.repair.message) if part.repair else {}
            if part.sequence is not None and not fields:
                fields = {"sequence": part.sequence}
            detail = stop_text(part.stop)
            yield FileRecord(part.offset, part.length, part.kind.value, False, stored, computed, detail, fields)
            continue
        for offset, size, flags in zip(part.offset.tolist(), part.size.tolist(), part.flags.tolist(), strict=True):
            begin = offset + RECORD_HEADER_SIZE
            payload = buffer[begin : begin + size]
            stored, computed = RECORD_HEADER.unpack_from(buffer, offset)[1], crc(payload)
            ok = stored == computed
            detail = "" if ok else "the payload does not match its CRC"
            if channel and flags & Flag.FOREIGN_SUBJECT:
                detail = "of another channel"
            fields = _message_fields(gogo.decode(pb.MsgProto, payload))
            yield FileRecord(offset, RECORD_HEADER_SIZE + size, "message", ok, stored, computed, detail, fields)


def _message_fields(message: pb.MsgProto) -> dict[str, Any]:
    """Returns the fields that a server stores; the payload as bytes under `data`."""
    return {
        "sequence": message.sequence,
        "timestamp": message.timestamp,
        "subject": text(message.subject),
        "reply": text(message.reply),
        "size": len(message.data),
        "data": message.data,
    }


def _index(buffer: Buffer, crc: Crc) -> Iterator[FileRecord]:
    at = FILE_HEADER_SIZE
    while at < len(buffer):
        record = bytes(buffer[at : at + INDEX_RECORD_SIZE])
        if len(record) < INDEX_RECORD_SIZE:
            yield FileRecord(at, len(record), "torn", False, detail=f"an index record has {INDEX_RECORD_SIZE} bytes")
            return
        if not any(record):
            length = INDEX_RECORD_SIZE
            while buffer[at + length : at + length + INDEX_RECORD_SIZE] == bytes(INDEX_RECORD_SIZE):
                length += INDEX_RECORD_SIZE
            yield FileRecord(at, length, "zeros", False, detail="zero bytes where an index record should be")
            at += length
            continue
        *values, stored = INDEX_RECORD.unpack(record)
        computed = crc(record[:-4])
        ok = stored == computed
        detail = "" if ok else "the record does not match its CRC"
        yield FileRecord(
            at, INDEX_RECORD_SIZE, "index", ok, stored, computed, detail, dict(zip(INDEX_FIELDS, values, strict=True))
        )
        at += INDEX_RECORD_SIZE


def _crcs(buffer: Buffer, offset: int, length: int, crc: Crc) -> tuple[int | None, int | None]:
    """Returns the CRC in a supposed record header, and the CRC of the bytes of the range after it."""
    if length < RECORD_HEADER_SIZE or offset + RECORD_HEADER_SIZE > len(buffer):
        return None, None
    stored = RECORD_HEADER.unpack_from(buffer, offset)[1]
    return stored, crc(buffer[offset + RECORD_HEADER_SIZE : offset + length])
