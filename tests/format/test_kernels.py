"""What the kernels do, by example; that both do the same on any bytes is in tests/property/test_kernels.py."""

from __future__ import annotations

import sys
import threading
from array import array
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stantools.format import crc
from stantools.format.columns import FewMessages, LogColumns, MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.fieldscan import MAX_FIELDS
from stantools.format.layout import Flag, ScanStop
from tests.conftest import cases_by_kind, golden_cases, load_expected
from tests.fences import fenced

IEEE = Crc()
TIME = 1795219649260503021

MESSAGES = bytes.fromhex(
    "01000000 1b000000 33e51a40 0801 1203666f6f 1a0172 220568656c6c6f 28edffe4ffa6d8f9f418"
    "11000000 f4062ea4 0802 1203666f6f 28faedff94a7d8f9f418"
)
INDEX = bytes.fromhex(
    "01000000 0100000000000000 0400000000000000 ed3ff96fc2e6e918 1b000000 a7a03373"
    "0200000000000000 2700000000000000 faf69f72c2e6e918 11000000 b29d1788"
)
SUBS = bytes.fromhex(
    "01000000 39000001 08969bcc 0801 12026d65 22085f53492e6d652e31"
    "2a1d5f494e424f582e3677534e7434315a4d46506463785747575a47336248 300a 381e 42026431 5001"
    "04000005 03bff7d8 08011001 04000005 b9eefe41 08011002 04000004 03bff7d8 08011001"
)


def record(payload: bytes, crc: Crc = IEEE) -> bytes:
    return len(payload).to_bytes(4, "little") + crc(payload).to_bytes(4, "little") + payload


def typed(kind: int, payload: bytes) -> bytes:
    data = record(payload)
    return data[:3] + bytes([kind]) + data[4:]


def scan(
    kernel: ModuleType, data: bytes, *, check_crc: bool = True, channel: bytes = b"foo", capacity: int = 16
) -> tuple[int, int, ScanStop, MessageColumns]:
    columns = MessageColumns(capacity)
    rows, offset, stop = kernel.scan_messages(data, 0, len(data), Crc(check=check_crc), channel, columns)
    assert isinstance(stop, ScanStop)
    return rows, offset, stop, columns.take(rows)


class TestAppendixA:
    """The bytes that a real server wrote."""

    def test_scan_messages(self, kernel: ModuleType) -> None:
        columns = MessageColumns(4)
        assert kernel.scan_messages(MESSAGES, 4, 64, IEEE, b"foo", columns) == (2, 64, ScanStop.END)
        found = columns.take(2)
        assert found.offset.tolist() == [4, 39]
        assert found.size.tolist() == [27, 17]
        assert found.sequence.tolist() == [1, 2]
        assert found.timestamp.tolist() == [1795219649260503021, 1795219649304983290]
        assert found.data_start.tolist() == [0x18, 0]
        assert found.data_size.tolist() == [5, 0]
        assert found.reply_start.tolist() == [0x15, 0]
        assert found.reply_size.tolist() == [1, 0]
        assert found.flags.tolist() == [Flag.HAS_REPLY, 0]

    def test_scan_index(self, kernel: ModuleType) -> None:
        assert kernel.scan_index(INDEX, 4, len(INDEX), IEEE) == (2, ScanStop.END, 44, True)
        assert MessageRecords.of_index(INDEX[4:]).offset.tolist() == [4, 39]

    def test_scan_log(self, kernel: ModuleType) -> None:
        columns = LogColumns(9)
        assert kernel.scan_log(SUBS, 4, len(SUBS), IEEE, columns) == (4, len(SUBS), ScanStop.END)
        found = columns.take(4)
        assert found.offset.tolist() == [4, 0x45, 0x51, 0x5D]
        assert found.size.tolist() == [57, 4, 4, 4]
        assert found.type.tolist() == [1, 5, 5, 4]
        assert found.id.tolist() == [0, 1, 1, 1]
        assert found.seq.tolist() == [0, 1, 2, 1]

    def test_encode(self, kernel: ModuleType) -> None:
        times = [1795219649260503021, 1795219649304983290]
        data, sizes = kernel.encode_messages(b"foo", [1, 2], times, [b"r", b""], [b"hello", b""], IEEE)
        assert data == MESSAGES[4:]
        assert sizes.tolist() == [27, 17]
        assert sizes.dtype == np.uint32
        assert kernel.encode_index([1, 2], [4, 39], times, sizes, IEEE) == INDEX[4:]


