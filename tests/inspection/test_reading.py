"""Reading under damage: messages, records and the overview for every mutation and for generated ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stantools.format.crc import Crc
from stantools.inspection.overview import overview
from stantools.inspection.records import kind_of, read_records
from stantools.inspection.slicesummary import logical_view, summarise
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.inspection.subscribers import as_ranges, load_clients, load_subs
from stantools.inspection.verify import verify
from stantools.store.directory import list_channel, open_datastore
from stantools.store.limits import ChannelLimits
from stantools.store.mapping import mapped
from stantools.store.sample import SampleOptions, write_sample
from tests.mutations import apply_mutation, damages, fresh_copy, mutated_stores, shares

CRC = Crc()
EVERYTHING = Selection()


def shown(root: Path, channel: str, selection: Selection = EVERYTHING) -> list[int]:
    reader = MessageReader(list_channel(root / channel), CRC)
    return [item.sequence for item in reader.read(selection) if isinstance(item, StoredMessage)]


def check_reading(root: Path) -> None:
    """Whatever verify calls intact is shown, nothing raises, and records cover every byte."""
    store = open_datastore(root)
    result = overview(store)
    for channel in verify(store).channels:
        found = shown(root, channel.name)
        intact = {seq for first, last in channel.intact for seq in range(first, last + 1)}
        assert intact <= set(found), channel.name
        (seen,) = [each for each in result.channels if each.name == channel.name]
        assert channel.messages <= seen.count or seen.problems, channel.name
    for path in root.rglob("*"):
        if path.is_file() and (kind := kind_of(path.name)):
            with mapped(path) as buffer:
                at = 0
                for record in read_records(buffer, kind, CRC):
                    assert record.offset == at, path
                    at += record.length
                assert at == len(buffer), path


@pytest.mark.parametrize(("case", "every"), shares(7))
def test_mutations(case: str, every: int, golden: Path, tmp_path: Path) -> None:
    for mutation, root in mutated_stores(case, tmp_path, every):
        try:
            check_reading(root)
        except AssertionError as error:
            raise AssertionError(mutation) from error


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sample") / "store"
    options = SampleOptions(channels=2, messages=60, size=40, gaps=True, slice_msgs=17)
    return write_sample(place, options).path


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_several_damages_at_once(healthy: Path, tmp_path: Path, data: st.DataObject) -> None:
    root = fresh_copy(healthy, tmp_path / "store")
    files = sorted(str(p.relative_to(healthy)) for p in healthy.rglob("*") if p.is_file())
    sizes = {name: (healthy / name).stat().st_size for name in files}
    gone: set[str] = set()
    for mutation in data.draw(st.lists(damages(files, sizes), min_size=1, max_size=4)):
        if mutation["file"] not in gone:
            apply_mutation(root, mutation)
        if mutation["op"] == "delete":
            gone.add(mutation["file"])
    check_reading(root)


def selections() -> st.SearchStrategy[Selection]:
    sequence = st.none() | st.integers(-150, 200)
    time = st.none() | st.integers(1_700_000_000_000_000_000, 1_700_000_000_200_000_000)
    return st.builds(Selection, sequence, sequence, time, time, st.none() | st.integers(0, 40))


@settings(max_examples=150, deadline=None)
@given(selection=selections(), number=st.integers(0, 1), indexes=st.booleans())
def test_selections_are_what_a_filter_gives(healthy: Path, selection: Selection, number: int, indexes: bool) -> None:
    name = open_datastore(healthy).channel_names[number]
    files = list_channel(healthy / name)
    everything = [m for m in MessageReader(files, CRC).read(Selection()) if isinstance(m, StoredMessage)]
    if not indexes:
        files.slices = [type(s)(s.number, s.data, None, False, s.data_size, 0) for s in files.slices]
    got = [m for m in MessageReader(files, CRC).read(selection) if isinstance(m, StoredMessage)]
    first, last = (
        each if each is None or each >= 0 else max(everything[-1].sequence + 1 + each, 0)
        for each in (selection.first, selection.last)
    )
    wanted = [
        m
        for m in everything
        if (first is None or m.sequence >= first)
        and (last is None or m.sequence <= last)
        and (selection.since is None or m.timestamp >= selection.since)
        and (selection.until is None or m.timestamp < selection.until)
    ]
    if selection.tail is not None:
        wanted = wanted[len(wanted) - min(selection.tail, len(wanted)) :]
    assert got == wanted


def test_a_pattern_with_a_tail(healthy: Path) -> None:
    name = open_datastore(healthy).channel_names[0]
    every = list(MessageReader(list_channel(healthy / name), CRC).read(EVERYTHING))
    pattern = re.compile(rb"7")
    fitting = [m.sequence for m in every if isinstance(m, StoredMessage) and pattern.search(m.data)]
    assert shown(healthy, name, Selection(pattern=pattern, tail=5)) == fitting[-5:]


def left_after(rows: list[tuple[int, int, int]], limits: ChannelLimits, now: int) -> tuple[int, int, int]:
    """The server's rule, message by message: first sequence, count, bytes."""
    last = rows[-1][0]
    rows = list(rows)
    while len(rows) > 1 and (
        0 < limits.max_msgs < len(rows) or 0 < limits.max_bytes < sum(size for _, size, _ in rows)
    ):
        del rows[0]
    while rows and limits.max_age_ns and now - rows[0][2] >= limits.max_age_ns:
        del rows[0]
    return rows[0][0] if rows else last + 1, len(rows), sum(size for _, size, _ in rows)


@settings(max_examples=100, deadline=None)
@given(
    messages=st.integers(0, 70),
    size=st.integers(0, 9000),
    age=st.integers(0, 70_000_000),
    number=st.integers(0, 1),
)
def test_limits_message_by_message(healthy: Path, messages: int, size: int, age: int, number: int) -> None:
    files = list_channel(healthy / open_datastore(healthy).channel_names[number])
    slices = [summarise(each, files.raw_name, CRC) for each in files.slices]
    rows: list[tuple[int, int, int]] = []
    for each in files.slices:
        assert each.data
        with mapped(each.data) as buffer:
            for record in read_records(buffer, kind_of(each.name), CRC):  # type: ignore[arg-type]
                if record.type == "message":
                    fields = record.fields
                    rows.append((fields["sequence"], record.length + 32, fields["timestamp"]))
    limits = ChannelLimits(messages, size, age)
    now = rows[-1][2] + 1_000_000
    view = logical_view(slices, limits, files.raw_name, CRC, now_ns=now)
    assert (view.first_seq, view.count, view.bytes) == left_after(rows, limits, now)
    assert view.removed == len(rows) - view.count


@pytest.mark.parametrize(
    ("sequences", "ranges"),
    [((), []), ((5,), [(5, 5)]), ((1, 2, 3, 7, 9, 10), [(1, 3), (7, 7), (9, 10)])],
)
def test_ranges(sequences: tuple[int, ...], ranges: list[tuple[int, int]]) -> None:
    assert as_ranges(sequences) == ranges


def test_logs_that_are_not_there(tmp_path: Path) -> None:
    assert load_clients(None, CRC).problems == ["is missing"]
    assert load_subs(None, CRC).problems == []
    nothing: Any = load_subs(tmp_path / "subs.dat", CRC)
    assert "cannot be read" in nothing.problems[0]
