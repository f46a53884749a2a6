"""New directories: there or not there, whatever happens in between."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stantools.errors import ExitCode, RefusedError, StoreUnwritableError
from stantools.store import atomic, durable
from stantools.store.atomic import finish_replacement, new_directory, replacement_directory
from stantools.store.durable import create_temporary, exchange, replace_file, write_all
from tests.trees import tree


@pytest.fixture(params=["exchange", "renames"])
def how(request, monkeypatch):
    """Both ways of exchanging two directories: the system call, and renames where there is none."""
    if request.param == "renames":
        monkeypatch.setattr(durable, "rename_exchange", lambda one, two: False)
    return request.param


class Killed(BaseException):
    """Stands for kill -9: nothing of ours runs after it (see `kill_at`)."""


@pytest.fixture
def kill_at(monkeypatch):
    """Makes the n-th rename end everything, including the cleaning up after it."""

    def arrange(count: int, *, after: bool = False) -> None:
        calls = []

        def wrapped(real):
            def rename(*args, **named):
                calls.append(args)
                if len(calls) == count and not after:
                    dead()
                real(*args, **named)
                if len(calls) == count and after:
                    dead()

            return rename

        def dead():
            monkeypatch.setattr(atomic, "conclude", lambda *_: None)
            raise Killed

        monkeypatch.setattr(os, "rename", wrapped(os.rename))
        monkeypatch.setattr(os, "replace", wrapped(os.replace))

    return arrange


def test_a_new_directory_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new"
    with new_directory(target) as directory:
        (directory / "a").write_bytes(b"1")
        (directory / "sub").mkdir()
        (directory / "sub" / "b").write_bytes(b"2")
        assert not target.exists()
    assert tree(tmp_path) == {"new": None, "new/a": b"1", "new/sub": None, "new/sub/b": b"2"}


def test_an_exception_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), new_directory(tmp_path / "new") as directory:
        (directory / "a").write_bytes(b"1")
        raise ZeroDivisionError
    assert tree(tmp_path) == {}


def test_an_empty_directory_may_be_there_anything_else_not(tmp_path):
    target = tmp_path / "new"
    target.mkdir()
    with new_directory(target) as directory:
        (directory / "a").write_bytes(b"1")
    with pytest.raises(StoreUnwritableError, match="not empty") as caught, new_directory(target):
        pass
    assert caught.value.remedy
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(StoreUnwritableError, match="not a directory"), new_directory(tmp_path / name):
            pass
    with pytest.raises(StoreUnwritableError, match="there is no directory"), new_directory(tmp_path / "x" / "y"):
        pass
    assert tree(target) == {"a": b"1"}


def test_something_that_appears_at_the_target_meanwhile_is_not_overwritten(tmp_path):
    target = tmp_path / "new"
    with pytest.raises(StoreUnwritableError, match="not empty"), new_directory(target) as directory:
        (directory / "a").write_bytes(b"1")
        target.mkdir()
        (target / "theirs").write_bytes(b"2")
    assert tree(tmp_path) == {"new": None, "new/theirs": b"2"}


def test_what_a_killed_run_left_is_removed(tmp_path, kill_at, monkeypatch):
    kill_at(2)  # the first rename is the marker's
    with pytest.raises(Killed), new_directory(tmp_path / "new") as directory:
        (directory / "a").write_bytes(b"1")
    monkeypatch.undo()
    assert (tmp_path / ".new.stantools-partial" / "content" / "a").exists()
    with new_directory(tmp_path / "new") as directory:
        (directory / "b").write_bytes(b"2")
    assert tree(tmp_path) == {"new": None, "new/b": b"2"}


def test_a_strange_directory_in_the_way_is_left_alone(tmp_path):
    partial = tmp_path / ".new.stantools-partial"
    partial.mkdir()
    (partial / "precious").write_bytes(b"1")
    with pytest.raises(StoreUnwritableError, match="in the way"), new_directory(tmp_path / "new"):
        pass
    assert tree(partial) == {"precious": b"1"}


def test_two_runs_at_the_same_target(tmp_path):
    with new_directory(tmp_path / "new") as directory:
        (directory / "a").write_bytes(b"1")
        with pytest.raises(RefusedError, match="another run") as caught, new_directory(tmp_path / "new"):
            pass
        assert caught.value.exit_code == ExitCode.REFUSED
    assert tree(tmp_path) == {"new": None, "new/a": b"1"}


def test_two_runs_that_begin_at_the_same_moment(tmp_path, monkeypatch):
    """A run that has not locked its directory yet loses it to another one, and begins again or is refused."""
    lock, others = fcntl.flock, []

    def begun_by_another(descriptor, operation):
        if not others:
            others.append(True)
            (partial,) = tmp_path.iterdir()
            shutil.rmtree(partial)  # as the other run does, which takes it for what a killed one has left
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", begun_by_another)
    with new_directory(tmp_path / "new") as content:
        (content / "a").write_text("a")
    assert others and [path.name for path in tmp_path.iterdir()] == ["new"]


def test_many_runs_at_the_same_target(tmp_path):
    outcomes = []
    barrier = threading.Barrier(4)

    def run(number):
        barrier.wait()
        try:
            with new_directory(tmp_path / "new") as content:
                (content / "a").write_text(str(number))
                time.sleep(0.05)
            outcomes.append("done")
        except (RefusedError, StoreUnwritableError) as error:
            outcomes.append(error.message)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("done") == 1, outcomes
    assert all("done" in each or "another run" in each or "exists already" in each for each in outcomes), outcomes
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with new_directory(tmp_path / "new") as directory:
        (directory / "a").write_bytes(b"1")
    assert tree(tmp_path / "new") == {"a": b"1"}


def test_a_full_disk_says_what_is_untouched_and_what_to_do(tmp_path):
    with (
        pytest.raises(StoreUnwritableError) as caught,
        new_directory(tmp_path / "new", untouched="the store is as it was"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere/msgs.1.dat")
    assert "somewhere/msgs.1.dat" in caught.value.message
    assert "No space left" in caught.value.message
    assert "the store is as it was" in caught.value.message
    assert "free some space" in caught.value.remedy
    assert tree(tmp_path) == {}


def test_long_names(tmp_path):
    target = tmp_path / ("n" * 255)
    with new_directory(target) as directory:
        (directory / "a").write_bytes(b"1")
    assert tree(target) == {"a": b"1"}


def replace(target: Path, backup: Path) -> None:
    with replacement_directory(target, backup) as directory:
        (directory / "new").write_bytes(b"new")


@pytest.fixture
def old(tmp_path) -> Path:
    target = tmp_path / "store"
    target.mkdir(mode=0o750)
    (target / "old").write_bytes(b"old")
    return target


DONE = {"backup": None, "backup/old": b"old", "store": None, "store/new": b"new"}


def test_a_replacement_keeps_the_old_one_as_backup(tmp_path, old, how):
    replace(old, tmp_path / "backup")
    assert tree(tmp_path) == DONE
    assert stat.S_IMODE(old.stat().st_mode) == 0o750
    assert finish_replacement(old) is None


def test_a_link_to_the_store_is_followed(tmp_path, old):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(old)
    replace(link, tmp_path / "backup")
    assert link.is_symlink()
    assert tree(old) == {"new": b"new"}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", range(1, 8))
def test_a_replacement_killed_at_any_rename(tmp_path, old, how, kill_at, count, after, monkeypatch):
    kill_at(count, after=after)
    with suppress(Killed):
        replace(old, tmp_path / "backup")
    monkeypatch.undo()
    if how == "renames":
        monkeypatch.setattr(durable, "rename_exchange", lambda one, two: False)
    else:
        assert tree(old) in ({"old": b"old"}, {"new": b"new"})
    backup = finish_replacement(old)
    assert tree(old) in ({"old": b"old"}, {"new": b"new"})
    if tree(old) == {"old": b"old"}:
        assert backup is None
        replace(old, tmp_path / "backup")
    assert tree(tmp_path) == DONE


def test_an_error_after_the_exchange_never_loses_the_old_directory(tmp_path, old, monkeypatch):
    real = os.rename

    def rename(one, two, **named):
        if Path(two).name == "backup":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(two))
        real(one, two, **named)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(StoreUnwritableError):
        replace(old, tmp_path / "backup")
    assert tree(old) == {"new": b"new"}
    monkeypatch.undo()
    assert finish_replacement(old) == tmp_path / "backup"
    assert tree(tmp_path) == DONE


def test_when_old_and_new_cannot_be_told_apart_nothing_is_removed(tmp_path, old, kill_at, monkeypatch):
    kill_at(3)  # marker, marker, backup
    with pytest.raises(Killed):
        replace(old, tmp_path / "backup")
    monkeypatch.undo()
    partial = tmp_path / ".store.stantools-partial"
    state = (partial / "state.json").read_text()
    (partial / "state.json").write_text(state.replace('"old": [', '"old": [9'))
    before = tree(tmp_path)
    for act in (lambda: finish_replacement(old), lambda: replace(old, tmp_path / "backup")):
        with pytest.raises(StoreUnwritableError, match="cannot tell"):
            act()
    assert tree(tmp_path) == before


def test_a_backup_that_exists_or_lies_elsewhere(tmp_path, old):
    (tmp_path / "backup").mkdir()
    with pytest.raises(StoreUnwritableError, match="exists already"):
        replace(old, tmp_path / "backup")
    with pytest.raises(StoreUnwritableError, match="not beside"):
        replace(old, tmp_path / "backup" / "below")
    assert tree(tmp_path) == {"backup": None, "store": None, "store/old": b"old"}


def test_a_mount_point_cannot_be_exchanged(tmp_path, old, monkeypatch):
    monkeypatch.setattr(Path, "is_mount", lambda self: self == old)
    with pytest.raises(StoreUnwritableError, match="mount point") as caught:
        replace(old, tmp_path / "backup")
    assert "new directory" in caught.value.remedy
    assert tree(tmp_path) == {"store": None, "store/old": b"old"}


def test_an_exchange_by_renames_that_fails_is_rolled_back(tmp_path, old, monkeypatch):
    monkeypatch.setattr(durable, "rename_exchange", lambda one, two: False)
    with pytest.raises(FileNotFoundError):
        exchange(old, tmp_path / "missing")
    assert tree(tmp_path) == {"store": None, "store/old": b"old"}


def test_replace_file_keeps_the_mode_and_never_leaves_a_part(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"one")
    path.chmod(0o640)
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreUnwritableError, match="the old file is unchanged"):
        replace_file(path, b"three")
    assert tree(tmp_path) == {"file": b"two"}


def test_write_all_goes_on_after_a_short_write(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:3]))
    with (tmp_path / "file").open("wb") as file:
        write_all(file.fileno(), b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_temporary_names_are_digits(tmp_path):
    descriptor, path = create_temporary(tmp_path, "subs")
    os.close(descriptor)
    assert path.name.removeprefix("subs").isdigit()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_big_trees_are_synced_at_once(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(durable, "SYNCFS_FROM", 3)
    monkeypatch.setattr(os, "fsync", synced.append)
    for number in range(5):
        (tmp_path / str(number)).touch()
    durable.sync_tree(tmp_path)
    assert not synced
    monkeypatch.setattr(durable, "sync_file_system", lambda root: False)
    durable.sync_tree(tmp_path)
    assert len(synced) == 6
