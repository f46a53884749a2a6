"""Finding out whether a server is using a store, without touching anything."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stantools.errors import ExitCode, RefusedError
from stantools.store.locks import check_not_in_use, find_uses, ft_lock_holder, hold_ft_lock, log_lock_holder
from tests.brokers import Broker
from tests.trees import dated

HOLD_LOCK = """
import fcntl, sys
f = open(sys.argv[1], "w")
fcntl.lockf(f, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""
HOLD_LOG = HOLD_LOCK.replace('"w"', '"rb"').replace("lockf", "flock")
HOLD_FILE = """
import sys
f = open(sys.argv[1], sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path) -> Path:
    root = tmp_path / "store"
    (root / "foo").mkdir(parents=True)
    for name in ("server.dat", "clients.dat", "foo/subs.dat", "foo/msgs.1.dat", ".rootdir.lck"):
        (root / name).write_bytes(b"\1\0\0\0")
        os.utime(root / name, (1, 1))
    return root


@pytest.fixture
def other_process():
    processes = []

    def start(code: str, *args: str) -> int:
        process = subprocess.Popen([sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield start
    for process in processes:
        process.communicate()


def test_a_quiet_store(store):
    before = dated(store)
    assert find_uses(store, sleep=lambda _: pytest.fail("no need to wait")) == []
    assert check_not_in_use(store) == []
    (store / ".rootdir.lck").unlink()
    assert ft_lock_holder(store) is None
    assert not (store / ".rootdir.lck").exists()
    before.pop(".rootdir.lck")
    assert dated(store) == before


def test_a_held_lock(store, other_process):
    pid = other_process(HOLD_LOCK, str(store / ".rootdir.lck"))
    assert ft_lock_holder(store) == pid
    with pytest.raises(RefusedError, match="holds the lock") as caught:
        check_not_in_use(store)
    assert caught.value.exit_code == ExitCode.REFUSED
    assert "--force" in caught.value.remedy
    assert "lock" in [use.kind for use in check_not_in_use(store, force=True)]
    with pytest.raises(RefusedError, match="running server"), hold_ft_lock(store):
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks of others are seen on Linux only")
def test_a_running_node_holds_the_lock_of_its_log(store, other_process):
    log = store / "raft.log"
    log.touch()
    os.utime(log, (1, 1))
    assert log_lock_holder(store) is None
    pid = other_process(HOLD_LOG, str(log))  # not even open for writing: it is the lock that tells
    assert log_lock_holder(store) == pid
    with pytest.raises(RefusedError, match=f"process {pid} holds the lock of raft.log"):
        check_not_in_use(store)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks of others are seen on Linux only")
def test_a_broker_of_ours_holds_the_lock_of_the_directory(tmp_path):
    store = tmp_path / "store"
    with Broker(tmp_path, "-store", "file", "-dir", store) as broker:
        assert ("lock", broker.process.pid) in [(use.kind, use.pid) for use in find_uses(store, quiet=0)]
    assert find_uses(store, quiet=0) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files of others are seen on Linux only")
@pytest.mark.parametrize(("mode", "seen"), [("ab", True), ("r+b", True), ("rb", False)])
def test_open_files(store, other_process, mode, seen):
    pid = other_process(HOLD_FILE, str(store / "foo" / "msgs.1.dat"), mode)
    uses = [(use.kind, use.pid) for use in find_uses(store)]
    assert uses == ([("handle", pid)] if seen else [])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files of others are seen on Linux only")
def test_a_server_that_knows_the_store_by_another_name(store, other_process, tmp_path):
    (tmp_path / "hard link").hardlink_to(store / "clients.dat")
    pid = other_process(HOLD_FILE, str(tmp_path / "hard link"), "ab")
    assert [(use.kind, use.pid) for use in find_uses(store)] == [("handle", pid)]


def test_writing_that_goes_on_is_seen_writing_that_has_ended_is_not(store):
    def write_on(_):
        with (store / "foo" / "msgs.1.dat").open("ab") as file:
            file.write(b"more")

    os.utime(store / "foo" / "msgs.1.dat")
    waited = []
    assert find_uses(store, quiet=5, sleep=waited.append) == []
    assert waited == [5]
    uses = find_uses(store, quiet=5, sleep=write_on)
    assert [(use.kind, use.detail) for use in uses] == [("write", "foo/msgs.1.dat is being written right now")]
    assert find_uses(store, quiet=0, sleep=write_on) == []


def test_a_new_slice_while_we_watch(store):
    os.utime(store / "clients.dat", (time.time() + 3600,) * 2)  # a clock that is ahead
    uses = find_uses(store, quiet=5, sleep=lambda _: (store / "foo" / "msgs.2.dat").touch())
    assert [use.detail for use in uses] == ["foo/msgs.2.dat is being written right now"]


def test_the_lock_is_held_against_others(store):
    probe = (
        "import fcntl, sys\n"
        "try: fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\n"
        "except OSError: print('held')\n"
    )

    def ask() -> bytes:
        return subprocess.check_output([sys.executable, "-c", probe, str(store / ".rootdir.lck")])

    with hold_ft_lock(store) as held:
        assert held
        assert ft_lock_holder(store) is not None
        assert ask() == b"held\n", "asking did not drop it"
    assert ask() == b"free\n"


def test_without_lock_file_there_is_nothing_to_hold(store):
    (store / ".rootdir.lck").unlink()
    with hold_ft_lock(store) as held:
        assert not held
    assert not (store / ".rootdir.lck").exists()