class TestScanMessages:
    """The outcomes of filestore.md section 7.2, and the flags."""

    GOOD = record(b"\x08\x01\x12\x03foo")

    def test_stops(self, kernel: ModuleType) -> None:
        all_rows: list[tuple[bytes, ScanStop]] = [
            (b"", ScanStop.END),
            (b"\x01", ScanStop.SHORT_HEADER),
            (bytes(7), ScanStop.SHORT_HEADER),
            (bytes(8), ScanStop.ZEROS),
            (bytes(4096), ScanStop.ZEROS),
            (self.GOOD[:7], ScanStop.SHORT_HEADER),
            (self.GOOD[:8], ScanStop.DANGLING),
            (self.GOOD[:9], ScanStop.SHORT_PAYLOAD),
            (self.GOOD[:-1], ScanStop.SHORT_PAYLOAD),
            (b"\xff" * 8, ScanStop.DANGLING),
            (b"\xff" * 100, ScanStop.SHORT_PAYLOAD),
            (self.GOOD[:-1] + b"x", ScanStop.BAD_CRC),
            (b"\0\0\0\0\1\0\0\0", ScanStop.BAD_CRC),
            (record(b"\x08"), ScanStop.BAD_DECODE),
        ]
        for tail, stop in all_rows:
            rows, offset, found, _ = scan(kernel, self.GOOD * 2 + tail)
            assert (rows, offset, found) == (2, 2 * len(self.GOOD), stop), (tail, stop)

    def test_limit(self, kernel: ModuleType) -> None:
        data = self.GOOD * 3
        columns = MessageColumns(9)
        for limit in range(len(data) + 20):
            rows, offset, _ = kernel.scan_messages(data, 0, limit, IEEE, b"foo", columns)
            assert rows == min(limit, len(data)) // len(self.GOOD)
            assert offset == rows * len(self.GOOD)
        assert kernel.scan_messages(data, len(data), len(data), IEEE, b"", columns) == (0, len(data), ScanStop.END)
        assert kernel.scan_messages(b"", 4, 0, IEEE, b"", columns) == (0, 4, ScanStop.END)

    def test_in_parts(self, kernel: ModuleType) -> None:
        data = self.GOOD * 5
        columns = MessageColumns(4)
        assert kernel.scan_messages(data, 0, len(data), IEEE, b"foo", columns, 2) == (
            4,
            2 * len(self.GOOD),
            ScanStop.FULL,
        )
        assert columns.offset.tolist() == [0, 0, 0, len(self.GOOD)]
        assert kernel.scan_messages(data, 0, len(data), IEEE, b"foo", columns, 4)[::2] == (4, ScanStop.FULL)
        # Full and at the end at the same time is the end.
        assert kernel.scan_messages(data[: 4 * len(self.GOOD)], 0, 999, IEEE, b"foo", columns)[::2] == (
            4,
            ScanStop.END,
        )

    def test_without_crc(self, kernel: ModuleType) -> None:
        data = self.GOOD[:4] + b"\x01\x02\x03\x04" + self.GOOD[8:]
        assert scan(kernel, data)[:3] == (0, 0, ScanStop.BAD_CRC)
        assert scan(kernel, data, check_crc=False)[:3] == (1, len(data), ScanStop.END)
        rows, _, stop, columns = scan(kernel, b"\0\0\0\0\1\0\0\0", check_crc=False)
        assert (rows, stop) == (1, ScanStop.END)
        assert columns.flags.tolist() == [Flag.FOREIGN_SUBJECT]

    def test_flags(self, kernel: ModuleType) -> None:
        all_rows: list[tuple[str, int]] = [
            ("0801 1203666f6f 2801", 0),
            ("0801 1203666f6f", 0),
            ("0801 1203666f78 2801", Flag.FOREIGN_SUBJECT),
            ("0801 120166 2801", Flag.FOREIGN_SUBJECT),
            ("0801 1204666f6f6f 2801", Flag.FOREIGN_SUBJECT),
            ("0801 1203666f6f 1a0172 2801", Flag.HAS_REPLY),
            ("0801 1203666f6f 2801 3001", Flag.REDELIVERED),
            ("0801 1203666f6f 2801 3802", Flag.REDELIVERED),
            ("0801 1203666f6f 2801 5003", Flag.REDELIVERED),
            ("0801 1203666f6f 2801 3002", Flag.REDELIVERED | Flag.UNUSUAL),
            ("0801 1203666f6f 2801 3000", Flag.UNUSUAL),
            ("0801 1203666f6f 388080808010", Flag.UNUSUAL),
            ("1203666f6f 0801 2801", Flag.UNUSUAL),
            ("880101 1203666f6f", Flag.UNUSUAL),
            ("0801 1203666f6f 2800", Flag.UNUSUAL),
            ("0801 1203666f6f 2200", Flag.UNUSUAL),
            ("0801 1203666f6f 1a00", Flag.UNUSUAL),
            ("0800 1203666f6f", Flag.UNUSUAL),
            ("0801 128300666f6f", Flag.UNUSUAL),
            ("088100 1203666f6f", Flag.UNUSUAL),
            ("0801 1203666f6f 4001", Flag.UNUSUAL),
            ("0801 1203666f6f 1203666f6f", Flag.UNUSUAL),
            ("0801 1201ff 1203666f6f", Flag.UNUSUAL),
            ("0801 1203666f6f 28ffffffffffffffffff01", 0),
            ("0801 1203666f6f 28ffffffffffffffffff7f", Flag.UNUSUAL),
            ("888080808001 01", Flag.UNUSUAL | Flag.FOREIGN_SUBJECT),
        ]
        for payload, flags in all_rows:
            rows, _, stop, columns = scan(kernel, record(bytes.fromhex(payload)))
            assert (rows, stop) == (1, ScanStop.END), (payload, flags)
            assert columns.flags.tolist() == [flags], (payload, flags)

    def test_unknown_fields_are_skipped(self, kernel: ModuleType) -> None:
        all_rows: list[str] = [
            "5b 5c",
            "5b 0801 110102030405060708 1203666f6f 1501020304 1b1c 5c",
            "5b 63 64 5c",
            "59 0102030405060708",
            "5d 01020304",
            "5a 00",
            "58 ffffffffffffffffff7f",
            "fa ff ff ff 07 00",
        ]
        for payload in all_rows:
            data = record(bytes.fromhex("1203666f6f" + payload + "0802"))
            rows, _, stop, columns = scan(kernel, data)
            assert (rows, stop) == (1, ScanStop.END), payload
            assert columns.sequence.tolist() == [2], payload
            assert columns.flags.tolist() == [Flag.UNUSUAL], payload

    def test_what_the_server_cannot_decode(self, kernel: ModuleType) -> None:
        rows: list[str] = [
            "08",
            "0880",
            "08ffffffffffffffffffff01",
            "12",
            "1203666f",
            "12ffffffffffffffffff01",
            "12ffffffffffffffff7f",
            "0a00",
            "0d00000000",
            "1001",
            "2d00000000",
            "32 00",
            "0c",
            "5c",
            "5b",
            "5b 5b 5c",
            "5b 08",
            "5e",
            "5f",
            "00 01",
            "02 00",
            "fa ff ff ff 7f 00",
            "59 01020304050607",
            "5d 010203",
            "5a 05 01020304",
            "80808080808080808080 01",
        ]
        for payload in rows:
            data = record(b"\x08\x01\x12\x03foo" + bytes.fromhex(payload))
            assert scan(kernel, data)[:3] == (0, 0, ScanStop.BAD_DECODE), payload

    def test_the_last_of_a_repeated_field_counts(self, kernel: ModuleType) -> None:
        payload = bytes.fromhex("0801 0805 12016f 1203666f6f 2801 28feffffffffffffffff01 220161 22026262 220163")
        _, _, _, columns = scan(kernel, record(payload))
        assert columns.sequence.tolist() == [5]
        assert columns.timestamp.tolist() == [-2]
        assert columns.data_size.tolist() == [1]
        assert columns.data_start.tolist() == [8 + len(payload) - 1]
        assert columns.flags.tolist() == [Flag.UNUSUAL]

    def test_every_size_and_polynomial(self, kernel: ModuleType) -> None:
        all_sizes: list[int] = [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 100, 127, 128, 129, 200, 300, 16383, 70000]
        polynomials: list[int] = [crc.IEEE, crc.CASTAGNOLI, crc.KOOPMAN, 0x12345678, 1, 0xFFFFFFFF]
        for size in all_sizes:
            for polynomial in polynomials:
                function = Crc(polynomial)
                payloads = [bytes(i % 251 for i in range(n)) for n in range(size, size + 17)]
                numbers = np.arange(1, 18, dtype=np.uint64) << np.uint64(3)
                data, sizes = kernel.encode_messages(
                    b"a.b", numbers, numbers.astype(np.int64) + TIME, None, payloads, function
                )
                columns = MessageColumns(17)
                assert kernel.scan_messages(data, 0, len(data), function, b"a.b", columns) == (
                    17,
                    len(data),
                    ScanStop.END,
                ), (size, polynomial)
                assert columns.size.tolist() == sizes.tolist(), (size, polynomial)
                assert columns.sequence.tolist() == numbers.tolist(), (size, polynomial)
                for i, payload in enumerate(payloads):
                    start = int(columns.offset[i])
                    assert int.from_bytes(data[start + 4 : start + 8], "little") == function(
                        data[start + 8 :][: sizes[i]]
                    ), (size, polynomial)
                    assert data[columns.data_start[i] :][: columns.data_size[i]] == payload, (size, polynomial)
                assert not columns.flags.any(), (size, polynomial)

    def test_every_size_of_number(self, kernel: ModuleType) -> None:
        rows: list[int] = [1, 127, 128, 2**14 - 1, 2**14, 2**21, 2**28, 2**35, 2**49, 2**56, 2**63, 2**64 - 1]
        for number in rows:
            time = number - (1 << 64) if number >> 63 else number
            data, _ = kernel.encode_messages(b"x", [number] * 2, [time] * 2, None, [b"", b"y" * 40], IEEE)
            _, _, stop, columns = scan(kernel, data, channel=b"x")
            assert stop == ScanStop.END, number
            assert columns.sequence.tolist() == [number] * 2, number
            assert columns.timestamp.tolist() == [time] * 2, number
            assert not columns.flags.any(), number


