"""JetStream directories in archives: each verb says of them what it says of the directory."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.sources.archive import Archive
from stantools.sources.archived_store import store_members
from stantools.sources.door import recognise
from stantools.sources.jetstream import listed_streams
from stantools.sources.store_search import DirectoryNames
from stantools.store import locks

pytestmark = pytest.mark.golden
#: facts that are not those of the store
OWN = {"path", "seconds", "in_use", "command", "commands", "next"}
VERBS = (
    ("info",),
    ("verify",),
    ("forecast", "--server-version", "2.15"),
    ("doctor",),
    ("subs",),
    ("messages", "ORDERS", "--seq", "1:3"),
    ("salvage", "--dry-run"),
)


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for private copies; it is empty after every test."""
    place = tmp_path / "private"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(locks, "QUIET_SECONDS", 0.01)
    yield place
    assert not list(place.iterdir())


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, [str(each) for each in words], prog_name="stantools")
    assert "Traceback" not in done.stderr and "error: unexpected" not in done.stderr, done.stderr
    assert "/private/stantools-" not in done.output, "the name of a private copy"
    return done.exit_code, done.stdout, done.stderr


def said(verb: str, place: Path, *words: str) -> tuple[int, Any]:
    code, out, err = run(verb, place, *words, *(("-o", "ndjson" if verb == "messages" else "json")))
    if verb == "messages":
        return code, out
    assert out, err

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(each) for name, each in value.items() if name not in OWN}
        return [without(each) for each in value] if isinstance(value, list) else value

    return code, without(json.loads(out.replace(json.dumps(str(place))[1:-1], "SOURCE")))


def tar(archive: Path, form: str, *folders: tuple[Path, str]) -> Path:
    with tarfile.open(archive, f"w:{form}") as file:  # type: ignore[call-overload]
        for folder, name in folders:
            file.add(folder, name)
    return archive


def test_each_verb_says_the_same(golden_jetstream: Path, tmp_path: Path) -> None:
    store = golden_jetstream / "dmg_cut_mid_idx_10/store"
    archive = tar(tmp_path / "backup.tgz", "gz", (store, "srv/data"))
    for verb, *words in VERBS:
        assert said(verb, archive / "srv/data", *words) == said(verb, store, *words), verb
    code = run("salvage", archive, "--out", tmp_path / "new")[0]
    assert code in (0, 5) and said("info", tmp_path / "new")[1]["streams"]
    assert run("repair", archive, "--in-place", "--yes")[0] == 4
    code, _, err = run("guard", archive, "--", "true")
    assert code == 2 and "no directory" in err


@pytest.mark.parametrize("form", ["tar", "zip", "tar.zst"])
def test_every_form(golden_jetstream: Path, tmp_path: Path, form: str) -> None:
    store, archive = golden_jetstream / "ok_accounts15/store", tmp_path / f"backup.{form}"
    if form == "zip":
        with zipfile.ZipFile(archive, "w") as made:
            for path in sorted(store.rglob("*")):
                made.write(path, path.relative_to(store))
    else:
        tar(archive, "", (store, "."))
        if form == "tar.zst":
            archive.write_bytes(zstandard.compress(archive.read_bytes()))
    assert said("info", archive) == said("info", store)


@pytest.mark.parametrize(
    ("packed", "below"),
    [
        ("jetstream", ""),
        ("jetstream", "jetstream"),
        ("jetstream", "jetstream/ACME"),
        ("jetstream", "jetstream/ACME/streams"),
        ("jetstream", "jetstream/ACME/streams/ORDERS"),
        ("jetstream", "jetstream/ACME/streams/ORDERS/msgs"),
        ("ACME", ""),
        ("ORDERS", ""),
        (".", ""),
    ],
)
def test_every_level_of_a_directory(golden_jetstream: Path, tmp_path: Path, packed: str, below: str) -> None:
    root = golden_jetstream / "ok_accounts15/store/jetstream"
    folder = {"jetstream": root, "ACME": root / "ACME"}.get(packed, root / "ACME/streams/ORDERS")
    archive = tar(tmp_path / "saved.tar", "", (folder, packed))
    given = archive / below if below else archive
    place = root.parent / below if below else folder
    streams = said("info", given)[1]["streams"]
    if packed in ("ORDERS", "."):  # the account is in the names of directories that are not there
        assert {each["account"] for each in streams} == {"$G"}
        assert [each["name"] for each in streams] == ["ORDERS"]
        assert said("verify", given)[1]["findings"] == []
    else:
        assert streams == said("info", place)[1]["streams"]


