"""Files that are whole from the moment they have a name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stantools.store.durable import create_whole


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
