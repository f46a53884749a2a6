"""Stores behind URLs give the same tables as local ones, and no more is copied than is needed."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from stantools.errors import StoreUnreadableError, StoreUnwritableError
from stantools.pipeline.tables import copies, remote
from stantools.pipeline.tables.model import STORE_TABLES, TableName
from stantools.pipeline.tables.remote import is_remote, join_url, local_path, normal_url, shown_url, split_url
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import golden_cases
from tests.pipeline.tables.tablerows import table

MESSAGES = 400


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("remote")
    write_sample(
        base / "one",
        SampleOptions(names=["orders", "audit.log"], messages=MESSAGES, size=1000, slice_msgs=MESSAGES // 4),
    )
    write_sample(
        base / "two", SampleOptions(names=["jobs"], messages=40, damage=["flipped-byte"], polynomial=0x82F63B78)
    )
    archive = base / "old"
    archive.mkdir()
    for kind in ("dat", "idx"):
        shutil.copy(base / "one" / "orders" / f"msgs.2.{kind}", archive / f"msgs.2.{kind}.bak")
    return base


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are made; nothing may be left there."""
    place = tmp_path / "copies"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def memory(base: Path) -> Iterator[str]:
    """The same files in fsspec's memory."""
    system = fsspec.filesystem("memory")
    system.put(str(base), "/kept", recursive=True)
    yield "memory://kept"
    system.rm("/kept", recursive=True)


@pytest.fixture(scope="module")
def archive(base: Path) -> Path:
    """The same files in a zip."""
    path = base.parent / f"{base.name}.zip"
    with zipfile.ZipFile(path, "w") as file:
        for each in base.rglob("*"):
            file.write(each, each.relative_to(base))
    return path


def under(rows: list[dict[str, Any]], root: str) -> list[dict[str, Any]]:
    return [row | {"store": row["store"].removeprefix(root).split("::")[0].strip("/")} for row in rows]


@pytest.mark.parametrize("name", STORE_TABLES)
def test_every_table_of_a_directory_of_stores(base: Path, memory: str, copied: Path, name: TableName) -> None:
    both = {} if name not in (TableName.CLIENTS, TableName.SUBSCRIPTIONS) else {"mode": "DROPMALFORMED"}
    expected = under(table(base, name, **both), str(base))
    rows = table(memory, name, **both)
    assert without_commands(under(rows, memory)) == without_commands(expected)
    assert {row["store"] for row in rows} <= {f"{memory}/{each}" for each in ("one", "two", "old")}
    assert not list(copied.iterdir())


@pytest.mark.parametrize("name", [TableName.MESSAGES, TableName.FINDINGS, TableName.SUBSCRIPTIONS])
def test_in_an_archive(base: Path, archive: Path, name: TableName) -> None:
    rows = table(f"zip://one::file://{archive}", name)
    assert [row | {"store": ""} for row in rows] == [row | {"store": ""} for row in table(base / "one", name)]
    assert {row["store"] for row in rows} == ({f"zip://one::file://{archive}"} if rows else set())
    assert len(table(f"zip://::{archive}", TableName.SLICES)) == len(table(base, TableName.SLICES))


