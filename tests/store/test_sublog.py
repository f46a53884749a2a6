from __future__ import annotations

from typing import Any

import pytest

from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, encode
from stantools.format.layout import ScanStop, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.store import logscan
from stantools.store.logscan import LogDamageKind
from stantools.store.sublog import SubsState, SubStatus, classify, read_subs, salvage_subs

CRC = Crc()
NEW, UPDATE, DELETE, ACK, MSG = SubRecord


def state(number: int, **fields: Any) -> pb.SubState:
    return pb.SubState(id=number, client_id=b"me", inbox=b"_IN", ack_inbox=b"_ACK", **fields)


def record(kind: int, number: int, seq: int = 0, **fields: Any) -> bytes:
    message: Any
    if kind in (NEW, UPDATE):
        message = state(number, **fields)
    elif kind == DELETE:
        message = pb.SubStateDelete(id=number)
    else:
        message = pb.SubStateUpdate(id=number, seqno=seq)
    return encode(message.SerializeToString(), CRC, kind)


def log(*parts: tuple[Any, ...] | bytes) -> memoryview:
    """A subs.dat of (type, id, sequence or last_sent) and raw bytes."""
    encoded = []
    for part in parts:
        if isinstance(part, bytes):
            encoded.append(part)
        elif part[0] in (NEW, UPDATE) and len(part) == 3:
            encoded.append(record(part[0], part[1], last_sent=part[2]))
        else:
            encoded.append(record(*part))
    return memoryview(FILE_HEADER_BYTES + b"".join(encoded))


def summary(state: SubsState) -> dict[int, tuple[int, list[int]]]:
    """Last sent and pending of every subscription."""
    return {n: (s.state.last_sent, sorted(s.pending)) for n, s in state.subscriptions.items()}


@pytest.mark.parametrize(
    ("parts", "result", "records", "dead", "max_id"),
    [
        ([], {}, 0, 0, 0),
        ([(NEW, 1, 5)], {1: (5, [])}, 1, 0, 1),
        ([(NEW, 1), (MSG, 1, 1), (MSG, 1, 2), (ACK, 1, 1)], {1: (2, [2])}, 3, 1, 1),
        # A new record of a known id empties its pending sequences, an update keeps them.
        ([(NEW, 1), (MSG, 1, 3), (NEW, 1)], {1: (0, [])}, 3, 0, 1),
        ([(NEW, 1), (MSG, 1, 3), (UPDATE, 1, 1)], {1: (1, [3])}, 3, 1, 1),
        # An update of an unknown id creates it.
        ([(UPDATE, 4, 2), (MSG, 4, 3)], {4: (3, [3])}, 2, 0, 4),
        # A delete takes the pending sequences along, and its id is never used again.
        ([(NEW, 2), (MSG, 2, 1), (MSG, 2, 2), (DELETE, 2), (DELETE, 2)], {}, 3, 3, 2),
        ([(DELETE, 9), (NEW, 3)], {3: (0, [])}, 1, 0, 9),
        # What is sent to and acknowledged by unknown ids means nothing.
        ([(MSG, 7, 1), (ACK, 8, 1)], {}, 0, 0, 0),
        # Sequences come and go; what was sent never falls.
        ([(NEW, 1), (MSG, 1, 9), (MSG, 1, 4), (ACK, 1, 9), (ACK, 1, 5)], {1: (9, [4])}, 3, 2, 1),
        ([(NEW, 1), (MSG, 1, 4), (ACK, 1, 4), (MSG, 1, 4)], {1: (4, [4])}, 3, 1, 1),
        # Deleted and recreated: pending starts empty.
        ([(NEW, 1), (MSG, 1, 4), (DELETE, 1), (NEW, 1)], {1: (0, [])}, 3, 2, 1),
    ],
)
def test_the_state_machine(
    monkeypatch: pytest.MonkeyPatch,
    parts: list[tuple[Any, ...]],
    result: dict[int, tuple[int, list[int]]],
    records: int,
    dead: int,
    max_id: int,
) -> None:
    data = log(*parts)
    for rows in (1, 2, 3, 1000):
        monkeypatch.setattr(logscan, "BATCH_ROWS", rows)
        for fold in (read_subs(data, CRC), salvage_subs(data, CRC)):
            assert summary(fold) == result, rows
            assert (fold.records, fold.dead, fold.max_id, fold.rows) == (records, dead, max_id, len(parts)), rows
            assert fold.record_bytes == len(data) - 4, rows
            assert not fold.damages, rows
        end = read_subs(data, CRC).end
        assert end is not None
        assert (end.offset, end.stop, end.error) == (len(data), ScanStop.END, ""), rows


