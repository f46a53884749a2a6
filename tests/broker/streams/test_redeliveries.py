"""Counts of redeliveries: as a plain dictionary, at a cost that depends on what goes."""

import random

import pytest

from broker.streams.redeliveries import Redeliveries


@pytest.mark.parametrize("seed", range(20))
def test_as_a_plain_dictionary(seed: int) -> None:
    chance = random.Random(seed)
    plain = {chance.randrange(100): 1 for _ in range(chance.randrange(30))}
    ours = Redeliveries(plain)
    there = set(range(200))
    for _ in range(600):
        sequence = chance.randrange(200)
        match chance.randrange(4):
            case 0 | 1:
                plain[sequence] = ours[sequence] = plain.get(sequence, 0) + 1
            case 2:
                assert ours.pop(sequence, None) == plain.pop(sequence, None)
            case 3:
                there -= {chance.randrange(sequence + 1) for _ in range(3)}
                ours.forget_below(sequence, there.__contains__)
                plain = {each: count for each, count in plain.items() if each >= sequence or each in there}
        assert ours == plain
        assert len(ours._oldest) <= 2 * (len(ours) + 200) + 65


def test_what_goes_is_looked_at_and_nothing_else() -> None:
    some = Redeliveries(dict.fromkeys(range(10_000), 1))
    for each in range(10_000, 30_000):
        some[each] = 1
        some.pop(each)
    assert len(some._oldest) < 21_000
    seen: list[int] = []

    def exists(sequence: int) -> bool:
        seen.append(sequence)
        return False

    for end in range(10, 1000, 10):
        some.forget_below(end, exists)
    assert seen == list(range(990))
