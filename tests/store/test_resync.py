"""Scanning a damaged slice finds every record that is still whole, and nothing that never was one."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from stantools.format import kernels
from stantools.format.crc import IEEE, Crc
from stantools.format.layout import FILE_HEADER_SIZE, RECORD_HEADER_SIZE, ScanStop
from stantools.store.indexes import SliceIndex
from stantools.store.resync import DamagedRange, DamageKind, Resync
from stantools.store.slice_reader import SliceFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CRC = Crc(IEEE)
CHANNEL = b"orders.eu"
HEADER = struct.pack("<I", 1)


@dataclass
class Slice:
    data: bytes
    index: bytes
    starts: list[int]
    ends: list[int]


def make(payloads: list[bytes], first: int = 1, channel: bytes = CHANNEL) -> Slice:
    sequences = np.arange(first, first + len(payloads), dtype=np.uint64)
    timestamps = 1_700_000_000_000_000_000 + np.arange(len(payloads), dtype=np.int64) * 1_000_003
    records, sizes = kernels.encode_messages(channel, sequences, timestamps, None, payloads, CRC)
    lengths = sizes.astype(np.int64) + RECORD_HEADER_SIZE
    starts = FILE_HEADER_SIZE + np.cumsum(lengths) - lengths
    entries = kernels.encode_index(sequences, starts, timestamps, sizes, CRC)
    return Slice(HEADER + records, HEADER + entries, starts.tolist(), (starts + lengths).tolist())


def scan(data: bytes, entries: bytes | None = None) -> tuple[dict[int, int], list[DamagedRange]]:
    """Returns offset -> sequence of the good records, and the damages; checks that they cover the file."""
    index = SliceIndex.whole(memoryview(entries)) if entries else None
    good: dict[int, int] = {}
    damages: list[DamagedRange] = []
    at = FILE_HEADER_SIZE
    for event in SliceFile(memoryview(data), CHANNEL, CRC).records(index=index):
        if isinstance(event, DamagedRange):
            assert event.offset == at and event.length > 0
            damages.append(event)
            at = event.end
        else:
            assert int(event.offset[0]) == at
            good.update(zip(event.offset.tolist(), event.sequence.tolist(), strict=True))
            at = int(event.offset[-1]) + RECORD_HEADER_SIZE + int(event.size[-1])
    assert at >= len(data) or len(data) <= FILE_HEADER_SIZE
    return good, damages


payloads = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.just(b""),
        st.just(bytes(64)),
        # A payload that holds a slice file of the same channel: its records must not be taken for real ones.
        st.integers(1, 4).map(lambda n: make([b"inner %d" % i for i in range(n)], first=100).data),
    ),
    min_size=1,
    max_size=12,
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Slice, bytes, set[int]]:
    """A slice, its damaged bytes (same length or cut), and the numbers of records whose bytes are untouched."""
    made = make(draw(payloads))
    data = bytearray(made.data)
    touched = bytearray(len(data))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["flip", "zeros", "noise"]))
        at = draw(st.integers(FILE_HEADER_SIZE, len(data) - 1))
        if kind == "flip":
            data[at] ^= draw(st.integers(1, 255))
            touched[at] = 1
            continue
        length = draw(st.integers(1, 40))
        new = bytes(length) if kind == "zeros" else draw(st.binary(min_size=length, max_size=length))
        new = new[: len(data) - at]
        data[at : at + len(new)] = new
        touched[at : at + len(new)] = b"\1" * len(new)
    cut = draw(st.one_of(st.none(), st.integers(FILE_HEADER_SIZE, len(data))))
    if cut is not None:
        del data[cut:]
    whole = {
        number
        for number, (start, end) in enumerate(zip(made.starts, made.ends, strict=True))
        if end <= len(data) and bytes(data[start:end]) == made.data[start:end]
    }
    return made, bytes(data), whole


def landing_inside(*flips: tuple[int, bytes]) -> tuple[Slice, bytes, set[int]]:
    """The length of the first record leads to a record inside the payload of the third."""
    made = make([b"", bytes(64), make([b"inner 0"], first=100).data])
    data = bytearray(made.data)
    data[4:5] = b"\x93"
    for at, new in flips:
        data[at : at + len(new)] = new
    return made, bytes(data), {1, 2}


def next_one_lands_inside() -> tuple[Slice, bytes, set[int]]:
    """As above, but the record that is hit lies right before the one with the other inside; its payload is hit, too."""
    made = make([b"0123456789", make([b"inner 0"], first=100).data, b"last"])
    inner = made.data.index(b"inner 0") - 22
    data = bytearray(made.data)
    data[4:8] = struct.pack("<I", inner - FILE_HEADER_SIZE - RECORD_HEADER_SIZE)
    data[made.data.index(b"0123456789")] ^= 1
    return made, bytes(data), {1, 2}


def leads_to_the_end() -> tuple[Slice, bytes, set[int]]:
    """The length of the first record leads to the end of the file; its payload and the last record are hit, too."""
    made = make([b"0123456789", b"a", b"b", b"last"])
    data = bytearray(made.data)
    data[4:8] = struct.pack("<I", len(data) - FILE_HEADER_SIZE - RECORD_HEADER_SIZE)
    data[made.data.index(b"0123456789")] ^= 1
    data[-1] ^= 1
    return made, bytes(data), {1, 2}


def conspired(made: Slice, data: bytes) -> bool:
    """Returns whether three damages together look like one damaged record that holds copies of records.

    Its length was changed so that it leads exactly to another record or to the end, its own fields cannot be read, and
    a record in between is damaged, too: that says no more than if somebody had sent a store as a message.
    """
    places = {*made.starts, len(data)}
    for start, end in zip(made.starts, made.ends, strict=True):
        if end > len(data) or data[start : start + 4] == made.data[start : start + 4]:
            continue
        natural = start + RECORD_HEADER_SIZE + int.from_bytes(data[start : start + 4], "little")
        # All but the data itself, which comes after two bytes, or three if it is long, and before the timestamp.
        head = start + RECORD_HEADER_SIZE + 4 + len(CHANNEL) + 2
        head += made.data[head - 1] >> 7
        unreadable = any(data[part] != made.data[part] for part in (slice(start + 8, head), slice(end - 10, end)))
        if natural > end and natural in places and unreadable and data[end:natural] != made.data[end:natural]:
            return True
    return False


@settings(max_examples=400, deadline=None)
@given(damaged(), st.booleans())
@example(landing_inside(), False)
@example(landing_inside(), True)
@example(landing_inside((20, b"S")), False)  # its subject is damaged as well, so that nothing proves it
@example(landing_inside((20, b"S")), True)
@example(next_one_lands_inside(), False)
@example(next_one_lands_inside(), True)
@example(leads_to_the_end(), False)
@example(leads_to_the_end(), True)
def test_every_whole_record_is_found_and_no_other(case: tuple[Slice, bytes, set[int]], with_index: bool) -> None:
    made, data, whole = case
    assume(with_index or not conspired(made, data))
    good, damages = scan(data, made.index if with_index else None)
    assert {made.starts[n] for n in whole} <= set(good)
    for damage in damages:
        if damage.repair and damage.repair.message.sequence < 100:
            number = int(damage.repair.message.sequence) - 1
            start, end = made.starts[number], made.ends[number]
            assert data[start + RECORD_HEADER_SIZE : end] == made.data[start + RECORD_HEADER_SIZE : end]
    if with_index:
        # The index tells real records from copies inside payloads, unless damage opened such a payload.
        strangers = set(good) - set(made.starts)
        assert all(any(d.offset <= s for d in damages) for s in strangers)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=100))
def test_any_bytes_can_be_scanned(data: bytes, entries: bytes) -> None:
    scan(HEADER + data)
    scan(HEADER + data, HEADER + entries[: len(entries) // 32 * 32] if len(entries) >= 32 else None)


MESSAGES = [b"payload of message %d" % n for n in range(6)]


def with_bytes(made: Slice, offset: int, new: bytes) -> bytes:
    return made.data[:offset] + new + made.data[offset + len(new) :]


def test_a_wrong_length_is_proven_by_the_crc() -> None:
    made = make(MESSAGES)
    for delta in (1, 4, -3, 0x7F000000):
        size = made.ends[2] - made.starts[2] - RECORD_HEADER_SIZE
        data = with_bytes(made, made.starts[2], struct.pack("<I", size + delta))
        good, (damage,) = scan(data)
        assert sorted(good.values()) == [1, 2, 4, 5, 6]
        assert damage.kind == DamageKind.LENGTH
        assert damage.repair and damage.repair.message.data == MESSAGES[2]
        assert (damage.offset, damage.end) == (made.starts[2], made.ends[2])


def test_a_length_that_covers_the_next_record_exactly_hides_nothing() -> None:
    made = make(MESSAGES)
    both = made.ends[3] - made.starts[2] - RECORD_HEADER_SIZE
    good, (damage,) = scan(with_bytes(made, made.starts[2], struct.pack("<I", both)))
    assert sorted(good.values()) == [1, 2, 4, 5, 6]
    assert damage.repair and damage.repair.message.sequence == 3


def test_one_byte_of_the_crc_field() -> None:
    made = make(MESSAGES)
    at = made.starts[4] + 5
    good, (damage,) = scan(with_bytes(made, at, bytes([made.data[at] ^ 0x40])))
    assert sorted(good.values()) == [1, 2, 3, 4, 6]
    assert damage.kind == DamageKind.CRC_FIELD
    assert damage.repair and damage.repair.message.data == MESSAGES[4]


def test_a_payload_flip_is_not_repaired() -> None:
    made = make(MESSAGES)
    at = made.ends[1] - 12
    _, (damage,) = scan(with_bytes(made, at, bytes([made.data[at] ^ 1])))
    assert damage.kind == DamageKind.PAYLOAD and damage.repair is None and damage.sequence == 2


def test_zero_runs_are_skipped() -> None:
    rows: list[int] = [1, 7, 8, 9, 4096]
    for zeros in rows:
        made = make(MESSAGES)
        cut = made.ends[2]
        good, (damage,) = scan(made.data[:cut] + bytes(zeros) + made.data[cut:])
        assert sorted(good.values()) == [1, 2, 3, 4, 5, 6], zeros
        assert (damage.offset, damage.length) == (cut, zeros), zeros
        assert damage.kind in (DamageKind.ZEROS, DamageKind.GARBAGE), zeros
        good, (damage,) = scan(made.data + bytes(zeros))
        assert len(good) == 6 and damage.kind == DamageKind.ZEROS, zeros


def test_a_record_whose_length_ends_in_zero_bytes_after_a_zero_run() -> None:
    made = make([b"x" * 10, b"y" * (256 - 26), b"z"])
    assert (made.ends[1] - made.starts[1] - RECORD_HEADER_SIZE) % 256 == 0
    cut = made.starts[1]
    good, _ = scan(made.data[:cut] + bytes(100) + made.data[cut:])
    assert sorted(good.values()) == [1, 2, 3]


def test_records_inside_a_payload_are_not_messages() -> None:
    inner = make([b"a", b"b", b"c"], first=50).data
    made = make([b"before", inner, b"after"])
    at = made.starts[1] + RECORD_HEADER_SIZE
    flipped = with_bytes(made, at + 8, bytes([made.data[at + 8] ^ 1]))
    good, (damage,) = scan(flipped)
    assert sorted(good.values()) == [1, 3]
    assert damage.kind == DamageKind.PAYLOAD
    wrong_length = with_bytes(made, made.starts[1], struct.pack("<I", 0x00FFFFFF))
    good, (damage,) = scan(wrong_length)
    assert sorted(good.values()) == [1, 3]
    assert damage.repair and damage.repair.message.data == inner


@pytest.mark.parametrize(
    ("keep", "stop"), [(3, ScanStop.SHORT_HEADER), (8, ScanStop.DANGLING), (12, ScanStop.SHORT_PAYLOAD)]
)
def test_torn_ends(keep: int, stop: ScanStop) -> None:
    made = make(MESSAGES)
    good, (damage,) = scan(made.data[: made.starts[5] + keep])
    assert len(good) == 5
    assert (damage.stop, damage.length) == (stop, keep)


def test_other_polynomials_and_no_check() -> None:
    made = make(MESSAGES)
    at = made.ends[1] - 12
    data = with_bytes(made, at, bytes([made.data[at] ^ 1]))
    events = list(SliceFile(memoryview(data), CHANNEL, CRC.unchecked).records())
    assert [len(e.sequence) for e in events if not isinstance(e, DamagedRange)] == [6]


def claiming_the_rest(count: int) -> bytes:
    """Every second record claims nearly all that follows as its data, and more than all of it as its payload."""
    made = make([b"x" * 60] * count)
    data = bytearray(made.data)
    for start in made.starts[:-2:2]:
        rest = len(data) - start - 40
        struct.pack_into("<I", data, start, 0x0FFFFFFF)
        field = data.index(CHANNEL, start) + len(CHANNEL)
        data[field : field + 4] = b"\x22" + bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14))
    return bytes(data)


class CountingCrc(Crc):
    """Counts the bytes that the search for proofs reads: it alone goes on from one field to the next."""

    def __init__(self) -> None:
        super().__init__(IEEE)
        self.size = 0

    def __call__(self, data: ReadableBuffer, value: int | None = None) -> int:
        if value is not None:
            self.size += memoryview(data).nbytes
        return super().__call__(data, value or 0)


def test_what_is_read_on_suspicion_is_limited() -> None:
    data = claiming_the_rest(2000)
    crc = CountingCrc()
    resync = Resync(memoryview(data), CHANNEL, crc)
    made = make([b"x" * 60] * 2000)
    for start, end in zip(made.starts[:-2:2], made.ends[:-2:2], strict=True):
        damage = resync.after(start, ScanStop.SHORT_PAYLOAD)
        assert (damage.kind, damage.end) == (DamageKind.GARBAGE, end)
    assert 4 * len(data) < crc.size <= 8 * len(data)
