"""Rows of the messages table: what is in which column for all that can lie in a data file, in every mode."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.format import kernels
from stantools.format.crc import CASTAGNOLI, IEEE, Crc
from stantools.format.encryption import ChannelCipher, Cipher
from stantools.format.layout import FILE_HEADER_SIZE, RECORD_HEADER
from stantools.format.proto import store_pb2 as pb
from stantools.pipeline.tables import batches
from stantools.pipeline.tables.message_rows import read_piece, read_unreadable
from stantools.pipeline.tables.model import FailedRead, Mode, SlicePiece, SliceRef, StoreRef, TableName, plain_text
from stantools.pipeline.tables.schema import schema_of
from stantools.pipeline.tables.table_options import TableOptions
from stantools.secret import Secret
from tests.pipeline.tables.reading import rows_of

CRC = Crc(IEEE)
OPTIONS = TableOptions(("",))
START = 1_700_000_000_123_456_789
KEY = b"a secret"


def record(crc: Crc = CRC, **fields: Any) -> bytes:
    """One record of a data file."""
    payload = pb.MsgProto(**fields).SerializeToString()
    return RECORD_HEADER.pack(len(payload), crc(payload)) + payload


def message(sequence: int, data: bytes = b"data", *, subject: str = "a", reply: str = "", crc: Crc = CRC) -> bytes:
    names = {"subject": os.fsencode(subject), "reply": os.fsencode(reply)}
    return record(crc, sequence=sequence, data=data, timestamp=START + sequence % 1000, **names)


def slice_of(
    place: Path, *records: bytes, channel: str = "a", polynomial: int = IEEE, head: bytes = b"\1\0\0\0"
) -> SliceRef:
    """Writes a slice without index."""
    directory = place / channel
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "msgs.1.dat"
    path.write_bytes(head + b"".join(records))
    return SliceRef(StoreRef(str(place), polynomial), channel, 1, False, str(path), None, path.stat().st_size, 0)


def values(ref: SliceRef, *columns: str, **options: Any) -> list[Any]:
    """Rows as tuples of some columns; of one column as values."""
    rows = rows_of(ref, replace(OPTIONS, columns=columns, **options))
    return [row[columns[0]] if len(columns) == 1 else tuple(row.values()) for row in rows]


def test_a_good_message(tmp_path: Path) -> None:
    ref = slice_of(tmp_path, message(7, b"\0\xffpayload", reply="answer"), channel="a")
    assert rows_of(ref, OPTIONS) == [
        {
            "store": str(tmp_path),
            "channel": "a",
            "seq": 7,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC),
            "timestamp_ns": START + 7,
            "subject": "a",
            "reply": "answer",
            "data": b"\0\xffpayload",
            "size": 9,
            "slice": "a/msgs.1.dat",
            "offset": 4,
            "status": "ok",
        }
    ]


def test_columns_come_as_they_are_asked_for(tmp_path: Path) -> None:
    ref = slice_of(tmp_path, message(1), message(2, b""))
    for columns in (
        ("seq",),
        ("data", "seq"),
        ("status", "store", "reply"),
        tuple(reversed(schema_of(TableName.MESSAGES).names)),
    ):
        (batch,) = read_piece(SlicePiece(ref, 4, ref.data_size), replace(OPTIONS, columns=columns))
        assert batch.schema == pa.schema([schema_of(TableName.MESSAGES).field(name) for name in columns])
        assert batch.num_rows == 2
    assert values(ref, "data", "size", "reply") == [(b"data", 4, ""), (b"", 0, "")]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    channel = os.fsdecode(b"a\xff.\xc3\xa9")
    ref = slice_of(
        tmp_path,
        message(1, subject=channel, reply=os.fsdecode(b"r\x80")),
        message(2, subject=channel, reply="é"),
        message(3, subject=os.fsdecode(b"\xfe")),
        message(4, subject="other"),
        channel=channel,
    )
    assert values(ref, "seq", "subject", "reply", "channel", "slice") == [
        (1, r"a\xff.é", r"r\x80", r"a\xff.é", r"a\xff.é/msgs.1.dat"),
        (2, r"a\xff.é", "é", r"a\xff.é", r"a\xff.é/msgs.1.dat"),
        (3, r"\xfe", "", r"a\xff.é", r"a\xff.é/msgs.1.dat"),
        (4, "other", "", r"a\xff.é", r"a\xff.é/msgs.1.dat"),
    ]


def test_the_name_of_a_slice() -> None:
    rows: list[tuple[str, str, str]] = [
        ("/s", "/s/a/msgs.1.dat", "a/msgs.1.dat"),
        ("/s/a", "/s/a/msgs.1.dat.bak", "msgs.1.dat.bak"),
        ("s3://bucket/s", "s3://bucket/s/a/msgs.1.dat", "a/msgs.1.dat"),
        ("/", "/a/msgs.1.dat", "a/msgs.1.dat"),
        ("/s", "/tmp/copy/msgs.1.dat", "msgs.1.dat"),
    ]
    for root, data, name in rows:
        assert SliceRef(StoreRef(root, IEEE), "a", 1, False, data, None, 0, 0).name == name, (root, data, name)


def test_text_of_bytes() -> None:
    assert plain_text(b"caf\xc3\xa9 \xc3") == r"café \xc3" and plain_text("plain") == "plain"


def test_rows_name_the_slice_that_was_copied(tmp_path: Path) -> None:
    copy = slice_of(tmp_path, message(1))
    original = replace(copy, store=StoreRef("hdfs://h/s", IEEE), data="hdfs://h/s/a/msgs.1.dat")
    (batch,) = read_piece(SlicePiece(copy, 4, copy.data_size), OPTIONS, named=original)
    row = batch.to_pylist()[0]
    assert (row["store"], row["slice"], row["data"]) == ("hdfs://h/s", "a/msgs.1.dat", b"data")


def test_statuses(tmp_path: Path) -> None:
    wrong = bytearray(message(2, b"x" * 20))
    wrong[-15] ^= 0xFF
    lengthy = bytearray(message(4, b"whole"))
    lengthy[0] += 3
    high = message(2**63 + 1)
    ref = slice_of(tmp_path, message(1), bytes(wrong), message(3), bytes(lengthy), high, bytes(30), message(9)[:-3])
    found = values(ref, "seq", "status", "data", "size")
    assert found == [
        (1, "ok", b"data", 4),
        (2, "payload", None, len(wrong)),
        (3, "ok", b"data", 4),
        (4, "repaired", b"whole", 5),
        (None, "out-of-range", b"data", 4),
        (None, "zeros", None, 30 + len(message(9)) - 3),
    ]
    row = rows_of(ref, OPTIONS)[1]
    assert row == dict.fromkeys(schema_of(TableName.MESSAGES).names) | {
        "store": str(tmp_path),
        "channel": "a",
        "slice": "a/msgs.1.dat",
        "seq": 2,
        "offset": 4 + len(message(1)),
        "size": len(wrong),
        "status": "payload",
    }
    good = values(ref, "seq", "status", mode=Mode.DROPMALFORMED)
    assert good == [(1, "ok"), (3, "ok"), (4, "repaired")]
    with pytest.raises(StoreUnreadableError) as caught:
        values(ref, "seq", mode=Mode.FAILFAST)
    assert caught.value.message == (
        f"{ref.data}: damaged at offset {row['offset']}, {len(wrong)} bytes: payload: the payload does not match its "
        "CRC; expected a message whose payload matches its CRC"
    )
    assert "DROPMALFORMED" in caught.value.remedy
    assert values(ref, "seq", "status", check_crc=False)[:2] == [(1, "ok"), (2, "ok")]


def test_failing_fast_passes_over_nothing_else(tmp_path: Path) -> None:
    ref = slice_of(tmp_path, message(1), message(2**64 - 1))
    with pytest.raises(StoreUnreadableError, match=r"offset \d+, sequence 18446744073709551615: expected a sequence"):
        values(ref, "offset", mode=Mode.FAILFAST)
    assert values(ref, "seq", mode=Mode.DROPMALFORMED) == [1]


def test_payloads_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_MOST_DATA", 10)
    ref = slice_of(tmp_path, message(1), message(2, b"x" * 11), message(3))
    assert values(ref, "seq", "data", "size", "status") == [
        (1, b"data", 4, "ok"),
        (2, None, 11, "out-of-range"),
        (3, b"data", 4, "ok"),
    ]


@pytest.fixture
def sealed(tmp_path: Path) -> SliceRef:
    """Messages under both ciphers, one under another key, plain ones, and one that only looks encrypted."""
    cipher, other = ChannelCipher(KEY, b"a"), ChannelCipher(b"other", b"a")
    payloads = [
        cipher.encrypt(b"aes", Cipher.AES),
        b"plain",
        cipher.encrypt(b"chacha", Cipher.CHACHA),
        other.encrypt(b"theirs", Cipher.AES),
        b"",
        b"\1short",
    ]
    return slice_of(tmp_path, *(message(n, data, reply=f"r{n}") for n, data in enumerate(payloads, 1)))


def test_encrypted_payloads(sealed: SliceRef) -> None:
    stored = values(sealed, "data")
    expected = [
        (1, b"aes", 3, "ok", "r1"),
        (2, b"plain", 5, "ok", "r2"),
        (3, b"chacha", 6, "ok", "r3"),
        (4, stored[3], len(stored[3]), "sealed", "r4"),
        (5, b"", 0, "ok", "r5"),
        (6, b"\1short", 6, "sealed", "r6"),
    ]
    columns = ("seq", "data", "size", "status", "reply")
    assert values(sealed, *columns, key=Secret(KEY)) == expected
    for size in (1, 7, 100):
        assert values(sealed, *columns, key=Secret(KEY), batch_bytes=size, split_bytes=size) == expected
    assert values(sealed, "size", key=Secret(KEY)) == [3, 5, 6, len(stored[3]), 0, 6]
    assert values(sealed, "status") == ["ok"] * 6
    # Which rows there are does not depend on the columns.
    for each in ("seq", "offset", "data"):
        assert len(values(sealed, each, key=Secret(KEY), mode=Mode.DROPMALFORMED)) == 4
        with pytest.raises(StoreUnreadableError, match=r"sequence 4: the payload looks encrypted"):
            values(sealed, each, key=Secret(KEY), mode=Mode.FAILFAST)


def test_where_the_key_comes_from(sealed: SliceRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY.decode())
    file = tmp_path / "key"
    file.write_bytes(KEY + b"\n")
    assert values(sealed, "data", key=Secret(variable="THE_KEY"))[0] == b"aes"
    assert values(sealed, "data", key=Secret(file=file))[0] == b"aes"
    assert values(sealed, "seq", key=Secret(variable="NOT_THERE")) == [1, 2, 3, 4, 5, 6]
    for wrong in (Secret(variable="NOT_THERE"), Secret(file=tmp_path / "gone"), Secret(b"")):
        with pytest.raises(StantoolsError):
            values(sealed, "data", key=wrong)
    with pytest.raises(UsageError, match="NOT_THERE"):
        values(sealed, "seq", key=Secret(variable="NOT_THERE"), mode=Mode.FAILFAST)


def test_what_cannot_be_read_is_a_row(tmp_path: Path) -> None:
    ref = slice_of(tmp_path, message(1))
    gone = replace(ref, data=ref.data.replace("msgs.1", "msgs.2"))
    row = dict.fromkeys(schema_of(TableName.MESSAGES).names) | {
        "store": str(tmp_path),
        "channel": "a",
        "slice": "a/msgs.2.dat",
        "status": "unreadable",
    }
    assert rows_of(gone, OPTIONS) == [row]
    assert rows_of(gone, replace(OPTIONS, split_bytes=10)) == [row]
    assert rows_of(gone, replace(OPTIONS, mode=Mode.DROPMALFORMED)) == []
    with pytest.raises(StoreUnreadableError, match="No such file"):
        rows_of(gone, replace(OPTIONS, mode=Mode.FAILFAST))


def test_files_without_their_version(tmp_path: Path) -> None:
    columns = ("seq", "offset", "size", "status")
    assert values(slice_of(tmp_path, head=b""), *columns) == [(None, 0, 0, "unreadable")]
    assert values(slice_of(tmp_path, head=b"\1\0"), *columns) == [(None, 0, 2, "unreadable")]
    assert values(slice_of(tmp_path, head=b"\2\0\0\0"), *columns) == [(None, 0, 4, "unreadable")]
    assert values(slice_of(tmp_path), *columns) == []
    ref = slice_of(tmp_path, message(1), message(2), head=b"\2\0\0\0")
    assert values(ref, "seq", "status") == [(1, "ok"), (2, "ok")]
    ref = slice_of(tmp_path, bytes(9), message(2), head=b"\2\0\0\0")
    for size in (1 << 20, 10):
        assert values(ref, "seq", "status", split_bytes=size) == [(None, "unreadable"), (None, "zeros"), (2, "ok")]
    with pytest.raises(StoreUnreadableError, match="unsupported file version: 2"):
        values(ref, "seq", mode=Mode.FAILFAST)


def test_unreadable_roots() -> None:
    part = FailedRead("/no/store", "/no/store: no such directory", "name another")
    (batch,) = read_unreadable(part, OPTIONS)
    assert batch.schema == schema_of(TableName.MESSAGES)
    assert batch.to_pylist() == [
        dict.fromkeys(schema_of(TableName.MESSAGES).names) | {"store": "/no/store", "status": "unreadable"}
    ]
    (batch,) = read_unreadable(replace(part, channel="a", file="a/msgs.1.dat"), replace(OPTIONS, columns=("slice",)))
    assert batch.to_pylist() == [{"slice": "a/msgs.1.dat"}]
    assert list(read_unreadable(part, replace(OPTIONS, mode=Mode.DROPMALFORMED))) == []
    with pytest.raises(StoreUnreadableError) as caught:
        list(read_unreadable(part, replace(OPTIONS, mode=Mode.FAILFAST)))
    assert (caught.value.message, caught.value.remedy) == (part.message, part.remedy)


def test_other_polynomials(tmp_path: Path) -> None:
    ref = slice_of(tmp_path, message(1, crc=Crc(CASTAGNOLI)), polynomial=CASTAGNOLI)
    assert values(ref, "status") == ["ok"]
    wrong = replace(ref, store=StoreRef(ref.store.root, IEEE))
    assert values(wrong, "status") == ["payload"]
    assert values(wrong, "status", check_crc=False) == ["ok"]


def test_times_before_1970(tmp_path: Path) -> None:
    ref = slice_of(tmp_path, record(sequence=1, subject=b"a", timestamp=-1), record(sequence=2, subject=b"a"))
    times = values(ref, "timestamp_ns", "timestamp")
    assert times[0] == (-1, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
    assert times[1] == (0, datetime(1970, 1, 1, tzinfo=UTC))


def test_readers_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Batches own their memory, and readers that take turns or run in threads share nothing."""
    refs = []
    for number in range(4):
        records = [message(n, b"%d" % number * 30) for n in range(1, 3001)]
        refs.append(slice_of(tmp_path / str(number), *records))
    options = replace(OPTIONS, batch_rows=512)
    readers = [read_piece(SlicePiece(ref, FILE_HEADER_SIZE, ref.data_size), options) for ref in refs]
    taken: list[list[pa.RecordBatch]] = [[] for _ in refs]
    for batches_together in zip(*readers, strict=True):
        for each, batch in zip(taken, batches_together, strict=True):
            each.append(batch)

    def in_thread(number: int) -> None:
        results[number] = list(read_piece(SlicePiece(refs[number], 4, refs[number].data_size), options))

    results: dict[int, list[pa.RecordBatch]] = {}
    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        for found in (taken[number], results[number]):
            table = pa.Table.from_batches(found)
            assert table["seq"].to_pylist() == list(range(1, 3001))
            assert set(table["data"].to_pylist()) == {b"%d" % number * 30}


def test_encoded_by_the_writer_of_stores(tmp_path: Path) -> None:
    numbers = np.arange(1, 50, dtype=np.uint64)
    replies = [b"r" * (n % 3) for n in range(49)]
    payloads = [b"p" * n for n in range(49)]
    encoded, _ = kernels.encode_messages(b"a", numbers, numbers.astype(np.int64), replies, payloads, CRC)
    ref = slice_of(tmp_path, bytes(encoded))
    assert values(ref, "data") == payloads
    assert values(ref, "reply") == [reply.decode() for reply in replies]
