from __future__ import annotations

import zlib

import pytest

from stantools.errors import UsageError
from stantools.format.crc import Crc
from stantools.format.envelope import check_file_version, encode, read_record
from stantools.format.layout import MAX_TYPED_PAYLOAD, ScanStop
from tests.envelopes import Records

HELLO = encode(b"hello", zlib.crc32)
TYPED = encode(b"hello", zlib.crc32, 5)


def scan(data: bytes, *, typed: bool = False, check_crc: bool = True) -> tuple[list[bytes], Records]:
    reader = Records(data, 4, len(data), typed=typed, crc=Crc(check=check_crc))
    return [bytes(record.payload) for record in reader], reader


def test_file_versions() -> None:
    rows: list[tuple[bytes, str | None]] = [
        (b"", "unable to verify file version: EOF"),
        (b"\x01\0\0", "unable to verify file version: unexpected EOF"),
        (b"\0\0\0\0", "unsupported file version: 0 (supports [1..1])"),
        (b"\x02\0\0\0", "unsupported file version: 2 (supports [1..1])"),
        (b"\0\0\0\x01rest", "unsupported file version: 16777216 (supports [1..1])"),
        (b"\x01\0\0\0", None),
        (b"\x01\0\0\0rest", None),
    ]
    for data, text in rows:
        assert check_file_version(data) == text, (data, text)


def test_records_of_the_specification() -> None:
    # Appendix A of the file store specification.
    payload = bytes.fromhex("08011203666f6f1a01722205 68656c6c6f 28edffe4ffa6d8f9f418")
    assert encode(payload, zlib.crc32)[:8] == bytes.fromhex("1b00000033e51a40")
    assert encode(b"\x08\x01\x10\x02", zlib.crc32, 5) == bytes.fromhex("04000005b9eefe4108011002")


def test_the_end_of_a_file() -> None:
    rows: list[tuple[bytes, ScanStop, str]] = [
        (b"", ScanStop.END, ""),
        (b"\0", ScanStop.SHORT_HEADER, "unexpected EOF"),
        (HELLO[:7], ScanStop.SHORT_HEADER, "unexpected EOF"),
        (bytes(8), ScanStop.ZEROS, ""),
        (bytes(8) + HELLO, ScanStop.ZEROS, ""),
        (HELLO[:8], ScanStop.DANGLING, ""),
        (HELLO[:9], ScanStop.SHORT_PAYLOAD, "unexpected EOF"),
        (
            HELLO[:-1] + b"!",
            ScanStop.BAD_CRC,
            "corrupted data, expected crc to be 0x3610a686, got 0xa774ca11",
        ),
        (b"\0\0\0\0\x01\0\0\0", ScanStop.BAD_CRC, "corrupted data, expected crc to be 0x00000001, got 0x00000000"),
    ]
    for tail, stop, error in rows:
        data = b"\x01\0\0\0" + HELLO + tail
        payloads, reader = scan(data)
        assert payloads == [b"hello"], (tail, stop, error)
        assert (reader.stop, reader.offset, reader.error) == (stop, 17, error), (tail, stop, error)
        assert next(reader, None) is None, (tail, stop, error)


def test_types_and_sizes_share_four_bytes() -> None:
    stop, record = read_record(TYPED, 0, len(TYPED), typed=True, crc=Crc())
    assert stop is None
    assert record is not None
    assert (record.type, record.size, record.end) == (5, 5, len(TYPED))
    stop, record = read_record(TYPED, 0, len(TYPED), typed=False, crc=Crc())
    assert stop is ScanStop.SHORT_PAYLOAD
    assert record is not None
    assert (record.type, record.size, bytes(record.payload)) == (None, 5 << 24 | 5, b"hello")


def test_without_crc_check() -> None:
    damaged = b"\x01\0\0\0" + HELLO[:-1] + b"!"
    payloads, reader = scan(damaged, check_crc=False)
    assert payloads == [b"hell!"]
    assert reader.stop is ScanStop.END


def test_an_empty_typed_record_is_legal() -> None:
    data = b"\x01\0\0\0" + encode(b"", zlib.crc32, 1) + TYPED
    assert scan(data, typed=True)[0] == [b"", b"hello"]


def test_what_does_not_fit_the_header() -> None:
    with pytest.raises(UsageError, match="too big"):
        encode(bytes(MAX_TYPED_PAYLOAD + 1), zlib.crc32, 1)
    with pytest.raises(UsageError, match="no record type 256"):
        encode(b"", zlib.crc32, 256)
    assert len(encode(bytes(MAX_TYPED_PAYLOAD), zlib.crc32, 1)) == MAX_TYPED_PAYLOAD + 8