def test_the_example_of_the_compaction_rule() -> None:
    fold = read_subs(log((NEW, 1), *((MSG, 1, n) for n in range(1, 7)), *((ACK, 1, n) for n in range(1, 5))), CRC)
    assert fold.fragmentation == 57
    assert read_subs(log(), CRC).fragmentation == 100


def test_the_appendix_of_the_specification() -> None:
    data = bytes.fromhex(
        "01000000 39000001 08969bcc 0801 12026d65 22085f53492e6d652e31"
        "2a1d5f494e424f582e3677534e7434315a4d46506463785747575a4733624 8"
        "300a 381e 42026431 5001 04000005 03bff7d8 08011001 04000005 b9eefe41 08011002 04000004 03bff7d8 08011001"
        "3d000002 8296867a 0801 12026d65 22085f53492e6d652e31"
        "2a1d5f494e424f582e3677534e7434315a4d46506463785747575a4733624 8"
        "300a 381e 42026431 4802 5001 5801".replace("624 8", "6248")
    )
    fold = read_subs(memoryview(data), CRC)
    assert fold.end is not None
    assert not fold.end.error
    assert summary(fold) == {1: (2, [2])}
    recovered = fold.subscriptions[1].state
    assert (recovered.is_durable, recovered.is_closed, recovered.durable_name) == (True, True, b"d1")
    assert classify(recovered, {b"me"}) is SubStatus.OFFLINE_DURABLE


def test_where_the_server_stops() -> None:
    """`sizes`: bytes left of the bad part after a start without and with the truncate option."""
    all_rows: list[tuple[bytes, ScanStop, str, tuple[int, int]]] = [
        (b"", ScanStop.END, "", (0, 0)),
        (b"\x01", ScanStop.SHORT_HEADER, "unexpected EOF", (1, 0)),
        (record(MSG, 1, 1)[:8], ScanStop.DANGLING, "", (8, 8)),
        (record(MSG, 1, 1)[:9], ScanStop.SHORT_PAYLOAD, "unexpected EOF", (9, 0)),
        (bytes(8), ScanStop.ZEROS, "", (0, 0)),
        (bytes(8) + record(DELETE, 1), ScanStop.ZEROS, "", (0, 0)),
        (encode(b"\x08\x01", CRC, 6), ScanStop.BAD_DECODE, "unexpected record type: 6", (10, 10)),
        (encode(b"\x08\x01", CRC, 0), ScanStop.BAD_DECODE, "unexpected record type: 0", (10, 10)),
        (encode(b"\x12", CRC, 1), ScanStop.BAD_DECODE, "unexpected EOF", (9, 9)),
        (encode(b"\x0a", CRC, 2), ScanStop.BAD_DECODE, "proto: wrong wireType = 2 for field ID", (9, 9)),
        (encode(b"\x0a", CRC, 3), ScanStop.BAD_DECODE, "proto: wrong wireType = 2 for field ID", (9, 9)),
        (encode(b"\x15", CRC, 4), ScanStop.BAD_DECODE, "proto: wrong wireType = 5 for field Seqno", (9, 9)),
        (
            encode(b"\x04", CRC, 5),
            ScanStop.BAD_DECODE,
            "proto: SubStateUpdate: wiretype end group for non-group",
            (9, 9),
        ),
        (
            record(MSG, 1, 1)[:-1] + b"\x02",
            ScanStop.BAD_CRC,
            "corrupted data, expected crc to be 0xd8f7bf03, got 0x41feeeb9",
            (12, 12),
        ),
    ]
    for bad, stop, error, sizes in all_rows:
        good = log((NEW, 1), (MSG, 1, 7))
        fold = read_subs(memoryview(bytes(good) + bad), CRC)
        assert fold.end is not None, (bad, stop, error, sizes)
        assert (fold.end.offset, fold.end.stop, fold.end.error) == (len(good), stop, error), (bad, stop, error, sizes)
        assert fold.end.file_size == len(good) + len(bad), (bad, stop, error, sizes)
        after = tuple(fold.end.size_after(truncate=truncate) - len(good) for truncate in (False, True))
        assert after == sizes, (bad, stop, error, sizes)
        assert summary(fold) == {1: (7, [7])}, (bad, stop, error, sizes)
        assert (fold.rows, fold.record_bytes) == (2, len(good) - 4), (bad, stop, error, sizes)


