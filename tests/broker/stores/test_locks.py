"""The lock of a fault-tolerant group is the one that the original takes (high-availability.md section A.2)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.stores.file.locks import GroupLock, make_directory
from broker.stores.interface import Attempt, StorageError
from stantools.store.locks import ft_lock_holder

#: Another process: opens the file as the original does, locks all of it, says so, and waits.
_ORIGINAL = """
import errno, fcntl, os, struct, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
try:
    fcntl.fcntl(descriptor, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    print("locked", flush=True)
except OSError as problem:
    print(errno.errorcode[problem.errno], flush=True)
sys.stdin.read()
"""


def content(file: Path) -> bytes:
    """Reads a file in another process: closing it in this one would drop the lock."""
    return subprocess.run(["cat", str(file)], capture_output=True, check=True).stdout


@contextlib.contextmanager
def original(file: Path) -> Iterator[str]:
    """Lets another process try to get the lock, and hold it if it does; yields what it says."""
    command = [sys.executable, "-c", _ORIGINAL, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def test_both_exclude_each_other(tmp_path: Path) -> None:
    file = tmp_path / ".rootdir.lck"
    lock = GroupLock(tmp_path, b"pair")
    with original(file) as said:
        assert said == "locked"
        assert lock.take() == Attempt()
        assert content(file) == b""
    assert lock.take() == Attempt(taken=True)
    assert content(file) == b"pair"
    with original(file) as said:
        assert said == "EAGAIN"
    # That has emptied the file, and changed nothing else.
    assert content(file) == b""
    question = "from stantools.store.locks import *; from pathlib import Path; import sys; "
    question += "print(ft_lock_holder(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", question, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.getpid()
    lock.release()
    with original(file) as said:
        assert said == "locked"
    assert [each.name for each in tmp_path.iterdir()] == [".rootdir.lck"]


def test_the_group_is_told_to_those_who_wait(tmp_path: Path) -> None:
    """And to nobody else: the file is as the original leaves it afterwards."""
    attempt = (
        "from broker.stores.file.locks import *; from pathlib import Path; import sys; "
        "print(GroupLock(Path(sys.argv[1]), b'other').take())"
    )
    command = [sys.executable, "-c", attempt, str(tmp_path)]
    file = tmp_path / ".rootdir.lck"
    lock = GroupLock(tmp_path, b"pair")
    assert lock.take().taken
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert told == repr(Attempt(holder=b"pair"))
    lock.release()
    assert content(file) == b""
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert told == repr(Attempt(taken=True))
    # It has ended without giving anything back.
    assert content(file) == b"other"
    assert ft_lock_holder(tmp_path) is None
    assert lock.take().taken
    assert content(file) == b"pair"
    lock.release()


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    file = missing / ".rootdir.lck"
    assert GroupLock(missing, b"g").take() == Attempt(problem=f"open {file}: no such file or directory")
    make_directory(missing)
    lock = GroupLock(missing, b"g")
    assert lock.take().taken
    lock.release()
    with pytest.raises(StorageError, match=r"^unable to create the root directory \[.*\]: mkdir .*: not a directory$"):
        make_directory(file)


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (errno.EAGAIN, ""),
        (errno.EACCES, ""),
        (errno.EINTR, ""),
        (errno.ENOLCK, ""),
        (errno.EIO, "input/output error"),
    ],
)
def test_locks_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, problem: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert GroupLock(tmp_path, b"g").take() == Attempt(problem=problem)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_more_files(tmp_path: Path) -> None:
    """That may be over soon: it is tried again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        attempt = GroupLock(tmp_path, b"g").take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert attempt == Attempt()
