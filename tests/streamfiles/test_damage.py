"""Damaged blocks: every good record is found, and the gaps between them are told."""

from __future__ import annotations

import random

from stantools.streamfiles import highwayhash
from stantools.streamfiles.damage import intact_records
from stantools.streamfiles.kernels import encode_record
from stantools.streamfiles.layout import RecordFlaw
from stantools.streamfiles.records import tombstone

KEY = highwayhash.block_key("S", 1)


def records(count: int, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    sizes = [chance.choice((0, 1, 30, 400)) for _ in range(count)]
    return [encode_record(n, n, b"s", b"", chance.randbytes(size), KEY) for n, size in enumerate(sizes, 1)]


def test_good_records_are_found_whatever_is_between() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        data, good = b"", b""
        for record in records(40, seed):
            junk = chance.choice((b"", b"", b"", bytes(50), chance.randbytes(chance.randint(1, 300)), record[:-3]))
            data += junk + record
            good += record
        found, gaps = intact_records(data, KEY)
        assert found == good, seed
        assert sum(gap.end - gap.start for gap in gaps) == len(data) - len(good), seed


def test_a_record_within_a_payload_is_not_taken_for_one() -> None:
    inner = encode_record(99, 1, b"s", b"", b"inner", KEY)
    outer = bytearray(encode_record(2, 2, b"s", b"", b"xx" + inner, KEY))
    outer[23] ^= 1
    one, three = (encode_record(n, n, b"s", b"", b"y", KEY) for n in (1, 3))
    found, [gap] = intact_records(one + outer + three, KEY)
    assert found == one + three
    assert (gap.flaw, gap.before, gap.after, gap.claimed) == (RecordFlaw.BAD_HASH, 1, 3, 2)


def test_a_damaged_end_tells_the_last_sequence() -> None:
    all_records = records(5)
    cut = b"".join(all_records)[:-1]
    found, [gap] = intact_records(cut, KEY)
    assert found == b"".join(all_records[:-1])
    assert (gap.flaw, gap.before, gap.after, gap.claimed) == (RecordFlaw.CUT, 4, 0, 0)
    flipped = bytearray(b"".join(all_records))
    flipped[-1] ^= 1
    assert [gap.claimed for gap in intact_records(bytes(flipped), KEY)[1]] == [5]
    grave = bytearray(tombstone(77, 1, KEY))
    grave[-1] ^= 1
    assert [gap.claimed for gap in intact_records(bytes(grave), KEY)[1]] == [0]
