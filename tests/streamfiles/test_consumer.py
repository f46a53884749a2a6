"""The state of consumers (jetstream-migration.md sections 9 and 16)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import UsageError
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import ConsumerState, decode_consumer, encode_consumer

SECOND = 1_000_000_000
BASE = 1_700_000_000
PENDING = ConsumerState(
    (89, 89),
    (500, 500),
    {90: (90, BASE * SECOND), 400: (400, (BASE - 30) * SECOND), 120: (120, BASE * SECOND)},
    {90: 2},
)
PENDING_BYTES = bytes.fromhex("16025959f403f4030380c49fd50c0101001f1f00b702b7023c010102")


def test_vectors() -> None:
    assert encode_consumer(PENDING) == PENDING_BYTES
    assert encode_consumer(ConsumerState((1004, 1004), (1004, 1004))).hex() == "1602ec07ec07ec07ec070000"
    assert decode_consumer(PENDING_BYTES) == PENDING


def test_times_are_kept_in_seconds() -> None:
    state = ConsumerState((0, 0), (2, 2), {1: (1, 5 * SECOND + 7), 2: (2, -1)})
    assert decode_consumer(encode_consumer(state)).pending == {1: (1, 5 * SECOND), 2: (2, -SECOND)}


numbers = st.integers(0, 1 << 40)


@st.composite
def states(draw: st.DrawFn) -> ConsumerState:
    floor = (draw(numbers), draw(numbers))
    steps = sorted(draw(st.sets(st.integers(1, 1 << 20), max_size=9)))
    seconds = st.integers(-(1 << 33), 1 << 33)
    pending = {floor[1] + step: (floor[0] + step, draw(seconds) * SECOND) for step in steps}
    most = steps[-1] if steps else 0
    delivered = (floor[0] + most + draw(numbers), floor[1] + most + draw(numbers))
    again = {sequence: draw(st.integers(0, 99)) for sequence in pending if draw(st.booleans())}
    return ConsumerState(floor, delivered, pending, again)


@settings(max_examples=100, deadline=None)
@given(states())
def test_what_is_written_is_read(state: ConsumerState) -> None:
    assert decode_consumer(encode_consumer(state)) == state


def test_a_state_that_contradicts_itself() -> None:
    rows: list[tuple[ConsumerState, str]] = [
        (ConsumerState((5, 5), (4, 5)), "ack floor 5"),
        (ConsumerState((5, 5), (5, 4)), "ack floor 5"),
        (ConsumerState((-1, 0), (5, 4)), "ack floor -1"),
        (ConsumerState((5, 5), (9, 9), {5: (6, 0)}), "5 is pending"),
        (ConsumerState((5, 5), (9, 9), {10: (6, 0)}), "10 is pending"),
        (ConsumerState((5, 5), (9, 9), {6: (5, 0)}), "delivery 5"),
        (ConsumerState((5, 5), (9, 9), {6: (10, 0)}), "delivery 10"),
        (ConsumerState((5, 5), (9, 9), {}, {5: 1}), "5 was redelivered"),
        (ConsumerState((5, 5), (9, 9), {}, {6: -1}), "-1 times"),
        (ConsumerState((0, 0), (1 << 64, 1 << 64), {1 << 64: (1, 0)}), "64 bits"),
        (ConsumerState((0, 0), (1 << 64, 1 << 64), {1: (1 << 64, 0)}), "64 bits"),
        (ConsumerState((0, 0), (9, 9), {6: (6, 1 << 63)}), "64 bits"),
        (ConsumerState((0, 0), (9, 9), {}, {6: 1 << 64}), "64 bits"),
    ]
    for state, said in rows:
        with pytest.raises(UsageError, match=said):
            encode_consumer(state)
            pytest.fail(f"accepted: {(state, said)!r}")


def test_damage() -> None:
    rows: list[tuple[str, str]] = [
        ("", "begins with ''"),
        ("1601", "begins with '1601'"),
        ("1602", "no number"),
        ("1602ec07ec07ec07ec0700", "no number"),
        ("1602ec07ec07ec07ec07000000", "ends at byte 12 of 13"),
        ("1602050504050000", "not possible"),
        ("160200000000ffffffff0f00", "claims 4294967295 entries"),
        ("16020000000000ffffffff0f", "claims 4294967295 entries"),
        ("1602ffffffffffffffffffff0101", "no number"),
        ("1602ffffffffffffffffff7f00000000", "no number"),
    ]
    for data, said in rows:
        with pytest.raises(ArchiveError, match=said):
            decode_consumer(bytes.fromhex(data))
            pytest.fail(f"accepted: {(data, said)!r}")


def test_anything_else_is_said_to_be_damaged() -> None:
    chance = random.Random(3)
    for _ in range(2000):
        data = bytearray(PENDING_BYTES)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(2, len(data))] = chance.randrange(256)
        try:
            state = decode_consumer(bytes(data[: chance.randrange(2, len(data) + 1)]))
        except ArchiveError:
            continue
        assert not state.problem()