def test_what_is_behind_a_refused_record_is_not_read() -> None:
    fold = read_subs(log((NEW, 1), encode(b"\x08\x01", CRC, 9), (MSG, 1, 7)), CRC)
    assert summary(fold) == {1: (0, [])}
    assert fold.rows == 1


@pytest.mark.parametrize("version", [b"", b"\x01\0", b"\x02\0\0\0"])
def test_bad_versions(version: bytes) -> None:
    fold = read_subs(memoryview(version), CRC)
    assert fold.end is not None
    assert (fold.end.offset, fold.end.stop) == (0, None)
    assert "file version" in fold.end.error
    assert fold.end.size_after(truncate=True) == len(version)
    records = log((NEW, 1))[4:]
    salvaged = salvage_subs(memoryview(version + bytes(records)), CRC)
    assert summary(salvaged) == {1: (0, [])}
    assert [damage.kind for damage in salvaged.damages] == ([LogDamageKind.VERSION] if version else [])


def test_without_crc_check_damage_is_taken_for_good() -> None:
    data = log((NEW, 1), record(MSG, 1, 1)[:-1] + b"\x02")
    assert summary(read_subs(data, CRC.unchecked)) == {1: (2, [2])}
    assert summary(salvage_subs(data, CRC.unchecked)) == {1: (2, [2])}


DURABLE = {"durable_name": b"d", "is_durable": True}
GROUP = {"q_group": b"d:g", "is_durable": True}


def test_what_the_server_makes_of_a_subscription() -> None:
    rows: list[tuple[dict[str, Any], bool, SubStatus]] = [
        (DURABLE | {"is_closed": True}, True, SubStatus.OFFLINE_DURABLE),
        (DURABLE | {"is_closed": True}, False, SubStatus.OFFLINE_DURABLE),
        (DURABLE, True, SubStatus.ACTIVE),
        (DURABLE, False, SubStatus.OFFLINE_DURABLE),
        ({"durable_name": b"d"}, False, SubStatus.OFFLINE_DURABLE),
        ({}, True, SubStatus.ACTIVE),
        ({}, False, SubStatus.ORPHAN),
        ({"q_group": b"g"}, False, SubStatus.ORPHAN),
        (GROUP, True, SubStatus.ACTIVE),
        (GROUP, False, SubStatus.GHOST),
        (GROUP | {"client_id": b""}, True, SubStatus.SHADOW),
    ]
    for fields, known, status in rows:
        recovered = pb.SubState(**({"id": 1, "client_id": b"me"} | fields))
        assert classify(recovered, {b"me": object()} if known else {}) is status, (fields, known, status)
