"""Files that are whole from the moment they have a name, also after a loss of power."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast.changes import Change, CutChange, DeleteChange, WriteChange
from stantools.recovery.changes import carry_out
from stantools.store.durable import create_whole, fsync_directory, replace_file, sync_tree
from stantools.store.logwriter import SubsLog
from tests.broker.stores.power import Machine


def test_created_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert create_whole(path, b"head")
    assert path.read_bytes() == b"head"
    assert not create_whole(path, b"other")
    assert path.read_bytes() == b"head"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert not create_whole(tmp_path / "no" / "file", b"head")


def test_a_file_system_without_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    path = tmp_path / "file"
    assert create_whole(path, b"head")
    assert path.read_bytes() == b"head"
    assert not create_whole(path, b"other")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert not create_whole(tmp_path / "no" / "file", b"head")


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    for flag in (os.O_TMPFILE, 0):
        monkeypatch.setattr(os, "O_TMPFILE", flag)
        assert not create_whole(tmp_path / "file", b"head")
    assert list(tmp_path.iterdir()) == []


def create(root: Path) -> Iterator[None]:
    yield
    assert create_whole(root / "foo" / "new", b"head")
    fsync_directory(root / "foo")


def replace(root: Path) -> Iterator[None]:
    (root / "foo" / "old").write_bytes(b"old")
    yield
    replace_file(root / "foo" / "old", b"new" * 9)


def compact(root: Path) -> Iterator[None]:
    with SubsLog(root / "foo", root, Crc()) as log:
        for number in (1, 2):
            log.new(pb.SubState(id=number, client_id=b"me", inbox=b"_I"))
        log.write_out()
        yield
        log.compact([(pb.SubState(id=2, client_id=b"me", inbox=b"_I"), {7})])


def repair(
    action: CutChange | DeleteChange | WriteChange, name: str, after: int | None
) -> Callable[[Path], Iterator[None]]:
    def change(root: Path) -> Iterator[None]:
        (root / "foo" / "old").write_bytes(b"old")
        yield
        carry_out(root, Change(f"foo/{name}", 3, after, action), Crc())

    return change


@pytest.mark.parametrize("unnamed", [True, False])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (create, "new"),
        (replace, "old"),
        (compact, "subs.dat"),
        (repair(CutChange(), "old", 1), "old"),
        (repair(DeleteChange(), "old", None), "old"),
        (repair(WriteChange(b"head"), "new", 4), "new"),
        (repair(WriteChange(b"head"), "old", 4), "old"),
    ],
)
def test_a_loss_of_power_leaves_the_old_file_or_the_new_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], Iterator[None]],
    name: str,
    unnamed: bool,
) -> None:
    if not unnamed:
        monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    root, left = tmp_path / "store", []

    def lose_power(_call: str) -> None:
        for how in ("contents", "names", "synced", *["some"] * 6):
            machine.image(root, image := tmp_path / f"left{len(left)}", how)
            left.append(content(image))

    def content(store: Path) -> bytes | None:
        return (store / "foo" / name).read_bytes() if (store / "foo" / name).exists() else None

    machine = Machine(random.Random(1))
    with machine.watched():
        (root / "foo").mkdir(parents=True)
        steps = change(root)
        next(steps)
        sync_tree(root)
        machine.look, before = lose_power, content(root)
        assert next(steps, "done") == "done"
        machine.look, after = None, content(root)
    assert before != after
    assert set(left) <= {before, after}
    lose_power("")
    assert set(left[-9:]) == {after}
