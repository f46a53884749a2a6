"""What every byte of a record means: on the bytes of a real server, and on any others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.browse.record_fields import PartRole, RecordPart, record_parts
from stantools.format.crc import Crc
from stantools.format.envelope import encode
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.records import FileKind

CRC = Crc()

# The worked example of the file store specification: bytes that a server of release 0.23.2 has written.
CLIENTS = bytes.fromhex(
    "01000000 1b000001 ffeecc5f 0a026d65 12065f48422e6d65 1a07636f6e6e2d6d65 2001 2805 3003 04000002 2b6bf6a0 0a026d65"
)
SUBS = bytes.fromhex(
    "01000000 39000001 08969bcc 0801 12026d65 22085f53492e6d652e31"
    "2a1d5f494e424f582e3677534e743431 5a4d46506463785747575a47336248 300a 381e 42026431 5001"
    "04000005 03bff7d8 08011001 04000005 b9eefe41 08011002 04000004 03bff7d8 08011001"
)
MESSAGES = bytes.fromhex(
    "01000000 1b000000 33e51a40 0801 1203666f6f 1a0172 220568656c6c6f 28edffe4ffa6d8f9f418"
    "11000000 f4062ea4 0802 1203666f6f 28faedff94a7d8f9f418"
)
INDEX = bytes.fromhex(
    "01000000 0100000000000000 0400000000000000 ed3ff96fc2e6e918 1b000000 a7a03373"
    "0200000000000000 2700000000000000 faf69f72c2e6e918 11000000 b29d1788"
)


def told(parts: list[RecordPart]) -> list[tuple[int, int, str, str]]:
    return [(part.start, part.end, part.name, part.value) for part in parts]


def check_cover(parts: list[RecordPart], offset: int, length: int) -> None:
    """They lie one behind the other, without a gap."""
    at = offset
    for part in parts:
        assert part.start == at and part.end > at
        assert part.value.isprintable() and part.name.isprintable()
        at = part.end
    assert at == offset + length


def test_a_message() -> None:
    assert told(record_parts(MESSAGES[4:39], FileKind.MESSAGES, CRC, offset=4)) == [
        (4, 8, "size", "27"),
        (8, 12, "CRC", "0x401ae533, right"),
        (12, 13, "sequence: tag", "field 1, wire type 0"),
        (13, 14, "sequence", "1"),
        (14, 16, "subject: tag", "field 2, 3 bytes"),
        (16, 19, "subject", "foo"),
        (19, 21, "reply: tag", "field 3, 1 bytes"),
        (21, 22, "reply", "r"),
        (22, 24, "data: tag", "field 4, 5 bytes"),
        (24, 29, "data", "hello"),
        (29, 30, "timestamp: tag", "field 5, wire type 0"),
        (30, 39, "timestamp", "1795219649260503021 = 2026-11-21T00:07:29.260503021Z"),
    ]


def test_a_client() -> None:
    assert told(record_parts(CLIENTS[4:39], FileKind.CLIENTS, CRC, offset=4)) == [
        (4, 7, "size", "27"),
        (7, 8, "type", "1 = add"),
        (8, 12, "CRC", "0x5fcceeff, right"),
        (12, 14, "id: tag", "field 1, 2 bytes"),
        (14, 16, "id", "me"),
        (16, 18, "hb_inbox: tag", "field 2, 6 bytes"),
        (18, 24, "hb_inbox", "_HB.me"),
        (24, 26, "conn_id: tag", "field 3, 7 bytes"),
        (26, 33, "conn_id", b"conn-me".hex()),
        (33, 34, "protocol: tag", "field 4, wire type 0"),
        (34, 35, "protocol", "1"),
        (35, 36, "ping_interval: tag", "field 5, wire type 0"),
        (36, 37, "ping_interval", "5"),
        (37, 38, "ping_max_out: tag", "field 6, wire type 0"),
        (38, 39, "ping_max_out", "3"),
    ]


def test_a_subscription_and_what_was_sent() -> None:
    end = 12 + 57
    names = {part.name: part.value for part in record_parts(SUBS[4:end], FileKind.SUBS, CRC, offset=4)}
    assert names["type"] == "1 = new" and names["CRC"] == "0xcc9b9608, right"
    assert (names["client_id"], names["durable_name"], names["is_durable"]) == ("me", "d1", "yes")
    assert (names["max_in_flight"], names["ack_wait_in_secs"]) == ("10", "30")
    sent = {part.name: part.value for part in record_parts(SUBS[end : end + 12], FileKind.SUBS, CRC, offset=end)}
    assert sent["type"] == "5 = msg" and (sent["id"], sent["seqno"]) == ("1", "1")


def test_an_index_record() -> None:
    assert told(record_parts(INDEX[4:36], FileKind.INDEX, CRC, offset=4)) == [
        (4, 12, "sequence", "1"),
        (12, 20, "offset", "4"),
        (20, 28, "timestamp", "1795219649260503021 = 2026-11-21T00:07:29.260503021Z"),
        (28, 32, "size", "27"),
        (32, 36, "CRC", "0x7333a0a7, right"),
    ]


@pytest.mark.parametrize(
    ("data", "value", "role"),
    [
        (b"\1\0\0\0", "1", PartRole.VERSION),
        (b"\2\0\0\0", "2, expected 1", PartRole.WRONG),
        (b"\1\0", "2 of 4 bytes", PartRole.WRONG),
    ],
)
def test_the_version(data: bytes, value: str, role: PartRole) -> None:
    assert record_parts(data, FileKind.SUBS, CRC, offset=0) == [RecordPart(0, len(data), "file version", value, role)]


def wrong(data: bytes, kind: FileKind = FileKind.MESSAGES, offset: int = 4, length: int | None = None) -> list[str]:
    parts = record_parts(data, kind, CRC, offset=offset, length=length)
    check_cover(parts, offset, max(length or 0, len(data)))
    return [f"{part.name}: {part.value}" for part in parts if part.role in (PartRole.WRONG, PartRole.UNKNOWN)]


def test_what_is_wrong_is_said() -> None:
    record = MESSAGES[4:39]
    flipped = record[:20] + b"X" + record[21:]
    computed = CRC(flipped[8:])
    assert wrong(record) == []
    assert wrong(flipped) == [f"CRC: 0x401ae533, the bytes have 0x{computed:08x}"]
    assert wrong(b"\x1a" + record[1:])[0] == "size: 26, but 27 bytes are here"
    assert wrong(b"\xff\xff\xff\x7f" + record[4:]) == ["size: 2,147,483,647, but 27 bytes are here"]
    assert wrong(record[:5]) == ["torn header: 5 of the 8 bytes of a record header"]
    assert wrong(INDEX[4:30], FileKind.INDEX) == ["torn: 26 of the 32 bytes of a record"]
    assert wrong(SUBS[4:7] + b"\x51" + SUBS[8:69], FileKind.SUBS)[0] == "type: 81, there is no such type"
    assert wrong(record + b"junk") == ["size: 27, but 31 bytes are here", "no record: 4 bytes"]


def test_a_size_that_is_too_small_does_not_hide_fields() -> None:
    record = b"\x10" + MESSAGES[5:39]
    parts = record_parts(record, FileKind.MESSAGES, CRC, offset=4)
    assert parts[-1].name == "timestamp" and parts[-1].end == 39


def test_only_the_beginning_of_a_long_record() -> None:
    record = encode(pb.MsgProto(sequence=7, subject=b"foo", data=bytes(range(256)) * 40).SerializeToString(), CRC)
    parts = record_parts(record[:100], FileKind.MESSAGES, CRC, offset=4, length=len(record))
    check_cover(parts, 4, len(record))
    assert {part.name: part.value for part in parts}["CRC"].endswith("cannot be checked")
    assert parts[-1].name == "not read"


def test_a_type_that_does_not_go_with_a_field() -> None:
    payload = b"\x0d\1\0\0\0" + b"\x10\5" + b"\x40\1" + b"\x7a\3abc"
    parts = {part.name: part for part in record_parts(encode(payload, CRC), FileKind.MESSAGES, CRC, offset=4)}
    assert parts["sequence"].role is parts["subject"].role is PartRole.WRONG
    assert parts["field 8"].value == "1" and parts["field 15"].value == "abc"


def test_names_are_harmless() -> None:
    payload = pb.MsgProto(sequence=1, subject=b"\x1b[31m\r\n\xe2\x80\xae[bold]").SerializeToString()
    parts = {part.name: part for part in record_parts(encode(payload, CRC), FileKind.MESSAGES, CRC, offset=4)}
    assert parts["subject"].value == "\\x1b[31m\\r\\n\\u202e[bold]"


KINDS = st.sampled_from(FileKind)


@given(st.binary(max_size=300), KINDS, st.sampled_from([0, 1, 4, 100, 2**40]), st.integers(0, 500))
def test_any_bytes(data: bytes, kind: FileKind, offset: int, more: int) -> None:
    length = len(data) + more
    check_cover(record_parts(data, kind, CRC, offset=offset, length=length), offset, length)


@given(st.integers(0, 34), st.integers(0, 255), KINDS)
def test_any_byte_of_a_record(place: int, value: int, kind: FileKind) -> None:
    record = bytearray(MESSAGES[4:39])
    record[place] = value
    check_cover(record_parts(bytes(record), kind, CRC, offset=4), 4, 35)


@given(st.binary(max_size=200), KINDS)
def test_any_payload(payload: bytes, kind: FileKind) -> None:
    code = 1 if kind in (FileKind.CLIENTS, FileKind.SUBS) else None
    record = encode(payload, CRC, code)
    parts = record_parts(record, kind, CRC, offset=4)
    check_cover(parts, 4, len(record))


def test_many_fields_are_not_told_one_by_one() -> None:
    parts = record_parts(encode(b"\x08\x01" * 100_000, CRC), FileKind.MESSAGES, CRC, offset=4)
    check_cover(parts, 4, 200_008)
    assert len(parts) < 2000 and parts[-1].name == "more fields"


def test_a_cut_value_shows_it() -> None:
    """The end of a value that does not fit is marked, whatever characters it has."""
    rows: list[int] = [1, 79, 80, 81, 500]
    for length in rows:
        client = pb.ClientInfo(id=b"x" * length, hb_inbox=b"\x1b" * length, conn_id=b"y" * length)
        record = encode(client.SerializeToString(), CRC, 1)
        values = {part.name: part.value for part in record_parts(record, FileKind.CLIENTS, CRC, offset=4)}
        for name, whole in (("id", "x" * length), ("hb_inbox", "\\x1b" * length), ("conn_id", "79" * length)):
            assert values[name] == (whole if len(whole) <= 80 else whole[:79] + "…"), length
