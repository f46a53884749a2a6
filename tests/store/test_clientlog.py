from __future__ import annotations

from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, encode
from stantools.format.layout import ScanStop
from stantools.format.proto import store_pb2 as pb
from stantools.store.clientlog import read_clients, salvage_clients

CRC = Crc()


def add(name: bytes, inbox: bytes = b"_HB") -> bytes:
    return encode(pb.ClientInfo(id=name, hb_inbox=inbox).SerializeToString(), CRC, 1)


def delete(name: bytes) -> bytes:
    return encode(pb.ClientDelete(id=name).SerializeToString(), CRC, 2)


def test_adds_and_deletes() -> None:
    all_rows: list[tuple[list[bytes], list[bytes], int, int]] = [
        ([], [], 0, 0),
        ([add(b"a"), add(b"b")], [b"a", b"b"], 0, 0),
        ([add(b"a"), delete(b"a")], [], 1, 100),
        ([add(b"a"), delete(b"unknown")], [b"a"], 1, 50),
        ([add(b"a"), add(b"b"), delete(b"a"), add(b"a"), add(b"c")], [b"b", b"a", b"c"], 1, 25),
    ]
    for parts, clients, deletes, fragmentation in all_rows:
        data = memoryview(FILE_HEADER_BYTES + b"".join(parts))
        for state in (read_clients(data, CRC), salvage_clients(data, CRC)):
            assert list(state.clients) == clients, (parts, clients, deletes, fragmentation)
            assert (state.deletes, state.fragmentation, state.rows) == (deletes, fragmentation, len(parts)), (
                parts,
                clients,
                deletes,
                fragmentation,
            )
            assert state.record_bytes == len(data) - 4, (parts, clients, deletes, fragmentation)
            assert not state.damages, (parts, clients, deletes, fragmentation)


def test_the_last_add_of_an_id_counts() -> None:
    state = read_clients(memoryview(FILE_HEADER_BYTES + add(b"a", b"old") + add(b"a", b"new")), CRC)
    assert state.clients[b"a"].hb_inbox == b"new"


def test_the_appendix_of_the_specification() -> None:
    first = bytes.fromhex("0a026d65 12065f48422e6d65 1a07636f6e6e2d6d65 2001 2805 3003")
    data = bytes.fromhex("01000000 1b000001 ffeecc5f") + first + bytes.fromhex("04000002 2b6bf6a0 0a026d65")
    assert len(data) == 51
    state = read_clients(memoryview(data), CRC)
    assert (state.clients, state.deletes, state.rows) == ({}, 1, 2)


def test_where_the_server_stops() -> None:
    rows: list[tuple[bytes, ScanStop, str]] = [
        (bytes(8), ScanStop.ZEROS, ""),
        (bytes(5), ScanStop.SHORT_HEADER, "unexpected EOF"),
        (add(b"x")[:-1], ScanStop.SHORT_PAYLOAD, "unexpected EOF"),
        (encode(b"\x0a\x01a", CRC, 3), ScanStop.BAD_DECODE, "invalid client record type: 3"),
        (encode(b"\x08\x01", CRC, 5), ScanStop.BAD_DECODE, "invalid client record type: 5"),
        (encode(b"", CRC, 200), ScanStop.BAD_DECODE, "invalid client record type: 200"),
        (encode(b"\x08\x01", CRC, 1), ScanStop.BAD_DECODE, "proto: wrong wireType = 0 for field ID"),
        (encode(b"\x12\x01a\x66", CRC, 2), ScanStop.BAD_DECODE, "proto: illegal wireType 6"),
    ]
    for bad, stop, error in rows:
        good = FILE_HEADER_BYTES + add(b"a")
        state = read_clients(memoryview(good + bad + add(b"b")), CRC)
        assert state.end is not None, (bad, stop, error)
        if stop is not ScanStop.SHORT_HEADER and stop is not ScanStop.SHORT_PAYLOAD:
            assert (state.end.offset, state.end.stop, state.end.error) == (len(good), stop, error), (bad, stop, error)
        alone = read_clients(memoryview(good + bad), CRC)
        assert alone.end is not None, (bad, stop, error)
        assert (alone.end.offset, alone.end.stop, alone.end.error) == (len(good), stop, error), (bad, stop, error)
        assert list(alone.clients) == [b"a"], (bad, stop, error)
        assert alone.record_bytes == len(good) - 4, (bad, stop, error)