class TestReadMessagesAt:
    """Records at given places."""

    def test_good_and_bad_places(self, kernel: ModuleType) -> None:
        data = MESSAGES + bytes(8) + b"\x05\0\0\0\0\0\0\0"
        places = np.array([39, 4, 0, 5, 64, 72, 80, 79, -1, 2**62], np.int64)
        columns = MessageColumns(12)
        columns.sequence[:] = 99
        stops = np.full(12, 99, np.uint8)
        kernel.read_messages_at(data, len(data), places, IEEE, b"foo", columns, stops)
        expected = [
            ScanStop.END,
            ScanStop.END,
            ScanStop.BAD_CRC,
            ScanStop.SHORT_PAYLOAD,
            ScanStop.ZEROS,
            ScanStop.DANGLING,
        ]
        expected += [ScanStop.SHORT_HEADER] * 4
        assert stops.tolist() == [*expected, 99, 99]
        assert columns.offset[:10].tolist() == places.tolist()
        assert columns.size[:7].tolist() == [17, 27, 1, 0x33000000, 0, 5, 0]
        assert columns.sequence.tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 99, 99]

    def test_takes_a_column_of_an_index(self, kernel: ModuleType) -> None:
        columns, stops = MessageColumns(2), np.ones(2, np.uint8)
        kernel.read_messages_at(MESSAGES, 64, MessageRecords.of_index(INDEX[4:]).offset, IEEE, b"foo", columns, stops)
        assert stops.tolist() == [0, 0]
        assert columns.sequence.tolist() == [1, 2]

    def test_not_more_than_there_is_room_for(self, kernel: ModuleType) -> None:
        places = np.zeros(3, np.int64)
        with pytest.raises(ValueError, match="3 offsets"):
            kernel.read_messages_at(MESSAGES, 64, places, IEEE, b"", MessageColumns(2), np.zeros(3, np.uint8))
        with pytest.raises(ValueError, match="3 offsets"):
            kernel.read_messages_at(MESSAGES, 64, places, IEEE, b"", MessageColumns(3), np.zeros(2, np.uint8))

    def test_few_messages_into_plain_memory(self, kernel: ModuleType) -> None:
        columns, stops = FewMessages(8).take(3), bytearray(b"\xff" * 3)
        kernel.read_messages_at(MESSAGES, 64, array("q", [39, 4, 5]), IEEE, b"foo", columns, stops)
        assert list(stops)[:2] == [ScanStop.END, ScanStop.END] and stops[2] != ScanStop.END
        assert columns.sequence.tolist() == [2, 1, 0]
        assert columns.size.tolist()[:2] == [17, 27]
        assert columns.timestamp.tolist() == [1795219649304983290, 1795219649260503021, 0]
        assert columns.data_start.tolist() == [0, 0x18, 0]


