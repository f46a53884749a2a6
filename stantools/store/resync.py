"""Resynchronisation after damage in a message slice.

A scan that stops at a bad record asks `Resync.after` for the kind of the damage and the place to continue. Three
kinds of evidence are used, the strongest first (filestore.md sections 2.2, 7.2 and weaknesses W4, W12, W14, W18):

1. a stored CRC that matches under another length proves the payload: only the length field is damaged. Such a payload
   is whole, so the candidate lengths are those at which one of its fields ends;
2. later good records: at the place that the damaged record's own length names, at the offsets of the index, and at the
   next offset at which a record proves itself by structure and CRC;
3. the chain: a record found by search counts only if it is not a copy inside the payload of a bigger record.
   Encoded messages end with their timestamp, so a chain of embedded records never runs into the next real one, and
   never across the place where it begins.

Little is read twice, whatever the file holds: a search follows a limited number of chains, and an allowance limits
the bytes that are read on mere suspicion.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stantools.format import fieldscan, gogo, kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER, RECORD_HEADER_SIZE, ScanStop
from stantools.format.proto import store_pb2 as pb
from stantools.lazy_numpy import np
from stantools.store.indexes import IndexOrder, SliceIndex
from stantools.store.mapping import WINDOW, Buffer, MappedWindow, data_from, find_in_data

if TYPE_CHECKING:
    pass

#: maximum number of records considered as the end of one damaged record
_CANDIDATES = 32
_INDEX_CANDIDATES = 64
_ZERO_CHUNK = 1 << 20
_SEARCH_BLOCK = 1 << 18
#: Bytes that may be read on mere suspicion, in sizes of the file. Damage alone stays far below, as it only concerns the
#: damaged record.
_ALLOWANCE = 8
#: bytes from the record header that are used to guess the sequence of a damaged record
_HEAD = 40
#: tag of the last field that the server writes into a message (filestore.md section 3.5)
_TIMESTAMP_TAG = 0x28
_SUBJECT_TAG = 0x12
#: Wire types of protobuf (filestore.md section 3.1), and the sizes of the fixed ones.
_LENGTH_DELIMITED = 2
_FIXED_SIZES = {1: 8, 5: 4}


class DamageKind(enum.StrEnum):
    TORN = "torn"  #: the file ends inside a record
    ZEROS = "zeros"  #: zero bytes in place of records
    PAYLOAD = "payload"  #: a whole record whose payload does not match its CRC
    LENGTH = "length"  #: the length field is wrong, the payload is proven by its CRC
    CRC_FIELD = "crc-field"  #: one byte of the CRC field is wrong, the payload is whole
    UNDECODABLE = "undecodable"  #: the CRC is right, the payload is not a message
    GARBAGE = "garbage"  #: bytes without any recognisable record


@dataclass(frozen=True)
class Repair:
    """A message whose record header is damaged and whose payload is proven."""

    start: int  #: offset of the payload in the file
    size: int  #: true length in bytes
    message: pb.MsgProto  #: the decoded message


@dataclass(frozen=True)
class DamagedRange:
    offset: int
    length: int  #: bytes up to the next good record or the end
    kind: DamageKind
    stop: ScanStop  #: reason of the server's reader to stop here
    sequence: int | None = None  #: the sequence that was stored here, if the bytes or the index show it
    stored_crc: int = 0  #: the CRC in the header, if there is one
    computed_crc: int = 0  #: the CRC of the payload that the header announces, if it is there
    repair: Repair | None = None  #: the message, if it is proven in spite of the damage

    @property
    def end(self) -> int:
        return self.offset + self.length


class Resync:
    """Finds the next good record after damage in one slice, from its data and its index.

    `index` holds the good records of the index file, if there is one.
    """

    def __init__(self, buffer: Buffer, channel: bytes, crc: Crc, index: SliceIndex | None = None) -> None:
        self._buffer = buffer
        self._limit = len(buffer)
        self._channel = channel
        self._crc = crc.checking
        self._index = IndexOrder(SliceIndex(memoryview(b""), 0) if index is None else index)
        self._allowance = _ALLOWANCE * len(buffer)
        self._row_columns = MessageColumns(1)
        self._batch_columns = MessageColumns(256)

    def after(self, at: int, stop: ScanStop) -> DamagedRange:
        """Returns the kind and the extent of the damage at a record boundary where a scan stopped."""
        if stop == ScanStop.ZEROS or not any(self._buffer[at : min(at + RECORD_HEADER_SIZE, self._limit)]):
            return self._zeros(at, stop)
        if stop in (ScanStop.SHORT_HEADER, ScanStop.DANGLING):
            return self._damage(at, self._limit, DamageKind.TORN, stop)
        size, stored = RECORD_HEADER.unpack_from(self._buffer, at)
        natural = at + RECORD_HEADER_SIZE + size
        if stop == ScanStop.BAD_DECODE:
            return self._damage(at, natural, DamageKind.UNDECODABLE, stop, stored, stored)
        computed = 0
        if natural <= self._limit:
            computed = self._crc(self._buffer[at + RECORD_HEADER_SIZE : natural])
        fields = list(self._fields(at + RECORD_HEADER_SIZE))
        if repair := self._proven(at, fields, stored):
            return self._repaired(at, repair, DamageKind.LENGTH, stop, stored, computed)
        following = self._next_indexed(at)
        if (
            natural <= self._limit
            and not 0 <= following < natural
            and self._lands(natural)
            and not self._hides_records(at, next((end for tag, end in fields if tag == _TIMESTAMP_TAG), None), natural)
        ):
            return self._whole_record(at, natural, stop, stored, computed)
        return self._search(at, following, stop, stored, computed)

    def _zeros(self, at: int, stop: ScanStop) -> DamagedRange:
        end = self._zero_run_end(at)
        if end < self._limit:
            # The low bytes of the next record's length may be zeros that belong to it, so the search starts early.
            found = self._find(max(at + 1, end - RECORD_HEADER_SIZE + 1))
            end = self._limit if found < 0 else found
        return self._damage(at, end, DamageKind.ZEROS, stop)

    def _zero_run_end(self, at: int) -> int:
        window = MappedWindow(self._buffer)
        while at < self._limit:
            chunk = np.frombuffer(self._buffer[at : min(at + _ZERO_CHUNK, self._limit)], dtype=np.uint8)
            if chunk.any():
                return at + int((chunk != 0).argmax())
            at = min(data_from(self._buffer, at + len(chunk))[0], self._limit)
            window.reach(at)
        return self._limit

    def _whole_record(self, at: int, natural: int, stop: ScanStop, stored: int, computed: int) -> DamagedRange:
        difference = stored ^ computed
        if any(difference & ~(0xFF << shift) == 0 for shift in (0, 8, 16, 24)):
            # Damage of the payload changes all four bytes of a CRC; a single wrong byte means that the field itself was
            # hit.
            repair = self._decode(at + RECORD_HEADER_SIZE, natural)
            if repair and repair.message.sequence:
                return self._repaired(at, repair, DamageKind.CRC_FIELD, stop, stored, computed)
        return self._damage(at, natural, DamageKind.PAYLOAD, stop, stored, computed)

    def _search(self, at: int, following: int, stop: ScanStop, stored: int, computed: int) -> DamagedRange:
        chosen = fallback = -1
        start = at + 1
        for _ in range(_CANDIDATES):
            found = self._find(start)
            if found < 0:
                break
            start = self._chain_end(found)
            if self._acceptable(at, found, start, following):
                chosen = found
                break
            if fallback < 0:
                fallback = found
        if chosen < 0:
            chosen = following if following >= 0 else fallback
        if chosen < 0:
            torn = stop == ScanStop.SHORT_PAYLOAD and self._guess_sequence(at) is not None
            return self._damage(
                at, self._limit, DamageKind.TORN if torn else DamageKind.GARBAGE, stop, stored, computed
            )
        return self._damage(at, chosen, DamageKind.GARBAGE, stop, stored, computed)

    def _acceptable(self, at: int, found: int, end: int, following: int) -> bool:
        """Returns whether a found chain is a real one. In doubt it is: no intact record may be lost."""
        if self._entry(found) is not None:
            return True
        if end == self._limit or (following >= 0 and end >= following > found):
            return True
        if 0 <= following < found or (following >= 0 and self._is_next_entry(at, following)):
            return False
        return not self._ends_payload(end)

    def _ends_payload(self, end: int) -> bool:
        """Returns whether records that end here lie at the end of a payload: a timestamp field, then a good record."""
        if end >= self._limit or self._buffer[end] != _TIMESTAMP_TAG:
            return False
        for place in range(end + 1, min(end + 11, self._limit)):
            if self._buffer[place] < 0x80:
                return self._lands(place + 1)
        return False

    def _chain_end(self, start: int) -> int:
        """Follows good records from a found one, and returns where they end."""
        end, window = start, MappedWindow(self._buffer)
        while True:
            _, end, stop = kernels.scan_messages(
                self._buffer, end, self._limit, self._crc, self._channel, self._batch_columns
            )
            if stop != ScanStop.FULL:
                return max(end, start + 1)
            if end - start > WINDOW:
                window.reach(end)

    def _hides_records(self, at: int, own: int | None, natural: int) -> bool:
        """Returns whether real records lie where a damaged length claims payload: up to its end, or across it.

        `own` is the end of the damaged record at `at` by its own fields; `natural` its end by its length, where a
        good record begins.
        """
        if own == natural:
            return False
        if own is not None and own < natural and self._is_good(own):
            return True
        start = at + 1
        for _ in range(_CANDIDATES):
            found = kernels.find_record(self._buffer, start, natural, self._crc, self._channel)
            if found < 0:
                break
            end = found
            while True:
                _, end, stop = kernels.scan_messages(
                    self._buffer, end, natural, self._crc, self._channel, self._batch_columns
                )
                if stop != ScanStop.FULL:
                    break
            if stop == ScanStop.END:
                return True
            start = max(end, found + 1)
        return self._reaches_across(at + 1, natural)

    def _reaches_across(self, start: int, place: int) -> bool:
        """Returns whether a good record begins between `start` and `place` and ends after `place`."""
        for block in range(start, place, _SEARCH_BLOCK):
            offsets = np.arange(block, min(block + _SEARCH_BLOCK, place, self._limit - RECORD_HEADER_SIZE))
            content = np.frombuffer(self._buffer[block : block + len(offsets) + RECORD_HEADER_SIZE], dtype=np.uint8)
            ends = offsets + RECORD_HEADER_SIZE
            for byte in range(4):
                ends += content[byte : byte + len(offsets)].astype(np.int64) << 8 * byte
            first = content[RECORD_HEADER_SIZE:]
            fitting = (ends > place) & (ends <= self._limit) & (first >= 8)
            if any(self._is_good(offset) for offset in offsets[fitting].tolist()):
                return True
        return False

    def _is_good(self, offset: int) -> bool:
        """Returns whether an unlikely record is good, as long as the allowance lasts."""
        if self._limit - offset <= RECORD_HEADER_SIZE:
            return False
        size, _ = RECORD_HEADER.unpack_from(self._buffer, offset)
        if size > self._limit - offset - RECORD_HEADER_SIZE or not self._spend(RECORD_HEADER_SIZE + size):
            return False
        return self._read(offset) is not None

    def _spend(self, size: int) -> bool:
        """Takes bytes from the allowance; returns False if it is too small."""
        if size > self._allowance:
            return False
        self._allowance -= size
        return True

    def _lands(self, offset: int) -> bool:
        return offset == self._limit or self._read(offset) is not None

    def _read(self, offset: int) -> int | None:
        """Returns the sequence of the good record at an offset, or None; its row stays in `_row_columns`."""
        # At a wrong place the size may be gigabytes: checking the structure first saves their CRC.
        for crc in (self._crc.unchecked, self._crc):
            rows, _, _ = kernels.scan_messages(self._buffer, offset, self._limit, crc, self._channel, self._row_columns)
            if not rows:
                return None
        return int(self._row_columns.sequence[0])

    def _find(self, start: int) -> int:
        def find(begin: int, until: int) -> int:
            return kernels.find_record(self._buffer, begin, self._limit, self._crc, self._channel, until)

        return find_in_data(self._buffer, start, self._limit, find)

    def _entry(self, offset: int) -> int | None:
        at = self._index.place(offset)
        return at if at < len(self._index) and self._index[at].offset == offset else None

    def _next_indexed(self, at: int) -> int:
        """Returns the first offset after `at` that the index names and at which a good record lies; -1 if none."""
        first = self._index.place(at + 1)
        for entry in range(first, min(first + _INDEX_CANDIDATES, len(self._index))):
            named = self._index[entry]
            if named.offset < self._limit and self._read(named.offset) == named.sequence:
                return named.offset
        return -1

    def _is_next_entry(self, at: int, following: int) -> bool:
        """Returns whether the index has only one record between `at` and the next good one."""
        entry = self._entry(at)
        return (
            entry is not None
            and entry + 1 < len(self._index)
            and self._index[entry + 1].offset == following
            and at + RECORD_HEADER_SIZE + self._index[entry].size == following
        )

    def _proven(self, at: int, fields: list[tuple[int, int]], stored: int) -> Repair | None:
        """Searches for a length under which the payload matches the stored CRC and is a message."""
        start = begin = at + RECORD_HEADER_SIZE
        value = 0
        for _, end in fields:
            if not self._spend(end - begin):
                return None
            value = self._crc(self._buffer[begin:end], value)
            if value == stored and (repair := self._decode(start, end)):
                return repair
            begin = end
        return None

    def _fields(self, start: int) -> Iterator[tuple[int, int]]:
        """Yields tag and end of the fields of a message of unknown length, once it is known to be of this channel."""
        view = self._buffer
        position, known = start, False
        for _ in range(fieldscan.MAX_FIELDS):
            try:
                tag, position = fieldscan.varint(view, position)
                begin = position
                wire = tag & 7
                if wire == _LENGTH_DELIMITED:
                    size, begin = fieldscan.varint(view, position)
                    position = begin + size
                elif wire in _FIXED_SIZES:
                    position += _FIXED_SIZES[wire]
                elif wire == 0:
                    _, position = fieldscan.varint(view, position)
                else:
                    return
            except fieldscan.FieldScanError:
                return
            if position > self._limit:
                return
            known = known or (tag == _SUBJECT_TAG and view[begin:position] == self._channel)
            if known:
                yield tag, position

    def _decode(self, start: int, end: int) -> Repair | None:
        try:
            message = gogo.decode(pb.MsgProto, self._buffer[start:end])
        except gogo.DecodeError:
            return None
        return Repair(start, end - start, message) if message.subject == self._channel else None

    def _guess_sequence(self, at: int) -> int | None:
        """Reads the sequence at the start of a damaged payload, if the channel's subject follows it."""
        head = bytes(self._buffer[at + RECORD_HEADER_SIZE : min(at + _HEAD, self._limit)])
        if head[:1] != b"\x08":
            return None
        value = shift = 0
        for position, byte in enumerate(head[1:11], start=1):
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                tail = head[position + 1 :]
                known = self._channel[: max(0, len(tail) - 2)]
                return value if tail[:1] == b"\x12" and tail[2:].startswith(known) else None
        return None

    def _damage(
        self, at: int, end: int, kind: DamageKind, stop: ScanStop, stored: int = 0, computed: int = 0
    ) -> DamagedRange:
        entry = self._entry(at)
        sequence = self._index[entry].sequence if entry is not None else self._guess_sequence(at)
        return DamagedRange(at, end - at, kind, stop, sequence, stored, computed)

    def _repaired(
        self, at: int, repair: Repair, kind: DamageKind, stop: ScanStop, stored: int = 0, computed: int = 0
    ) -> DamagedRange:
        length = repair.start + repair.size - at
        return DamagedRange(at, length, kind, stop, repair.message.sequence, stored, computed, repair)
