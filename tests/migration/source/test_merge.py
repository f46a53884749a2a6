"""Many channels in one stream: by time, renumbered, the same from every place and in every run."""

from __future__ import annotations

import tempfile
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stantools.migration.stream_source as merging
from stantools.errors import UsageError
from stantools.migration.stream_source import MergedSource, SingleSource, StreamSource, stream_source
from tests.migration.source.contents import contents, write_slices
from tests.migration.stores import Record, opened

#: Where each message of a merged stream is from: channel, sequence.
Order = list[tuple[bytes, int]]


def made(channels: dict[bytes, list[tuple[int, int]]]) -> dict[bytes, list[Record]]:
    """Makes messages of sequences and timestamps."""
    return {
        name: [(n, t, b"r" if n % 2 else b"", b"%b %d" % (name, n)) for n, t in pairs]
        for name, pairs in channels.items()
    }


def expected_order(channels: dict[bytes, list[tuple[int, int]]]) -> Order:
    keyed = []
    for number, (name, pairs) in enumerate(channels.items()):
        for (sequence, _), key in zip(pairs, accumulate((t for _, t in pairs), max), strict=True):
            keyed.append((key, number, sequence, name))
    return [(name, sequence) for _, _, sequence, name in sorted(keyed)]


def merged_source(root: Path, names: list[bytes]) -> StreamSource:
    source = opened(root)
    found = {channel.raw_name: channel for channel in source.channels}
    return stream_source([(found[name], b"to." + name) for name in names])


def order_of(source: StreamSource, *, after: int = 0, until: int | None = None) -> Order:
    """Reads a stream and checks everything about its batches but the order of the channels."""
    found: Order = []
    number = after
    for batch in source.read(after=after, until=until):
        assert batch.subject == b"to." + batch.channel
        assert batch.stream_sequence.tolist() == list(range(number + 1, number + 1 + len(batch)))
        number += len(batch)
        for row, sequence in enumerate(batch.sequence.tolist()):
            assert batch.data(row) == b"%b %d" % (batch.channel, sequence)
            assert batch.reply(row) == (b"r" if sequence % 2 else b"")
            found.append((batch.channel, sequence))
    return found


@st.composite
def histories(draw: st.DrawFn) -> dict[bytes, list[tuple[int, int]]]:
    """Channels with gaps, equal timestamps and clocks that go back."""
    channels: dict[bytes, list[tuple[int, int]]] = {}
    for name in (b"a", b"b", b"c", b"d")[: draw(st.integers(2, 4))]:
        sequence, timestamp = draw(st.integers(0, 3)), draw(st.integers(-5, 60))
        pairs = []
        for gap, step in draw(st.lists(st.tuples(st.sampled_from([1, 1, 1, 4]), st.integers(-3, 6)), max_size=40)):
            sequence += gap
            timestamp += step
            pairs.append((sequence, timestamp))
        channels[name] = pairs
    return channels


@settings(max_examples=80, deadline=None)
@given(data=st.data(), channels=histories(), rows=st.integers(1, 9), spacing=st.integers(1, 20))
def test_merge(data: st.DataObject, channels: dict[bytes, list[tuple[int, int]]], rows: int, spacing: int) -> None:
    order = expected_order(channels)
    small = {"_MIN_ROWS": 1, "_MAX_ROWS": rows, "_SPACING": spacing}
    with tempfile.TemporaryDirectory() as work, patch.multiple(merging, **small):
        for name, listed in made(channels).items():
            cut = data.draw(st.integers(0, len(listed)))
            write_slices(Path(work), name, [listed[:cut], listed[cut:]])
        source = merged_source(Path(work), list(channels))
        assert order_of(source) == order
        assert (source.count, source.first, source.last) == (len(order), min(1, len(order)), len(order))
        after = data.draw(st.integers(0, len(order) + 2))
        until = data.draw(st.one_of(st.none(), st.integers(0, len(order) + 2)))
        assert order_of(source, after=after, until=until) == order[after:until]
        for name, pairs in channels.items():
            wanted = data.draw(st.lists(st.integers(0, 170), max_size=12))
            places = {sequence: order.index((name, sequence)) + 1 for sequence, _ in pairs}
            below = [max((n for n in places if n <= sequence), default=0) for sequence in wanted]
            assert source.position(name, wanted) == [places.get(n, 0) for n in below]
            assert source.position(name, list(places)) == list(places.values())


def test_one_channel_after_the_other(tmp_path: Path) -> None:
    """Channels that do not overlap in time are opened one by one and given in big batches."""
    channels = {b"%c" % (97 + n): [(i, 1000 * n + i) for i in range(1, 101)] for n in range(5)}
    for name, listed in made(channels).items():
        write_slices(tmp_path, name, [listed])
    source = merged_source(tmp_path, list(reversed(channels)))
    assert order_of(source) == [(name, i) for name in channels for i in range(1, 101)]
    assert [len(batch) for batch in source.read()] == [100] * 5


def test_the_order_of_channels_decides_between_equal_times(tmp_path: Path) -> None:
    channels = {name: [(n, 7) for n in range(1, 4)] for name in (b"x", b"y")}
    for name, listed in made(channels).items():
        write_slices(tmp_path, name, [listed])
    assert order_of(merged_source(tmp_path, [b"y", b"x"]))[0] == (b"y", 1)
    assert order_of(merged_source(tmp_path, [b"x", b"y"]))[0] == (b"x", 1)


def test_what_a_stream_is_made_of(tmp_path: Path) -> None:
    for name in (b"a", b"b"):
        write_slices(tmp_path, name, [[(5, 1, b"", b""), (9, 2, b"", b"")]])
    one, other = opened(tmp_path).channels
    single = stream_source([(one, b"s")])
    assert isinstance(single, SingleSource) and not single.renumbered
    assert (single.count, single.first, single.last) == (2, 5, 9)
    assert list(contents(single.read(after=5), b"s")) == [9]
    assert single.position(b"a", [3, 9]) == [3, 9]
    several = stream_source([(one, b"s"), (other, b"t")])
    assert isinstance(several, MergedSource) and several.renumbered
    assert [subject for _, subject in several.parts] == [b"s", b"t"]
    for parts in ([], [(one, b"s"), (one, b"t")]):
        with pytest.raises(UsageError, match="one or more different channels"):
            stream_source(parts)
