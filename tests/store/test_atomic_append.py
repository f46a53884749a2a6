"""Records that are appended are there as a whole or not at all, whenever the process is killed."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stantools.format.crc import IEEE, Crc
from stantools.format.logencode import encode_client
from stantools.format.proto import store_pb2 as pb
from stantools.store import atomic_append
from stantools.store.atomic_append import PAGE, append_records
from stantools.store.clientlog import read_clients

CRC = Crc(IEEE)
HEAD = b"\1\0\0\0"


class Killed(BaseException):
    """In place of SIGKILL: nothing is done any more."""


class Kernel:
    """Writes as a system does that looks for signals before each page; kills at the n-th opportunity.

    In what goes over several pages it may do so after any byte: nobody says how large pages are, or what a file system
    does with them.
    """

    def __init__(self, point: int) -> None:
        self.left = point
        self.real = os.pwrite

    def opportunity(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def write(self, descriptor: int, data: bytes | memoryview, at: int) -> int:
        self.opportunity()
        content = bytes(data)
        if at // PAGE == (at + len(content) - 1) // PAGE:
            return self.real(descriptor, content, at)
        for place in range(len(content)):
            if place:
                self.opportunity()
            self.real(descriptor, content[place : place + 1], at + place)
        return len(content)


@contextmanager
def killing(monkeypatch: pytest.MonkeyPatch, point: int) -> Iterator[Kernel]:
    kernel = Kernel(point)
    with monkeypatch.context() as patches:
        patches.setattr(os, "pwrite", kernel.write)
        yield kernel


def records(*names: str) -> bytes:
    return b"".join(encode_client(pb.ClientInfo(id=name.encode(), hb_inbox=b"_HB"), CRC) for name in names)


def filled(size: int) -> tuple[bytes, int]:
    """A log of a certain size, and how many clients it has."""
    content, count = HEAD, 0
    while len(content) + 100 < size:
        content += records(f"client-{count}")
        count += 1
    while len(content) < size:
        # The last but one may be of any length from 16 on.
        rest = size - len(content)
        content += records("x" * (rest - len(records("x")) + 1))
        count += 1
    assert len(content) == size
    return content, count


NAMES = [("one",), ("one", "two" * 10, "three")]
#: Where the new records fill the page to its end, and where one byte goes to the next.
EDGES = {PAGE - len(records(*names)) + over for names in NAMES for over in (0, 1)}
ENDS = [
    pytest.param(end, marks=() if end in EDGES or end > PAGE - 9 or end % 40 == 0 else pytest.mark.slow)
    for end in (*range(PAGE - 130, PAGE + 4), 2 * PAGE - 3, 16 * PAGE - 5, 17 * PAGE - 1)
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("names", NAMES, ids=len)
def test_killed_at_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, names: tuple[str, ...]
) -> None:
    before, count = filled(end)
    new = records(*names)
    path = tmp_path / "clients.dat"
    point, finished = 0, False
    while not finished:
        path.write_bytes(before)
        descriptor = os.open(path, os.O_RDWR)
        try:
            with killing(monkeypatch, point):
                append_records(descriptor, new, len(before))
            finished = True
        except Killed:
            point += 1
        finally:
            os.close(descriptor)
        content = path.read_bytes()
        assert content.startswith(before)
        state = read_clients(memoryview(content), CRC)
        if finished:
            assert content == before + new
            assert len(state.clients) == count + len(names)
        else:
            # What is behind are zeros where a record would begin: servers cut it off and start.
            assert len(state.clients) == count
            assert content[len(before) : len(before) + 8] in (b"", bytes(8))
    assert point == 1 if len(before) % PAGE + len(new) <= PAGE else point > 1


def test_a_header_over_two_pages_where_files_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_maps(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", no_maps)
    before, _ = filled(PAGE - 4)
    path = tmp_path / "clients.dat"
    path.write_bytes(before)
    descriptor = os.open(path, os.O_RDWR)
    append_records(descriptor, records("one", "two"), len(before))
    os.close(descriptor)
    assert path.read_bytes() == before + records("one", "two")


def test_large_pages_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_append.mmap, "ALLOCATIONGRANULARITY", 4 * mmap.ALLOCATIONGRANULARITY)
    for size in (PAGE - 1, 3 * PAGE - 7, 5 * PAGE - 2):
        before, _ = filled(size)
        path = tmp_path / "clients.dat"
        path.write_bytes(before)
        descriptor = os.open(path, os.O_RDWR)
        append_records(descriptor, records("one"), len(before))
        os.close(descriptor)
        assert path.read_bytes() == before + records("one")


@pytest.mark.parametrize("short", [1, 7, 100])
def test_a_system_that_takes_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: real(descriptor, memoryview(data)[:short], at))
    path = tmp_path / "clients.dat"
    path.write_bytes(HEAD)
    descriptor = os.open(path, os.O_RDWR)
    new, end = records(*map(str, range(1000))), len(HEAD)
    append_records(descriptor, new, end)
    append_records(descriptor, new, end + len(new))
    os.close(descriptor)
    assert path.read_bytes() == HEAD + 2 * new
