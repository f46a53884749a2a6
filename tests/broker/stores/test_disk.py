"""Syncs by the kernel, and what becomes of those that take long."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.stores.file.disk import Disk, KernelSyncs
from broker.stores.file.kernelsyncs import FileSystem
from tests.broker.stores.faults import CalledSyncs


@pytest.fixture
def files(tmp_path):
    descriptors = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(6)]
    for each in descriptors:
        os.write(each, b"x" * 5000)
    yield descriptors
    for each in descriptors:
        os.close(each)


def wait(syncs):
    found = []
    while syncs.under_way:
        found += syncs.wait(60)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux does it")
def test_the_kernel_syncs_files(files):
    syncs = KernelSyncs()
    if not syncs.start([(files[:1], print)]):
        pytest.skip("this system does not do it for us")
    assert wait(syncs) == [(print, None)]
    assert syncs.wait(0) == []
    # Several at a time, again and again, each is told of once.
    for _ in range(3):
        assert syncs.start([(files[:2], print), (files[2:3], len)]) == 2
        assert syncs.start([(files[3:], repr)]) == 1
        assert syncs.under_way == 6
        assert sorted(wait(syncs), key=str) == sorted([(print, None), (len, None), (repr, None)], key=str)
    # More than it takes at once: what does not fit is not begun.
    assert syncs.start([(files * 1000, print)]) == 0
    assert syncs.under_way == 0
    assert syncs.start([(files, print), (files * 1000, len), (files, repr)]) == 1
    assert wait(syncs) == [(print, None)]
    # What cannot be synced is told; those behind it are not begun, and where it comes first, others neither.
    with Path("/dev/full").open("wb") as device:
        assert syncs.start([(files[:2], len), ([files[0], device.fileno(), files[1]], print), (files, repr)]) == 2
        found = dict(wait(syncs))
        assert found[len] is None
        assert found[print].errno == errno.EINVAL
        assert syncs.start([(files[:1], len), ([device.fileno()], print)]) == 1
        assert wait(syncs) == [(len, None)]
        assert syncs.start([([device.fileno()], print)]) == 0
        assert syncs.start([(files, print)]) == 0
    syncs.close()


def test_a_sync_that_takes_long_is_not_waited_for(files):
    with patch("broker.stores.file.disk.KernelSyncs", CalledSyncs):
        disk = Disk()
    told, woken, going_on = [], threading.Event(), threading.Event()
    disk.wake = woken.set
    assert disk.sync(files[:2], told.append)
    assert disk.conclude(60)
    assert told == [None]

    released = threading.Event()

    def hang(descriptor):
        if os.fstat(descriptor).st_ino == last:
            assert released.wait(60)
            return
        assert going_on.wait(60)
        raise OSError(errno.EIO, "broken")

    last, others = os.fstat(files[5]).st_ino, []
    with patch.object(os, "fsync", hang):
        assert disk.sync(files[:2], told.append)
        assert disk.sync(files[5:], others.append)
        assert not disk.conclude()
        # One is done, the other is not.
        released.set()
        assert woken.wait(60)
        while not others:
            disk.conclude()
        assert told == [None]
        # Meanwhile threads do what there is to do.
        assert not disk.sync(files[2:], told.append)
        disk.run(lambda: None, told.append, awaited=True)
        while len(told) < 2:
            disk.conclude()
        assert not disk.conclude(0)
        woken.clear()
        assert told == [None, None]
        going_on.set()
        assert woken.wait(60)
        assert disk.conclude()
        assert told[2].errno == errno.EIO
    disk.pause = 0.0
    assert disk.sync(files, told.append)
    assert disk.conclude(60)
    assert told[3] is None
    disk.pause = 0.01
    assert not disk.sync(files, told.append), "a thread waits for a slow disk"
    disk.stop()


def test_files_for_which_nobody_waits(files):
    with patch("broker.stores.file.disk.KernelSyncs", CalledSyncs):
        disk = Disk()
    told, hung, woken, released = [], [], threading.Event(), threading.Event()
    disk.wake = woken.set
    last, fsync = os.fstat(files[5]).st_ino, os.fsync

    def hang(descriptor):
        if os.fstat(descriptor).st_ino == last:
            assert released.wait(60)
            raise OSError(errno.EIO, "broken")
        fsync(descriptor)

    with patch.object(os, "fsync", hang):
        assert disk.sync_aside(files[5], hung.append)
        # Those that come later do not wait for the one that hangs, nor do those that are awaited.
        for count, each in enumerate(files[:5], 1):
            assert disk.sync_aside(each, told.append)
            while len(told) < count:
                assert woken.wait(60)
                woken.clear()
                assert not disk.conclude()
        assert disk.sync(files[:2], told.append)
        while len(told) < 6:
            disk.conclude()
        assert told == [None] * 6
        assert not hung
        released.set()
        assert disk.conclude(60)
    assert hung[0].errno == errno.EIO
    assert disk.sync_aside(files[5], told.append)
    assert disk.conclude(60)
    assert told == [None] * 7
    disk.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux does it")
def test_the_kernel_syncs_files_for_which_nobody_waits(files):
    disk, told = Disk(), []
    if not disk.sync_aside(files[0], told.append):
        pytest.skip("this system does not do it for us")
    # More than the kernel has room for at once.
    begun = [disk.sync_aside(files[number % 6], told.append) for number in range(3000)]
    assert disk.conclude(60)
    assert told == [None] * (1 + sum(begun))
    begun = [disk.sync_aside(each, told.append) for each in files]
    assert all(begun)
    assert disk.conclude(60)
    assert told == [None] * 3007
    # A thread tries what the kernel refuses, and everything from then on.
    with Path("/dev/full").open("wb") as device:
        assert disk.sync_aside(device.fileno(), told.append)
        assert disk.conclude(60)
        assert told[3007].errno == errno.EINVAL
        assert not disk.sync_aside(files[0], told.append)
    disk.stop()


class _Whole:
    """Stands in for a file system; each sync of it takes what it is given and says what that is."""

    possible = True

    def __init__(self, _directory):
        self.syncs = 0
        self.released, self.problem = threading.Event(), None
        self.released.set()

    def sync(self):
        self.syncs += 1
        assert self.released.wait(60)
        if self.problem is not None:
            raise self.problem

    def close(self):
        """There is nothing to close."""


@pytest.mark.parametrize("trouble", ["", "hangs", "fails"])
def test_many_files_are_synced_with_the_whole_file_system(files, trouble):
    synced, fsync = [], os.fsync
    with (
        patch("broker.stores.file.disk.KernelSyncs", CalledSyncs),
        patch("broker.stores.file.disk.FileSystem", _Whole),
        patch.object(CalledSyncs, "MANY", 6),
        patch.object(os, "fsync", lambda descriptor: (fsync(descriptor), synced.append(descriptor))),
    ):
        disk, told, aside = Disk(), [], []
        disk.may_sync_all(Path())
        whole = disk._file_system
        # Few, one by one; many, all together, also those for which nobody waits.
        assert disk.sync(files[:5], told.append)
        assert disk.conclude(60)
        assert (whole.syncs, len(synced)) == (0, 5)
        synced.clear()
        disk.pause = 0.0
        if trouble == "hangs":
            whole.released.clear()
        elif trouble == "fails":
            whole.problem = OSError(errno.EIO, "of somebody else")
        for each in files:
            assert disk.sync([each], told.append)
            assert disk.sync_aside(each, aside.append)
        assert not told[1:] and not aside
        while len(told) < 7 or len(aside) < 6:
            disk.conclude()
        assert told == [None] * 7
        assert aside == [None] * 6
        assert whole.syncs == 1
        assert len(synced) == (12 if trouble else 0)
        # After trouble files are synced one by one for a while.
        while disk._syncs_slow:
            disk.conclude()
        disk.pause = 0.0  # a busy machine is slow
        assert disk.sync(files, told.append)
        while len(told) < 8:
            disk.conclude()
        assert whole.syncs == (1 if trouble else 2)
        whole.released.set()
        assert disk.conclude(60)
        assert told == [None] * 8
        disk.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux does it")
def test_a_file_system_is_synced_or_known_not_to_be(tmp_path):
    system = FileSystem(tmp_path)
    if system.possible:
        system.sync()
    system.close()
    assert not FileSystem(Path("/proc")).possible
    assert not system.possible
    with pytest.raises(OSError):
        system.sync()


@pytest.mark.parametrize("called", [False, True])
def test_files_and_names_are_synced_together(tmp_path, called):
    count = 20 if called else 1500
    with patch("broker.stores.file.disk.KernelSyncs", CalledSyncs if called else KernelSyncs):
        disk = Disk()
    paths, told, synced, fsync = [tmp_path / str(number) for number in range(count)], [], [], os.fsync
    for each in paths:
        each.write_bytes(b"x")
    disk.sync_files([*paths, tmp_path, tmp_path / "gone"], told.append)
    assert disk.conclude(60)
    assert told == [None]

    def fail(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(path)
        if path == paths[3]:
            raise OSError(errno.EIO, "broken")
        if path == tmp_path:
            raise OSError(errno.EINVAL, "not a directory")
        fsync(descriptor)

    with patch.object(os, "fsync", fail), patch.object(disk._batch_syncs, "_possible", False, create=True):
        disk.sync_files([*paths, tmp_path], told.append)
        assert disk.conclude(60)
    assert sorted(synced) == sorted([*paths, tmp_path])
    assert str(paths[3]) in told[1].message
    disk.stop()


def test_nobody_waits_for_threads_that_have_much_to_do():
    disk = Disk()
    told, released = [], threading.Event()
    with patch("broker.stores.file.disk._MAX_WAIT", 60):
        for _ in range(20):
            disk.run(lambda: released.wait(120), told.append, awaited=True)
        begin = time.monotonic()
        assert not disk.conclude()
        assert time.monotonic() - begin < 30
    released.set()
    assert disk.conclude(60)
    assert told == [None] * 20
    disk.stop()


def test_who_begins_syncs_again_and_again_gives_way(files):
    with patch("broker.stores.file.disk.KernelSyncs", CalledSyncs), patch("broker.stores.file.disk._MAX_TIME", 0.001):
        disk, told, woken = Disk(), [], threading.Event()
        disk.wake = woken.set

        def go_on(problem):
            told.append(problem)
            time.sleep(0.0004)
            if len(told) < 100:
                assert disk.sync(files[:1], go_on)

        assert disk.sync(files[:1], go_on)
        looks = 0
        while len(told) < 100:
            looks += 1
            disk.pause = 0.0
            if disk.conclude():
                break
            assert woken.wait(60)
            woken.clear()
        assert told == [None] * 100
        assert looks > 10
        # Who waits for everything gets it.
        told.clear()
        assert disk.sync(files[:1], go_on)
        assert disk.conclude(60)
        assert told == [None] * 100
        disk.stop()


def test_the_conclusion_of_a_job_may_begin_a_sync(files):
    disk = Disk()
    told = []

    def go_on(_problem):
        if not disk.sync(files, told.append):
            disk.run(lambda: None, told.append, awaited=True)

    disk.run(lambda: None, go_on, awaited=True)
    assert disk.conclude(60)
    assert told == [None]
    disk.stop()
