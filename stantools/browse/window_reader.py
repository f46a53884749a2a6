"""Reading the messages of a slice's runs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from stantools.browse.protobuf_fields import message_head
from stantools.browse.row_model import MessageStretch, ProvenMessage, Row, RowNote, RowNoteKind, WindowMessage
from stantools.browse.stretch_reader import BLOCK, HEAD, LARGE, StoredTexts, StretchReader
from stantools.errors import StoreUnreadableError
from stantools.format import gogo, kernels
from stantools.format.columns import MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, DecryptError, looks_encrypted, may_be_encrypted
from stantools.format.layout import (
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    Flag,
    ScanStop,
)
from stantools.format.message_batch import MessageBatch
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.survey import stop_text
from stantools.store.indexes import SliceIndex

_SAMPLES = 8


class SliceStretchReader(StretchReader):
    """Reads the messages of runs in slices. `channel` is the name as stored in subjects."""

    def __init__(self, channel: bytes, crc: Crc, *, key: bytes | None) -> None:
        super().__init__(channel, key=key)
        self._crc = crc
        self._cipher = ChannelCipher(key, channel) if key else None
        self.decrypts = self._cipher is not None

    def another(self, key: bytes | None) -> SliceStretchReader:
        return SliceStretchReader(self.channel, self._crc, key=key)

    def read(self, stretch: MessageStretch, offset: int, size: int) -> bytes:
        assert stretch.files.data is not None
        return self._open.read(stretch.files.data, offset, size)

    def texts(self, stretch: MessageStretch, located: MessageRecords) -> StoredTexts:
        start = int(located.offset[0])
        raw = self.read(stretch, start, located.end - start)
        batch, stops = MessageBatch.at(raw, located.offset - start, stretch.subject, self._crc.unchecked)
        fields = (batch.data_start, batch.data_size), (batch.reply_start, batch.reply_size)
        return StoredTexts(raw, batch.offset, batch.ends, stops == ScanStop.END, fields)

    def payload(self, stored: bytes) -> bytes:
        if self._cipher is not None and stored:
            with suppress(DecryptError):  # shown and searched as stored
                return self._cipher.decrypt(stored)
        return stored

    def _heads(self, stretch: MessageStretch) -> npt.NDArray[np.int64]:
        return stretch.marks if stretch.index_from is None else np.arange(0, stretch.count, BLOCK)

    def _head(self, stretch: MessageStretch, number: int) -> MessageRecords:
        if stretch.index_from is None:
            return self._first(stretch, number)
        return self._indexed(stretch, number * BLOCK, number * BLOCK + 1)

    def _load(self, stretch: MessageStretch, begin: int) -> MessageRecords:
        if stretch.index_from is not None:
            return self._indexed(stretch, begin, begin + BLOCK)
        return super()._load(stretch, begin)

    def _indexed(self, stretch: MessageStretch, low: int, high: int) -> MessageRecords:
        """Locates messages by the index, up to the first impossible place: the index has changed or is wrong."""
        assert stretch.files.index is not None and stretch.index_from is not None
        index = SliceIndex(partial(self._open.read, stretch.files.index), stretch.index_from + stretch.count)
        found = index.rows(stretch.index_from + low, stretch.index_from + high)
        ends = found.ends
        possible = (found.offset >= stretch.start) & (ends <= stretch.end)
        possible[1:] &= found.offset[1:] >= ends[:-1]
        return found if possible.all() else found.part(0, int(np.argmin(possible)))

    def _scan(self, stretch: MessageStretch, start: int, end: int, count: int) -> MessageRecords:
        assert stretch.files.data is not None
        raw = self._open.read(stretch.files.data, start, end - start)
        columns = MessageColumns(count)
        rows, _, _ = kernels.scan_messages(raw, 0, len(raw), self._crc.unchecked, stretch.subject, columns)
        part = columns.take(rows)
        part.offset += start
        return part.copied()

    def messages(self, stretch: MessageStretch, located: MessageRecords, *, whole: bool = False) -> list[Row]:
        assert stretch.files.data is not None
        path = stretch.files.data
        sizes = located.size.astype(np.int64) + RECORD_HEADER_SIZE
        if not whole:
            sizes = np.where(sizes > LARGE, HEAD, sizes)
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)[:-1])) if len(sizes) else sizes
        if len(sizes) and np.array_equal(located.offset - located.offset[0], starts):
            content = self._open.read(path, int(located.offset[0]), int(sizes.sum()))
        else:
            parts = zip(located.offset.tolist(), sizes.tolist(), strict=True)
            content = b"".join(
                self._open.read(path, offset, size).ljust(size, b"\0") if size <= LARGE or whole else b""
                for offset, size in parts
            )
        batch, stops = MessageBatch.at(content, starts, stretch.subject, self._crc)
        right = (stops == ScanStop.END) & (batch.sequence == located.sequence) & (batch.size == located.size)
        places = zip(located.offset.tolist(), located.size.tolist(), located.sequence.tolist(), strict=True)
        contents = zip(batch.timestamp.tolist(), batch.replies(), batch.payloads(), strict=True)
        rows: list[Row] = []
        for row, ((offset, size, sequence), (timestamp, reply, data)) in enumerate(zip(places, contents, strict=True)):
            start = int(starts[row])
            if not whole and size + RECORD_HEADER_SIZE > LARGE:
                head = content[start : start + HEAD]
                rows.append(self._of_head(stretch, head, offset, size, sequence, int(located.timestamp[row])))
                continue
            if not right[row]:
                rows.append(_bad(stretch, content[start:], ScanStop(int(stops[row])), offset, size, sequence))
                continue
            subject, flags = batch.record_subject(row), Flag(int(batch.flags[row]))
            if stretch.subject != self.channel:
                flags |= Flag.FOREIGN_SUBJECT
            crc = RECORD_HEADER.unpack_from(content, start)[1]
            file, length = stretch.files.name, len(data)
            message = WindowMessage(sequence, timestamp, subject, reply, data, length, file, offset, size, crc, flags)
            rows.append(self._decrypted(message))
        return rows

    def _decrypted(self, message: WindowMessage) -> WindowMessage:
        stored = message.data
        if not stored:
            return message
        if self._cipher is None:
            return replace(message, encrypted=self.encrypted and looks_encrypted(stored, message.sequence))
        try:
            data = self._cipher.decrypt(stored)
        except DecryptError as problem:
            return replace(message, error=problem.message, encrypted=True)
        return replace(message, data=data, encrypted=len(data) != len(stored))

    def _of_head(
        self, stretch: MessageStretch, head: bytes, offset: int, size: int, sequence: int, timestamp: int
    ) -> Row:
        """Returns a large message of which only the beginning was read."""
        if len(head) < RECORD_HEADER_SIZE or RECORD_HEADER.unpack_from(head)[0] != size:
            return _bad(stretch, head, ScanStop.BAD_DECODE, offset, size, sequence)
        crc = int(RECORD_HEADER.unpack_from(head)[1])
        fields = message_head(head[RECORD_HEADER_SIZE:])
        foreign = Flag.FOREIGN_SUBJECT if fields.subject != self.channel else Flag(0)
        flags = foreign | (Flag.HAS_REPLY if fields.reply else Flag(0))
        encrypted = looks_encrypted(fields.data, sequence) and (self._cipher is not None or self.encrypted)
        return WindowMessage(
            sequence,
            timestamp,
            fields.subject,
            fields.reply,
            fields.data,
            fields.data_size,
            stretch.files.name,
            offset,
            size,
            crc,
            flags,
            encrypted=encrypted,
            whole=False,
        )

    def proven(self, piece: ProvenMessage) -> Row:
        assert piece.files.data is not None
        note = RowNote(RowNoteKind.DAMAGE, "it has changed since it was read", piece.files.name, piece.offset, 0)
        try:
            payload = self._open.read(piece.files.data, piece.start, piece.size)
            message = gogo.decode(pb.MsgProto, payload)
        except StoreUnreadableError as error:
            return RowNote(RowNoteKind.FILE, error.message, piece.files.name)
        except gogo.DecodeError:
            return note
        if len(payload) != piece.size or message.sequence != piece.sequence:
            return note
        foreign = Flag.FOREIGN_SUBJECT if message.subject != self.channel else Flag(0)
        return self._decrypted(
            WindowMessage(
                message.sequence,
                message.timestamp,
                bytes(message.subject),
                bytes(message.reply),
                bytes(message.data),
                len(message.data),
                piece.files.name,
                piece.offset,
                piece.size,
                self._crc(payload),
                foreign | (Flag.HAS_REPLY if message.reply else Flag(0)),
                proven=True,
            )
        )

    def looks_encrypted(self, stretch: MessageStretch) -> bool:
        try:
            rows = self.messages(stretch, self.located(stretch, max(stretch.count - _SAMPLES, 0), stretch.count))
        except StoreUnreadableError:
            return False
        return may_be_encrypted((row.sequence, row.data) for row in rows if isinstance(row, WindowMessage))

    def _first(self, stretch: MessageStretch, number: int) -> MessageRecords:
        assert stretch.files.data is not None
        start = int(stretch.offsets[number])
        header = self._open.read(stretch.files.data, start, RECORD_HEADER_SIZE)
        if len(header) < RECORD_HEADER_SIZE:
            return MessageRecords.joined(())
        end = min(start + RECORD_HEADER_SIZE + int(RECORD_HEADER.unpack(header)[0]), stretch.end)
        return self._scan(stretch, start, end, 1)


def _bad(stretch: MessageStretch, found: bytes, stop: ScanStop, offset: int, size: int, sequence: int) -> RowNote:
    """Returns the note for a bad record."""
    text = stop_text(stop)
    if len(found) < RECORD_HEADER_SIZE:
        text = "the file ends before it"
    elif RECORD_HEADER.unpack_from(found)[0] != size:
        text = "its length is not the one in the index"
    elif stop is ScanStop.END:
        text = "another message is stored here than the index names"
    return RowNote(RowNoteKind.DAMAGE, text, stretch.files.name, offset, size + RECORD_HEADER_SIZE, sequence, sequence)
