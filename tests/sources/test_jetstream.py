"""JetStream directories and backups as sources: every stream is found, whatever is named."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from stantools.errors import NotAStoreError
from stantools.sources import jetstream
from stantools.sources.door import open_source, recognise
from stantools.sources.source import Capability, SourceRequest
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions
from stantools.streamfiles.framing import END, STORED, Framer, whole_file
from stantools.streamfiles.survey import StreamSurvey

pytestmark = pytest.mark.golden


def streams(path: Path) -> list[tuple[str, str]]:
    source = open_source(path)
    return [(each.account, each.name) for each in source.streams]


@pytest.mark.parametrize(
    ("below", "found"),
    [
        ("", [("ACME", "AUDIT"), ("ACME", "ORDERS"), ("B-corp", "AUDIT"), ("B-corp", "EVENTS")]),
        ("jetstream", [("ACME", "AUDIT"), ("ACME", "ORDERS"), ("B-corp", "AUDIT"), ("B-corp", "EVENTS")]),
        ("jetstream/ACME", [("ACME", "AUDIT"), ("ACME", "ORDERS")]),
        ("jetstream/ACME/streams", [("ACME", "AUDIT"), ("ACME", "ORDERS")]),
        ("jetstream/ACME/streams/ORDERS", [("ACME", "ORDERS")]),
        ("jetstream/ACME/streams/ORDERS/msgs", [("ACME", "ORDERS")]),
    ],
)
def test_every_level_of_a_directory(golden_jetstream: Path, below: str, found: list[tuple[str, str]]) -> None:
    assert streams(golden_jetstream / "ok_accounts15/store" / below) == found


@pytest.mark.parametrize("case", ["dmg_store_nested", "dmg_dir_dot"])
def test_streams_that_a_server_does_not_see(golden_jetstream: Path, case: str) -> None:
    assert sorted(streams(golden_jetstream / case / "store")) == [("$G", "EVENTS"), ("$G", "ORDERS")]


def test_one_node_of_a_cluster(golden_jetstream: Path) -> None:
    node = golden_jetstream / "cl_ok_15/store/n1"
    assert "node of a cluster" in recognise(node).sentence
    found = streams(node)
    assert ("$G", "ORDERS") in found and all(account == "$G" for account, _ in found)


def test_keys(golden_jetstream: Path) -> None:
    path = golden_jetstream / "ok_chacha15/store"
    request = SourceRequest(ReadOptions(encryption_key=b"s3cr3t!!"))
    surveys = [StreamSurvey(each) for each in open_source(path, request).streams]
    assert [each.intact.count() for each in surveys] == [12, 123]


def backup(stream: Path, to: Path, form: str) -> Path:
    to.mkdir()
    (to / "backup.json").write_text(json.dumps({"config": {"name": stream.name}}))
    files = sorted(path for path in stream.rglob("*") if path.is_file())
    tar = b"".join(whole_file(path.relative_to(stream).as_posix(), path.read_bytes(), 1) for path in files) + END
    if form == "stream.tar.s2":
        (to / form).write_bytes(Framer(STORED).frame(tar))
    else:
        (to / form).write_bytes(gzip.compress(tar) if form == "stream.tgz" else tar)
    return to


@pytest.mark.parametrize("form", ["stream.tar.s2", "stream.tar", "stream.tgz"])
def test_backups(golden_jetstream: Path, tmp_path: Path, form: str) -> None:
    path = backup(golden_jetstream / "ok_basic15/store/jetstream/$G/streams/ORDERS", tmp_path / "saved", form)
    assert recognise(path).kind is jetstream.BACKUP
    source = open_source(path)
    (stream,) = source.streams
    assert stream.name == "ORDERS" and not source.flaws and source.archived
    assert StreamSurvey(stream).intact == Ranges.of([(1, 65)])
    place = stream.path.parent
    source.release()
    assert not place.exists()


def test_a_cut_backup_is_read_as_far_as_it_goes(golden_jetstream: Path, tmp_path: Path) -> None:
    path = backup(golden_jetstream / "ok_basic15/store/jetstream/$G/streams/ORDERS", tmp_path / "saved", "stream.tar")
    archive = path / "stream.tar"
    archive.write_bytes(archive.read_bytes()[:-1500])
    source = open_source(path)
    assert "cut or damaged" in source.flaws[0]
    assert source.streams[0].config
    source.release()
    archive.write_bytes(whole_file("../outside", b"x", 1) + END)
    with pytest.raises(Exception, match="nothing of the backup"):
        open_source(path)
    assert not (tmp_path / "outside").exists()


def test_a_use_that_is_not_there_is_named(golden_jetstream: Path, tmp_path: Path) -> None:
    shutil.copytree(golden_jetstream / "ok_basic15/store", tmp_path / "store")
    with pytest.raises(NotAStoreError, match=r"JetStream store directory.*cannot be used for a salvage"):
        open_source(tmp_path / "store").require(Capability.SALVAGE)
