"""Publishes: what nats-server 2.9 was seen to accept and to refuse."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from stantools.nats.frames import ParseStop, frame_table
from tests.nats.conftest import KERNELS
from tests.nats.feeding import Feeder, columns

ACCEPTED: dict[bytes, tuple[Any, ...]] = {
    b"PUB foo 2\r\nhi\r\n": (b"foo", b"", b"", b"hi", 0),
    b"pub foo 2\r\nhi\r\n": (b"foo", b"", b"", b"hi", 0),
    b"PUB\t foo \t 2 \t\r\nhi\r\n": (b"foo", b"", b"", b"hi", 0),
    b"PUB foo 2\nhi\r\n": (b"foo", b"", b"", b"hi", 0),
    b"PUB foo 000000002\r\nhi\r\n": (b"foo", b"", b"", b"hi", 0),
    b"PUB foo _INBOX.1 2\r\nhi\r\n": (b"foo", b"_INBOX.1", b"", b"hi", 0),
    b"PUB other 0\r\n\r\n": (b"other", b"", b"", b"", -1),
    b"PUB bar 7 2\r\n\r\n\r\n": (b"bar", b"7", b"", b"\r\n", 1),
    b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nhi\r\n": (b"foo", b"", b"NATS/1.0\r\n\r\n", b"hi", 0),
    b"hPuB foo.bar r 12 12\r\nNATS/1.0\r\n\r\n\r\n": (b"foo.bar", b"r", b"NATS/1.0\r\n\r\n", b"", 2),
    b"HPUB foo 0 2\r\nhi\r\n": (b"foo", b"", b"", b"hi", 0),
}

MALFORMED = [
    b"PUB \r\n",
    b"PUB foo\r\n",
    b"PUB foo x\r\nhi\r\n",
    b"PUB foo -1\r\nhi\r\n",
    b"PUB foo +1\r\nh\r\n",
    b"PUB foo 0000000002\r\nhi\r\n",
    b"PUB foo bar baz 2\r\nhi\r\n",
    b"PUB foo 2\r\r\nhi\r\n",
    b"PUB foo b\rar 2\r\nhi\r\n",
    b"PUB foo 2\r\nhi\nx",
    b"PUB foo 2\r\nhiho",
    b"HPUB foo 5\r\n",
    b"HPUB foo 5 2\r\nhi\r\n",
    b"HPUB foo a b 0 2\r\nhi\r\n",
    b"HPUB foo x 2\r\nhi\r\n",
]


def parse(kernels: ModuleType, data: bytes, rows: int = 8, limit: int = 4096, most: int = 1 << 20) -> Any:
    table, routes = frame_table(rows), kernels.Names()
    for route, subject in enumerate((b"foo", b"bar", b"foo.bar")):
        routes.add(subject, route)
    count, *rest = kernels.parse_publishes(data, 0, len(data), table, routes, limit, most)
    return [columns(data, row) for row in table[:count].tolist()], *rest


def test_accepted(kernels: ModuleType) -> None:
    for data in ACCEPTED:
        rows, at, stop, spans, need = parse(kernels, data)
        assert rows == [ACCEPTED[data]], data
        assert (at, stop, need) == (len(data), ParseStop.END, 0), data
        assert spans == [(ACCEPTED[data][-1], 0, 1)], data


def test_accepted_behind_another(kernels: ModuleType) -> None:
    for first in ACCEPTED:
        for data in ACCEPTED:
            rows, at, stop, _, _ = parse(kernels, first + data + data)
            assert rows == [ACCEPTED[first], ACCEPTED[data], ACCEPTED[data]], (first, data)
            assert (at, stop) == (len(first + data + data), ParseStop.END), (first, data)


def test_malformed(kernels: ModuleType) -> None:
    firsts: list[bytes] = [b"", b"PUB foo 2\r\nhi\r\n"]
    for data in MALFORMED:
        for first in firsts:
            rows, at, stop, _, need = parse(kernels, first + data)
            assert (len(rows), at, stop, need) == (len(first) and 1, len(first), ParseStop.MALFORMED, 0), (data, first)


def test_other_operations(kernels: ModuleType) -> None:
    rows: list[bytes] = [b"PING\r\n", b"PU\r\n", b"PUX", b"\r\n", b"PUB\r\n", b"HELLO", b"MSG a 1 2\r\n", b"\xd0UB "]
    for data in rows:
        assert parse(kernels, b"PUB foo 2\r\nhi\r\n" + data)[1:3] == (15, ParseStop.OTHER), data


def test_partial_frames_tell_how_long_they_are_once_the_line_is_there(kernels: ModuleType) -> None:
    data = b"HPUB foo.bar r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    line = data.index(b"\n") + 1
    for size in range(1, len(data)):
        rows, at, stop, _, need = parse(kernels, data[:size])
        assert (rows, at, stop) == ([], 0, ParseStop.PARTIAL)
        assert need == (len(data) if size >= line else 0)


def test_longest_line(kernels: ModuleType) -> None:
    fits = b"PUB " + b"a" * 4094 + b" 2\r\nhi\r\n"
    assert parse(kernels, fits)[2] is ParseStop.END
    assert parse(kernels, b"PUB    " + fits[4:])[2] is ParseStop.END
    assert parse(kernels, b"PUB " + b"a" * 4092 + b" 2\r\nhi\r\n" + fits)[2] is ParseStop.END
    longer = b"PUB " + b"a" * 4095 + b" 2\r\nhi\r\n"
    assert parse(kernels, longer)[2] is ParseStop.LINE_TOO_LONG
    assert parse(kernels, longer[: 4 + 4096])[2] is ParseStop.PARTIAL
    assert parse(kernels, longer[: 4 + 4097])[2] is ParseStop.LINE_TOO_LONG
    assert parse(kernels, b"PUB " + b"a" * 4096 + b"\r")[2] is ParseStop.PARTIAL
    assert parse(kernels, b"PUB " + b"a" * 5000)[2] is ParseStop.LINE_TOO_LONG
    assert parse(kernels, b"PUB " + b" " * 5000)[2] is ParseStop.LINE_TOO_LONG


def test_longest_line_of_one_like_the_one_before(kernels: ModuleType) -> None:
    one, two = b"PUB foo.bar 5\r\n12345\r\n", b"PUB foo.bar 10\r\n1234567890\r\n"
    assert parse(kernels, one + two, limit=10)[1:3] == (len(one + two), ParseStop.END)
    assert parse(kernels, one + two, limit=9)[1:3] == (len(one), ParseStop.LINE_TOO_LONG)


def test_limits_that_make_no_sense_do_no_harm(kernels: ModuleType) -> None:
    for limit in (-5, 0, 1 << 40):
        assert parse(kernels, b"PUB foo 2\r\nhi\r\n", limit=limit)[2] in (ParseStop.END, ParseStop.LINE_TOO_LONG)


def test_payload_too_large(kernels: ModuleType) -> None:
    assert parse(kernels, b"PUB foo 11\r\n", most=10)[2] is ParseStop.PAYLOAD_TOO_LARGE
    assert parse(kernels, b"HPUB foo 2 11\r\n", most=10)[2] is ParseStop.PAYLOAD_TOO_LARGE
    assert parse(kernels, b"PUB foo 10\r\n", most=10)[2] is ParseStop.PARTIAL
    assert parse(kernels, b"PUB foo 999999999\r\n", most=-1)[2:] == (ParseStop.PARTIAL, [], 19 + 999999999 + 2)


def test_a_full_table(kernels: ModuleType) -> None:
    frame = b"PUB foo 2\r\nhi\r\n"
    assert parse(kernels, frame * 3, rows=2)[1:3] == (2 * len(frame), ParseStop.FULL)
    assert parse(kernels, frame * 2, rows=2)[1:3] == (2 * len(frame), ParseStop.END)
    assert parse(kernels, frame, rows=0)[1:4] == (0, ParseStop.FULL, [])


def test_runs_of_equal_routes(kernels: ModuleType) -> None:
    subjects = [b"foo", b"foo", b"bar", b"x", b"x", b"y", b"x", b"foo"]
    data = b"".join(b"PUB %b 1\r\n.\r\n" % subject for subject in subjects)
    spans = parse(kernels, data)[3]
    assert spans == [(0, 0, 2), (1, 2, 3), (-1, 3, 5), (-1, 5, 6), (-1, 6, 7), (0, 7, 8)]


def test_subjects_with_one_route_are_one_run(kernels: ModuleType) -> None:
    routes, table = kernels.Names(), frame_table(4)
    routes.add(b"a", 1)
    routes.add(b"b", 1)
    data = b"PUB a 0\r\n\r\nPUB b 0\r\n\r\n"
    assert kernels.parse_publishes(data, 0, len(data), table, routes, 100, 100)[3] == [(1, 0, 2)]


def test_positions_are_those_of_the_buffer(kernels: ModuleType) -> None:
    data = bytearray(b"....PUB foo bar 2\r\nhi\r\n....")
    table = frame_table(1)
    result = kernels.parse_publishes(memoryview(data), 4, 23, table, kernels.Names(), 100, 100)
    assert result == (1, 23, ParseStop.END, [(-1, 0, 1)], 0)
    assert table.tolist() == [[8, 3, 12, 3, 0, 19, 2, -1]]


def test_what_lies_outside_is_refused(kernels: ModuleType) -> None:
    for begin, end in ((-1, 2), (3, 2), (0, 6)):
        with pytest.raises(ValueError, match="outside"):
            kernels.parse_publishes(b"PUB f", begin, end, frame_table(1), kernels.Names(), 100, 100)
        with pytest.raises(ValueError, match="outside"):
            kernels.parse_messages(b"MSG f", begin, end, frame_table(1), 100, 100)
    for ends, first in (([6], 0), ([-1], 0), ([3, 2], 1), ([-3, 2], 1), ([6, 7], 1)):
        with pytest.raises(ValueError, match="outside"):
            kernels.parse_gathered(b"PUB f", ends, first, frame_table(1), kernels.Names(), b"", 100, 100)
    for first in (-1, 2):
        with pytest.raises(IndexError, match="no piece"):
            kernels.parse_gathered(b"PUB f", [5], first, frame_table(1), kernels.Names(), b"", 100, 100)


def test_nothing_behind_the_end_is_read(kernels: ModuleType) -> None:
    data = b"PUB foo 2\r\nhi\r\nPUB foo 2\r\nhi\r\n"
    for end in range(15, 30):
        assert kernels.parse_publishes(data, 0, end, frame_table(4), kernels.Names(), 100, 100)[:2] == (1, 15)


def test_byte_by_byte(kernels: ModuleType) -> None:
    data = b"".join([*ACCEPTED, b"SUB foo 1\r\nPING\r\nconnect {}\r\nUNSUB 1 5\n", *ACCEPTED, MALFORMED[0]])
    whole, single = Feeder(kernels), Feeder(kernels)
    whole.feed(data)
    for i in range(len(data)):
        single.feed(data[i : i + 1])
    assert whole.events == single.events
    assert whole.closed == single.closed == "Protocol Violation"
    assert len(whole.events) == 2 * len(ACCEPTED) + 5


def test_messages_of_a_server(kernels: ModuleType) -> None:
    data = (
        b"MSG foo 1 2\r\nhi\r\nMSG bar 1 re 3\r\nhey\r\nHMSG foo 12 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
        b"HMSG foo 12 re 12 14\r\nNATS/1.0\r\n\r\nho\r\nMSG foo x1 0\r\n\r\nPING\r\n"
    )
    table = frame_table(8)
    rows, at, stop, spans, need = kernels.parse_messages(data, 0, len(data), table, 100, 100)
    assert [columns(data, row) for row in table[:rows].tolist()] == [
        (b"foo", b"", b"", b"hi", 1),
        (b"bar", b"re", b"", b"hey", 1),
        (b"foo", b"", b"NATS/1.0\r\n\r\n", b"hi", 12),
        (b"foo", b"re", b"NATS/1.0\r\n\r\n", b"ho", 12),
        (b"foo", b"", b"", b"", -1),
    ]
    assert (data[at:], stop, need) == (b"PING\r\n", ParseStop.OTHER, 0)
    assert spans == [(1, 0, 2), (12, 2, 4), (-1, 4, 5)]
    for bad in (
        b"MSG foo 2\r\nhi\r\n",
        b"MSG foo 1 a b 2\r\nhi\r\n",
        b"HMSG foo 1 2\r\nhi\r\n",
        b"MSG foo 1 2\r\nhi..",
    ):
        assert kernels.parse_messages(bad, 0, len(bad), table, 100, 100)[1:3] == (0, ParseStop.MALFORMED)


def test_names(kernels: ModuleType) -> None:
    table = kernels.Names()
    names = [b"subject.%d" % i for i in range(5000)]
    for route, name in enumerate(names):
        table.add(name, route)
    assert len(table) == 5000
    table.add(names[7], 12345)
    assert len(table) == 5000
    assert table.get(names[7]) == 12345
    assert all(table.get(name) == route for route, name in enumerate(names) if route != 7)
    assert table.get(b"") == table.get(b"subject") == -1
    for name in names[::2]:
        table.discard(name)
    table.discard(b"nothing")
    assert len(table) == 2500
    for route, name in enumerate(names):
        wanted = 12345 if route == 7 else route if route % 2 else -1
        assert table.get(name) == wanted
    table.clear()
    assert len(table) == 0
    assert table.get(names[1]) == -1
    table.add(b"", 0)
    assert table.get(b"") == 0
    for route in (-1, 1 << 31):
        with pytest.raises(ValueError, match="no number"):
            table.add(b"x", route)


def test_wrong_tables_are_refused() -> None:
    compiled = KERNELS.compiled
    with pytest.raises(ValueError, match="int32"):
        compiled.parse_publishes(b"", 0, 0, np.zeros((4, 8)), compiled.Names(), 1, 1)
    with pytest.raises(ValueError, match="int32"):
        compiled.encode_messages(b"", np.zeros((4, 8)), 0, 0, b"1", True)
