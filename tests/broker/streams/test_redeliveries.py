"""Counts of redeliveries: as a plain dictionary, at a cost that depends on what goes."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.streams.redeliveries import Redeliveries
from tests.broker.streams.world import World

SECOND = 1_000_000_000


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


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_roll_up_looks_at_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], retention=retention, allow_rollup_hdrs=True)
    world.consumer("S", "c", ack_policy="explicit", ack_wait=SECOND, inactive_threshold=3600 * SECOND)
    for number in range(50):
        world.publish(f"s.{number}", b"x")
    for _ in range(2):
        assert len(world.pull("S", "c", {"batch": 50, "no_wait": True})) == 50
        world.pass_time(2 * SECOND)
    assert world.api("CONSUMER.INFO.S.c")["num_redelivered"] == 50
    seen: list[int] = []
    forget = Redeliveries.forget_below

    def counted(self: Redeliveries, end: int, exists: Callable[[int], bool]) -> None:
        def noted(sequence: int) -> bool:
            seen.append(sequence)
            return exists(sequence)

        forget(self, end, noted)

    monkeypatch.setattr(Redeliveries, "forget_below", counted)
    world.publish("s.7", b"new", Nats_Rollup="sub")
    assert seen == []
    assert world.api("CONSUMER.INFO.S.c")["num_redelivered"] == 49
    world.api("STREAM.PURGE.S", {"seq": 6})
    assert [each for each in seen if each >= 6] == []
    assert world.api("CONSUMER.INFO.S.c")["num_redelivered"] == 44
