"""The slice writer writes what the real server writes, and nothing less after an error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from stantools.errors import StoreUnwritableError
from stantools.format.crc import Crc
from stantools.store import slice_output
from stantools.store.limits import ONE_SLICE, SliceLimits
from stantools.store.slice_output import remove_slice
from stantools.store.slicestate import SliceState, last_slice
from stantools.store.slicewriter import SliceWriter, WriteOptions
from tests.conftest import GOLDEN, KINDS_OF_STORES, golden_cases, load_expected, others_slow
from tests.store.slices import all_messages, messages, scan, slice_files

IEEE = Crc()
SECOND = 1_000_000_000


def healthy_channels() -> list[tuple[str, str]]:
    """Golden channels whose slices are as one run with one setting leaves them."""
    return [
        (case, directory.name)
        for case in golden_cases()
        if "damage" not in load_expected(case) and case not in ("gap_truncated_slice", "many_channels")
        for directory in sorted((GOLDEN / case / "datastore").iterdir())
        if directory.is_dir() and any(directory.glob("msgs.*.dat"))
    ]


def options(case: str) -> tuple[Crc, SliceLimits]:
    given = load_expected(case)["options"]
    assert given["file_slice_max_age"] == "0s"
    return Crc(given["file_crc_poly"]), SliceLimits(given["file_slice_max_msgs"], given["file_slice_max_bytes"])


def data_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("msgs.*.dat"), key=lambda path: int(path.name.split(".")[1]))


@pytest.mark.parametrize("how", ["encode", "encode one by one", "copy", "copy one by one"])
@pytest.mark.parametrize(("case", "channel"), others_slow(healthy_channels(), KINDS_OF_STORES))
def test_rewriting_golden_slices_gives_the_same_bytes(golden, tmp_path, case, channel, how):
    source = golden / case / "datastore" / channel
    name = channel.encode()
    crc, limits = options(case)
    files = data_files(source)
    filled = {n for a, b in load_expected(case).get("filled_sequences", {}).get(channel, []) for n in range(a, b + 1)}
    with SliceWriter(
        tmp_path,
        name,
        crc,
        WriteOptions(limits, fill_gaps=bool(filled), sync=False),
        last_number=int(files[0].name.split(".")[1]) - 1,
    ) as writer:
        for path in files:
            if how.startswith("encode"):
                batch = [each for each in messages(path, name, crc) if each[0] not in filled]
                step = 1 if "one" in how else max(len(batch), 1)
                for at in range(0, len(batch), step):
                    sequences, times, replies, payloads = zip(*batch[at : at + step], strict=True)
                    writer.append(sequences, times, replies if any(replies) else None, payloads)
            else:
                batch = scan(path, name, crc)
                kept = batch.pick(np.array([int(n) not in filled for n in batch.sequence], bool))
                if "one" in how:
                    for at in range(len(kept)):
                        writer.append_records(kept.part(at, at + 1))
                else:
                    writer.append_records(kept)
    written, wanted = slice_files(tmp_path), slice_files(source)
    empty = {name for name, content in wanted.items() if len(content) <= 4 or name.endswith(".bak")}
    assert written == {name: content for name, content in wanted.items() if name not in empty}


@pytest.mark.parametrize(("case", "channel"), others_slow(healthy_channels(), KINDS_OF_STORES))
def test_the_state_of_golden_slices_is_resumed(golden, case, channel):
    crc, _ = options(case)
    directory = golden / case / "datastore" / channel
    state = last_slice(directory, channel.encode(), crc)
    files = [path for path in data_files(directory) if path.stat().st_size > 4]
    expected = load_expected(case)["channels"][channel]
    assert state is not None
    assert state.number == int(files[-1].name.split(".")[1])
    assert state.last_sequence == expected["last_seq"]
    last = messages(files[-1], channel.encode(), crc)
    assert (state.first_sequence, state.count) == (last[0][0], len(last))
    if len(files) == 1:
        assert state.bytes == expected["bytes"]


@pytest.mark.parametrize(("case", "channel"), [each for each in healthy_channels() if "slice" in each[0]])
def test_a_resumed_channel_goes_on_as_if_never_stopped(golden, tmp_path, case, channel):
    crc, limits = options(case)
    name = channel.encode()
    everything = all_messages(golden / case / "datastore" / channel, name, crc)
    for each in everything:
        with SliceWriter.resume(tmp_path, name, crc, WriteOptions(limits)) as writer:
            writer.append([each[0]], [each[1]], [each[2]], [each[3]])
    assert slice_files(tmp_path) == slice_files(golden / case / "datastore" / channel)


def test_the_bytes_of_the_worked_example(tmp_path):
    with SliceWriter(tmp_path, b"foo", IEEE) as writer:
        sizes = writer.append([1, 2], [1795219649260503021, 1795219649304983290], [b"r", b""], [b"hello", b""])
        assert sizes.tolist() == [27, 17]
        assert writer.current.bytes == 124
    assert slice_files(tmp_path) == {
        "msgs.1.dat": bytes.fromhex(
            "01000000 1b00000033e51a40 0801 1203666f6f 1a0172 220568656c6c6f 28edffe4ffa6d8f9f418"
            "11000000f4062ea4 0802 1203666f6f 28faedff94a7d8f9f418"
        ),
        "msgs.1.idx": bytes.fromhex(
            "01000000 0100000000000000 0400000000000000 ed3ff96fc2e6e918 1b000000 a7a03373"
            "0200000000000000 2700000000000000 faf69f72c2e6e918 11000000 b29d1788"
        ),
    }


def counts(directory: Path) -> list[int]:
    return [(path.stat().st_size - 4) // 32 for path in sorted(directory.glob("*.idx"))]


# Channel `c` and a payload of 4 bytes make records of 60 accounted bytes with these sequences and timestamps.
TIME = 1 << 55
PAYLOAD = b"x" * 4


def put(writer: SliceWriter, first: int, count: int, *, step: int = 0, batch: int = 0) -> None:
    for at in range(first, first + count, batch or count):
        part = range(at, min(at + (batch or count), first + count))
        writer.append(list(part), [TIME + n * step for n in part], None, [PAYLOAD] * len(part))


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (SliceLimits(0, 120, 0), [2, 2, 2, 1]),
        (SliceLimits(0, 121, 0), [3, 3, 1]),
        (SliceLimits(0, 1, 0), [1] * 7),
        (SliceLimits(3, 0, 0), [3, 3, 1]),
        (SliceLimits(3, 120, 0), [2, 2, 2, 1]),
        (SliceLimits(0, 0, 2 * SECOND), [2, 2, 2, 1]),
        (SliceLimits(2, 121, 9 * SECOND), [2, 2, 2, 1]),
        (ONE_SLICE, [7]),
    ],
)
def test_slices_are_split_as_the_server_splits_them(tmp_path, limits, expected, batch):
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(limits)) as writer:
        put(writer, 1, 7, step=SECOND, batch=batch)
        assert writer.current.bytes == expected[-1] * 60
    assert counts(tmp_path) == expected
    assert [state.count for state in writer.finished] == expected
    assert writer.finished[-1].last_sequence == 7


def test_age_by_the_clock(tmp_path):
    now = [TIME]
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(0, 0, SECOND), clock=lambda: now[0])) as writer:
        put(writer, 1, 3, step=10 * SECOND)
        now[0] += 11 * SECOND
        put(writer, 4, 2)
    assert counts(tmp_path) == [3, 2]


def test_fillers_go_to_the_current_slice_over_its_limit(tmp_path):
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(2, 0, 0), fill_gaps=True)) as writer:
        writer.append([10], [1], None, [b"a"])
        writer.append([14, 15, 18], [2, 3, 4], None, [b"b", b"c", b"d"])
    have = all_messages(tmp_path, b"c", IEEE)
    assert [(each[0], each[1]) for each in have] == [
        (10, 1), (11, 2), (12, 2), (13, 2), (14, 2), (15, 3), (16, 4), (17, 4), (18, 4)
    ]  # fmt: skip
    assert counts(tmp_path) == [4, 4, 1]


def test_gaps_stay_when_not_filled(tmp_path):
    with SliceWriter(tmp_path, b"c", IEEE) as writer:
        writer.append([1, 5], [1, 2], None, [b"a", b"b"])
    assert [each[0] for each in all_messages(tmp_path, b"c", IEEE)] == [1, 5]


@pytest.mark.parametrize("sequences", [[2, 2], [3, 2], [1, 2], [0]])
def test_sequences_must_increase(tmp_path, sequences):
    with SliceWriter(tmp_path, b"c", IEEE, last_sequence=1) as writer:
        with pytest.raises(ValueError, match="must increase"):
            writer.append(sequences, sequences, None, [b""] * len(sequences))
        writer.append([], [], None, [])
    assert slice_files(tmp_path) == {}


def test_nothing_is_written_before_the_flush_and_data_before_the_index(tmp_path, monkeypatch):
    calls = []
    for name in ("write_data", "write_index", "sync"):
        real = getattr(slice_output.SliceOutput, name)

        def call(self, *args, real=real, name=name):
            calls.append(name)
            return real(self, *args)

        monkeypatch.setattr(slice_output.SliceOutput, name, call)
    writer = SliceWriter(tmp_path, b"c", IEEE)
    put(writer, 1, 3, batch=1)
    assert calls == []
    assert not slice_files(tmp_path)
    writer.flush()
    assert calls == ["write_data", "write_index", "sync"]
    put(writer, 4, 1)
    writer.flush(sync=False)
    assert calls[3:] == ["write_data", "write_index"]
    writer.flush(sync=False)
    assert len(calls) == 5
    writer.close()


def test_what_is_gathered_is_bounded(tmp_path):
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(ONE_SLICE, buffer_size=1000, sync=False)) as writer:
        for n in range(1, 200):
            put(writer, n, 1)
            assert len(slice_files(tmp_path).get("msgs.1.dat", b"")) > n * 28 - 1000
    assert len(all_messages(tmp_path, b"c", IEEE)) == 199


def test_release_and_go_on(tmp_path):
    writer = SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(3, 0, 0)))
    for n in range(1, 8):
        put(writer, n, 1)
        writer.release()
        assert not open_files(tmp_path)
    writer.close()
    assert counts(tmp_path) == [3, 3, 1]


def open_files(directory: Path) -> list[Path]:
    descriptors = list(Path("/proc/self/fd").iterdir())
    return [path.readlink() for path in descriptors if path.exists() and directory in path.readlink().parents]


def test_a_file_that_somebody_else_has_changed_is_not_appended_to(tmp_path):
    writer = SliceWriter(tmp_path, b"c", IEEE)
    put(writer, 1, 2)
    writer.release()
    with (tmp_path / "msgs.1.dat").open("ab") as file:
        file.write(b"!")
    with pytest.raises(StoreUnwritableError, match="should have"):
        put(writer, 3, 1)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda d, i: d.write_bytes(d.read_bytes()[:-1]), "does not end with"),
        (lambda d, i: d.write_bytes(d.read_bytes() + b"\0"), "does not end with"),
        (lambda d, i: i.write_bytes(i.read_bytes()[:-32]), "does not end with"),
        (lambda d, i: i.write_bytes(i.read_bytes()[:-1]), "index record 2 is damaged"),
        (lambda d, i: i.write_bytes(i.read_bytes()[:4]), "is empty while"),
        (lambda d, i: i.write_bytes(b""), "unable to verify file version: EOF"),
        (lambda d, i: d.write_bytes(b"\2" + d.read_bytes()[1:]), "unsupported file version: 2"),
        (lambda d, i: i.unlink(), "its index is missing"),
    ],
)
def test_a_damaged_end_is_not_resumed(tmp_path, damage, text):
    with SliceWriter(tmp_path, b"c", IEEE) as writer:
        put(writer, 1, 3)
    damage(tmp_path / "msgs.1.dat", tmp_path / "msgs.1.idx")
    with pytest.raises(StoreUnwritableError, match=text) as caught:
        SliceWriter.resume(tmp_path, b"c", IEEE)
    assert "salvage" in caught.value.remedy


def test_empty_slices_are_used_again_and_stale_indexes_are_emptied(tmp_path):
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(2, 0, 0))) as writer:
        put(writer, 1, 4)
    stale = (tmp_path / "msgs.2.idx").read_bytes()
    wanted = slice_files(tmp_path)
    (tmp_path / "msgs.2.dat").write_bytes(b"\1\0\0\0")
    (tmp_path / "msgs.2.idx").write_bytes(b"\1\0\0\0")
    (tmp_path / "msgs.3.dat").write_bytes(b"")
    with SliceWriter.resume(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(2, 0, 0))) as writer:
        put(writer, 3, 2)
    (tmp_path / "msgs.3.dat").unlink()
    assert slice_files(tmp_path) == wanted
    (tmp_path / "msgs.2.dat").unlink()
    assert (tmp_path / "msgs.2.idx").read_bytes() == stale
    with SliceWriter.resume(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(2, 0, 0))) as writer:
        put(writer, 3, 2)
    assert slice_files(tmp_path) == wanted


def test_a_new_slice_never_overwrites_records(tmp_path):
    (tmp_path / "msgs.1.dat").write_bytes(b"\1\0\0\0something")
    writer = SliceWriter(tmp_path, b"c", IEEE)
    with pytest.raises(StoreUnwritableError, match="already exists"):
        put(writer, 1, 1)
    assert (tmp_path / "msgs.1.dat").read_bytes() == b"\1\0\0\0something"


@pytest.mark.parametrize("part", [0, 10])
@pytest.mark.parametrize("fail_at", range(1, 5))
def test_a_full_disk_leaves_the_last_flushed_message(tmp_path, monkeypatch, fail_at, part):
    """The n-th write takes only a part and fails; then there is space again."""
    writer = SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(4, 0, 0)))
    put(writer, 1, 2)
    writer.flush()
    calls = []
    real_write, real_writev = os.write, os.writev

    def fail(descriptor, data):
        calls.append(descriptor)
        if len(calls) >= fail_at:
            if part:
                real_write(descriptor, bytes(data[:part]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(descriptor, data):
        fail(descriptor, data)
        return real_write(descriptor, data)

    def writev(descriptor, parts):
        fail(descriptor, b"".join(parts))
        return real_writev(descriptor, parts)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(StoreUnwritableError, match="No space left"):
        put(writer, 3, 4)
        writer.flush()
    monkeypatch.undo()
    kept = writer.last_sequence
    assert kept in (2, 4)
    assert [each[0] for each in all_messages(tmp_path, b"c", IEEE)] == list(range(1, kept + 1))
    put(writer, kept + 1, 6 - kept)
    writer.close()
    assert [each[0] for each in all_messages(tmp_path, b"c", IEEE)] == [1, 2, 3, 4, 5, 6]
    assert sum(counts(tmp_path)) == 6
    assert last_slice(tmp_path, b"c", IEEE) == writer.finished[-1]


def test_short_writes(tmp_path, monkeypatch):
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, [b"".join(parts)[:17]]))
    with SliceWriter(tmp_path, b"c", IEEE) as writer:
        put(writer, 1, 9, batch=1)
    assert len(all_messages(tmp_path, b"c", IEEE)) == 9


def test_an_exception_in_the_block_writes_nothing_more(tmp_path):
    with pytest.raises(ZeroDivisionError), SliceWriter(tmp_path, b"c", IEEE) as writer:
        put(writer, 1, 2)
        writer.flush()
        put(writer, 3, 2)
        raise ZeroDivisionError
    assert len(all_messages(tmp_path, b"c", IEEE)) == 2


def test_bigger_than_every_buffer(tmp_path):
    big = b"y" * 100_000
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(buffer_size=1000)) as writer:
        writer.append([1, 2, 3], [1, 2, 3], None, [b"", big, b"z"])
    batch = scan(tmp_path / "msgs.1.dat", b"c", IEEE)
    (tmp_path / "copy").mkdir()
    with SliceWriter(tmp_path / "copy", b"c", IEEE) as writer:
        writer.append_records(batch)
    assert slice_files(tmp_path / "copy") == slice_files(tmp_path)


def test_removing_slices(tmp_path, monkeypatch):
    with SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(1, 0, 0))) as writer:
        put(writer, 1, 4)
    before = slice_files(tmp_path)
    assert remove_slice(tmp_path, 1) is None
    assert remove_slice(tmp_path, 2, archive=True) == (tmp_path / "msgs.2.dat.bak", tmp_path / "msgs.2.idx.bak")
    after = slice_files(tmp_path)
    assert {name for name in after if ".1." in name} == set()
    assert after["msgs.2.dat.bak"] == before["msgs.2.dat"]
    assert after["msgs.2.idx.bak"] == before["msgs.2.idx"]
    (tmp_path / "msgs.3.idx").unlink()
    assert remove_slice(tmp_path, 3, archive=True) is None, "no archive without its index"
    assert set(slice_files(tmp_path)) == {"msgs.2.dat.bak", "msgs.2.idx.bak", "msgs.4.dat", "msgs.4.idx"}


def test_state_of_an_empty_channel(tmp_path):
    assert last_slice(tmp_path, b"c", IEEE) is None
    (tmp_path / "msgs.1.dat").write_bytes(b"\1\0\0\0")
    assert last_slice(tmp_path, b"c", IEEE) is None
    assert SliceState(1).data_size == 4


def test_the_first_message_of_a_slice_alone(tmp_path):
    writer = SliceWriter(tmp_path, b"c", IEEE, WriteOptions(SliceLimits(4, 0, 0), first_alone=True, sync=False))
    put(writer, 1, 6)
    # Both slices have their first message in the index before anything else is written behind it.
    assert [each[0] for each in all_messages(tmp_path, b"c", IEEE)][:1] == [1]
    assert (tmp_path / "msgs.2.idx").stat().st_size == 4 + 32
    writer.close()
    assert [each[0] for each in all_messages(tmp_path, b"c", IEEE)] == [1, 2, 3, 4, 5, 6]