def test_nodes_of_a_cluster(golden_jetstream: Path, tmp_path: Path) -> None:
    nodes = golden_jetstream / "cl_flip_each_node/store"
    archive = tar(tmp_path / "nodes.tar", "", (nodes, "nodes"))
    assert said("info", archive) == said("info", nodes)
    assert said("forecast", archive, "--server-version", "2.15") == said("forecast", nodes, "--server-version", "2.15")


@pytest.mark.slow
def test_nodes_in_archives_of_their_own(golden_jetstream: Path, tmp_path: Path) -> None:
    nodes = golden_jetstream / "cl_flip_each_node/store"
    archive = tar(tmp_path / "nodes.tar", "", (nodes, "nodes"))
    assert said("salvage", archive / "nodes/n1", "--dry-run") == said("salvage", nodes / "n1", "--dry-run")
    single = [tar(tmp_path / f"{name}.tar", "", (nodes / name, ".")) for name in ("n1", "n2", "n3")]
    for verb, *words in (("forecast", "--server-version", "2.15"), ("salvage", "--dry-run")):
        code, out, err = run(verb, *single, *words, "-o", "json")
        expected, plain, _ = run(verb, *(nodes / name for name in ("n1", "n2", "n3")), *words, "-o", "json")
        assert code == expected, err
        told = json.dumps(json.loads(out), sort_keys=True).replace(".tar", "").replace(str(tmp_path), "X")
        assert told == json.dumps(json.loads(plain), sort_keys=True).replace(str(nodes), "X"), verb


def test_a_directory_that_was_copied_a_level_too_deep(golden_jetstream: Path, tmp_path: Path) -> None:
    store = golden_jetstream / "dmg_store_nested/store"
    archive = tar(tmp_path / "nested.tar", "", (store / "jetstream", "jetstream"))
    words = "--server-version", "2.15"
    assert said("forecast", archive, *words) == said("forecast", store, *words)
    assert said("forecast", store, *words)[1]["streams"]["$G/ORDERS"]["loaded"] is False


def test_a_backup_in_an_archive(golden_jetstream: Path, tmp_path: Path) -> None:
    from tests.sources.test_jetstream import backup

    saved = backup(golden_jetstream / "ok_basic15/store/jetstream/$G/streams/ORDERS", tmp_path / "saved", "stream.tar")
    archive = tar(tmp_path / "backup.tar", "", (saved, "saved"))
    assert said("info", archive) == said("info", saved)


def test_only_the_streams_asked_for_are_copied(
    golden_jetstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden_jetstream / "ok_basic15/store"
    archive = tar(tmp_path / "backup.tar", "", (store, "."))
    copied = []
    contents = Archive.contents

    def recorded(self: Archive, wanted: Any) -> Any:
        for member, parts in contents(self, wanted):
            copied.append(member.name)
            yield member, parts

    monkeypatch.setattr(Archive, "contents", recorded)
    words = "--channel", "EVENTS"
    assert said("verify", archive, *words) == said("verify", store, *words)
    assert any("/EVENTS/" in each for each in copied) and not any("/ORDERS/" in each for each in copied)
    code, _, err = run("verify", archive, "--channel", "NONE")
    assert code == 2 and "no stream matches" in err


def test_records_of_a_block(golden_jetstream: Path, tmp_path: Path) -> None:
    store = golden_jetstream / "ok_chacha15/store"
    archive = tar(tmp_path / "backup.tar", "", (store, "."))
    (tmp_path / "key").write_bytes(b"s3cr3t!!")
    block = "jetstream/$G/streams/ORDERS/msgs/1.blk"
    words = "--encryption-key-file", tmp_path / "key", "-o", "ndjson"
    assert run("records", archive / block, *words)[:2] == run("records", store / block, *words)[:2]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (member("../jetstream/$G/streams/EVIL/meta.inf"), "outside of it"),
        (member("jetstream/$G/streams/" + "a/" * 3000 + "meta.inf"), "named too long"),
        (member("jetstream/$G/streams/" + "x" * 5000 + "/meta.inf"), "named too long"),
        (member("jetstream/$G/streams/" + "y" * 300 + "/meta.inf"), "cannot be copied"),
        (member("jetstream/$G/streams/ORDERS/msgs/9.blk", tarfile.SYMTYPE, "/etc/passwd"), "not followed"),
        (member("jetstream/$G/streams/ORDERS/msgs/9.blk", tarfile.LNKTYPE, "../../../etc/passwd"), "not followed"),
        (member("jetstream/$G/streams/ORDERS/msgs/9.blk", tarfile.CHRTYPE), "left out"),
    ],
)
def test_hostile_members(golden_jetstream: Path, tmp_path: Path, made: tarfile.TarInfo, says: str) -> None:
    store = golden_jetstream / "ok_basic15/store"
    archive = tar(tmp_path / "backup.tar", "", (store, "."))
    with tarfile.open(archive, "a") as file:
        file.addfile(made)
    code, out, err = run("verify", archive, "-o", "json")
    assert code in (0, 1) and says in " ".join(err.split()), err
    assert [each["messages"] for each in json.loads(out)["streams"]][:2] == [26, 65]


