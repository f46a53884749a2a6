"""Pieces of any size give the same messages."""

from __future__ import annotations

import random
import re

import pytest

from stantools.nats.assembler import Assembler, FrameError, Received


def frame(number: int, sid: int = 7, size: int = 20) -> bytes:
    data = random.Random(number).randbytes(size)
    return b"MSG s.%d %d $JS.ACK.S.c.1.%d.%d.1000.0 %d\r\n%b\r\n" % (number, sid, number, number, size, data)


def feed(pieces: list[bytes], sids: list[int], take_every: int = 1) -> tuple[dict[int, list[Received]], list[bytes]]:
    assembler = Assembler()
    assembler.want(sids)
    batches: dict[int, list[Received]] = {sid: [] for sid in sids}
    others = []
    for count, piece in enumerate(pieces):
        assembler.put(piece)
        while (other := assembler.advance()) is not None:
            others.append(other)
        if count % take_every == 0:
            for sid, batch in assembler.take():
                batches[sid].append(batch)
    for sid, batch in assembler.take():
        batches[sid].append(batch)
    assert assembler.empty
    return batches, others


def messages(batches: list[Received]) -> list[tuple[int, bytes, bytes]]:
    return [(int(b.columns.sequence[i]), b.subject(i), b.data(i)) for b in batches for i in range(len(b))]


@pytest.mark.parametrize("step", [1, 7, 100, 4096, 10**9])
def test_pieces(step: int) -> None:
    data = b"".join(frame(number) + (b"PING\r\n" if number % 5 == 0 else b"") for number in range(1, 200))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    batches, others = feed(pieces, [7], take_every=3)
    assert messages(batches[7]) == [
        (number, b"s.%d" % number, random.Random(number).randbytes(20)) for number in range(1, 200)
    ]
    assert b"".join(others) == b"PING\r\n" * 39


def test_batches_stay_valid_through_many_blocks() -> None:
    data = b"".join(frame(number, size=1000) for number in range(1, 3001))
    batches, _ = feed([data[at : at + 30000] for at in range(0, len(data), 30000)], [7], take_every=7)
    assert [m[2] for m in messages(batches[7])] == [random.Random(number).randbytes(1000) for number in range(1, 3001)]


def test_more_rows_than_a_block_has() -> None:
    data = b"".join(b"MSG s 7 $JS.ACK.S.c.1.%d.1.1.1 0\r\n\r\n" % number for number in range(1, 20001))
    batches, _ = feed([data], [7])
    assert [m[0] for m in messages(batches[7])] == list(range(1, 20001))


def test_a_message_larger_than_a_block() -> None:
    data = frame(1) + frame(2, size=5 << 20) + frame(3)
    batches, _ = feed([data[at : at + 65536] for at in range(0, len(data), 65536)], [7])
    assert [(m[0], len(m[2])) for m in messages(batches[7])] == [(1, 20), (2, 5 << 20), (3, 20)]


def test_two_subscriptions() -> None:
    data = b"".join(frame(number, sid=random.Random(number).choice([3, 7, 9])) for number in range(1, 300))
    batches, others = feed([data[at : at + 5000] for at in range(0, len(data), 5000)], [3, 7])
    ours = {sid: [m[0] for m in messages(batches[sid])] for sid in (3, 7)}
    rest = re.findall(rb"MSG s\.(\d+) (\d+) \$JS", b"".join(others))
    assert sorted(ours[3] + ours[7] + [int(number) for number, _ in rest]) == list(range(1, 300))
    assert ours[3] == sorted(ours[3])
    assert {sid for _, sid in rest} == {b"9"}


def test_a_subscription_that_ends_meanwhile() -> None:
    assembler = Assembler()
    assembler.want([3, 7])
    assembler.put(frame(1, sid=3) + frame(2, sid=7))
    assert assembler.advance() is None
    assembler.want([7])
    assert [(sid, [m[0] for m in messages([batch])]) for sid, batch in assembler.take()] == [(3, [1]), (7, [2])]


def test_what_is_no_frame() -> None:
    assembler = Assembler()
    assembler.want([7])
    assembler.put(frame(1) + b"MSG x y\r\n")
    with pytest.raises(FrameError, match="MSG x y"):
        assembler.advance()
    assert [sid for sid, _ in assembler.take()] == [7]


def test_clear_forgets_half_a_frame() -> None:
    assembler = Assembler()
    assembler.want([7])
    assembler.put(frame(1) + frame(2)[:-3])
    assert assembler.advance() is None
    assert not assembler.empty
    assembler.clear()
    assembler.put(frame(3))
    assert assembler.advance() is None
    assert [m[0] for _, batch in assembler.take() for m in messages([batch])] == [1, 3]


def test_what_came_before_something_wrong_is_not_lost() -> None:
    assembler = Assembler()
    assembler.want([7])
    assembler.put(b"PING\r\n" + frame(1, sid=9) + b"+OK\r\n" + b"MSG x y\r\n")
    assert assembler.advance() == b"PING\r\n" + frame(1, sid=9) + b"+OK\r\n"
    with pytest.raises(FrameError, match="MSG x y"):
        assembler.advance()


def test_a_line_without_end() -> None:
    assembler = Assembler()
    assembler.want([7])
    assembler.put(b"A" * ((1 << 20) - 1))
    assert assembler.advance() is None
    assembler.put(b"A")
    with pytest.raises(FrameError, match="AAA"):
        assembler.advance()
