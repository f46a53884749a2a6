from __future__ import annotations

import json
from pathlib import Path

import pytest

from stantools.errors import RefusedError, StoreUnreadableError
from stantools.migration.targets.layout import read_layout


def _stream(store: Path, name: str, account: str = "$G", **config: object) -> Path:
    directory = store / "jetstream" / account / "streams" / name
    (directory / "msgs").mkdir(parents=True)
    (directory / "meta.inf").write_text(json.dumps({"name": name, **config}))
    return directory


def test_streams_of_an_account(tmp_path: Path) -> None:
    _stream(tmp_path, "A", subjects=["a.>", "b"])
    _stream(tmp_path, "M", mirror={"name": "A"})
    _stream(tmp_path, "OTHER", "ACC", subjects=["c"])
    _stream(tmp_path, ".hidden", subjects=["h"])
    (tmp_path / "jetstream/$G/streams/EMPTY").mkdir()
    for given in (tmp_path, tmp_path / "jetstream"):
        layout = read_layout(given, "$G")
        assert layout.root == tmp_path / "jetstream"
        assert layout.accounts == ("$G", "ACC")
        assert {name: each.subjects for name, each in layout.streams.items()} == {
            "A": ["a.>", "b"],
            "M": [],
            "EMPTY": [],
        }
        assert layout.raft is None
        assert layout.key is None
    assert list(read_layout(tmp_path, "ACC").streams) == ["OTHER"]
    assert read_layout(tmp_path, "NEW").streams == {}


def test_a_name_that_is_not_the_directorys_is_passed_over(tmp_path: Path) -> None:
    _stream(tmp_path, "A", subjects=["a"]).rename(tmp_path / "jetstream/$G/streams/B")
    assert read_layout(tmp_path, "$G").streams["B"].config is None


def test_no_store_yet(tmp_path: Path) -> None:
    assert read_layout(tmp_path / "new", "$G").root == tmp_path / "new/jetstream"
    assert read_layout(tmp_path, "$G").root == tmp_path / "jetstream"


def test_clusters_and_encryption_are_seen(tmp_path: Path) -> None:
    key = _stream(tmp_path, "A", "ACC") / "meta.key"
    key.write_bytes(b"\x01" * 64)
    (key.parent / "meta.inf").write_bytes(b"\xf0\x9f not json")
    (tmp_path / "jetstream/$SYS/_js_/_meta_").mkdir(parents=True)
    layout = read_layout(tmp_path, "ACC")
    assert layout.key == key
    assert layout.raft == tmp_path / "jetstream/$SYS/_js_"


def test_other_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "server.dat").write_bytes(b"\x01\x00\x00\x00")
    with pytest.raises(RefusedError, match=r"has no directory jetstream, but server\.dat"):
        read_layout(tmp_path, "$G")
    with pytest.raises(RefusedError, match="is not a directory"):
        read_layout(tmp_path / "server.dat", "$G")
    (tmp_path / "jetstream").mkdir()
    (tmp_path / "jetstream/stray").write_text("")
    with pytest.raises(RefusedError, match="stray: is not the directory of an account"):
        read_layout(tmp_path, "$G")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"7",
        b'{"name": 7',
        b'{"no": "name"}',
        b'{"name": "A", "subjects": 7}',
        b'{"name": "A", "subjects": [7]}',
        b"[" * 100000,
    ],
)
def test_configurations_that_cannot_be_understood_are_refused(tmp_path: Path, content: bytes) -> None:
    (_stream(tmp_path, "A") / "meta.inf").write_bytes(content)
    with pytest.raises(RefusedError, match=r"meta\.inf: is not the configuration of a stream"):
        read_layout(tmp_path, "$G")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stream(tmp_path, "A")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("stantools.migration.targets.layout.os.scandir", refuse)
    with pytest.raises(StoreUnreadableError, match="Permission denied"):
        read_layout(tmp_path, "$G")
