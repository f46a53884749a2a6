"""Which stores and slices paths mean."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError
from stantools.format.crc import CASTAGNOLI, IEEE
from stantools.pipeline.tables import listing
from stantools.pipeline.tables.discovery import FoundStore, absolute, discover
from stantools.pipeline.tables.listing import DirectoryEntry, LocalPlace, expand_braces
from stantools.pipeline.tables.model import STORE_TABLES, FailedRead, Mode
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.sample import SampleOptions, write_sample
from tests.pipeline.tables.tablerows import table

MESSAGES = 40


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of stores, some deeper, one with another polynomial."""
    base = tmp_path_factory.mktemp("stores")
    (base / "deep" / "er").mkdir(parents=True)
    write_sample(base / "a", SampleOptions(names=["orders", "audit.log"], messages=MESSAGES, slice_msgs=MESSAGES // 4))
    write_sample(
        base / "deep" / "er" / "b",
        SampleOptions(names=["jobs"], messages=MESSAGES, polynomial=CASTAGNOLI, slice_msgs=MESSAGES // 4),
    )
    write_sample(base / "deep" / "c", SampleOptions(names=["audit"], messages=MESSAGES, slice_msgs=MESSAGES // 4))
    (base / "notes.txt").write_text("not a store")
    (base / "empty").mkdir()
    (base / ".NEW.stantools-partial").mkdir()
    shutil.copytree(base / "deep" / "c", base / ".NEW.stantools-partial" / "content")
    return base


def found(*paths: Path | str, **values: object) -> tuple[list[FoundStore], list[FailedRead]]:
    return discover(TableOptions(tuple(map(str, paths)), **values))  # type: ignore[arg-type]


def roots(*paths: Path | str, **values: object) -> list[str]:
    stores, unreadable = found(*paths, **values)
    assert not unreadable
    return [store.ref.root for store in stores]


def slices_of(store: FoundStore, *, archived: bool = False) -> list[tuple[str, str]]:
    """Channel and name of each slice."""
    result = []
    for channel in store.channels():
        assert not isinstance(channel, FailedRead)
        result += [(channel.name, Path(ref.data).name) for ref in store.slices(channel, archived=archived)]
    return result


def test_a_store(stores: Path) -> None:
    (store,), unreadable = found(stores / "a")
    assert not unreadable
    assert (store.ref.root, store.ref.polynomial) == (str(stores / "a"), IEEE)
    assert store.channel_names == ["audit.log", "orders"]
    assert slices_of(store) == [(c, f"msgs.{n}.dat") for c in ("audit.log", "orders") for n in (1, 2, 3, 4)]
    (channel,) = store.channels(("orders",))
    assert not isinstance(channel, FailedRead)
    ref = store.slices(channel)[0]
    assert ref.data == f"{stores}/a/orders/msgs.1.dat"
    assert ref.index == f"{stores}/a/orders/msgs.1.idx"
    assert (ref.data_size, ref.index_size) == tuple(Path(each).stat().st_size for each in (ref.data, ref.index))


def test_a_path_is_written_as_it_was_given(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stores)
    assert roots("./a//") == ["a"]
    assert roots(f"file://{stores}/a/") == [f"{stores}/a"]
    assert roots(f"file:{stores}/a") == [f"{stores}/a"]
    options = absolute(TableOptions(("a", f"file://{stores}/deep", "s3://bucket/key")))
    assert options.paths == (f"{stores}/a", f"{stores}/deep", "s3://bucket/key")


def test_a_directory_of_stores(stores: Path) -> None:
    """What is hidden is not looked into: it may be half written, or a snapshot of the rest."""
    both, unreadable = found(stores)
    assert not unreadable
    assert [store.ref.root for store in both] == [f"{stores}/{name}" for name in ("a", "deep/c", "deep/er/b")]
    assert [store.ref.polynomial for store in both] == [IEEE, IEEE, CASTAGNOLI]


def test_a_polynomial_that_is_given_counts(stores: Path) -> None:
    (store,), _ = found(stores / "a", polynomial=CASTAGNOLI)
    assert store.ref.polynomial == CASTAGNOLI


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a*", ["a"]),
        ("*", ["a", "deep/c", "deep/er/b"]),
        ("**/b", ["deep/er/b"]),
        ("deep/{c,er}", ["deep/c", "deep/er/b"]),
        ("{a,deep/[b-d]}", ["a", "deep/c"]),
    ],
)
def test_patterns(stores: Path, pattern: str, expected: list[str]) -> None:
    assert roots(f"{stores}/{pattern}") == [f"{stores}/{name}" for name in expected]


def test_braces() -> None:
    assert expand_braces("a{b,c{d,e}}f{g}") == ["abfg", "acdfg", "acefg"]
    assert expand_braces("a{b") == ["a{b"]


def test_a_path_that_looks_like_a_pattern(stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "a", tmp_path / "x[1]*")
    assert roots(tmp_path / "x[1]*") == [f"{tmp_path}/x[1]*"]


def test_patterns_of_slices(stores: Path) -> None:
    both, _ = found(f"{stores}/a/*/msgs.[23].*")
    assert [(store.ref.root, slices_of(store)) for store in both] == [
        (f"{stores}/a/audit.log", [("audit.log", "msgs.2.dat"), ("audit.log", "msgs.3.dat")]),
        (f"{stores}/a/orders", [("orders", "msgs.2.dat"), ("orders", "msgs.3.dat")]),
    ]


def test_everything_counts_once(stores: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(stores / "a")
    (tmp_path / "round").mkdir()
    (tmp_path / "round" / "again").symlink_to(tmp_path / "round")
    (tmp_path / "round" / "store").symlink_to(stores / "deep" / "c")
    assert roots(stores / "a", stores / "a", link, stores) == [f"{stores}/{n}" for n in ("a", "deep/c", "deep/er/b")]
    assert roots(link) == [str(link)]
    assert roots(tmp_path / "round") == [f"{tmp_path}/round/store"]
    slice_ = stores / "a" / "orders" / "msgs.1.dat"
    (store,), _ = found(slice_, f"{slice_.parent}/*.dat", slice_)
    assert [name for _, name in slices_of(store)] == [f"msgs.{n}.dat" for n in (1, 2, 3, 4)]


def test_a_store_that_lost_its_root_files(stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "a", tmp_path / "a")
    (tmp_path / "a" / "server.dat").unlink()
    (tmp_path / "a" / "clients.dat").unlink()
    (tmp_path / "a" / "lost+found").mkdir()  # no channel
    (store,), unreadable = found(tmp_path)
    assert not unreadable
    assert store.loose is None
    assert store.channel_names == ["audit.log", "orders"]


def test_slices_without_a_store(stores: Path, tmp_path: Path) -> None:
    """Two channels in one directory of archived slices; one slice of them has no index."""
    for channel in ("orders", "audit.log"):
        for number in (1, 2):
            for kind in ("dat", "idx"):
                to = number + (10 if channel == "orders" else 0)
                source = stores / "a" / channel / f"msgs.{number}.{kind}"
                shutil.copy(source, tmp_path / f"msgs.{to}.{kind}.bak")
    (tmp_path / "msgs.2.idx.bak").unlink()
    (store,), unreadable = found(tmp_path)
    assert not unreadable
    assert store.ref.root == str(tmp_path)
    expected = [("audit.log", 1), ("audit.log", 2), ("orders", 11), ("orders", 12)]
    assert slices_of(store) == [(channel, f"msgs.{number}.dat.bak") for channel, number in expected]
    rows = table(tmp_path, columns="channel,slice,seq,status")
    assert [row["seq"] for row in rows] == [*range(1, 21), *range(1, 21)]
    assert {row["status"] for row in rows} == {"ok"}
    assert [row["slice"] for row in rows[::10]] == [f"msgs.{number}.dat.bak" for _, number in expected]
    assert [(r["channel"], r["messages"], r["source"]) for r in table(tmp_path, "slices")] == [
        ("audit.log", 10, "index"),
        ("audit.log", 10, "scan"),
        ("orders", 10, "index"),
        ("orders", 10, "index"),
    ]
    assert [row["code"] for row in table(tmp_path, "findings")] == ["index-missing"]
    assert {row["file"] for row in table(tmp_path, "records")} == {path.name for path in tmp_path.iterdir()}


def test_one_slice(stores: Path, tmp_path: Path) -> None:
    path = stores / "deep" / "er" / "b" / "jobs" / "msgs.2.dat"
    (store,), _ = found(path)
    assert (store.ref.root, store.ref.polynomial) == (str(path.parent), CASTAGNOLI)
    rows = table(path)
    assert [row["seq"] for row in rows] == list(range(11, 21))
    assert {(row["store"], row["channel"], row["slice"]) for row in rows} == {(str(path.parent), "jobs", "msgs.2.dat")}
    archived = tmp_path / "msgs.2.dat.bak"
    shutil.copy(path, archived)
    assert [row["channel"] for row in table(archived)] == ["jobs"] * 10


def test_the_channel_of_a_slice_without_a_good_record(stores: Path, tmp_path: Path) -> None:
    directory = tmp_path / "orders"
    directory.mkdir()
    (directory / "msgs.1.dat").write_bytes(b"\x01\0\0\0garbage that is not a record at all")
    assert {(row["channel"], row["status"]) for row in table(directory)} == {("orders", "garbage")}
    # Behind damage, and behind a first record that is longer than what is looked at first.
    damaged = bytearray((stores / "a" / "audit.log" / "msgs.1.dat").read_bytes())
    damaged[20] ^= 0xFF
    (directory / "msgs.1.dat").write_bytes(damaged)
    assert {row["channel"] for row in table(directory)} == {"audit.log"}
    write_sample(tmp_path / "long", SampleOptions(names=["long"], messages=8, size=100_000))
    shutil.copy(tmp_path / "long" / "long" / "msgs.1.dat", directory / "msgs.1.dat")
    assert [(row["channel"], row["size"]) for row in table(directory)] == [("long", 100_000)] * 2


def test_a_directory_of_live_slices_leaves_archived_ones_out(stores: Path, tmp_path: Path) -> None:
    directory = tmp_path / "orders"
    shutil.copytree(stores / "a" / "orders", directory)
    for kind in ("dat", "idx"):
        (directory / f"msgs.1.{kind}").rename(directory / f"msgs.1.{kind}.bak")
    assert [row["seq"] for row in table(directory)] == list(range(11, 41))
    assert [row["seq"] for row in table(directory, archived="true")] == list(range(1, 41))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "no such file or directory"),
        ("notes.txt", "is not a message slice"),
        ("empty", "is an empty directory"),
        ("a/orders/msgs.1.idx", "is not a message slice"),
        ("*.nothing", "nothing matches the pattern"),
        ("note*", "nothing that matches the pattern is of a store"),
        ("foo://bar", "Protocol not known: foo"),
        ("s3://bucket/key", "Install s3fs"),
    ],
)
def test_wrong_paths(stores: Path, path: str, message: str) -> None:
    given = path if "://" in path else f"{stores}/{path}"
    with pytest.raises(StoreUnreadableError) as wrong:
        found(given)
    assert message in wrong.value.message
    assert given in wrong.value.message
    assert wrong.value.remedy
    both, (unreadable,) = found(stores / "a", given)
    assert [store.ref.root for store in both] == [f"{stores}/a"]
    assert (unreadable.root, unreadable.message) == (given, wrong.value.message)
    with pytest.raises(StoreUnreadableError, match=r"cannot|no |not |nothing|Install"):
        found(stores / "a", given, mode=Mode.FAILFAST)


def test_a_raft_log_is_named(stores: Path, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "raft.log").write_bytes(b"x")
    with pytest.raises(StoreUnreadableError, match="is a clustered node"):
        found(tmp_path)


def test_a_store_of_release_0_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "clients.dat").write_bytes(b"\x01\0\0\0A me _INBOX.1\r\n")
    with pytest.raises(StoreUnreadableError, match=r"written by NATS Streaming 0\.1"):
        found(tmp_path / "old")