class TestFind:
    """Resynchronising after damage."""

    def test_finds_the_next_message(self, kernel: ModuleType) -> None:
        rows: list[bytes] = [b"", b"x", bytes(3), bytes(4096), b"\xff" * 77, MESSAGES[4:30], b"\x01" + bytes(9)]
        for gap in rows:
            data = gap + MESSAGES[39:] + b"tail"
            assert kernel.find_record(data, 0, len(data), IEEE, b"foo") == len(gap), gap
            assert kernel.find_record(data, len(gap), len(data), IEEE, b"foo") == len(gap), gap
            assert kernel.find_record(data, len(gap) + 1, len(data), IEEE, b"foo") == -1, gap
            assert kernel.find_record(data, 0, len(data) - 5, IEEE, b"foo") == -1, gap
            assert kernel.find_record(data, 0, len(data), Crc(crc.KOOPMAN), b"foo") == -1, gap

    def test_does_not_believe_in_less_than_a_message(self, kernel: ModuleType) -> None:
        rows: list[str] = ["", "0801", "1203666f6f", "0800 1203666f6f", "0801 1200", "0801 1203666f6f 5c"]
        for payload in rows:
            data = record(bytes.fromhex(payload))
            assert kernel.find_record(data, 0, len(data), IEEE, b"foo") == -1, payload

    def test_does_not_believe_in_many_fields(self, kernel: ModuleType) -> None:
        for count, found in ((MAX_FIELDS, 0), (MAX_FIELDS + 1, -1)):
            payload = b"\x12\x03foo" + b"\x08\x01" * (count - 1)
            assert kernel.find_record(record(payload), 0, 999, IEEE, b"foo") == found
            assert kernel.find_log_record(typed(1, payload), 0, 999, IEEE, 5) == found

    def test_finds_the_next_log_record(self, kernel: ModuleType) -> None:
        data = b"\xff\xff" + SUBS[0x45:]
        assert kernel.find_log_record(data, 0, len(data), IEEE, 5) == 2
        assert kernel.find_log_record(data, 3, len(data), IEEE, 5) == 14
        assert kernel.find_log_record(data, 3, len(data), IEEE, 4) == 26
        assert kernel.find_log_record(data, 27, len(data), IEEE, 5) == -1
        assert kernel.find_log_record(typed(0, b"\x08\1"), 0, 99, IEEE, 5) == -1
        assert kernel.find_log_record(typed(1, b""), 0, 99, IEEE, 5) == -1
        assert kernel.find_log_record(typed(1, b"\x0f"), 0, 99, IEEE, 5) == -1

    def test_across_blocks(self, kernel: ModuleType) -> None:
        for gap in ((1 << 20) - 3, (1 << 20), (1 << 20) + 1):
            data = bytes(gap) + MESSAGES[4:]
            assert kernel.find_record(data, 0, len(data), IEEE, b"foo") == gap


