"""Files that are whole from the moment they have a name."""

from __future__ import annotations

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
    assert not create_whole(tmp_path / "file", b"head")
    assert list(tmp_path.iterdir()) == []
