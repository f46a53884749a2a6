"""Messages for receivers."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from stantools.nats import encoding
from stantools.nats.frames import ParseStop, Payloads, frame_table
from tests.nats.feeding import columns

DATA = (
    b"PUB foo 2\r\nhi\r\nPUB foo re 0\r\n\r\nHPUB bar re 12 14\r\nNATS/1.0\r\n\r\nho\r\n"
    b"HPUB bar 12 12\r\nNATS/1.0\r\n\r\n\r\n"
)


def rows(kernels: ModuleType) -> np.ndarray:
    table = frame_table(4)
    assert kernels.parse_publishes(DATA, 0, len(DATA), table, kernels.Names(), 100, 100)[2] is ParseStop.END
    return table


def test_messages(kernels: ModuleType) -> None:
    assert kernels.encode_messages(DATA, rows(kernels), 0, 4, b"s1", True) == (
        b"MSG foo s1 2\r\nhi\r\nMSG foo s1 re 0\r\n\r\nHMSG bar s1 re 12 14\r\nNATS/1.0\r\n\r\nho\r\n"
        b"HMSG bar s1 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    )


def test_headers_are_left_out_for_those_who_have_none(kernels: ModuleType) -> None:
    result = kernels.encode_messages(DATA, rows(kernels), 2, 4, b"1", False)
    assert result == b"MSG bar 1 re 2\r\nho\r\nMSG bar 1 0\r\n\r\n"


def test_another_subject(kernels: ModuleType) -> None:
    assert kernels.encode_messages(DATA, rows(kernels), 1, 2, b"1", False, b"x.y") == b"MSG x.y 1 re 0\r\n\r\n"
    assert kernels.encode_messages(DATA, rows(kernels), 1, 1, b"1", False, b"x.y") == b""


def test_many_rows(kernels: ModuleType) -> None:
    data, table = DATA * 100, frame_table(500)
    kernels.parse_publishes(data, 0, len(data), table, kernels.Names(), 100, 100)
    single = kernels.encode_messages(DATA, rows(kernels), 0, 4, b"s1", True)
    assert kernels.encode_messages(data, table, 0, 400, b"s1", True) == single * 100


def test_rows_that_point_outside(kernels: ModuleType) -> None:
    values: list[int] = [-1, 1 << 20, (1 << 31) - 1]
    for column in range(7):
        for value in values:
            table = rows(kernels)
            table[2, column] = value
            with pytest.raises(ValueError, match="outside"):
                kernels.encode_messages(DATA, table, 0, 4, b"1", True)
                pytest.fail(f"accepted: {(column, value)!r}")
            assert kernels.encode_messages(DATA, table, 0, 2, b"1", True), (column, value)


def test_rows_outside(kernels: ModuleType) -> None:
    for begin, end in ((-1, 1), (2, 1), (0, 5)):
        with pytest.raises(ValueError, match="outside"):
            kernels.encode_messages(DATA, rows(kernels), begin, end, b"1", True)


def block(sizes: list[int]) -> Payloads:
    starts = np.cumsum([3, *sizes])[:-1].astype(np.int64)
    return Payloads(bytes(i % 251 for i in range(3 + sum(sizes))), starts, np.array(sizes, np.uint32))


def test_blocks(kernels: ModuleType) -> None:
    payloads = block([5, 5, 0, 12, 1000, 1000, 9, 10])
    expected = [encoding.message(b"in.box", b"7", payloads.payload(row)) for row in range(len(payloads))]
    for begin in range(9):
        for end in range(begin, 9):
            assert kernels.encode_block(payloads, begin, end, b"in.box", b"7") == b"".join(expected[begin:end])
    assert (
        kernels.encode_publishes(payloads, 2, 4, b"x") == b"PUB x 0\r\n\r\nPUB x 12\r\n" + payloads.payload(3) + b"\r\n"
    )


def test_blocks_that_point_outside(kernels: ModuleType) -> None:
    for start, size in ((-1, 1), (0, 100), (9, 1), (1 << 62, 1), (0, (1 << 32) - 1)):
        payloads = block([2, 2, 2])
        payloads.starts[1], payloads.sizes[1] = start, size
        with pytest.raises(ValueError, match="outside"):
            kernels.encode_block(payloads, 0, 3, b"x", b"1")
        assert kernels.encode_block(payloads, 0, 1, b"x", b"1")
    for begin, end in ((-1, 1), (2, 1), (0, 4)):
        with pytest.raises(ValueError, match="outside"):
            kernels.encode_block(block([2, 2, 2]), begin, end, b"x", b"1")


def test_what_is_encoded_can_be_parsed(kernels: ModuleType) -> None:
    payloads = block(list(range(120)))
    data, table = kernels.encode_block(payloads, 0, 120, b"in.box", b"33"), frame_table(200)
    assert kernels.parse_messages(data, 0, len(data), table, 100, 200)[:3] == (120, len(data), ParseStop.END)
    for i, row in enumerate(table[:120].tolist()):
        assert columns(data, row) == (b"in.box", b"", b"", payloads.payload(i), 33)


def test_single_answers() -> None:
    assert encoding.message(b"a", b"1", b"hi", b"re") == b"MSG a 1 re 2\r\nhi\r\n"
    assert (
        encoding.message(b"a", b"1", b"hi", b"", encoding.NO_RESPONDERS)
        == b"HMSG a 1 16 18\r\nNATS/1.0 503\r\n\r\nhi\r\n"
    )
    assert encoding.error("Invalid Subject") == b"-ERR 'Invalid Subject'\r\n"
    assert encoding.info({"proto": 1, "name": "ü"}) == 'INFO {"proto":1,"name":"ü"} \r\n'.encode()