def test_what_is_none_or_several_is_named(golden_jetstream: Path, tmp_path: Path) -> None:
    streams = golden_jetstream / "ok_basic15/store/jetstream/$G/streams"
    archive = tar(tmp_path / "two.tar", "", *((streams / name, name) for name in ("ORDERS", "EVENTS")))
    code, _, err = run("info", archive)
    assert code == 3 and "several stores (2: EVENTS, ORDERS)" in " ".join(err.split())
    assert said("info", archive / "ORDERS")[1]["streams"][0]["messages"] == 65
    stan = golden_jetstream.parent / "stores/basic/datastore"
    archive = tar(tmp_path / "both.tar", "", (stan, "stan"), (streams.parents[1], "js/jetstream"))
    code, _, err = run("info", archive)
    assert code == 3 and "several stores (2: js/jetstream, stan)" in " ".join(err.split())
    assert said("info", archive / "js")[0] == said("info", archive / "stan")[0] == 0


def test_a_million_names_are_no_work() -> None:
    """The search takes time in proportion to the names, however deep and however many roots there are."""
    deep = {"/".join(["d"] * number): DirectoryNames({"meta.inf", "meta.sum"}, []) for number in range(1, 100)}
    wide = {f"n{number}/$G/streams/S": DirectoryNames({"meta.inf", "meta.sum"}, []) for number in range(20_000)}
    found = listed_streams({**deep, **wide})
    assert found.roots[0] == "d" and len(found.roots) == 20_001 and len(found.nodes) == 20_000


def test_an_archive_without_a_store(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("x")
    archive = tar(tmp_path / "a.tar", "", (tmp_path / "note.txt", "note.txt"))
    assert store_members(Archive(archive, "tar").members(), "", ()) is None
    code, _, err = run("info", archive)
    assert code == 3 and "without a store" in err


def test_the_next_step_is_a_salvage_from_the_archive(golden_jetstream: Path, tmp_path: Path) -> None:
    archive = tmp_path / "damaged.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(golden_jetstream / "dmg_two_flips" / "store", "nats")
    for verb in (("doctor",), ("forecast",), ("repair", "--dry-run")):
        for place in (archive, archive / "nats"):
            out = run(verb[0], place, *verb[1:])[1]
            assert f"stantools salvage {place} --out {archive}.salvaged" in out
            assert "cp -a" not in out and "copy" not in out
            assert verb[0] != "doctor" or "repair" not in out, "an archive is never changed"


def test_the_blocks_of_a_stream_alone(golden_jetstream: Path, tmp_path: Path) -> None:
    """They lie where no server looks for them; the advice is about the folder that was named."""
    place = tmp_path / "found" / "ORDERS" / "msgs"
    (stored,) = (golden_jetstream / "dmg_two_flips" / "store").glob("jetstream/*/streams/ORDERS/msgs")
    shutil.copytree(stored, place)
    code, out, _ = run("doctor", place)
    assert code == 1 and f"stantools salvage {place} --out {place}.salvaged" in out
    assert f"`stantools salvage {place} --out {place}.salvaged` writes" in recognise(place).remedy
