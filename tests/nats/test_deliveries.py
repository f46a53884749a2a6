"""What servers deliver, as columns: plain and compiled agree on everything, and read what the protocol says."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stantools.nats.columns import FrameColumns
from stantools.nats.frames import ParseStop, frame_table
from stantools.nats.operations import MAX_LINE
from tests.nats.conftest import KERNELS

both = pytest.mark.parametrize("kernel", KERNELS.each)


def parse(kernel: ModuleType, data: bytes, *, rows: int = 64) -> tuple[tuple, dict]:
    table, columns = frame_table(rows), FrameColumns(rows)
    count, at, stop, spans, length = kernel.parse_messages(data, 0, len(data), table, MAX_LINE, -1)
    kernel.read_deliveries(data, table, 0, count, columns)
    named = {name: getattr(columns, name)[:count].tolist() for name in FrameColumns.__slots__}
    return (count, at, stop, length, spans), named


def part(data: bytes, columns: dict, name: str, row: int) -> bytes:
    start = columns[f"{name}_start"][row]
    return data[start : start + columns[f"{name}_size"][row]]


@both
def test_a_message_of_a_consumer(kernel: ModuleType) -> None:
    data = (
        b"MSG orders.new 7 $JS.ACK.ORDERS.c1.1.42.17.1600000000123456789.958 5\r\nhello\r\n"
        b"HMSG orders.new 3 $JS.ACK.hub.AbC1.ORDERS.c1.2.43.18.-5.0.x9 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n"
    )
    result, columns = parse(kernel, data)
    assert result == (2, len(data), ParseStop.END, 0, [(7, 0, 1), (3, 1, 2)])
    assert columns["sid"] == [7, 3]
    assert columns["sequence"] == [42, 43]
    assert columns["consumer_sequence"] == [17, 18]
    assert columns["timestamp"] == [1600000000123456789, -5]
    assert columns["pending"] == [958, 0]
    assert columns["status"] == [0, 0]
    assert [part(data, columns, "subject", row) for row in (0, 1)] == [b"orders.new"] * 2
    assert [part(data, columns, "data", row) for row in (0, 1)] == [b"hello", b"hi"]
    assert part(data, columns, "header", 1) == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert columns["header_start"][0] == 0
    assert part(data, columns, "reply", 0).startswith(b"$JS.ACK.ORDERS")


@both
def test_eleven_tokens(kernel: ModuleType) -> None:
    _, columns = parse(kernel, b"MSG s 7 $JS.ACK._.h.S.c.1.5.6.7.8 0\r\n\r\n")
    names = ("sequence", "consumer_sequence", "timestamp", "pending")
    assert [columns[name] for name in names] == [[5], [6], [7], [8]]


@both
@pytest.mark.parametrize(
    "reply",
    [
        "_INBOX.abc.1",
        "$JS.ACK.S.c.1.5.6.7",  # 8 tokens: the preview's form had no pending count
        "$JS.ACK.S.c.1.5.6.7.8.9",
        "$JS.ACK.S.c.1.5.6.7.8.9.10.11.12",
        "$JS.ACK.S.c.1.x.6.7.8",
        "$JS.ACK.S.c.1.5.6.7.-8",
        "$JS.ACK.S.c.1.5.6..8",
        "$JS.ACK.S.c.1.18446744073709551616.6.7.8",
        "$JS.ACK.S.c.1.5.6.9223372036854775808.8",
        "$JS.FC.S.c.1",
    ],
)
def test_other_replies_have_no_numbers(kernel: ModuleType, reply: str) -> None:
    (rows, *_), columns = parse(kernel, f"MSG s 7 {reply} 0\r\n\r\n".encode())
    assert rows == 1
    assert [columns[name] for name in ("sequence", "consumer_sequence", "timestamp", "pending")] == [[0]] * 4


@both
def test_the_largest_numbers(kernel: ModuleType) -> None:
    most = 2**64 - 1
    _, columns = parse(kernel, f"MSG s 7 $JS.ACK.S.c.1.{most}.{most}.{2**63 - 1}.{most} 0\r\n\r\n".encode())
    assert columns["sequence"] == columns["pending"] == [most]
    assert columns["timestamp"] == [2**63 - 1]


@both
@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0 404 No Messages\r\n\r\n", 404),
        (b"NATS/1.0 503\r\n\r\n", 503),
        (b"NATS/1.0\r\nA: b\r\n\r\n", 0),
        (b"NATS/1.0 40\r\n\r\n", 0),
        (b"NATS/1.0 4045\r\n\r\n", 0),
    ],
)
def test_status(kernel: ModuleType, block: bytes, status: int) -> None:
    _, columns = parse(kernel, b"HMSG i 7 %d %d\r\n%b\r\n" % (len(block), len(block), block))
    assert columns["status"] == [status]


@both
def test_rows_behind_others(kernel: ModuleType) -> None:
    data = b"MSG s 7 1\r\nx\r\n" * 3
    table, columns = frame_table(3), FrameColumns(5)
    kernel.parse_messages(data, 0, len(data), table, MAX_LINE, -1)
    kernel.read_deliveries(data, table, 1, 3, columns, 3)
    assert columns.sid.tolist() == [0, 0, 0, 7, 7]
    assert columns.data_start.tolist() == [0, 0, 0, 25, 39]


@both
def test_blanks_may_be_many(kernel: ModuleType) -> None:
    (rows, *_), columns = parse(kernel, b"MSG \t s\t7  2 \r\nab\r\n")
    assert rows == 1
    assert columns["subject_size"] == [1]


@both
def test_wrong_use(kernel: ModuleType) -> None:
    data = b"MSG s 7 1\r\nx\r\n"
    table = frame_table(2)
    kernel.parse_messages(data, 0, len(data), table, MAX_LINE, -1)
    for begin, end, row in ((-1, 1, 0), (1, 0, 0), (0, 3, 0), (0, 1, 4), (0, 1, -1)):
        with pytest.raises(ValueError, match="outside"):
            kernel.read_deliveries(data, table, begin, end, FrameColumns(4), row)
    for column in range(7):
        for value in (-1, 1 << 30):
            wrong = table.copy()
            wrong[0] = [4, 1, 4, 1, 0, 11, 1, 7]
            wrong[0, column] = value
            with pytest.raises(ValueError, match="outside"):
                kernel.read_deliveries(data, wrong, 0, 1, FrameColumns(4))


words = st.sampled_from(
    [
        *(b"MSG", b"HMSG", b"PING\r\n", b"\r\n", b"\n", b" ", b"\t", b".", b"s", b"ab"),
        *(b"7", b"3", b"8", b"0", b"2", b"12", b"-1", b"9" * 20, b"1" * 19),
        *(b"NATS/1.0 100 Idle\r\n\r\n", b"$JS.ACK.S.c.1.5.6.7.8", b"$JS.ACK.a.b.S.c.1.5.6.7.8"),
    ]
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame, mostly right."""
    subject = draw(st.sampled_from([b"s", b"a.b.c", b"\xff\xfe"]))
    number = st.sampled_from([b"0", b"5", b"18446744073709551615", b"18446744073709551616", b"x", b""])
    tokens = [draw(number) for _ in range(draw(st.integers(0, 10)))]
    reply = draw(st.sampled_from([b"", b" r", b" $JS.ACK." + b".".join(tokens)]))
    block = draw(st.sampled_from([None, b"", b"NATS/1.0 404 x\r\n\r\n", b"NATS/1.0\r\na: b\r\n\r\n"]))
    data = draw(st.binary(max_size=20))
    sid = draw(st.sampled_from([b"3", b"7", b"9"]))
    if block is None:
        return b"MSG %b %b%b %d\r\n%b\r\n" % (subject, sid, reply, len(data), data)
    return b"HMSG %b %b%b %d %d\r\n%b%b\r\n" % (subject, sid, reply, len(block), len(block) + len(data), block, data)


@settings(max_examples=300)
@given(st.lists(frames() | words, max_size=12).map(b"".join), st.integers(0, 3), st.integers(1, 40))
@example(b"HMSG\r\n", 0, 1)
@example(b"MSG \r\n", 0, 1)
def test_both_kernels_agree(data: bytes, rows: int, step: int) -> None:
    plain, compiled = KERNELS.both
    for size in (rows, 64):
        assert parse(plain, data, rows=size) == parse(compiled, data, rows=size)
    for end in range(step - 1, len(data), step):
        assert parse(plain, data[:end]) == parse(compiled, data[:end])
