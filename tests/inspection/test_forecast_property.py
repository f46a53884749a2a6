"""Forecasts of generated damages: columns against a record-by-record reference, and nothing ever raises or changes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import ServerOptions, forecast, forecast_both, lookup, slices
from stantools.inspection.forecast.sound_slices import sound_slices
from stantools.inspection.survey_jobs import survey_channels
from stantools.store import indexes
from stantools.store.directory import open_datastore
from tests.inspection import forecast_stores as s
from tests.trees import dated

MESSAGES = 40


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few messages, so that a small slice has many."""
    monkeypatch.setattr(lookup, "_ROWS", 5)
    monkeypatch.setattr(indexes, "INDEX_ROWS", 12)


def _message(data: bytes, offset: int, size: int) -> int | None:
    """The sequence of the message of a size at an offset, None if there is none."""
    end = offset + 8 + size
    if offset < 0 or end > len(data):
        return None
    (stored,) = struct.unpack_from("<I", data, offset + 4)
    payload = data[offset + 8 : end]
    if s.CRC(payload) != stored:
        return None
    try:
        return gogo.decode(pb.MsgProto, payload).sequence
    except gogo.DecodeError:
        return None


def _reference(data: bytes, records: list[tuple[int, int, int, int]], capacity: int) -> list[int | None]:
    """What a reader gets that asks for one message after the other."""
    answers: list[int | None] = []
    buffered: list[int] = []
    for place, (_, offset, _, size) in enumerate(records):
        if not buffered and 8 + size > capacity:
            announced = struct.unpack_from("<I", data, offset)[0] if 0 <= offset <= len(data) - 8 else -1
            answers.append(_message(data, offset, size) if announced == size else None)
            continue
        if not buffered:
            at = offset
            for *_, length in records[place:]:
                got = _message(data, at, length)
                if got is None or at + 8 + length > offset + capacity:
                    break
                buffered.append(got)
                at += 8 + length
        answers.append(buffered.pop(0) if buffered else None)
    return answers


_rows = st.integers(0, MESSAGES - 2)
_index_damage = st.one_of(
    st.tuples(st.just("shift"), _rows, st.integers(-20, 20)),
    st.tuples(st.just("far"), _rows, st.sampled_from([-1, 0, 10**6, 2**62])),
    st.tuples(st.just("copy"), _rows, _rows),
    st.tuples(st.just("size"), _rows, st.integers(0, 60)),
)
_hole = st.tuples(st.just("hole"), _rows, st.integers(1, 9))
_data_damage = st.tuples(st.just("byte"), st.integers(4, 1600), st.integers(0, 255))
_header_damage = st.tuples(st.just("length"), _rows, st.integers(0, 70))


