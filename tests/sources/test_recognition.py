"""What a path looks like that is no store: it is named, with a command that works."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from stantools.errors import StoreUnreadableError
from stantools.sources import directories, files
from stantools.sources import jetstream as jetstream_kinds
from stantools.sources import sql as sql_kinds
from stantools.sources.door import open_source, recognise
from stantools.sources.source import Capability, SourceKind
from stantools.store.directory import open_datastore
from stantools.store.sample import SampleOptions, write_sample


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("srv/my data").mkdir(parents=True)
    write_sample(Path("srv/my data/datastore"), SampleOptions(names=("orders", "a b"), messages=10))
    return Path()


def commands(text: str) -> list[list[str]]:
    """The commands of ours in a remedy, as words."""
    return [shlex.split(each) for each in re.findall(r"`(stantools [^`]*)`", text)]


def jetstream(root: Path) -> Path:
    (root / "$G" / "streams" / "ORDERS" / "msgs").mkdir(parents=True)
    for name in ("meta.inf", "meta.sum", "msgs/1.blk"):
        (root / "$G" / "streams" / "ORDERS" / name).touch()
    return root


def test_what_is_no_store_is_told_of_both_servers(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/note").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("folder", "folder/note", "empty", "missing"):
        found = recognise(tmp_path / name)
        assert "file store" not in found.sentence
        assert "-dir of NATS Streaming, store_dir of JetStream" in found.remedy
    assert "NATS Streaming" in recognise(tmp_path / "folder").detail
    assert "JetStream" in recognise(tmp_path / "folder").detail


@pytest.mark.parametrize(
    ("below", "kind"),
    [
        ("", jetstream_kinds.JETSTREAM),
        ("jetstream", jetstream_kinds.JETSTREAM),
        ("jetstream/$G", jetstream_kinds.JETSTREAM),
        ("jetstream/$G/streams", jetstream_kinds.JETSTREAM),
        ("jetstream/$G/streams/ORDERS", jetstream_kinds.JETSTREAM),
        ("jetstream/$G/streams/ORDERS/msgs", jetstream_kinds.JETSTREAM),
    ],
)
def test_jetstream(tmp_path: Path, below: str, kind: SourceKind) -> None:
    jetstream(tmp_path / "data" / "jetstream")
    found = recognise(tmp_path / "data" / below)
    assert found.kind is kind
    assert shlex.quote(str(tmp_path / "data" / "jetstream")) in found.remedy


def test_a_folder_around_a_store(place: Path) -> None:
    found = recognise(Path("srv"))
    assert (found.kind, found.stores) == (directories.PARENT, (Path("srv/my data/datastore"),))
    assert commands(found.remedy) == [["stantools", "doctor", "srv/my data/datastore"]]
    shutil.copytree("srv/my data", "srv/another")
    found = recognise(Path("srv"))
    assert (
        found.kind is directories.SEVERAL
        and "my data/datastore" in found.sentence
        and "another/datastore" in found.sentence
    )


def test_the_folder_of_a_channel(place: Path) -> None:
    store = "srv/my data/datastore"
    found = recognise(Path(store, "a b"))
    assert found.kind is directories.CHANNEL
    assert commands(found.remedy) == [["stantools", "messages", store, "a b"], ["stantools", "doctor", store]]
    shutil.copytree(Path(store, "orders"), "alone")
    assert "is not there" in recognise(Path("alone")).sentence


@pytest.mark.parametrize(
    "name", ["server.dat", "clients.dat", "orders/subs.dat", "orders/msgs.1.dat", "orders/msgs.1.idx"]
)
def test_a_single_file_of_a_store(place: Path, name: str) -> None:
    path = Path("srv/my data/datastore", name)
    found = recognise(path)
    assert found.kind is files.FILE_OF_STORE
    record, doctor = commands(found.remedy)
    assert record == ["stantools", "records", str(path)]
    assert Path(doctor[-1]).resolve() == Path("srv/my data/datastore").resolve()


@pytest.mark.parametrize("suffix", ["tar", "tgz", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_archives(place: Path, suffix: str) -> None:
    """They are known by what is in them, and the command unpacks them: what comes out is named in turn."""
    kinds = {"tar": "tar", "tgz": "gztar", "tar.gz": "gztar", "tar.bz2": "bztar", "tar.xz": "xztar", "zip": "zip"}
    made = Path(shutil.make_archive("it", kinds[suffix], "srv"))
    for path in (Path(f"of the shop.{suffix}"), Path("no suffix")):
        shutil.copy(made, path)
        found = recognise(path)
        assert found.kind is files.ARCHIVE
        command = re.search(r"`(mkdir .*) && (stantools doctor .*)`", found.remedy)
        assert command
        if shutil.which("unzip") or suffix != "zip":
            assert os.system(command[1]) == 0
            unpacked = recognise(Path(shlex.split(command[2])[-1]))
            assert unpacked.kind is directories.PARENT, unpacked
            shutil.rmtree(shlex.split(command[2])[-1])


def test_compressed_files_that_are_no_archives(place: Path) -> None:
    Path("one.gz").write_bytes(gzip.compress(b"a log of a server\n" * 100))
    assert recognise(Path("one.gz")).kind is files.COMPRESSED
    Path("two.gz").write_bytes(gzip.compress(b"-- dump\nCREATE TABLE Messages (id INTEGER);\n"))
    assert recognise(Path("two.gz")).kind is sql_kinds.DUMP
    Path("cut.tgz").write_bytes(gzip.compress(os.urandom(4000))[:30])
    assert recognise(Path("cut.tgz")).kind in (files.ARCHIVE, files.COMPRESSED)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"-- MySQL dump 10.13\n", sql_kinds.DUMP),
        (b"\xef\xbb\xbf\nINSERT INTO Messages VALUES (1);", sql_kinds.DUMP),
        (b"SQLite format 3\0" + bytes(84), sql_kinds.SQLITE),
        (b"\x28\xb5\x2f\xfd" + bytes(30), files.ARCHIVE),
        (b"hello", files.FILE),
        (b"", files.FILE),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, kind: SourceKind) -> None:
    (tmp_path / "x").write_bytes(content)
    assert recognise(tmp_path / "x").kind is kind


def test_a_backup_of_a_stream(tmp_path: Path) -> None:
    for name in ("backup.json", "stream.tar.s2"):
        (tmp_path / name).touch()
    assert recognise(tmp_path).kind is jetstream_kinds.BACKUP


def test_nodes_of_a_cluster(tmp_path: Path) -> None:
    for node in "abc":
        (tmp_path / "nodes" / node / "raft" / "shop").mkdir(parents=True)
        (tmp_path / "nodes" / node / "raft" / "shop" / "raft.log").touch()
        write_sample(tmp_path / "nodes" / node / "data", SampleOptions(channels=1, messages=1))
    one, all_of_them = recognise(tmp_path / "nodes" / "a"), recognise(tmp_path / "nodes")
    assert one.kind is directories.NODE
    assert ["stantools", "doctor", str(tmp_path / "nodes/a/data")] in commands(one.remedy)
    assert all_of_them.kind is directories.NODES
    assert [str(tmp_path / "nodes" / node) for node in "abc"] == commands(all_of_them.remedy)[0][2:5]


def test_what_is_no_file_does_not_stop_anything(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("circle").symlink_to("circle")
    Path("empty").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for name in (
        "pipe",
        "circle",
        "empty",
        "socket",
        "/dev/null",
        "/dev/tty",
        "/",
        "/dev/pts",
        "nowhere",
        "nats://host:4222",
    ):
        with pytest.raises(StoreUnreadableError) as refused:
            open_source(Path(name)).require(Capability.SURVEY)
        assert refused.value.remedy, name


def test_odd_entries_in_a_store(place: Path) -> None:
    """A pipe, a socket, a link in a circle in the folder of a channel: they are not waited for."""
    store = Path("srv/my data/datastore")
    os.mkfifo(store / "orders" / "pipe")
    os.mkfifo(store / "orders" / "msgs.9.dat.bak")
    (store / "orders" / "circle").symlink_to("circle")
    (store / "loop").symlink_to("loop")
    opened = open_datastore(store)
    opened.check_permitted(opened.channel_names)
    assert opened.channel_names == ["a b", "orders"]


@pytest.mark.parametrize("above", ["", "backups", "backups/monday"])
def test_a_folder_around_a_jetstream_directory(tmp_path: Path, monkeypatch, above: str) -> None:
    """Its streams are those of the directory in it, not streams that no server looks for."""
    monkeypatch.chdir(tmp_path)
    store = Path("backups/monday/my data")
    jetstream(store / "jetstream")
    found = recognise(Path(above))
    assert (found.kind, found.stores) == (jetstream_kinds.AROUND, (store,))
    assert commands(found.remedy) == [["stantools", "doctor", str(store)]]
    opened = open_source(Path(above))
    assert (opened.path, [each.node for each in opened.streams]) == (store, [""])
    assert f"reading the one in it, {store}" in opened.notes[0]


def test_a_folder_of_stand_alone_jetstream_directories_is_no_cluster(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        jetstream(Path(name, "jetstream"))
    found = recognise(Path())
    assert (found.kind, found.stores) == (jetstream_kinds.SEVERAL, (Path("a"), Path("b")))
    assert commands(found.remedy) == [["stantools", "doctor", "a"], ["stantools", "forecast", "a", "b"]]
    with pytest.raises(StoreUnreadableError, match=r"holds several JetStream store directories \(2: a, b\)"):
        open_source(Path())
    Path("b/jetstream/$SYS/_js_").mkdir(parents=True)
    assert recognise(Path()).kind is jetstream_kinds.JETSTREAM


def test_nodes_that_lost_their_raft_logs_are_known_by_replicated_streams(tmp_path: Path) -> None:
    for name in ("a", "b"):
        jetstream(tmp_path / name / "jetstream")
    (tmp_path / "b/jetstream/$G/streams/ORDERS/meta.inf").write_text('{"name":"ORDERS","num_replicas":3}')
    found = recognise(tmp_path)
    assert found.kind is jetstream_kinds.JETSTREAM
    assert "2 nodes of a cluster" in found.sentence
