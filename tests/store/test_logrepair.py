"""Salvage of logs: what is recovered in spite of damage, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from stantools.format.crc import CASTAGNOLI, Crc
from stantools.format.envelope import FILE_HEADER_BYTES, encode
from stantools.format.layout import ClientRecord, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.store.clientlog import salvage_clients
from stantools.store.logrepair import CLIENTS_LOG, SUBS_LOG
from stantools.store.logscan import LogDamage, LogDamageKind, LogEntry, history, scan_log
from stantools.store.sublog import SubsState, salvage_subs

CRC = Crc()
NEW, UPDATE, DELETE, ACK, MSG = SubRecord
STATE = pb.SubState(id=1, client_id=b"me", inbox=b"_IN", ack_inbox=b"_ACK", durable_name=b"d", is_durable=True)
CLIENT = pb.ClientInfo(id=b"me", hb_inbox=b"_HB.me", conn_id=b"conn")


def sub(kind: int, message: pb.SubState | pb.SubStateDelete | pb.SubStateUpdate = STATE) -> bytes:
    return encode(message.SerializeToString(), CRC, kind)


def update(kind: int, seq: int, number: int = 1) -> bytes:
    return sub(kind, pb.SubStateUpdate(id=number, seqno=seq))


def client(kind: int, message: pb.ClientInfo | pb.ClientDelete = CLIENT) -> bytes:
    return encode(message.SerializeToString(), CRC, kind)


def patched(record: bytes, offset: int, value: int) -> bytes:
    offset %= len(record)
    return record[:offset] + bytes([value]) + record[offset + 1 :]


def salvage(*parts: bytes) -> SubsState:
    return salvage_subs(memoryview(FILE_HEADER_BYTES + b"".join(parts)), CRC)


def seen(state: SubsState) -> list[tuple[LogDamageKind, int, int | None]]:
    return [(damage.kind, damage.length, damage.type) for damage in state.damages]


FIRST, LAST = update(MSG, 1), update(MSG, 2)


def test_reading_goes_on_after_damage() -> None:
    all_rows: list[tuple[bytes, LogDamageKind]] = [
        (patched(update(MSG, 5), -1, 6), LogDamageKind.PAYLOAD),
        (bytes(30), LogDamageKind.ZEROS),
        (b"garbage, which is not a record at all", LogDamageKind.GARBAGE),
        (b"\xff" * 8, LogDamageKind.GARBAGE),
        (update(MSG, 5)[3:], LogDamageKind.GARBAGE),
        (update(MSG, 5)[:-3], LogDamageKind.GARBAGE),
        (encode(b"\x0a\x01x", CRC, MSG), LogDamageKind.UNDECODABLE),
        (encode(b"\x0a\x01x", CRC, NEW), LogDamageKind.UNDECODABLE),
        (encode(b"\x0a\x01x", CRC, 77), LogDamageKind.UNDECODABLE),
        (encode(b"", CRC, NEW), LogDamageKind.UNDECODABLE),
    ]
    for bad, kind in all_rows:
        state = salvage(sub(NEW), FIRST, bad, LAST)
        assert state.subscriptions[1].pending == {1, 2}, (bad, kind)
        assert seen(state) == [(kind, len(bad), None)], (bad, kind)
        assert state.rows == 3, (bad, kind)


def test_torn_tails() -> None:
    rows: list[bytes] = [b"\x01", bytes(7), bytes(8), update(MSG, 3)[:8], update(MSG, 3)[:11]]
    for tail in rows:
        state = salvage(sub(NEW), LAST, tail)
        assert state.subscriptions[1].pending == {2}, tail
        expected = LogDamageKind.TORN if any(tail) else LogDamageKind.ZEROS
        assert seen(state) == [(expected, len(tail), None)], tail


def test_a_wrong_size_loses_nothing() -> None:
    sizes: list[int] = [0, 1, 3, 5, 60, 200, 255]
    places: list[str] = ["middle", "end"]
    for size in sizes:
        for place in places:
            bad = patched(update(MSG, 7), 0, size)
            state = salvage(sub(NEW), FIRST, bad, *([LAST] if place == "middle" else []))
            assert state.subscriptions[1].pending == {1, 2, 7} if place == "middle" else {1, 7}, (size, place)
            assert seen(state) == [(LogDamageKind.LENGTH, 12, MSG)], (size, place)


def test_a_wrong_size_before_another_damage() -> None:
    state = salvage(patched(sub(NEW), 1, 9), patched(FIRST, -1, 9), LAST)
    assert seen(state) == [(LogDamageKind.LENGTH, len(sub(NEW)), NEW), (LogDamageKind.PAYLOAD, 12, None)]
    assert state.subscriptions[1].pending == {2}


@pytest.mark.parametrize("offset", [4, 5, 6, 7])
def test_a_damaged_crc_loses_nothing(offset: int) -> None:
    bad = patched(update(MSG, 7), offset, update(MSG, 7)[offset] ^ 0x10)
    state = salvage(sub(NEW), bad, LAST)
    assert state.subscriptions[1].pending == {2, 7}
    assert seen(state) == [(LogDamageKind.CRC_FIELD, 12, MSG)]
    both = patched(bad, offset ^ 1, bad[offset ^ 1] ^ 1)
    assert seen(salvage(sub(NEW), both, LAST)) == [(LogDamageKind.PAYLOAD, 12, None)]


def test_a_subscription_of_wrong_type() -> None:
    rows: list[int] = [0, 3, 4, 5, 6, 255]
    for kind in rows:
        state = salvage(patched(sub(NEW), 3, kind), LAST)
        assert state.subscriptions[1].pending == {2}, kind
        assert seen(state) == [(LogDamageKind.TYPE, len(sub(NEW)), NEW)], kind
        # A known one was updated, and keeps what is pending.
        state = salvage(sub(NEW), FIRST, patched(sub(UPDATE), 3, kind), LAST)
        assert state.subscriptions[1].pending == {1, 2}, kind
        assert seen(state) == [(LogDamageKind.TYPE, len(sub(NEW)), UPDATE)], kind


@pytest.mark.parametrize("kind", [0, 1, 2, 9])
def test_a_deletion_of_wrong_type(kind: int) -> None:
    state = salvage(sub(NEW), FIRST, patched(sub(DELETE, pb.SubStateDelete(id=1)), 3, kind))
    assert not state.subscriptions
    assert seen(state) == [(LogDamageKind.TYPE, 10, DELETE)]


def test_a_sent_message_of_wrong_type() -> None:
    rows: list[int] = [0, 1, 2, 3, 7]
    for kind in rows:
        state = salvage(sub(NEW), FIRST, patched(LAST, 3, kind))
        assert state.subscriptions[1].pending == {1, 2}, kind
        assert seen(state) == [(LogDamageKind.TYPE, 12, MSG)], kind
        # It could as well be an acknowledgement: then nothing is changed, so that no delivery is lost.
        state = salvage(sub(NEW), FIRST, LAST, patched(update(ACK, 1), 3, kind))
        assert state.subscriptions[1].pending == {1, 2}, kind
        assert seen(state) == [(LogDamageKind.TYPE, 12, None)], kind


def test_clients() -> None:
    other = pb.ClientInfo(id=b"other", hb_inbox=b"_HB.other")
    parts = [
        client(ClientRecord.ADD, other),
        patched(client(ClientRecord.ADD), 3, 2),  # says delete
        patched(client(ClientRecord.DELETE, pb.ClientDelete(id=b"other")), 3, 1),  # says add
        patched(client(ClientRecord.ADD, pb.ClientInfo(id=b"third", hb_inbox=b"_HB.third")), 0, 99),
    ]
    data = memoryview(FILE_HEADER_BYTES + b"".join(parts))
    state = salvage_clients(data, CRC)
    assert list(state.clients) == [b"me", b"third"]
    assert [damage.kind for damage in state.damages] == ["type", "type", "length"]
    assert (state.rows, state.deletes) == (1, 1)
    assert sum(damage.length for damage in state.damages) + state.record_bytes == len(data) - 4


def test_a_record_in_a_run_of_zeros() -> None:
    state = salvage(sub(NEW), bytes(1000), FIRST, bytes(1 << 16), LAST, bytes(3))
    assert state.subscriptions[1].pending == {1, 2}
    assert seen(state) == [(LogDamageKind.ZEROS, size, None) for size in (1000, 1 << 16, 3)]


def test_a_file_that_lost_its_beginning() -> None:
    data = (FILE_HEADER_BYTES + sub(NEW) + FIRST)[2:]
    state = salvage_subs(memoryview(data), CRC)
    assert state.subscriptions[1].pending == {1}
    assert seen(state) == [(LogDamageKind.VERSION, 2, None)]


def test_other_polynomials() -> None:
    crc = Crc(CASTAGNOLI)
    records = [encode(m.SerializeToString(), crc, k) for k, m in ((NEW, STATE), (DELETE, pb.SubStateDelete(id=2)))]
    data = memoryview(FILE_HEADER_BYTES + patched(records[0], 0, 1) + b"xx" + records[1])
    state = salvage_subs(data, crc)
    assert list(state.subscriptions) == [1]
    assert not salvage_subs(data, CRC).subscriptions


def test_history_gives_records_and_damage_in_order() -> None:
    data = memoryview(FILE_HEADER_BYTES + sub(NEW) + b"rubbish" + FIRST)
    parts: list[Any] = list(history(data, SUBS_LOG, CRC))
    assert [type(part) for part in parts] == [LogEntry, LogDamage, LogEntry]
    assert (parts[0].type, parts[0].message, parts[0].offset) == (NEW, STATE, 4)
    assert parts[2].message == pb.SubStateUpdate(id=1, seqno=1)
    assert parts[2].offset + 8 + parts[2].size == len(data)


def test_the_work_does_not_grow_with_the_square_of_the_damage() -> None:
    bad = patched(update(MSG, 5), -1, 6)
    count = 3000
    state = salvage(sub(NEW), *[update(MSG, n) + bad for n in range(1, count)])
    assert len(state.damages) == count - 1
    assert len(state.subscriptions[1].pending) == count - 1


def test_scanning_covers_every_byte_of_both_logs() -> None:
    for layout in (CLIENTS_LOG, SUBS_LOG):
        parts = list(scan_log(memoryview(bytes(range(256)) * 20), layout, CRC))
        assert all(isinstance(part, LogDamage) for part in parts)
        assert sum(part.length for part in parts if isinstance(part, LogDamage)) == 256 * 20