def without_commands(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without remedies: the commands of a local store name it, and there are none that read a URL."""
    assert not any("memory:" in (row.get("remedy") or "") for row in rows)
    return [{column: value for column, value in row.items() if column != "remedy"} for row in rows]


def _without(detail: str | None, root: str) -> str | None:
    return detail and detail.removeprefix(root)


def test_golden_stores_behind_a_url(golden: Path) -> None:
    system = fsspec.filesystem("memory")
    for case in [each for each in golden_cases() if each != "many_channels"][::10]:
        root = golden / case / "datastore"
        system.put(str(root), f"/golden/{case}", recursive=True)
        for name in STORE_TABLES:
            local = [row | {"store": ""} for row in table(root, name, archived="true")]
            if name is TableName.FINDINGS:  # empty directories are not put into memory
                local = [row for row in local if row["code"] not in ("foreign-directory", "inner-directory")]
            rows = [row | {"store": ""} for row in table(f"memory://golden/{case}", name, archived="true")]
            local, rows = without_commands(local), without_commands(rows)
            if name in (TableName.SUBSCRIPTIONS, TableName.CLIENTS):
                local = [row | {"detail": _without(row["detail"], f"{root}")} for row in local]
                rows = [row | {"detail": _without(row["detail"], f"memory://golden/{case}")} for row in rows]
            assert rows == local
    system.rm("/golden", recursive=True)


def test_patterns_single_slices_and_duplicates(memory: str) -> None:
    assert {row["store"] for row in table(f"{memory}/t*", "slices")} == {f"{memory}/two"}
    assert {row["store"] for row in table(f"{memory}/{{one,two}}/", "slices")} == {f"{memory}/one", f"{memory}/two"}
    (row,) = table(f"{memory}/one/orders/msgs.3.dat", "slices")
    assert (row["store"], row["slice"], row["channel"]) == (f"{memory}/one/orders", "msgs.3.dat", "orders")
    again = table("memory://kept/one", "slices", paths=f'["{memory}", "{memory}/one/"]')
    assert len(again) == len(table(memory, "slices"))


class _Read:
    """Counts the bytes that are copied from data files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = 0
        copy = remote.RemoteFileSystem.copy

        def counted(
            this: remote.RemoteFileSystem, url: str, target: Path, start: int = 0, end: int | None = None
        ) -> None:
            before = target.stat().st_blocks if target.exists() else 0
            copy(this, url, target, start, end)
            if ".dat" in target.name:
                self.data += end - start if end is not None else target.stat().st_size - before

        monkeypatch.setattr(copies.RemoteFileSystem, "copy", counted)


def test_bounds_save_copying(base: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = _Read(monkeypatch)
    whole = table(f"{memory}/one")
    assert len(whole) == 2 * MESSAGES
    everything = read.data
    assert everything > 2 * MESSAGES * 1000
    read.data = 0
    few = table(f"{memory}/one", seq="150:159", channels="orders")
    assert few == [row for row in whole if row["channel"] == "orders" and 150 <= row["seq"] < 160]
    # Ten messages, and the last one of each of four slices.
    assert read.data < 20 * 1100
    read.data = 0
    rows = table(f"{memory}/one", columns="channel,seq,timestamp_ns", checkCrc="false")
    assert rows == [{name: row[name] for name in ("channel", "seq", "timestamp_ns")} for row in whole]
    assert read.data < 8 * 1200
    read.data = 0
    assert len(table(f"{memory}/one", "slices")) == 8
    assert read.data < 8 * 8 * 1200


def test_an_index_that_is_wrong_saves_nothing(base: Path, memory: str) -> None:
    system = fsspec.filesystem("memory")
    content = bytearray(system.cat_file("/kept/one/orders/msgs.2.idx"))
    content[4 + 8] ^= 0x40
    system.pipe_file("/kept/one/orders/msgs.2.idx", bytes(content))
    rows = table(f"{memory}/one", seq="150:159", channels="orders")
    assert [row["seq"] for row in rows] == list(range(150, 160))
    assert {row["source"] for row in table(f"{memory}/one", "slices", channels="orders")} == {"index", "scan"}


def test_what_cannot_be_read_is_reported(memory: str, monkeypatch: pytest.MonkeyPatch, copied: Path) -> None:
    opened = type(fsspec.filesystem("memory")).open

    def broken(this: Any, path: str, *arguments: Any, **values: Any) -> Any:
        if path.endswith("orders/msgs.2.dat"):
            raise RuntimeError("the wire was cut")
        return opened(this, path, *arguments, **values)

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "open", broken)
    rows = table(f"{memory}/one")
    assert [(r["store"], r["slice"]) for r in rows if r["status"] == "unreadable"] == [
        (f"{memory}/one", "orders/msgs.2.dat")
    ]
    assert len(rows) == 2 * MESSAGES - 100 + 1
    with pytest.raises(StoreUnreadableError, match=r"orders/msgs\.2\.dat: cannot be read: the wire was cut"):
        table(f"{memory}/one", mode="FAILFAST")
    assert not list(copied.iterdir())


def test_no_room_for_copies(memory: str, monkeypatch: pytest.MonkeyPatch, copied: Path) -> None:
    error, opened = OSError(28, "No space left on device"), Path.open

    def no_room(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if copied in path.parents and mode != "rb":
            raise error
        return opened(path, mode, *more, **named)

    def no_directory(**_: Any) -> Any:
        raise error

    monkeypatch.setattr(Path, "open", no_room)
    with pytest.raises(StoreUnwritableError, match="No space left on device") as wrong:
        table(f"{memory}/one")
    assert "TMPDIR" in wrong.value.remedy
    monkeypatch.setattr(tempfile, "mkdtemp", no_directory)
    with pytest.raises(StoreUnwritableError, match="No space left on device"):
        table(f"{memory}/one")


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch, memory: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(StoreUnreadableError, match="package fsspec is not installed"):
        table(memory)


def test_options_for_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def noted(url: str, **settings: Any) -> Any:
        given.update(settings)
        return fsspec.filesystem("memory"), url

    monkeypatch.setattr("fsspec.core.url_to_fs", noted)
    remote.RemoteFileSystem("memory://x", [("anon", "true"), ("key", "123"), ("client_kwargs", 'json:{"a": 1}')])
    assert given == {"anon": True, "key": "123", "client_kwargs": {"a": 1}}
    with pytest.raises(StoreUnreadableError, match=r"storage\.x: the text after json: is not json"):
        remote.RemoteFileSystem("memory://x", [("x", "json:{")])


def test_urls() -> None:
    rows: list[tuple[str, str, str]] = [
        ("s3://bucket/a/", "s3://bucket/a/b/c", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket/b/c", "s3://bucket"),
        ("hdfs:///", "hdfs:///b/c", "hdfs:///"),
        ("zip://::/tmp/x.zip", "zip://b/c::/tmp/x.zip", "zip://::/tmp/x.zip"),
        ("zip://a::s3://b/x.zip", "zip://a/b/c::s3://b/x.zip", "zip://a::s3://b/x.zip"),
        ("simplecache::s3://b/k/", "simplecache::s3://b/k/b/c", "simplecache::s3://b/k"),
    ]
    for url, joined, normal in rows:
        assert join_url(url, "b/c") == joined, (url, joined, normal)
        assert split_url(join_url(url, "c"))[1] == "c", (url, joined, normal)
        assert normal_url(url) == normal, (url, joined, normal)


def test_which_paths_are_remote() -> None:
    assert is_remote("s3://x") and is_remote("simplecache::file:///x")
    for path, local in (("file:///x/y", "/x/y"), ("file:/x", "/x"), ("FILE://localhost/x", "/x"), ("a/b", "a/b")):
        assert not is_remote(path)
        assert local_path(path) == local
    assert shown_url("sftp://me:secret@host/x") == "sftp://me:***@host/x"
    assert shown_url("s3://bucket/a:b@c") == "s3://bucket/a:b@c"