class TestScanLog:
    """Typed records."""

    def test_types(self, kernel: ModuleType) -> None:
        parts = [typed(1, b"\x0a\x01a"), typed(2, b"anything"), typed(0, b"x"), typed(255, b""), typed(1, b"")]
        parts += [typed(3, b"\x08\x07\x12\x00"), typed(4, b"\x10\x09\x08\x80\x01"), typed(5, b"")]
        data = b"".join(parts)
        columns = LogColumns(8)
        assert kernel.scan_log(data, 0, len(data), IEEE, columns) == (8, len(data), ScanStop.END)
        assert columns.type.tolist() == [1, 2, 0, 255, 1, 3, 4, 5]
        assert columns.size.tolist() == [3, 8, 1, 0, 0, 4, 5, 0]
        assert columns.id.tolist() == [0, 0, 0, 0, 0, 7, 128, 0]
        assert columns.seq.tolist() == [0, 0, 0, 0, 0, 0, 9, 0]

    def test_stops(self, kernel: ModuleType) -> None:
        rows: list[tuple[bytes, ScanStop]] = [
            (bytes(8), ScanStop.ZEROS),
            (bytes(5), ScanStop.SHORT_HEADER),
            (b"\x04\0\0\x05\0\0\0\0", ScanStop.DANGLING),
            (b"\x04\0\0\x05\0\0\0\0\x08", ScanStop.SHORT_PAYLOAD),
            (b"\0\0\0\x01\0\0\0\x01", ScanStop.BAD_CRC),
            (typed(4, b"\x08"), ScanStop.BAD_DECODE),
            (typed(5, b"\x12\0"), ScanStop.BAD_DECODE),
            (typed(3, b"\x0a\0"), ScanStop.BAD_DECODE),
        ]
        for tail, stop in rows:
            columns = LogColumns(3)
            data = typed(5, b"\x08\x01\x10\x01") + tail
            assert kernel.scan_log(data, 0, len(data), IEEE, columns) == (1, 12, stop), (tail, stop)
            assert kernel.scan_log(data * 3, 0, 12, IEEE, columns, 2) == (3, 12, ScanStop.END), (tail, stop)
            assert kernel.scan_log(data, 0, len(data), IEEE, columns, 3) == (3, 0, ScanStop.FULL), (tail, stop)


