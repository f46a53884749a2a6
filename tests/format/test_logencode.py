"""Many Msg and Ack records at once are what they are one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format import kernels
from stantools.format.crc import CASTAGNOLI, IEEE, Crc
from stantools.format.envelope import encode
from stantools.format.layout import SubRecord
from stantools.format.logencode import encode_flow
from stantools.format.proto import store_pb2 as pb
from tests.oracles import format as oracle

MSG, ACK = int(SubRecord.MSG), int(SubRecord.ACK)


def one_by_one(rows: list[tuple[int, int, int]], crc: Crc) -> bytes:
    return b"".join(encode(pb.SubStateUpdate(id=i, seqno=s).SerializeToString(), crc, kind) for kind, i, s in rows)


def test_the_records_of_the_worked_example():
    assert encode_flow(MSG, 1, [1, 2], Crc()).hex() == "0400000503bff7d808011001" + "04000005b9eefe4108011002"
    assert encode_flow(ACK, 1, 1, Crc()).hex() == "0400000403bff7d808011001"


NUMBER = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**64 - 1),
    st.sampled_from([2**n + d for n in range(7, 64, 7) for d in (-1, 0)]),
)


@given(
    rows=st.lists(st.tuples(st.sampled_from([MSG, ACK]), NUMBER, NUMBER), max_size=80),
    repeat=st.integers(1, 40),
    polynomial=st.sampled_from([IEEE, CASTAGNOLI, 0x12345678]),
)
@settings(max_examples=60, deadline=None)
def test_any_numbers(rows, repeat, polynomial):
    rows = rows * repeat
    crc = Crc(polynomial)
    kinds, ids, sequences = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    expected = one_by_one(rows, crc)
    assert encode_flow(kinds, ids, sequences, crc) == expected
    arrays = np.array(kinds, np.uint8), np.array(ids, np.uint64), np.array(sequences, np.uint64)
    assert encode_flow(*arrays, crc) == expected


@pytest.mark.parametrize("count", [1, 100])
def test_one_number_for_all(count):
    crc = Crc()
    sequences = np.arange(1, count + 1, dtype=np.uint64)
    assert encode_flow(MSG, 300, sequences, crc) == one_by_one([(MSG, 300, s) for s in range(1, count + 1)], crc)
    assert encode_flow(ACK, sequences, 7, crc) == one_by_one([(ACK, i, 7) for i in range(1, count + 1)], crc)


def test_columns_of_different_lengths():
    with pytest.raises(ValueError, match="different lengths"):
        encode_flow(MSG, [1, 2], [1, 2, 3], Crc())


@given(
    st.sampled_from([SubRecord.MSG, SubRecord.ACK]),
    st.integers(0, 2**64 - 1),
    st.one_of(
        st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1)), max_size=40),
        st.builds(
            lambda first, count, step: range(first, first + count * step, step),
            st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 200)),
            st.integers(0, 40),
            st.sampled_from([1, 3]),
        ),
    ),
    st.sampled_from([Crc(), Crc(CASTAGNOLI)]),
)
def test_kernels_agree(kind, number, sequences, crc):
    assert kernels.encode_flow(int(kind), number, sequences, crc) == oracle.encode_flow(
        int(kind), number, sequences, crc
    )


@pytest.mark.parametrize("kernel", [kernels, oracle])
def test_numbers_that_do_not_fit(kernel):
    for number, sequences in (
        (2**64, [1]),
        (1, [-1]),
        (1, [2**64]),
        (1, range(-1, 3)),
        (1, range(2**64 - 1, 2**64 + 1)),
    ):
        with pytest.raises(OverflowError):
            kernel.encode_flow(5, number, sequences, Crc())