@given(
    damages=st.lists(st.one_of(_index_damage, _data_damage, _header_damage, _hole), max_size=6),
    capacity=st.sampled_from([0, 1, 60, 100, 300, 2 * 1024 * 1024]),
    sizes=st.lists(st.integers(0, 30), min_size=MESSAGES, max_size=MESSAGES),
)
@settings(max_examples=150, deadline=None)
def test_lookups_equal_a_slow_reader(damages: list[tuple[str, int, int]], capacity: int, sizes: list[int]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        s.write_server(root)
        s.write_slice(root, "foo", 1, range(1, MESSAGES + 1), payloads=[bytes(size) for size in sizes])
        path, index = root / "foo" / "msgs.1.dat", root / "foo" / "msgs.1.idx"
        data, records = bytearray(path.read_bytes()), s.read_index(index)
        for kind, where, value in damages:
            sequence, offset, time, size = records[min(where, MESSAGES - 2)]
            if kind == "byte":
                if where < records[-1][1]:
                    data[where] = value
            elif kind == "length" and 4 <= offset <= len(data) - 8:
                struct.pack_into("<I", data, offset, value)
            elif kind == "hole" and 4 <= offset <= len(data):
                data[offset:offset] = b"x" * value
                moved = [(n, at + value if at >= offset else at, *rest) for n, at, *rest in records]
                records = [(n, at, rest[0], rest[1]) for n, at, *rest in moved]
            elif kind == "shift":
                records[where] = (sequence, offset + value, time, size)
            elif kind == "far":
                records[where] = (sequence, value, time, size)
            elif kind == "copy":
                records[where] = (sequence, records[value][1], time, records[value][3])
            elif kind == "size":
                records[where] = (sequence, offset, time, value or 1)
        path.write_bytes(data)
        s.write_index(index, records)
        before = dated(root)
        channel = forecast(open_datastore(root), ServerOptions(read_buffer_size=capacity, workers=1)).channels["foo"]
        assert dated(root) == before
    answers = _reference(bytes(data), records, capacity)
    wanted = range(1, MESSAGES + 1)
    assert set(_all(channel.lookups.failing.pairs())) == {n for n, a in zip(wanted, answers, strict=True) if a is None}
    assert channel.lookups.wrong == {n: a for n, a in zip(wanted, answers, strict=True) if a not in (None, n)}
    assert channel.lookups.failing.pairs() == channel.lookups.failing.pairs()
    assert set(channel.lookups.errors) == set(_all(channel.lookups.failing.pairs()))
    alone = _reference(bytes(data), records, 0)
    found = channel.alone or channel.lookups
    assert set(_all(found.failing.pairs())) == {n for n, a in zip(wanted, alone, strict=True) if a is None}
    stall = next((n for n, a in zip(wanted, answers, strict=True) if a is None), None)
    assert channel.stalls_at == stall
    assert list(_all(channel.delivered)) == answers[: None if stall is None else stall - 1]


def _all(pairs: object) -> list[int]:
    return [n for first, last in pairs for n in range(first, last + 1)]  # type: ignore[attr-defined]


_slices = [f"foo/msgs.{n}.{kind}" for n in (1, 2, 3) for kind in ("dat", "idx")]
_files = ["server.dat", "clients.dat", "foo/subs.dat", *_slices]


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(_files),
            st.sampled_from(["cut", "set", "insert", "zero", "append", "remove"]),
            st.floats(0, 1),
            st.binary(min_size=1, max_size=40),
        ),
        min_size=1,
        max_size=5,
    ),
    check_crc=st.booleans(),
    max_msgs=st.sampled_from([0, 7]),
)
@settings(max_examples=200, deadline=None)
def test_any_damage_has_a_forecast(
    changes: list[tuple[str, str, float, bytes]], check_crc: bool, max_msgs: int
) -> None:
    from stantools.store.limits import ChannelLimits, StoreLimits

    with TemporaryDirectory() as folder:
        root = s.healthy(Path(folder))
        s.write_clients(root, "c")
        sub = pb.SubState(id=1, client_id=b"c", inbox=b"i", ack_inbox=b"a", max_in_flight=4)
        s.write_subs(root, "foo", (sub, [2, 3]))
        for name, kind, where, data in changes:
            path = root / name
            content = bytearray(path.read_bytes()) if path.exists() else bytearray()
            at = int(where * len(content))
            if kind == "remove":
                path.unlink(missing_ok=True)
                continue
            if kind == "cut":
                del content[at:]
            elif kind == "append":
                content += data
            elif kind == "insert":
                content[at:at] = data
            elif kind == "zero":
                content[at : at + 64] = bytes(len(content[at : at + 64]))
            else:
                content[at : at + len(data)] = data[: len(content) - at]
            path.write_bytes(content)
        before = dated(root)
        options = ServerOptions(
            crc=Crc(check=check_crc), limits=StoreLimits(channel=ChannelLimits(max_msgs=max_msgs)), workers=1
        )
        results = forecast_both(open_datastore(root), options)
        store = open_datastore(root, options.crc)
        sound = [each for survey in survey_channels(store, store.matching()) for each in sound_slices(survey)]
        after_survey = forecast_both(store, options, sound=sound)
        assert [each.as_json() for each in after_survey] == [each.as_json() for each in results]
        for result in results:
            json.dumps(result.as_json())
            assert result.starts == (result.exit_code is None) == (result.error is None)
            for change in result.changes.values():
                path = root / change.path
                assert change.before == (path.stat().st_size if path.exists() else None)
            for channel in result.channels.values():
                found = channel.lookups.found() | channel.missing
                if channel.count and channel.first_seq <= channel.last_seq:
                    assert found.pairs() == [(channel.first_seq, channel.last_seq)]
        assert dated(root) == before


@pytest.mark.parametrize("max_msgs", [0, 7])
def test_a_forecast_after_a_survey_reads_no_sound_slice_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_msgs: int
) -> None:
    from stantools.store.limits import ChannelLimits, StoreLimits

    root = s.healthy(tmp_path)
    store = open_datastore(root)
    options = ServerOptions(crc=store.crc, limits=StoreLimits(channel=ChannelLimits(max_msgs=max_msgs)), workers=1)
    expected = [each.as_json() for each in forecast_both(store, options)]
    sound = [each for survey in survey_channels(store, ["foo"]) for each in sound_slices(survey)]
    assert [each.data.name for each in sound] == [each.data.name for each in store.channel("foo").slices if each.data]
    for module in (slices, indexes):
        monkeypatch.setattr(module, "scan_index", None)
    monkeypatch.setattr(lookup, "_SliceLookup", None)
    assert [each.as_json() for each in forecast_both(store, options, sound=sound)] == expected


def test_a_slice_that_grew_after_the_survey_is_read(tmp_path: Path) -> None:
    root = s.healthy(tmp_path)
    store = open_datastore(root)
    sound = [each for survey in survey_channels(store, ["foo"]) for each in sound_slices(survey)]
    last = max(store.channel("foo").slices, key=lambda each: each.number)
    assert last.data is not None
    last.data.write_bytes(last.data.read_bytes() + b"\1\0\0\0torn")
    store = open_datastore(root)
    expected = [each.as_json() for each in forecast_both(store, ServerOptions())]
    assert [each.as_json() for each in forecast_both(store, ServerOptions(), sound=sound)] == expected