class TestScanIndex:
    """Index files."""

    def test_stops(self, kernel: ModuleType) -> None:
        rows: list[tuple[bytes, ScanStop]] = [
            (b"", ScanStop.END),
            (b"\0", ScanStop.SHORT_HEADER),
            (bytes(31), ScanStop.SHORT_HEADER),
            (bytes(32), ScanStop.ZEROS),
            (bytes(33), ScanStop.ZEROS),
            (INDEX[4:35] + b"x", ScanStop.BAD_CRC),
        ]
        for tail, stop in rows:
            data = INDEX + tail
            assert kernel.scan_index(data, 4, len(data), IEEE)[:2] == (2, stop), (tail, stop)
            unchecked = (3, ScanStop.END) if stop == ScanStop.BAD_CRC else (2, stop)
            assert kernel.scan_index(data, 4, len(data), IEEE.unchecked)[:2] == unchecked, (tail, stop)
            assert kernel.scan_index(data, 4, 36, IEEE)[:2] == (1, ScanStop.END), (tail, stop)

    @pytest.mark.parametrize("function", [IEEE, Crc(crc.CASTAGNOLI), Crc(0x80000001)], ids=repr)
    def test_the_first_wrong_record_ends_it(self, kernel: ModuleType, function: Crc) -> None:
        rows = np.arange(1, 300, dtype=np.uint64)
        good = kernel.encode_index(rows, rows.astype(np.int64), rows.astype(np.int64), rows.astype(np.uint32), function)
        for count in (1, 3, 4, 5, 11, 129, 299):
            sizes = count * (count + 1) // 2
            assert kernel.scan_index(good[: 32 * count], 0, 10**6, function) == (count, ScanStop.END, sizes, True)
        for row in (*range(10), *range(124, 134), 297, 298):
            for byte in (0, 3, 15, 16, 27, 28, 31):
                data = bytearray(good)
                data[32 * row + byte] ^= 1 << row % 8
                assert kernel.scan_index(data, 0, len(data), function)[:2] == (row, ScanStop.BAD_CRC)

    def test_read_from_a_file(self, kernel: ModuleType, tmp_path: Path) -> None:
        path = tmp_path / "msgs.1.idx"
        path.write_bytes(INDEX)
        with path.open("rb") as file:
            for part in (32, 64, 1 << 16):
                assert kernel.read_index(file.fileno(), 4, len(INDEX), IEEE, part) == (2, ScanStop.END, 44, True)
            assert kernel.read_index(file.fileno(), 4, 4, IEEE) == (0, ScanStop.END, 0, True)
            assert kernel.read_index(file.fileno(), 4, len(INDEX) + 1, IEEE) is None
            for part in (0, 31, 33):
                with pytest.raises(ValueError, match="not whole records"):
                    kernel.read_index(file.fileno(), 4, len(INDEX), IEEE, part)
            with pytest.raises(ValueError, match="is negative"):
                kernel.read_index(file.fileno(), -1, len(INDEX), IEEE)
        with path.open("ab") as file:
            assert kernel.read_index(file.fileno(), 4, len(INDEX), IEEE) is None, "it is not open for reading"

    def test_no_records(self, kernel: ModuleType) -> None:
        for data in (b"", b"\x01\0\0\0", b"\x01\0"):
            assert kernel.scan_index(data, 4, len(data), IEEE)[:2] == (0, ScanStop.END)
        assert kernel.encode_index([], [], [], [], IEEE) == b""