def test_tables_that_slices_without_a_store_do_not_have(stores: Path) -> None:
    (row,) = table(stores / "a" / "orders", "clients")
    assert (row["id"], row["status"]) == (None, "unreadable")
    assert "holds slices without a store, so it has no clients" in row["detail"]
    assert table(stores / "a" / "orders", "clients", mode="DROPMALFORMED") == []
    with pytest.raises(StoreUnreadableError, match="has no subscriptions"):
        table(stores / "a" / "orders", "subscriptions", mode="FAILFAST")


def forbid(monkeypatch: pytest.MonkeyPatch, *forbidden: Path) -> None:
    """Makes directories unlistable, also for root."""
    scandir = os.scandir

    def guarded(path: str) -> object:
        if Path(path) in forbidden:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)


def test_no_permission_on_one_of_many_stores(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, stores / "deep" / "c", stores / "a" / "orders")
    both, unreadable = found(stores)
    assert [store.ref.root for store in both] == [f"{stores}/a", f"{stores}/deep/er/b"]
    assert [(u.root, u.channel) for u in unreadable] == [(f"{stores}/deep/c", None)]
    assert "cannot be listed: Permission denied" in unreadable[0].message
    rows = table(stores, columns="store,channel,slice,seq,status")
    good = [row for row in rows if row["status"] == "ok"]
    assert [(r["store"].removeprefix(str(stores)), r["channel"]) for r in good] == [
        *[("/a", "audit.log")] * MESSAGES,
        *[("/deep/er/b", "jobs")] * MESSAGES,
    ]
    assert [row for row in rows if row["status"] != "ok"] == [
        {"store": f"{stores}/a", "channel": "orders", "slice": None, "seq": None, "status": "unreadable"},
        {"store": f"{stores}/deep/c", "channel": None, "slice": None, "seq": None, "status": "unreadable"},
    ]
    assert table(stores, columns="store,channel,slice,seq,status", mode="DROPMALFORMED") == good
    with pytest.raises(StoreUnreadableError, match="cannot be listed"):
        table(stores, mode="FAILFAST")
    found_there = [row for row in table(stores, "findings") if row["code"] == "file-unreadable"]
    assert [(row["store"], row["channel"]) for row in found_there] == [
        (f"{stores}/a", "orders"),
        (f"{stores}/deep/c", None),
    ]
    assert [row["problems"] for row in table(stores, "slices") if row["slice"] is None] == [
        [f"{stores}/a/orders: cannot be listed: Permission denied"],
        [f"{stores}/deep/c: cannot be listed: Permission denied"],
    ]
    odd = [row for row in table(stores, "records") if row["status"] == "unreadable"]
    assert [(row["store"], row["channel"]) for row in odd] == [(f"{stores}/a", "orders"), (f"{stores}/deep/c", None)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_on_a_store(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("basic")
    root.chmod(0)
    try:
        with pytest.raises(StoreUnreadableError, match="Permission denied"):
            found(root)
    finally:
        root.chmod(0o755)


def test_an_unreadable_file_is_a_row(stores: Path, tmp_path: Path) -> None:
    """A directory in the place of a file cannot be read, not even by root."""
    root = tmp_path / "a"
    shutil.copytree(stores / "a", root)
    bad = root / "orders" / "msgs.2.dat"
    rows = len(table(root, "records", channels="orders"))
    bad.rename(tmp_path / "msgs.2.dat")
    bad.symlink_to("/dev/null")
    odd = [row for row in table(root, "records", channels="orders") if row["status"] == "unreadable"]
    assert [(row["file"], row["detail"]) for row in odd] == [
        ("orders/msgs.2.dat", f"{bad}: is not a regular file"),
    ]
    assert len(table(root, "records", channels="orders")) == rows - 11 + 1
    with pytest.raises(StoreUnreadableError, match="is not a regular file"):
        table(root, "records", mode="FAILFAST")
    assert {row["slice"] for row in table(root) if row["status"] == "unreadable"} == {"orders/msgs.2.dat"}


def test_slow_places_are_listed_by_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listing, "_SLOW_SECONDS", -1.0)
    items = [tmp_path / str(n) for n in range(100)]
    assert list(listing.listed(str, items)) == [str(each) for each in items]


def test_entries_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"123")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "a")
    (tmp_path / "d").symlink_to(tmp_path / "nowhere")
    assert LocalPlace().entries(str(tmp_path)) == [
        DirectoryEntry("a", 0, True),
        DirectoryEntry("b", 3),
        DirectoryEntry("c", 0, True, True),
        DirectoryEntry("d", 0, False, True),
    ]


def test_names_that_are_not_utf_8(stores: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"st\xffre")
    shutil.copytree(stores / "a", odd)
    (odd / "orders").rename(odd / os.fsdecode(b"or\xfeders"))
    rows = table(odd, columns="store,channel,slice", channels=os.fsdecode(b"or\xfeders"))
    assert set(map(tuple, (row.values() for row in rows))) == {
        (f"{tmp_path}/st\\xffre", "or\\xfeders", f"or\\xfeders/msgs.{n}.dat") for n in (1, 2, 3, 4)
    }
    for name in STORE_TABLES:
        assert all(row["store"] == f"{tmp_path}/st\\xffre" for row in table(odd, name))
