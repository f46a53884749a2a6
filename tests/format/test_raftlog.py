"""bbolt pages and Raft entries: what is written comes back, and whatever else is there never stops the reader."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format import raftlog
from stantools.format.bbolt import BoltFile, BoltItem, Fault, FaultKind
from stantools.format.encryption import Cipher, raft_cipher
from stantools.format.proto import store_pb2 as pb
from stantools.format.raftlog import (
    EntryError,
    EntryType,
    LoggedPublishes,
    RaftEntry,
    RaftFlaw,
    RaftFlawKind,
    RaftLog,
    decode_configuration,
    decode_entry,
    decode_operation,
    unpack,
)
from tests import boltfiles
from tests.boltfiles import PAGE, entry, key, raft_log

Found = list[RaftEntry | Fault | RaftFlaw]


def read(content: bytes) -> tuple[list[int], Found, list[int]]:
    """Reads a log with all that there is to read: indexes of entries, what is wrong, indexes in free pages."""
    log = RaftLog(memoryview(content))
    found = list(log.entries())
    indexes = [each.index for each in found if isinstance(each, RaftEntry)]
    wrong: Found = [*log.faults, *(each for each in found if not isinstance(each, RaftEntry))]
    return indexes, wrong, [each.index for each in log.free_entries()]


def some(count: int, size: int = 20) -> boltfiles.Pairs:
    return [(key(index), entry(index, b"x" * size)) for index in range(1, count + 1)]


def assert_runs_are_entries(content: bytes, bound: int = 0) -> int:
    """Holds what comes together against the single entries; returns how many came together."""
    single, together, log = RaftLog(memoryview(content)).entries(), 0, RaftLog(memoryview(content))
    for each in log.runs(bound):
        if not isinstance(each, LoggedPublishes):
            assert each == next(single)
            continue
        assert each.last <= bound or each.first > bound
        sequence, size, expanded = each.first_sequence, 0, log.expand(each)
        for index in range(each.first, each.last + 1):
            found = next(single)
            assert next(expanded) == found
            assert isinstance(found, RaftEntry)
            assert (found.index, found.term, found.type) == (index, each.term, EntryType.COMMAND)
            operation = decode_operation(found.data)
            assert (operation.op_type, operation.channel_id) == (pb.RaftOperation.PUBLISH, each.channel_id)
            messages = operation.publish_batch.messages
            assert {one.subject for one in messages} == {each.channel}
            assert [one.sequence for one in messages] == list(range(sequence, sequence + len(messages)))
            sequence, size, together = sequence + len(messages), size + found.size, together + 1
        assert (sequence, size) == (each.last_sequence + 1, each.size)
    assert next(single, None) is None
    return together


def published(
    sequence: int, count: int = 1, *, channel: bytes = b"orders", channel_id: int = 7, size: int = 9
) -> bytes:
    operation = pb.RaftOperation(channel_id=channel_id)
    for number in range(sequence, sequence + count):
        operation.publish_batch.messages.add(sequence=number, subject=channel, data=bytes(size), timestamp=1 << 60)
    return operation.SerializeToString()


@st.composite
def logs(draw: st.DrawFn) -> boltfiles.Pairs:
    """Mostly messages that follow each other, and whatever else is in a log."""
    chance = draw(st.integers(0, 1 << 32).map(random.Random))  # a log of sixty entries takes hundreds of choices
    pairs: boltfiles.Pairs = []
    index, term, sequence = 0, 60, 0
    for _ in range(draw(st.integers(1, 60))):
        index += chance.choice([1] * 30 + [2])
        number = index + chance.choice([0] * 40 + [1])
        term += chance.choice([0] * 30 + [1, -1])
        kind, data = 0, chance.choice([None, chance.randbytes(chance.randint(0, 40))])
        if chance.randint(0, 9):
            count = chance.choice([1] * 9 + [3])
            channel = chance.choice([b"orders"] * 20 + [b"other"])
            data = published(sequence + 1, count, channel=channel, channel_id=chance.choice([7] * 20 + [0, 300]))
            sequence += count + chance.choice([0] * 20 + [1])
        else:
            kind = chance.randint(0, 6)
        timed = chance.randint(0, 30) > 0
        pairs.append((key(index), entry(number, data, term=term, kind=kind, timed=timed)))
    return pairs


@given(
    logs(),
    st.integers(1, 20),
    st.sampled_from([1024, 4096]),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=4),
    st.integers(0, 70),
)
@settings(max_examples=300, deadline=None)
def test_what_comes_together_is_what_comes_one_by_one(
    pairs: boltfiles.Pairs, per_leaf: int, page_size: int, changes: list[tuple[int, int]], bound: int
) -> None:
    content = bytearray(raft_log(pairs, per_leaf=per_leaf, page_size=page_size))
    for place, change in changes:
        content[place % len(content)] ^= change
    assert_runs_are_entries(bytes(content), bound)


def test_messages_that_follow_each_other_come_together() -> None:
    pairs = [(key(index), entry(index, published(5 * index, 5))) for index in range(1, 1001)]
    content = raft_log(pairs)
    assert assert_runs_are_entries(content, 500) == 1000
    # The value of an entry reaches into the next one, and its own numbers are wherever that ends.
    for cut in range(len(pairs[3][1])):
        pairs[3] = pairs[3][0], pairs[3][1][:cut]
        assert_runs_are_entries(raft_log(pairs[:8]))


def test_the_same_entries_in_leaves_of_another_size() -> None:
    pairs = [(key(index), entry(index, published(3 * index, 3))) for index in range(1, 41)]
    changed = [*pairs]
    changed[17] = key(18), pairs[17][1].replace(b"orders", b"orderz", 1)
    one, other, hurt = (
        RaftLog(memoryview(raft_log(each, per_leaf=per_leaf)))
        for each, per_leaf in ((pairs, 5), (pairs, 13), (changed, 40))
    )
    (mine, *_), (theirs, *_), (third, *_) = ([*each.runs(0)] for each in (one, other, hurt))
    assert (
        isinstance(mine, LoggedPublishes) and isinstance(theirs, LoggedPublishes) and isinstance(third, LoggedPublishes)
    )
    assert (mine.last, theirs.last) == (5, 13)
    assert one.same(mine, other, theirs, 5) == (5, 17)
    assert one.same(mine, one, mine, 5) == (5, 17) and one.same(mine, one, mine, 3) == (3, 11)
    rest = theirs.behind(theirs.part(5, 17))
    assert [each.index for each in other.expand(rest)] == list(range(6, 14))
    following = next(each for each in one.runs(0) if isinstance(each, LoggedPublishes) and each.first == 6)
    assert one.same(following, other, rest, 5) == (5, 32)
    assert one.same(following, other, theirs, 5) == (0, 0)
    # What differs ends it, and so does the end of a file.
    assert third.last == 17
    assert other.same(theirs, hurt, third, 13) == (13, 41)
    eighteenth = third._replace(row=17)
    assert other.same(theirs._replace(row=0), hurt, eighteenth, 13) == (0, 0)
    far = third._replace(leaf=1 << 40), third._replace(row=1 << 40), third._replace(leaf=-5), third._replace(row=-1)
    assert [other.same(theirs, hurt, each, 13) for each in far] == [(0, 0)] * 4


_values = st.lists(st.binary(min_size=1, max_size=30), max_size=60, unique=True).flatmap(
    lambda keys: st.tuples(*(st.tuples(st.just(k), st.binary(max_size=9000)) for k in sorted(keys)))
)


@given(_values, st.integers(1, 9), st.sampled_from([1024, 4096, 16384, 65536]))
@settings(max_examples=60)
def test_a_bucket_comes_back(pairs: tuple[tuple[bytes, bytes], ...], per_leaf: int, page_size: int) -> None:
    content = boltfiles.build({b"b": list(pairs)}, per_leaf=per_leaf, page_size=page_size)
    bolt = BoltFile(memoryview(content))
    assert bolt.faults == [] and bolt.page_size == page_size
    (bucket,) = bolt.buckets()
    assert isinstance(bucket, BoltItem) and bucket.flags == 1
    items = list(bolt.items(bucket))
    assert [(i.key, content[i.offset : i.offset + i.size]) for i in items if isinstance(i, BoltItem)] == list(pairs)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 5),
    st.none() | st.binary(max_size=70_000),
    st.booleans(),
)
@settings(max_examples=60)
def test_an_entry_comes_back(index: int, term: int, kind: int, data: bytes | None, timed: bool) -> None:
    found = decode_entry(entry(index, data, term=term, kind=kind, timed=timed), 7)
    assert (found.index, found.term, found.type, bytes(found.data), found.offset) == (index, term, kind, data or b"", 7)
    assert found.appended_ns == (1_700_000_000_000_000_005 if timed else None)


@given(
    st.integers(0, 2**64 - 1), st.binary(max_size=400), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)))
)
@settings(max_examples=200)
def test_the_short_way_and_the_general_one_agree(index: int, data: bytes, changes: list[tuple[int, int]]) -> None:
    value = bytearray(entry(index, data, term=300))
    for at, byte in changes[:2]:
        value[at % len(value)] = byte
    short = raftlog.usual_entry(memoryview(bytes(value)), 0)
    with patch.object(raftlog, "usual_entry", lambda *_: None):
        try:
            general = decode_entry(bytes(value))
        except EntryError:
            general = None
    assert short is None or short == general
    if not changes:
        assert short is not None


def test_the_worked_example_of_the_reference() -> None:
    when = b"\x86\xaaAppendedAt\xa8" + bytes.fromhex("b9a6fad46b0309c1")
    found = decode_entry(when + b"\xa4Data\xc0\xaaExtensions\xc0\xa5Index\x02\xa4Term\x03\xa4Type\x01")
    assert (found.index, found.term, found.type, found.type_name, bytes(found.data)) == (2, 3, 1, "noop", b"")


@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange_for_an_entry(data: bytes) -> None:
    for decode in (decode_entry, decode_configuration, decode_operation, unpack):
        try:
            decode(data)
        except EntryError as error:
            assert error.message


def test_deep_and_long_values_are_refused_at_once() -> None:
    for hostile in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\x00", b"\xc6\xff\xff\xff\xffx"):
        with pytest.raises(EntryError):
            unpack(hostile)


def test_an_encrypted_operation_needs_the_key() -> None:
    plain = pb.RaftOperation(op_type=pb.RaftOperation.DELETE_CHANNEL, channel=b"a").SerializeToString()
    for cipher in Cipher:
        sealed = raft_cipher(b"key").encrypt(plain, cipher)
        assert decode_operation(sealed, raft_cipher(b"key")).channel == b"a"
        for key_or_none in (raft_cipher(b"other"), None):
            with pytest.raises(EntryError):
                decode_operation(sealed, key_or_none)
    assert decode_operation(plain, raft_cipher(b"key")).channel == b"a"


def test_a_whole_log() -> None:
    log = RaftLog(memoryview(raft_log(some(100), term=4, channels={b"orders": 6})))
    assert [each.index for each in log.entries() if isinstance(each, RaftEntry)] == list(range(1, 101))
    assert (log.stable.term, log.stable.vote, log.stable.channels) == (4, "trio.a.trio", {b"orders": 6})
    assert log.faults == []


def test_missing_entries_are_named() -> None:
    pairs = [each for each in some(50) if each[0] not in (key(10), key(11), key(30))]
    indexes, wrong, _ = read(raft_log(pairs))
    assert len(indexes) == 47
    assert [(w.kind, w.first, w.last) for w in wrong if isinstance(w, RaftFlaw)] == [("gap", 10, 11), ("gap", 30, 30)]


def test_entries_that_are_wrong_are_named_and_the_others_kept() -> None:
    pairs = some(20)
    pairs[4] = key(5), b"\x00no entry"
    pairs[9] = key(10), entry(11, b"")
    pairs[14] = key(15), entry(15, b"", term=9)
    indexes, wrong, _ = read(raft_log(pairs))
    assert indexes == [i for i in range(1, 21) if i not in (5, 10)]
    kinds = [(w.kind, w.first) for w in wrong if isinstance(w, RaftFlaw)]
    assert kinds == [
        (RaftFlawKind.ENTRY, 5),
        (RaftFlawKind.INDEX, 10),
        *((RaftFlawKind.TERM, i) for i in range(16, 21)),
    ]


def test_the_other_meta_counts_where_one_is_damaged() -> None:
    content = bytearray(raft_log(some(30)))
    for page in (0, PAGE):
        hurt = content.copy()
        hurt[page + 40] ^= 1
        indexes, wrong, _ = read(bytes(hurt))
        assert len(indexes) == 30
        assert [(w.kind, w.offset) for w in wrong if isinstance(w, Fault)] == [(FaultKind.META, page)]


def test_without_metas_the_pages_are_searched() -> None:
    content = bytearray(raft_log(some(30)))
    content[40] ^= 1
    content[PAGE + 40] ^= 1
    indexes, wrong, free = read(bytes(content))
    assert indexes == [] and len(wrong) == 2
    assert sorted(free) == list(range(1, 31))


def test_free_pages_hold_what_was_deleted() -> None:
    old = boltfiles.leaf(0, [(key(i), entry(i, b"old")) for i in range(1, 9)])
    content = raft_log([(key(i), entry(i, b"new")) for i in range(9, 40)], free=[old])
    indexes, wrong, free = read(content)
    assert (indexes, wrong, free) == (list(range(9, 40)), [], list(range(1, 9)))


def test_a_page_of_a_lost_write_loses_its_own_keys_only() -> None:
    content = bytearray(raft_log(some(64)))
    pages = [
        at for at in range(2 * PAGE, len(content), PAGE) if content[at + 8] == 2 and key(17) in content[at:][:PAGE]
    ]
    earlier = next(at for at in range(2 * PAGE, len(content), PAGE) if key(9) in content[at : at + PAGE])
    content[pages[0] + 8 : pages[0] + PAGE] = content[earlier + 8 : earlier + PAGE]
    indexes, wrong, _ = read(bytes(content))
    assert indexes == [i for i in range(1, 65) if not 17 <= i <= 24]
    assert [w.kind for w in wrong] == ["keys", "gap"]


def test_a_tree_that_goes_in_circles_ends() -> None:
    content = bytearray(raft_log(some(64)))
    for at in range(2 * PAGE, len(content), PAGE):
        if content[at + 8] == 1:  # every child of every branch is the branch itself
            count = struct.unpack_from("<H", content, at + 10)[0]
            for n in range(count):
                struct.pack_into("<Q", content, at + 16 + 16 * n + 8, at // PAGE)
    indexes, wrong, _ = read(bytes(content))
    assert indexes == []
    assert any("more than once" in w.detail for w in wrong)


BASE = raft_log(some(120, 300), channels={b"a": 3, b"b": 9, b"c": 12})


@given(st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.binary(min_size=1, max_size=16)), max_size=12), st.data())
@settings(max_examples=300)
def test_mutations_never_stop_the_reader(changes: list[tuple[int, bytes]], data: st.DataObject) -> None:
    content = bytearray(BASE)
    for offset, value in changes:
        content[offset : offset + len(value)] = value
    cut = data.draw(st.integers(0, len(content)) | st.just(len(BASE)))
    begin = time.perf_counter()
    indexes, wrong, _ = read(bytes(content[:cut]))
    assert time.perf_counter() - begin < 2
    assert indexes == sorted(set(indexes))
    # A key of another index may be hit by chance only: then the entry in it says so.
    assert set(indexes) <= set(range(1, 121))
    if not wrong:
        assert indexes == list(range(1, 121))


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)), max_size=60))
@settings(max_examples=200)
def test_hostile_page_headers_take_neither_time_nor_memory(headers: list[tuple[int, int, int]]) -> None:
    content = bytearray(
        boltfiles.meta(0, 2, 2**60, 2).ljust(PAGE, b"\0") + boltfiles.meta(1, 3, 2**60, 3).ljust(PAGE, b"\0")
    )
    for number, (flags, count, overflow) in enumerate(headers):
        page = struct.pack("<QHHI", number + 2, flags, count, overflow if overflow % 3 else overflow % 7)
        body = b"".join(struct.pack("<IIII", 1, 16 + overflow % 4096, 8, count) for _ in range(200))
        content += (page + body).ljust(PAGE, b"\0")[:PAGE]
    tracemalloc.start()
    begin = time.perf_counter()
    log = RaftLog(memoryview(bytes(content)))
    for _ in log.entries():
        pass
    for _ in log.free_entries():
        pass
    assert_runs_are_entries(bytes(content))
    assert time.perf_counter() - begin < 2
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_values_that_overlap_are_not_read_again_and_again() -> None:
    count = 250
    table = b"".join(struct.pack("<IIII", 0, 16 * (count - n), 8, 2 << 20) for n in range(count))
    page = struct.pack("<QHHI", 0, 2, count, 600) + table + bytes(601 * PAGE - 16 - len(table))
    content = boltfiles.build({b"logs": some(3)}, free=[page])
    bolt = BoltFile(memoryview(content))
    assert sum(item.size for item in bolt.loose_items(bytearray())) < 5 * len(content)