class TestEncode:
    """Encoding checks its arguments."""

    def test_no_run(self, kernel: ModuleType) -> None:
        none = np.zeros(0, np.int64)
        assert kernel.index_run(b"", none, none.astype(np.uint32), none.astype(np.uint64), none, 4, 0, IEEE) is None

    def test_run_as_a_server_wrote_it(self, kernel: ModuleType) -> None:
        columns = MessageColumns(4)
        kernel.scan_messages(MESSAGES, 4, 64, IEEE, b"foo", columns)
        found = columns.take(2)
        arguments = (found.offset + 8, found.size, found.sequence, found.timestamp, 4, 0, IEEE)
        assert kernel.index_run(MESSAGES, *arguments) == (INDEX[4:], 4, 64)
        named = (column.tolist() for column in (found.sequence, found.offset, found.timestamp, found.size))
        records = [kernel.index_record(*one, IEEE) for one in zip(*named, strict=True)]
        assert b"".join(records) == INDEX[4:]

    def test_numbers_must_match(self, kernel: ModuleType) -> None:
        with pytest.raises(ValueError, match="differ in number"):
            kernel.encode_messages(b"a", [1, 2], [1], None, [b""], IEEE)
        with pytest.raises(ValueError, match="differ in number"):
            kernel.encode_messages(b"a", [1], [1], [], [b""], IEEE)
        with pytest.raises(ValueError, match="different lengths"):
            kernel.encode_index([1], [1, 2], [1], [1], IEEE)
        one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
        with pytest.raises(ValueError, match="different lengths"):
            kernel.index_run(b"", one, one.astype(np.uint32), two.astype(np.uint64), one, 0, 0, IEEE)

    def test_other_buffers_than_bytes(self, kernel: ModuleType) -> None:
        expected = kernel.encode_messages(b"a", [1], [2], [b"r"], [b"data"], IEEE)
        again = kernel.encode_messages(b"a", [1], [2], [bytearray(b"r")], [memoryview(b"data")], IEEE)
        assert again[0] == expected[0]
        with pytest.raises(TypeError):
            kernel.encode_messages(b"a", [1], [2], None, [5], IEEE)

    def test_nothing(self, kernel: ModuleType) -> None:
        data, sizes = kernel.encode_messages(b"a", [], [], None, [], IEEE)
        assert (data, len(sizes)) == (b"", 0)
        # Every field at its default: an empty payload, the CRC of which is 0.
        assert kernel.encode_messages(b"", [0], [0], [b""], [b""], IEEE)[0] == bytes(8)


class TestWrongUse:
    """Mistakes of the caller."""

    def test_rows_and_limits(self, kernel: ModuleType) -> None:
        columns = MessageColumns(2)
        for row in (-1, 3):
            with pytest.raises(ValueError, match="of 2"):
                kernel.scan_messages(MESSAGES, 4, 64, IEEE, b"", columns, row)
            with pytest.raises(ValueError, match="of 2"):
                kernel.scan_log(MESSAGES, 4, 64, IEEE, LogColumns(2), row)
        for start, limit in ((-1, 64), (4, -1)):
            with pytest.raises(ValueError, match="negative"):
                kernel.scan_messages(MESSAGES, start, limit, IEEE, b"", columns)
            with pytest.raises(ValueError, match="negative"):
                kernel.find_record(MESSAGES, start, limit, IEEE, b"")

    def test_buffers_of_all_kinds(self, kernel: ModuleType) -> None:
        for data in (bytearray(MESSAGES), memoryview(MESSAGES), np.frombuffer(MESSAGES, np.uint8)):
            assert kernel.scan_messages(data, 4, 64, IEEE, b"foo", MessageColumns(2))[0] == 2
        assert kernel.scan_messages(memoryview(b""), 4, 64, IEEE, b"foo", MessageColumns(2))[2] == ScanStop.END
        assert kernel.find_record(b"", 0, 0, IEEE, b"foo") == -1


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages with mprotect")
def test_reads_nothing_outside_the_buffer(kernel: ModuleType) -> None:
    """A read outside would end this process."""
    columns, log, stops = MessageColumns(8), LogColumns(8), np.zeros(8, np.uint8)
    long, _ = kernel.encode_messages(b"foo", [1, 2], [TIME, TIME], None, [b"x" * 200, b"y" * 37], IEEE)
    for data in (MESSAGES, INDEX, SUBS, long, b"\xff" * 40, MESSAGES[:36] + b"\xff" * 3):
        for size in range(len(data) + 1):
            for at_end in (True, False):
                with fenced(data[:size], at_end=at_end) as view:
                    for start in (0, 4):
                        for crc in (IEEE, IEEE.unchecked):
                            kernel.scan_messages(view, start, 999, crc, b"foo", columns)
                            kernel.scan_log(view, start, 999, crc, log)
                            kernel.scan_index(view, start, 999, crc)
                        kernel.find_record(view, start, 999, IEEE, b"foo")
                        kernel.find_log_record(view, start, 999, IEEE, 5)
                    places = np.array([0, 1, 4, 39, size - 8, size - 1, size, -8], np.int64)
                    kernel.read_messages_at(view, 999, places, IEEE.unchecked, b"foo", columns, stops)


