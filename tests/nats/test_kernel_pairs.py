"""Native and plain kernels give the same, and it does not matter in which pieces bytes come."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.nats.client import Counters
from stantools.nats import encoding
from stantools.nats.frames import HEADER_SIZE, PAYLOAD_SIZE, ROUTE, Payloads, frame_table
from tests.nats.conftest import KERNELS
from tests.nats.feeding import Feeder

SUBJECTS = st.sampled_from([b"foo", b"bar", b"foo.bar", b"x", b"_INBOX.abc", b"1", b"a" * 60])
BLANK = st.sampled_from([b" ", b" ", b" ", b"\t", b"  \t"])
END = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b" \r\n", b"\r\r\n"])


@st.composite
def frames(draw: st.DrawFn, names: tuple[bytes, bytes] = (b"PUB", b"HPUB"), sid: bool = False) -> bytes:
    """A frame, nearly always a good one."""
    headers = draw(st.binary(max_size=4)) if draw(st.booleans()) else None
    payload = draw(st.binary(max_size=12))
    name = names[headers is not None]
    words = [name.lower() if draw(st.booleans()) else name, draw(SUBJECTS)]
    if sid:
        words.append(draw(st.sampled_from([b"1", b"2", b"12", b"x"])))
    if draw(st.booleans()):
        words.append(draw(SUBJECTS))
    if headers is not None:
        words.append(b"%d" % len(headers))
    size = len(payload) + len(headers or b"")
    words.append(b"%d" % draw(st.sampled_from([size] * 20 + [size + 1, size + 200])))
    blank = draw(BLANK)
    return blank.join(words) + draw(END) + (headers or b"") + payload + b"\r\n"


OPERATIONS = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"SUB foo 1\r\n",
        b"SUB foo q 1\n",
        b"UNSUB 1 5\r\n",
        b'CONNECT {"verbose":true}\r\n',
        b"+OK\r\n",
        b"-ERR 'x'\r\n",
        b"INFO {}\r\n",
        b"FOO\r\n",
        b"SUB\r\n",
        b"CONNECT " + b" " * 70,
        b"PUB " + b" " * 66,
    ]
)


PUBLISHES = frames() | OPERATIONS
MESSAGES = frames((b"MSG", b"HMSG"), True) | OPERATIONS


@st.composite
def streams(draw: st.DrawFn, one: st.SearchStrategy[bytes] = PUBLISHES) -> bytes:
    """Frames, repeated and sometimes damaged."""
    parts: list[bytes] = []
    for part in draw(st.lists(one, max_size=6)):
        parts += [part] * draw(st.sampled_from([1, 1, 2, 5]))
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2])) if data else 0):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from([b"", b"\r", b"\n", b" ", b"9", b"\x00", b"P"]))
    return bytes(data)


@settings(max_examples=400, deadline=None)
@given(streams(), st.integers(0, 5), st.integers(0, 80), st.integers(-1, 40), st.integers(0, 5))
@example(b"PUB x 0\r\n\r\nPUB x 0\r\r\n\r\n", 5, 80, -1, 0)
@example(b"", 0, 0, 0, 0)
def test_publishes(data: bytes, rows: int, limit: int, most: int, cut: int) -> None:
    results: list[Any] = []
    for kernels in KERNELS.both:
        routes = kernels.Names()
        for route, subject in enumerate((b"foo", b"bar", b"foo.bar")):
            routes.add(subject, route // 2)
        table = frame_table(rows)
        end = max(len(data) - cut, 0)
        result = kernels.parse_publishes(data, 0, end, table, routes, limit, most)
        results.append((result, table[: result[0]].tolist()))
        for headers in (False, True):
            results[-1] += (kernels.encode_messages(data, table, 0, result[0], b"7", headers),)
    assert results[0] == results[1]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(streams() | frames(), max_size=8),
    st.integers(0, 3),
    st.integers(0, 12),
    st.lists(st.sampled_from([0, 1, 2, 255]), min_size=1, max_size=5).map(bytes),
    st.integers(0, 80),
    st.integers(-1, 40),
)
@example([b"PUB foo 0\r\n\r\n", b"PUB bar 1\r\nx\r\n", b"PUB foo 1\r\ny\r\n"], 0, 3, b"\0\2\1", 80, -1)
def test_gathered(pieces: list[bytes], first: int, rows: int, ranks: bytes, limit: int, most: int) -> None:
    data = b"".join(pieces)
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    first = min(first, len(ends))
    results: list[Any] = []
    for kernels in KERNELS.both:
        routes = kernels.Names()
        for route, subject in enumerate((b"foo", b"bar", b"foo.bar", b"x")):
            routes.add(subject, route + 1)
        table = frame_table(rows)
        shares, taken = kernels.parse_gathered(data, ends, first, table, routes, ranks, limit, most)
        count = sum(each for each, _ in taken)
        results.append((shares, taken, table[:count].tolist()))
        # The same as each piece gives alone, up to one that does not fit, in the order of the ranks.
        expected: list[list[int]] = []
        for begin, end, piece in zip([0, *ends][first:], ends[first:], [*taken, None], strict=False):
            own = frame_table(rows - len(expected))
            found, at, _, spans, _ = kernels.parse_publishes(data, begin, end, own, routes, limit, most)
            ranked = all(0 < route < len(ranks) and ranks[route] for route, _, _ in spans)
            whole = at == end and ranked and not own[:found, HEADER_SIZE].any()
            assert piece == ((found, own[:found, PAYLOAD_SIZE].sum()) if whole else None)
            if piece is None:
                break
            expected += own[:found].tolist()
        assert table[:count].tolist() == sorted(expected, key=lambda row: ranks[row[ROUTE]])
        assert [row for _, begin, last, _ in shares for row in range(begin, last)] == list(range(count))
        for route, begin, last, size in shares:
            assert table[begin:last, ROUTE].tolist() == [route] * (last - begin)
            assert size == table[begin:last, PAYLOAD_SIZE].sum()
        assert all(one[0] != other[0] for one, other in pairwise(shares))
    assert results[0] == results[1]


@settings(max_examples=50, deadline=None)
@given(
    SUBJECTS,
    SUBJECTS,
    st.binary(max_size=12) | st.integers(90, 110).map(bytes),
    SUBJECTS | st.just(b""),
    st.integers(0, 110),
)
def test_one_message(subject: bytes, sid: bytes, payload: bytes, reply: bytes, size: int) -> None:
    for kernels in KERNELS.both:
        assert kernels.encode_message(subject, sid, payload) == encoding.message(subject, sid, payload)
        if size > len(payload):
            with pytest.raises(ValueError, match=f"headers of {size} bytes in {len(payload)}"):
                kernels.encode_message(subject, sid, payload, reply, size)
            continue
        expected = encoding.message(subject, sid, payload[size:], reply, payload[:size])
        assert kernels.encode_message(subject, sid, payload, reply, size) == expected


@settings(max_examples=200, deadline=None)
@given(streams(MESSAGES), st.integers(0, 5), st.integers(0, 80), st.integers(-1, 40))
def test_messages(data: bytes, rows: int, limit: int, most: int) -> None:
    results: list[Any] = []
    for kernels in KERNELS.both:
        table = frame_table(rows)
        result = kernels.parse_messages(data, 0, len(data), table, limit, most)
        results.append((result, table[: result[0]].tolist()))
    assert results[0] == results[1]


@settings(max_examples=300, deadline=None)
@given(st.data(), streams())
def test_in_pieces(kernels: ModuleType, choice: st.DataObject, data: bytes) -> None:
    whole, pieces = Feeder(kernels), Feeder(kernels)
    whole.feed(data)
    step = choice.draw(st.sampled_from([1, 1, 2, 3, 7, 50]))
    for i in range(0, len(data), step):
        pieces.feed(data[i : i + step])
    assert (whole.events, whole.closed) == (pieces.events, pieces.closed)
    if not whole.closed:
        assert whole.buffer == pieces.buffer


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80) | st.text('PUBHSNICOEM+-ERKT \t\r\n0123{}"fo.', max_size=60).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    feeders = [Feeder(kernels) for kernels in KERNELS.both]
    for feeder in feeders:
        feeder.feed(data)
    assert feeders[0].events == feeders[1].events
    assert feeders[0].closed == feeders[1].closed


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 40), st.integers(0, 12)), max_size=8), st.integers(-1, 9), st.integers(-1, 9))
def test_blocks(pieces: list[tuple[int, int]], begin: int, end: int) -> None:
    starts = np.array([start for start, _ in pieces], np.int64)
    payloads = Payloads(bytes(range(40)), starts, np.array([size for _, size in pieces], np.uint32))
    results: list[object] = []
    for kernels in KERNELS.both:
        try:
            results.append(kernels.encode_block(payloads, begin, end, b"in.box", b"12"))
        except ValueError as problem:
            results.append(str(problem))
    assert results[0] == results[1]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard", "clear"] + ["add"] * 5), st.integers(0, 60), st.integers(0, 9)),
        max_size=150,
    )
)
def test_names(steps: list[tuple[str, int, int]]) -> None:
    tables = [kernels.Names() for kernels in KERNELS.both]
    for step, number, route in steps:
        name = b"subject.of.a.certain.length.%d" % number
        for table in tables:
            if step == "add":
                table.add(name, route)
            elif step == "discard":
                table.discard(name)
            elif number == 0:
                table.clear()
        assert len(tables[0]) == len(tables[1])
    for number in range(61):
        name = b"subject.of.a.certain.length.%d" % number
        assert tables[0].get(name) == tables[1].get(name)


@settings(max_examples=200, deadline=None)
@given(
    st.sets(st.sampled_from((b"a.", b"b.", b"c.a.", b"c.b.a.", b"d..", b"e"))),
    st.lists(
        st.lists(st.sampled_from((b"a", b"b", b"c", b"d", b".", b".", b".", b"\x0b", b"e")), max_size=6), max_size=9
    ),
    st.sets(st.sampled_from((b"a", b"c.b", b"a.b", b"a."))),
)
def test_names_by_how_they_begin(heads: set[bytes], pieces: list[list[bytes]], known: set[bytes]) -> None:
    names = [b"".join(each) for each in pieces]
    numbers = {head: 7 + number for number, head in enumerate(sorted(heads))}
    data = b"".join(b"PUB %b 0\r\n\r\n" % name for name in names if name)
    found = []
    for kernels in KERNELS.both:
        table, frames = kernels.Names(), frame_table(16)
        for name in known:
            table.add(name, numbers.get(name[:2], 3))
        table.begin_with(numbers)
        got = [table.get(name) for name in names * 2]
        rows, _, _, spans, _ = kernels.parse_publishes(data, 0, len(data), frames, table, 99, 99)
        assert frames[:rows, ROUTE].tolist() == [table.get(name) for name in names if name][:rows]
        gathered = kernels.parse_gathered(data, [len(data)], 0, frames, table, bytes(range(20)), 99, 99)
        table.clear()
        found.append((got, rows, spans, gathered, [table.get(name) for name in names]))
        assert set(found[-1][-1]) <= {-1}
    assert found[0] == found[1]
    for name, number in zip(names, found[0][0], strict=False):
        under = {numbers[head] for head in heads if name.startswith(head) and b"" not in name[len(head) :].split(b".")}
        under = under if min(name, default=0) > 32 else set()
        assert number in under or (name in known and not under) or (number == -1 and not under)


PLACES = st.tuples(st.integers(-2, 40), st.integers(-1, 12))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(PLACES, PLACES), max_size=8), st.integers(-1, 9), st.integers(-1, 9), st.integers(-1, 1 << 62)
)
def test_runs_and_answers(pieces: list[Any], begin: int, end: int, first: int) -> None:
    buffer = b"foofoobarfoobarbar" * 2
    table = frame_table(len(pieces))
    for row, (subject, reply) in enumerate(pieces):
        table[row] = (*subject, *reply, 0, 0, 0, -1)
    results: list[Any] = []
    for kernels in KERNELS.both:
        results.append([])
        answers = frame_table(8)
        try:
            results[-1].append(kernels.subject_runs(buffer, table, begin, end))
        except ValueError as problem:
            results[-1].append(str(problem))
        try:
            data, rows = kernels.encode_numbers(buffer, table, begin, end, b"{", first, b"}", answers)
            results[-1].append((data, answers[:rows].tolist()))
        except ValueError as problem:
            results[-1].append(str(problem))
    assert results[0] == results[1]


NUMBERS = st.integers(-(1 << 62), 1 << 62) | st.integers(-2, 200)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6), st.integers(-1, 30), st.integers(0, 600), NUMBERS, NUMBERS)
def test_acknowledgements(pieces: list[tuple[int, int]], at: int, room: int, number: int, left: int) -> None:
    sequences, times = (np.array([each[i] for each in pieces], np.int64) for i in (0, 1))
    results: list[Any] = []
    for kernels in KERNELS.both:
        buffer, table = bytearray(room), frame_table(len(pieces))
        try:
            end = kernels.put_acknowledgements(buffer, at, table, b"$JS.ACK.S.c.", sequences, times, number, left)
            results.append((end, buffer, table.tolist()))
        except ValueError as problem:
            results.append(str(problem))
    assert results[0] == results[1]


def test_a_run_ends_where_another_subject_begins(kernels: ModuleType) -> None:
    table = frame_table(5)
    table[:, 0], table[:, 1] = (0, 3, 6, 9, 12), 3
    assert kernels.subject_runs(b"foofoobarbarfoo", table, 0, 5) == [0, 2, 4]
    assert kernels.subject_runs(b"foofoobarbarfoo", table, 3, 5) == [3, 4]
    table[:, 2], table[:, 3] = (0, 0, 3, 6, 9), (3, 0, 3, 3, 3)
    answers = frame_table(5)
    data, rows = kernels.encode_numbers(b"foofoobarbarfoo", table, 0, 5, b"<", 9, b">", answers)
    assert data == b"foo<9>foo<11>bar<12>bar<13>" and rows == 4
    assert answers[1].tolist() == [6, 3, 0, 0, 0, 9, 4, -1]
    buffer = bytearray(80)
    sequences, times = np.array((7, 8), np.int64), np.array((1_000, 2_000), np.int64)
    assert kernels.put_acknowledgements(buffer, 2, table[:2], b"$JS.ACK.S.c.", sequences, times, 5, 1) == 50
    assert buffer[2:50] == b"$JS.ACK.S.c.1.7.5.1000.1$JS.ACK.S.c.1.8.6.2000.0"
    assert table[:2, 2:4].tolist() == [[2, 24], [26, 24]]


@dataclass
class Receiver:
    """What `hand_out` sees of a client and its only subscription, of which it is the route as well."""

    direct: bool
    congested: bool
    out_size: int
    handler: object = None
    limit: int = 0
    closed: bool = False
    sid: bytes = b"7"
    delivered: int = 0
    out: list[bytes] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.out += [b"before"] * (self.out_size > 0)

    @property
    def only(self) -> Receiver:
        return self

    @property
    def client(self) -> Receiver:
        return self


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 12).map(lambda number: number > 0),
            st.booleans(),
            st.sampled_from([0, 0, 100, 1 << 16, 1 + (1 << 16)]),
            st.sampled_from([None] * 9 + [print]),
            st.sampled_from([0] * 9 + [3]),
            st.sampled_from([False] * 9 + [True]),
        ),
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 3, 1 << 16, 1 + (1 << 16)])), max_size=12),
    st.booleans(),
)
def test_handing_out(
    receivers: list[tuple[bool, bool, int, None, int, bool]], sent: list[tuple[int, int]], patient: bool
) -> None:
    messages = [(b"to.%d" % to, bytes(size)) for to, size in sent]
    results: list[Any] = []
    for kernels in KERNELS.both:
        known = {b"to.%d" % number: Receiver(*each) for number, each in enumerate(receivers)}
        every = list(known.values())
        at, taken = 0, []
        while at <= len(messages):
            begin = at
            at, count, size, fresh = kernels.hand_out(messages, at, known, patient)
            taken.append((at, size, [every.index(each) for each in fresh]))
            assert count == at - begin
            assert size == sum(len(payload) for _, payload in messages[begin:at])
            at += 1
        results.append((taken, every))
    assert results[0] == results[1]
    taken, every = results[0]
    handed = set(range(len(messages))) - {at for at, _, _ in taken}
    for number, (each, was) in enumerate(zip(every, receivers, strict=True)):
        mine = [payload for place, (to, payload) in enumerate(messages) if place in handed and to == b"to.%d" % number]
        begun = [b"before"] * (was[2] > 0)
        assert each.out == begun + [encoding.message(b"to.%d" % number, b"7", payload) for payload in mine]
        assert each.out_size == was[2] + sum(map(len, each.out[len(begun) :]))
        assert each.delivered == each.counters.out_msgs == len(mine)
        assert not mine or (was[0] and was[3] is None and not was[4] and not was[5])
    # What is left alone needs somebody else.
    for place in set(range(len(messages))) - handed:
        to, payload = messages[place]
        each = known.get(to)
        assert (
            each is None or not each.direct or each.handler or each.limit or each.closed
            or len(payload) > 1 << 16 or each.out_size > 1 << 16 or (patient and each.congested)
        )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 12).map(lambda number: number > 0),
            st.just(False),
            st.sampled_from([0, 0, 100, 1 << 16, 1 + (1 << 16)]),
            st.sampled_from([None] * 9 + [print]),
            st.sampled_from([0] * 9 + [3]),
            st.sampled_from([False] * 9 + [True]),
        ),
        max_size=4,
    ),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12),
    st.lists(st.sampled_from([0, 3, 3, 24, 1 << 15, 1 << 16]), min_size=40, max_size=40),
)
def test_handing_out_runs(
    receivers: list[tuple[bool, bool, int, None, int, bool]], sent: list[tuple[int, int]], sizes: list[int]
) -> None:
    """The same frames as those of the messages one by one, but no part of a run alone."""
    places = np.cumsum([0, *sizes])
    data = bytes(i % 251 for i in range(1 << 8)) * (int(places[-1]) // 256 + 1)
    block = Payloads(data, places[:-1], np.array(sizes, np.uint32))
    runs, row = [], 0
    for to, count in sent:
        runs.append((b"to.%d" % to, row, row + count))
        row += count
    results: list[Any] = []
    for kernels in KERNELS.both:
        known = {b"to.%d" % number: Receiver(*each) for number, each in enumerate(receivers)}
        every = list(known.values())
        at, left, counts = 0, [], [0, 0]
        while at <= len(runs):
            at, count, size, fresh = kernels.hand_out_runs(runs, block, at, known)
            left.append((at, [every.index(each) for each in fresh]))
            counts[0] += count
            counts[1] += size
            at += 1
        results.append((left, counts, every))
    assert results[0] == results[1]
    left, counts, every = results[0]
    handed = [run for place, run in enumerate(runs) if place not in {at for at, _ in left}]
    assert counts[0] == sum(end - begin for _, begin, end in handed) == sum(each.delivered for each in every)
    assert counts[1] == sum(sum(sizes[begin:end]) for _, begin, end in handed)
    for number, (each, was) in enumerate(zip(every, receivers, strict=True)):
        mine = [block.payload(row) for to, *rows in handed if to == b"to.%d" % number for row in range(*rows)]
        begun = b"before" * (was[2] > 0)
        assert b"".join(each.out) == begun + b"".join(
            encoding.message(b"to.%d" % number, b"7", payload) for payload in mine
        )
        assert each.out_size == was[2] + sum(map(len, each.out)) - len(begun)
    for kernels in KERNELS.both:
        for wrong in ((-1, 1), (2, 1), (0, 41)):
            with pytest.raises(ValueError):
                kernels.hand_out_runs([(b"to", *wrong)], block, 0, {b"to": Receiver(True, False, 0)})
