"""Mapped files that get shorter, or whose disk fails, while they are read; and sparse ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stantools.errors import StoreChangedError
from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.layout import ScanStop, SubRecord
from stantools.format.logencode import encode_flow
from stantools.store import mapping
from stantools.store.indexes import scan_index
from stantools.store.limits import SliceLimits
from stantools.store.logrepair import SUBS_LOG
from stantools.store.logscan import LogDamage, scan_log
from stantools.store.mapping import MappedWindow, descriptor_of, mapped, open_regular
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile
from stantools.store.storewriter import StoreWriter
from stantools.store.sublog import read_subs
from tests.durables import write_durables

SIZE = 1 << 20
CRC = Crc()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    return path


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, SIZE - 1])
def test_what_is_gone_reads_as_zeros_and_the_end_says_so(file: Path, size: int) -> None:
    with pytest.raises(StoreChangedError, match=f"had {SIZE} bytes and now has {size}; expected"), mapped(file) as data:
        os.truncate(file, size)
        assert bytes(data) == b"x" * size + bytes(SIZE - size)


def test_an_index_is_read_from_the_file_that_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "msgs.1.idx"
    rows = np.arange(1, 20_000, dtype=np.uint64)
    records = kernels.encode_index(rows, rows.astype(np.int64), rows.astype(np.int64), rows.astype(np.uint32), CRC)
    path.write_bytes(FILE_HEADER_BYTES + records)
    expected = len(rows), ScanStop.END, int(rows.sum()), True
    with mapped(path) as data:
        assert descriptor_of(data) is not None
        assert scan_index(data, CRC) == expected
        path.rename(tmp_path / "other")
        assert descriptor_of(memoryview(b"x")) is None
    with mapped(tmp_path / "other") as data:
        (tmp_path / "other").rename(path)
        assert scan_index(data, CRC) == expected, "it is not there any more"
        (tmp_path / "other").write_bytes(b"x" * len(data))
        assert descriptor_of(data) is None, "another one has its name"
        assert scan_index(data, CRC) == expected


def test_an_index_of_which_a_part_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "msgs.1.idx"
    rows = np.arange(1, 20_000, dtype=np.uint64)
    records = kernels.encode_index(rows, rows.astype(np.int64), rows.astype(np.int64), rows.astype(np.uint32), CRC)
    path.write_bytes(FILE_HEADER_BYTES + records)
    with pytest.raises(StoreChangedError), mapped(path) as data:
        os.truncate(path, 4 + 32 * 8192)
        assert scan_index(data, CRC)[:2] == (8192, ScanStop.ZEROS)


def test_cut_and_written_again(file: Path) -> None:
    with (
        pytest.raises(StoreChangedError, match="cannot be read from byte 1044480 on, though it has"),
        mapped(file) as it,
    ):
        os.truncate(file, 100_000)
        assert it[-1] == 0
        os.truncate(file, 2 * SIZE)


def test_a_file_that_grows_is_as_it_was(file: Path) -> None:
    with mapped(file) as data:
        with file.open("ab") as more:
            more.write(b"y")
        assert bytes(data) == b"x" * SIZE


def test_shorter_before_it_is_mapped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(path: Path) -> tuple[int, os.stat_result]:
        opened = open_regular(path)
        os.truncate(file, 10)
        return opened

    monkeypatch.setattr(mapping, "open_regular", late)
    with pytest.raises(StoreChangedError, match=f"had {SIZE} bytes and now has 10"), mapped(file):
        pass


def test_a_window_stops_at_once(file: Path) -> None:
    """With or without the handler: before the next pages are touched."""
    reached = 0
    with pytest.raises(StoreChangedError), mapped(file) as data:
        window = MappedWindow(data, 1 << 16)
        for at in range(0, SIZE, 1 << 16):
            if at == SIZE // 2:
                os.truncate(file, at)
            window.reach(at)
            reached = at
    assert reached < SIZE // 2 + (1 << 16)


def test_the_cut_counts_and_not_what_came_of_it(file: Path) -> None:
    with pytest.raises(StoreChangedError) as caught, mapped(file) as data:
        os.truncate(file, 0)
        raise ValueError(f"{data[-1]} makes no sense")
    assert isinstance(caught.value.__context__, ValueError)
    file.write_bytes(b"x" * SIZE)
    with pytest.raises(KeyboardInterrupt), mapped(file):
        os.truncate(file, 0)
        raise KeyboardInterrupt


def test_views_that_outlive_the_block(file: Path) -> None:
    """Their mapping stays, and so does the guard; the addresses of those that went are nobody's."""
    with mapped(file) as data:
        column = np.frombuffer(data[SIZE // 2 :], np.uint8)
        window = MappedWindow(data)
    os.truncate(file, 0)
    assert not column.any()
    with pytest.raises(StoreChangedError):
        window.check()


def test_many_threads(tmp_path: Path) -> None:
    """Each learns of its own file, whatever others map, cut and let go meanwhile."""
    ready = threading.Barrier(8)

    def work(number: int) -> None:
        for turn in range(40):
            path = tmp_path / f"{number}.{turn}"
            path.write_bytes(b"x" * (SIZE // 4))
            ready.wait(60)
            if (number + turn) % 2:
                with mapped(path) as data:
                    assert bytes(data) == b"x" * (SIZE // 4)
            else:
                with pytest.raises(StoreChangedError, match=path.name), mapped(path) as data:
                    os.truncate(path, 5000)
                    assert np.count_nonzero(np.frombuffer(data, np.uint8)) == 5000
            path.unlink()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


_ELSEWHERE = """
import mmap, os, sys
from pathlib import Path
from stantools.store.mapping import mapped
path = Path(sys.argv[1])
with mapped(path) as guarded, path.open("rb") as file:
    other = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(path, 0)
    print(guarded[-1], flush=True)
    print(other[-1])
"""


@pytest.mark.parametrize("faulthandler", ["", "1"])
def test_other_mappings_are_not_ours(file: Path, faulthandler: str) -> None:
    environment = os.environ | {"PYTHONFAULTHANDLER": faulthandler}
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == "0\n"
    assert ("Fatal Python error: Bus error" in done.stderr) == bool(faulthandler)


def test_a_signal_from_outside_ends_the_process(file: Path) -> None:
    code = _ELSEWHERE.partition("    other")[0] + f"    os.kill(os.getpid(), {int(signal.SIGBUS)})"
    done = subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    assert done.returncode == -signal.SIGBUS


def test_only_large_files_load_the_handler(tmp_path: Path, file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from stantools.store.mapping import mapped\n"
        "def look(path):\n    with mapped(Path(path)): pass\n    print('stantools.store.guard' in sys.modules)\n"
        "for path in sys.argv[1:]: look(path)"
    )
    (tmp_path / "small").write_bytes(b"x")
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "small", file], capture_output=True, check=True)
    assert done.stdout.split() == [b"False", b"True"]


def test_a_table_whose_log_is_cut(tmp_path: Path) -> None:
    """A large table reads its log long after it was folded."""
    path = write_durables(tmp_path / "store", 150_000) / "foo" / "subs.dat"
    with mapped(path) as data:
        table = read_subs(data, CRC).subscriptions
    with path.open("ab") as more:
        more.write(bytes(100))  # what the table does not need may come and go
    assert [state.id for state, _ in table.each(np.array([149_999]))] == [150_000]
    for size in (12_345_678, 0):
        os.truncate(path, size)
        seen = []
        with pytest.raises(StoreChangedError, match=f"now has {size}"):
            seen.extend(state.id for state, _ in table.each(np.arange(len(table))))
        assert seen == list(range(1, len(seen) + 1)), size
        assert bool(seen) == bool(size)
        for use in (table.state, table.encoded):
            with pytest.raises(StoreChangedError):
                use(len(table) - 1)


#: Far more than can be read while a test runs.
HUGE = 1 << 38
GARBAGE = b"garbage" * 1000


def sparse(path: Path, parts: list[bytes], hole: int) -> Path:
    """A file with a hole behind each part."""
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
            file.truncate(file.seek(hole, os.SEEK_CUR))
    return path


def found(path: Path, scan: str) -> tuple[list[object], int]:
    """What is in a file, and the bytes that are no record; they are the same but for the size of the holes."""
    rows: list[object] = []
    lost = 0
    with mapped(path) as data:
        parts = SliceFile(data, b"foo", CRC).records() if scan == "slice" else scan_log(data, SUBS_LOG, CRC)
        for part in parts:
            if isinstance(part, DamagedRange | LogDamage):
                rows.append(part.kind)
                lost += part.length
            else:
                rows += (part.sequence if scan == "slice" else part.seq).tolist()
    return rows, lost


@pytest.mark.parametrize("scan", ["slice", "log"])
def test_a_sparse_file_costs_what_it_holds(tmp_path: Path, scan: str) -> None:
    """Three quarters of a terabyte of nothing, and records on both sides; one of them holds zeros of its own."""
    if scan == "slice":
        writer = StoreWriter(tmp_path, CRC)
        with writer.slices(b"foo", SliceLimits()) as slices:
            payloads = [bytes(300_000) if number == 150 else b"x" * 50 for number in range(1, 201)]
            slices.append(range(1, 201), range(1, 201), [b""] * 200, payloads)
        whole = (tmp_path / "foo" / "msgs.1.dat").read_bytes()
    else:
        whole = FILE_HEADER_BYTES + b"".join(encode_flow(SubRecord.MSG, 1, n, CRC) for n in range(1, 3000))
    parts = [whole[:8000], GARBAGE, whole[8000:]]
    rows, lost = found(sparse(tmp_path / "small", parts, 100_000), scan)
    assert sum(isinstance(row, int) for row in rows) >= (198 if scan == "slice" else 2997)
    large = sparse(tmp_path / "large", parts, HUGE)
    assert large.stat().st_blocks * 512 < 2 << 20, "the file system keeps no holes"
    assert found(large, scan) == (rows, lost + 3 * (HUGE - 100_000))


def test_a_record_with_a_hole_in_its_payload(tmp_path: Path) -> None:
    """It begins in what is on disk, and ends behind what is not."""
    writer = StoreWriter(tmp_path, CRC)
    with writer.slices(b"foo", SliceLimits()) as slices:
        slices.append([1, 2], [1, 2], [b""] * 2, [bytes(1 << 20), b"end"])
    whole = (tmp_path / "foo" / "msgs.1.dat").read_bytes()
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(GARBAGE)
        for at in range(0, len(whole), 4096):
            if any(whole[at : at + 4096]):
                file.seek(len(GARBAGE) + at)
                file.write(whole[at : at + 4096])
    rows, lost = found(path, "slice")
    assert [row for row in rows if isinstance(row, int)] == [1, 2]
    assert lost <= len(GARBAGE)


def test_a_header_that_begins_in_a_hole(tmp_path: Path) -> None:
    """The low bytes of a size may be zeros, and the last that are not on disk."""
    writer = StoreWriter(tmp_path, CRC)
    payload = b"x" * ((1 << 16) - 13)
    with writer.slices(b"foo", SliceLimits()) as slices:
        slices.append([1], [1], [b""], [payload])
    record = (tmp_path / "foo" / "msgs.1.dat").read_bytes()[4:]
    assert record[:2] == bytes(2), record[:4].hex()
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(FILE_HEADER_BYTES + b"gar\1bage" * 1000)  # as a size 24 MB, which would be read
        file.seek(HUGE)
        file.write(record[2:])
    assert found(path, "slice")[0][-1] == 1


def test_records_begin_before_a_given_offset() -> None:
    rows: list[int] = [0, 1, 99, 100, 101, 5000]
    for until in rows:
        record = encode_flow(SubRecord.MSG, 1, 7, CRC)
        data = b"\xff" * 100 + record
        assert kernels.find_log_record(data, 0, len(data), CRC, 8, until) == (100 if until > 100 else -1), until