def test_threads(kernel: ModuleType) -> None:
    data, _ = kernel.encode_messages(b"foo", range(1, 1001), [TIME] * 1000, None, [b"z" * 50] * 1000, IEEE)
    results = []

    def work() -> None:
        columns = MessageColumns(1000)
        results.append(kernel.scan_messages(data, 0, len(data), IEEE, b"foo", columns))
        results.append(columns.sequence.tolist() == list(range(1, 1001)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count((1000, len(data), ScanStop.END)) == results.count(True) == 4


#: Stores that the real server recovered silently.
HEALTHY = [
    case for case in golden_cases() if not case.startswith(("dmg_", "dup_", "bad_", "no_", "read_only", "foreign_"))
]


def golden_crc(case: str) -> Crc:
    return Crc(int(load_expected(case)["options"]["file_crc_poly"]))


class TestGolden:
    """Stores of the real server."""

    @pytest.mark.parametrize("case", cases_by_kind(HEALTHY))
    def test_healthy_stores(self, kernel: ModuleType, golden: Path, case: str) -> None:
        expected = load_expected(case)
        function = golden_crc(case)
        encrypted = case.startswith("encrypted")
        for name, channel in expected["channels"].items():
            found: dict[int, tuple[int, int]] = {}
            for path in (golden / case / "datastore" / name).glob("msgs.*.dat"):
                data, columns = path.read_bytes(), MessageColumns()
                rows, offset, stop = kernel.scan_messages(data, 4, len(data), function, name.encode(), columns)
                assert (offset, stop) == (len(data), ScanStop.END)
                batch = columns.take(rows)
                assert not (batch.flags & ~np.uint8(Flag.HAS_REPLY)).any()
                sizes = batch.data_size.astype(np.int64) - (29 * (batch.data_size > 0) if encrypted else 0)
                found |= zip(
                    batch.sequence.tolist(), zip(batch.timestamp.tolist(), sizes.tolist(), strict=True), strict=True
                )
                spans = zip(batch.data_start.tolist(), batch.data_size.tolist(), strict=True)
                replies = zip(batch.reply_start.tolist(), batch.reply_size.tolist(), strict=True)
                again, sizes_again = kernel.encode_messages(
                    name.encode(),
                    batch.sequence,
                    batch.timestamp,
                    [data[start : start + size] for start, size in replies],
                    [data[start : start + size] for start, size in spans],
                    function,
                )
                assert again == data[4:]
                assert (sizes_again == batch.size).all()
                stored = path.with_suffix(".idx").read_bytes()
                assert kernel.scan_index(stored, 4, len(stored), function)[:2] == (rows, ScanStop.END)
                encoded = kernel.encode_index(batch.sequence, batch.offset, batch.timestamp, batch.size, function)
                assert encoded == stored[4:]
            for message in channel["messages"]:
                assert found[message["seq"]] == (message["ts"], message["len"])

    @pytest.mark.parametrize("case", cases_by_kind(HEALTHY))
    def test_logs_scan(self, kernel: ModuleType, golden: Path, case: str) -> None:
        function = golden_crc(case)
        for path in (golden / case / "datastore").rglob("*.dat"):
            if path.name not in ("subs.dat", "clients.dat"):
                continue
            data, columns = path.read_bytes(), LogColumns()
            rows, offset, stop = kernel.scan_log(data, 4, len(data), function, columns)
            assert (offset, stop) == (len(data), ScanStop.END)
            batch = columns.take(rows)
            assert max(batch.type, default=0) <= 5
            assert all(number for number, kind in zip(batch.id, batch.type, strict=True) if kind >= 3)
            if rows:
                assert kernel.find_log_record(data, 0, len(data), function, 5) == 4
