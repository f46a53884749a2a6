"""Envelopes and logs under any damage."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stantools.format import kernels
from stantools.format.columns import LogColumns
from stantools.format.crc import CASTAGNOLI, Crc
from stantools.format.envelope import FILE_HEADER_BYTES, encode
from stantools.format.layout import ScanStop
from stantools.format.proto import store_pb2 as pb
from stantools.store.clientlog import read_clients, salvage_clients
from stantools.store.logrepair import CLIENTS_LOG, SUBS_LOG, LogLayout
from stantools.store.logscan import LogDamage, LogEntry, history
from stantools.store.sublog import read_subs, salvage_subs
from tests.envelopes import Records

CRC = Crc()
ids = st.integers(1, 3)
sequences = st.integers(1, 20)
names = st.sampled_from([b"a", b"b", b"client-c"])

state_messages = st.builds(
    pb.SubState,
    id=ids,
    client_id=names | st.just(b""),
    inbox=st.just(b"_INBOX.x"),
    ack_inbox=st.just(b"_INBOX.y"),
    last_sent=st.integers(0, 20),
    is_durable=st.booleans(),
)
update_messages = st.builds(pb.SubStateUpdate, id=ids, seqno=sequences)
sub_records: st.SearchStrategy[tuple[int, Any]] = st.one_of(
    st.tuples(st.sampled_from([1, 2]), state_messages),
    st.tuples(st.just(3), st.builds(pb.SubStateDelete, id=ids)),
    st.tuples(st.sampled_from([4, 5]), update_messages),
)
client_records: st.SearchStrategy[tuple[int, Any]] = st.one_of(
    st.tuples(st.just(1), st.builds(pb.ClientInfo, id=names, hb_inbox=names)),
    st.tuples(st.just(2), st.builds(pb.ClientDelete, id=names)),
)

Record = tuple[int, Any]


def log(parts: list[Record], crc: Crc = CRC) -> bytes:
    return FILE_HEADER_BYTES + b"".join(encode(m.SerializeToString(), crc, kind) for kind, m in parts)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Any damages, one after the other."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 30)))
        what = draw(st.sampled_from(["set", "zeros", "cut", "remove", "insert", "copy"]))
        if what == "set":
            data = data[:at] + draw(st.binary(min_size=end - at, max_size=end - at)) + data[end:]
        elif what == "zeros":
            data = data[:at] + bytes(end - at) + data[end:]
        elif what == "cut":
            data = data[:at]
        elif what == "remove":
            data = data[:at] + data[end:]
        elif what == "insert":
            data = data[:at] + draw(st.binary(max_size=20) | st.integers(0, 40).map(bytes)) + data[at:]
        else:
            target = draw(st.integers(0, len(data)))
            data = data[:target] + data[at:end] + data[target:]
    return data


def check_cover(data: bytes, layout: LogLayout, crc: Crc = CRC) -> list[LogEntry | LogDamage]:
    """Records and damages cover the file without gap or overlap."""
    parts = list(history(memoryview(data), layout, crc))
    at = 4 if data[:4] == FILE_HEADER_BYTES else 0
    for part in parts:
        assert part.offset == at
        at = part.end if isinstance(part, LogDamage) else at + 8 + part.size
    assert at == len(data)
    return parts


@given(data=st.data(), typed=st.booleans())
@settings(max_examples=200)
def test_envelopes_round_trip_and_stand_any_damage(data: st.DataObject, typed: bool) -> None:
    payloads = data.draw(st.lists(st.tuples(st.integers(1, 9), st.binary(min_size=1, max_size=30)), max_size=6))
    good = FILE_HEADER_BYTES + b"".join(encode(p, CRC, kind if typed else None) for kind, p in payloads)
    read = [(record.type, bytes(record.payload)) for record in Records(good, 4, len(good), typed=typed, crc=CRC)]
    assert read == [(kind if typed else None, payload) for kind, payload in payloads]
    bad = data.draw(damaged(good))
    reader = Records(bad, 4, len(bad), typed=typed, crc=CRC)
    at = 4
    for record in reader:
        assert record.offset == at
        assert len(record.payload) == record.size
        assert CRC(record.payload) == record.crc
        at = record.end
    assert reader.stop is not None
    assert (reader.offset, at <= len(bad)) == (at, True) or (at, reader.stop) == (4, ScanStop.END)


@given(data=st.data())
@settings(max_examples=200)
def test_the_plain_reader_and_the_kernels_stop_at_the_same_place(data: st.DataObject) -> None:
    bad = data.draw(damaged(log(data.draw(st.lists(sub_records, max_size=8)))))
    if len(bad) < 4:
        return
    columns = LogColumns(100)
    rows, offset, stop = kernels.scan_log(bad, 4, len(bad), CRC, columns)
    reader = Records(bad, 4, len(bad), typed=True, crc=CRC)
    found = [record for record in reader if record.offset < offset or stop != ScanStop.BAD_DECODE]
    assert [record.offset for record in found] == columns.offset[:rows].tolist()
    assert [record.type for record in found] == columns.type[:rows].tolist()
    if stop != ScanStop.BAD_DECODE:
        assert (reader.offset, reader.stop) == (offset, stop)


@given(data=st.data())
@settings(max_examples=300)
def test_any_damage_to_subs(data: st.DataObject) -> None:
    bad = data.draw(damaged(log(data.draw(st.lists(sub_records, max_size=12)))))
    parts = check_cover(bad, SUBS_LOG)
    state = salvage_subs(memoryview(bad), CRC)
    assert [d.offset for d in state.damages] == [p.offset for p in parts if isinstance(p, LogDamage)]
    assert state.rows + len(state.damages) == len(parts)
    strict = read_subs(memoryview(bad), CRC)
    assert strict.end is not None
    assert strict.end.offset <= len(bad)
    assert salvage_subs(memoryview(bad), CRC.unchecked) is not None


@given(data=st.data())
@settings(max_examples=200)
def test_any_damage_to_clients(data: st.DataObject) -> None:
    crc = Crc(CASTAGNOLI)
    bad = data.draw(damaged(log(data.draw(st.lists(client_records, max_size=12)), crc)))
    parts = check_cover(bad, CLIENTS_LOG, crc)
    state = salvage_clients(memoryview(bad), crc)
    assert state.rows + len(state.damages) == len(parts)
    assert read_clients(memoryview(bad), crc).end is not None


@given(layout=st.sampled_from([CLIENTS_LOG, SUBS_LOG]), data=st.binary(max_size=200))
@example(layout=SUBS_LOG, data=FILE_HEADER_BYTES + b"\0\0\0\1\0\0\0\0")
def test_any_bytes(layout: LogLayout, data: bytes) -> None:
    check_cover(data, layout)
    fold = salvage_clients if layout is CLIENTS_LOG else salvage_subs
    assert fold(memoryview(data), CRC).rows == sum(
        isinstance(part, LogEntry) for part in history(memoryview(data), layout, CRC)
    )


@given(parts=st.lists(sub_records, max_size=40))
@settings(max_examples=150)
def test_without_damage_both_folds_are_the_same(parts: list[Record]) -> None:
    data = memoryview(log(parts))
    strict, tolerant = read_subs(data, CRC), salvage_subs(data, CRC)
    strict.end = None
    assert strict == tolerant


@given(data=st.data(), parts=st.lists(sub_records, min_size=1, max_size=12))
@settings(max_examples=400)
def test_one_damaged_byte_touches_one_record_only(data: st.DataObject, parts: list[Record]) -> None:
    good = log(parts)
    at = data.draw(st.integers(4, len(good) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != good[at]))
    bad = good[:at] + bytes([value]) + good[at + 1 :]
    originals = list(Records(good, 4, len(good), typed=True, crc=CRC))
    entries = {part.offset: part for part in check_cover(bad, SUBS_LOG) if isinstance(part, LogEntry)}
    repaired = {d.offset: d for d in salvage_subs(memoryview(bad), CRC).damages if d.repaired}
    for record in originals:
        if not record.offset <= at < record.end:
            entry = entries[record.offset]
            assert (entry.type, entry.message.SerializeToString()) == (record.type, record.payload)
        elif at - record.offset != 3:
            # A damaged type can turn one record into another that is just as good; nothing else can.
            assert record.offset not in entries
            if record.offset in repaired:
                damage = repaired[record.offset]
                assert damage.message is not None
                assert (damage.type, damage.message.SerializeToString()) == (record.type, record.payload)
            assert at - record.offset >= 8 or record.offset in repaired
