"""One store, given in every way that a source can be given: each verb says the same of all."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.store import locks
from tests.goldenstores import unpacked
from tests.trees import tree

WAYS = ("parent", "archive/part", "tar", "tgz", "tar.bz2", "tar.xz", "tar.zst", "zip")
#: a healthy store, one with a damaged message, one without its log of clients
STORES = ("basic", "dmg_payload_flip_idx_intact", "dmg_server_missing")
#: facts that are not those of the store
_OWN = {"path", "seconds", "page"}


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
    assert "stantools-" not in done.stdout.replace("stantools-salvage", ""), "the name of a private copy"
    assert "/private/stantools-" not in done.stderr
    return done.exit_code, done.stdout, done.stderr


def pack(store: Path, way: str, place: Path) -> Path:
    """Returns a store in one of the ways to give it; `store` is in a directory of its own."""
    name = place / f"backup.{way}"
    if way == "parent":
        return store.parent
    if way in ("zip", "encrypted"):
        shutil.make_archive(str(place / "backup"), "zip", store.parent)
        return place / "backup.zip"
    form = {"tgz": "gz", "tar.bz2": "bz2", "tar.xz": "xz"}.get(way, "")
    name = place / "backup.tar" if way == "archive/part" else name
    with tarfile.open(name, f"w:{form}") as tar:  # type: ignore[call-overload]
        tar.add(store, store.name)
    if way == "tar.zst":
        name.write_bytes(zstandard.compress(name.read_bytes()))
    return name / store.name if way == "archive/part" else name


def facts(text: str, store: Path, given: Path) -> Any:
    """A json document without what belongs to the way a store was given."""
    # beside an archive, as nothing can be made in it
    named = text.replace(f"{given.parent}.", "SOURCE.")
    named = named.replace(json.dumps(str(given))[1:-1], "SOURCE").replace(str(store), "SOURCE")

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(each) for name, each in value.items() if name not in _OWN}
        return [without(each) for each in value] if isinstance(value, list) else value

    return without(json.loads(named))


VERBS = (
    ("info",),
    ("verify",),
    ("forecast",),
    ("doctor",),
    ("subs",),
    ("clients",),
    ("salvage", "--dry-run", "--cluster-id", "c"),
    ("truncate-bad-eof", "--dry-run"),
    ("replay", "--dry-run"),
)


def golden(name: str) -> Path:
    return unpacked() / "stores" / name / "datastore"


@cache
def plain(name: str) -> dict[tuple[str, ...], tuple[int, Any]]:
    """What each verb says of a store itself."""
    store = golden(name)
    said = {}
    for verb, *words in VERBS:
        code, out, _ = run(verb, store, *words, "-o", "json")
        said[(verb, *words)] = code, facts(out, store, store)
    return said


@pytest.mark.parametrize(
    ("name", "way", "verbs"),
    [
        *(("dmg_payload_flip_idx_intact", way, ("info", "verify", "doctor", "messages")) for way in WAYS),
        *((name, "tgz", tuple(verb for verb, *_ in VERBS)) for name in STORES),
        *(pytest.param(n, w, tuple(v for v, *_ in VERBS), marks=pytest.mark.slow) for n in STORES for w in WAYS),
    ],
)
def test_each_verb_says_the_same_of_a_store_in_every_way(
    name: str, way: str, verbs: tuple[str, ...], tmp_path: Path
) -> None:
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden(name), store)
    given = pack(store, way, tmp_path)
    before = tree(tmp_path / "around")
    shown = store if way == "parent" else given
    for (verb, *words), (code, expected) in plain(name).items():
        if verb not in verbs:
            continue
        code_here, out, err = run(verb, given, *words, "-o", "json")
        assert (code_here, facts(out, store, shown)) == (code, expected), (verb, err)
    assert tree(tmp_path / "around") == before


def test_a_salvage_of_an_archive_equals_that_of_the_store(tmp_path: Path) -> None:
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("dmg_payload_flip_idx_intact"), store)
    archive = pack(store, "tgz", tmp_path)
    assert run("salvage", store, "--out", tmp_path / "one")[0] == 5
    assert run("salvage", archive, "--out", tmp_path / "two")[0] == 5
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    manifest = json.loads(two.pop("stantools-salvage.json") or b"")
    one.pop("stantools-salvage.json")
    assert one == two
    assert manifest["source"] == str(archive)
    code, out, _ = run("doctor", archive, "-o", "json")
    command = json.loads(out)["next"]["command"]
    assert code == 1 and command[:3] == ["stantools", "salvage", str(archive)]
    assert run(*command[1:])[0] == 5


@pytest.mark.parametrize("words", [("truncate-bad-eof", "--yes"), ("compact", "--in-place", "--yes")])
def test_an_archive_is_never_changed(words: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("basic"), store)
    archive = pack(store, "tgz", tmp_path)
    before = archive.read_bytes()
    code, _, err = run(words[0], archive, *words[1:])
    assert code == 4 and "never changed" in err and "tar -xf" in err
    assert archive.read_bytes() == before


def test_one_channel_is_a_source(tmp_path: Path) -> None:
    store = tmp_path / "datastore"
    shutil.copytree(golden("basic"), store)
    name = next(each.name for each in sorted(store.iterdir()) if each.is_dir())
    for verb in ("verify", "info", "subs"):
        whole = run(verb, store, "--channel", name, "-o", "json")
        alone = run(verb, store / name, "-o", "json")
        assert alone[0] == whole[0] and facts(alone[1], store, store) == facts(whole[1], store, store), verb
    assert run("messages", store / name, name)[:2] == run("messages", store, name)[:2]
    for verb in ("forecast", "doctor", "truncate-bad-eof"):
        code, _, err = run(verb, store / name)
        assert code == 3 and "folder of one channel" in err and f"stantools doctor {store}" in err
    shutil.copytree(store / name, tmp_path / "elsewhere" / name)
    code, out, err = run("verify", tmp_path / "elsewhere" / name, "-o", "json")
    assert "is not there" in err and json.loads(out)["channels"][0]["name"] == name
    assert not {each["code"] for each in json.loads(out)["findings"]} & {"server-missing", "clients-missing"}


def test_a_node_in_an_archive(tmp_path: Path) -> None:
    node = unpacked() / "clusters" / "snapshots" / "nodes" / "a"
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(node, "nodes/a")
    channel = next(each.name for each in sorted((node / "data").iterdir()) if each.is_dir())
    for verb, *words in (("verify",), ("doctor",), ("subs",), ("clients",), ("replay", "--dry-run")):
        plain_, archived = run(verb, node, *words, "-o", "json"), run(verb, tmp_path / "a.tar", *words, "-o", "json")
        assert facts(archived[1], node, tmp_path / "a.tar") == facts(plain_[1], node, node), verb
        assert archived[0] == plain_[0]
    plain_, archived = run("messages", node, channel), run("messages", tmp_path / "a.tar", channel)
    assert archived[:2] == plain_[:2] == run("messages", node / "data", channel)[:2]
    assert "only its Raft log" in plain_[2]


def test_a_replay_of_a_node_has_the_messages_of_its_raft_log(tmp_path: Path) -> None:
    """A message may be in the log alone: a node whose file store is lost still replays those."""
    node = unpacked() / "clusters" / "snapshots" / "nodes" / "a"
    shutil.copytree(node / "raft", tmp_path / "node" / "raft")
    code, out, err = run("replay", tmp_path / "node", "--dry-run", "-o", "json")
    orders = next(each for each in json.loads(out)["channels"] if each["name"] == "orders")
    assert code == 1 and orders["messages"] == 3 and "not intact: orders" in err
    code, _, err = run("messages", tmp_path / "node", "orders")
    assert code == 3 and "file store of the node is missing" in err


@pytest.mark.parametrize("way", ["archive/part", "tgz", "zip"])
def test_a_single_file_in_an_archive(way: str, tmp_path: Path, private: Path) -> None:
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("dmg_payload_flip_idx_intact"), store)
    given = pack(store, way, tmp_path)
    within = given if way == "archive/part" else given / "datastore"
    archive = given.parent if way == "archive/part" else given
    for path in sorted(store.rglob("*")):
        if path.is_file():
            name = path.relative_to(store)
            code, out, err = run("records", path, "-o", "json")
            assert run("records", within / name, "-o", "json") == (code, out.replace(str(store), str(within)), err), (
                name
            )
    for wrong in (archive, within / name.parent, within / "msgs.7.dat"):
        code, _, err = run("records", wrong)
        assert code == 3 and f"`stantools records {within}/" in " ".join(err.split()), wrong
    code, _, err = run("verify", within / name)
    assert code == 3 and f"`stantools records {within / name}`" in " ".join(err.split())


def test_a_damaged_file_in_an_archive(tmp_path: Path) -> None:
    """What is left of it is printed, and the result is not clean."""
    archive = pack(golden("basic"), "tar", tmp_path)
    path = max(golden("basic").rglob("msgs.*.dat"), key=lambda each: each.stat().st_size)
    data = archive.read_bytes()
    archive.write_bytes(data[: data.index(path.read_bytes()) + path.stat().st_size - 5])
    code, out, err = run("records", archive / path.relative_to(golden("basic").parent), "-o", "ndjson")
    whole = run("records", path, "-o", "ndjson")[1].splitlines()
    assert code == 1 and out.splitlines()[:-1] == whole[:-1] and len(whole) > 2
    assert "cut short" in " ".join(err.split())


def test_several_stores_are_named_with_the_command_for_all(tmp_path: Path) -> None:
    for name in "ab":
        shutil.copytree(golden("basic"), tmp_path / "all" / name)
    code, _, err = run("subs", tmp_path / "all")
    assert code == 3 and f"`stantools verify {tmp_path / 'all'}`" in " ".join(err.split())
    assert run("verify", tmp_path / "all")[0] == 0
    archive = pack(tmp_path / "all", "tar", tmp_path)
    code, _, err = run("verify", archive)
    assert code == 3 and "several stores (2: all/a, all/b)" in " ".join(err.split())
    assert run("verify", archive / "all" / "b")[0] == 0


def hostile(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    import io

    with tarfile.open(path, "w") as tar:
        tar.add(golden("basic"), "datastore")
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


@pytest.mark.parametrize(
    ("name", "kind", "link", "code"),
    [
        ("../../outside", tarfile.REGTYPE, "", 0),
        ("datastore/../../outside", tarfile.REGTYPE, "", 0),
        ("datastore/server.dat", tarfile.SYMTYPE, "/etc/passwd", 1),
        ("datastore/x", tarfile.SYMTYPE, "..", 1),
        ("datastore/hard", tarfile.LNKTYPE, "datastore/server.dat", 1),
        ("datastore/pipe", tarfile.FIFOTYPE, "", 0),
        ("datastore/disk", tarfile.BLKTYPE, "", 0),
    ],
)
def test_members_that_are_no_files_of_the_archive(
    name: str, kind: bytes, link: str, code: int, tmp_path: Path, private: Path
) -> None:
    """They are left out and named; where a part of the store may be missing, the result is not clean."""
    content = b"evil" if kind == tarfile.REGTYPE else b""
    archive = hostile(tmp_path / "a.tar", (member(name, kind, len(content), link), content))
    found = run("verify", archive)
    assert found[0] == code and name in found[2]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.tar", "private"]


def test_an_absolute_name_is_a_name_in_the_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in sorted(golden("basic").rglob("*")):
            info = tar.gettarinfo(path)
            info.name = "/" + str(path.relative_to(golden("basic").parent))
            with path.open("rb") if path.is_file() else tempfile.TemporaryFile() as file:
                tar.addfile(info, file)
    assert run("verify", tmp_path / "a.tar")[0] == 0


def test_a_name_that_occurs_twice(tmp_path: Path) -> None:
    """The last one counts, as when it is unpacked."""
    content = (golden("basic") / "server.dat").read_bytes()
    archive = hostile(tmp_path / "a.tar", (member("./datastore//server.dat", size=4), b"evil"))
    assert run("verify", archive)[0] == 1
    archive = hostile(
        tmp_path / "b.tar",
        (member("datastore/server.dat", size=4), b"evil"),
        (member("datastore/server.dat", size=len(content)), content),
    )
    code, _, err = run("verify", archive)
    assert code == 0 and "more than once" in err


def test_bombs(tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes too large is refused before the disk is full."""
    from stantools.sources import archive as module

    monkeypatch.setattr(module, "_LARGE", 1 << 20)
    monkeypatch.setattr(module, "_RATIO", 20)
    with tarfile.open(tmp_path / "a.txz", "w:xz") as tar:
        tar.add(golden("basic"), "datastore")
        with tempfile.TemporaryFile() as zeros:
            zeros.truncate(64 << 20)
            tar.addfile(member("datastore/x/msgs.1.dat", size=64 << 20), zeros)
    code, _, err = run("verify", tmp_path / "a.txz")
    assert code == 4 and "larger than" in err
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.write(golden("basic") / "server.dat", "server.dat")
        made.writestr("x/msgs.1.dat", bytes(64 << 20))
    code, _, err = run("verify", tmp_path / "a.zip")
    assert code == 4 and "larger than" in err


def test_a_member_that_claims_too_much(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(golden("basic"), "datastore")
        tar.addfile(member("datastore/x/msgs.1.dat", size=1 << 50))
    code, _, err = run("verify", tmp_path / "a.tar")
    assert code == 3 and "free" in err and "TMPDIR" in err


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_huge_headers(kind: bytes, tmp_path: Path) -> None:
    """A header takes no memory beyond a bound, whatever size it claims."""
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(golden("basic"), "datastore")
        with tempfile.TemporaryFile() as zeros:
            zeros.truncate(3 << 20)
            tar.addfile(member("x", kind, 3 << 20), zeros)
    code, _, err = run("verify", archive)
    assert code == 1 and "header is larger" in err


def test_encrypted_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        made.write(golden("basic") / "server.dat", "server.dat")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    code, _, err = run("verify", tmp_path / "a.zip")
    assert code == 3 and "is encrypted" in err


@pytest.mark.parametrize("way", ["tar", "tgz", "tar.bz2", "tar.xz", "tar.zst", "zip"])
def test_a_cut_archive_is_never_clean(way: str, tmp_path: Path) -> None:
    """At whatever byte it is cut: what is left is read, and the result says that something is missing."""
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("basic"), store)
    archive = pack(store, way, tmp_path)
    data = archive.read_bytes()
    readable = 0
    for number in (1, 6, 11):
        archive.write_bytes(data[: len(data) * number // 12])
        for verb in ("verify", *(("info",) if number == 6 else ())):
            code, out, err = run(verb, archive, "-o", "json")
            assert code in (1, 3), (number, out)
            if code == 1 and verb == "verify":
                readable += 1
                assert "archive-incomplete" in {each["code"] for each in json.loads(out)["findings"]}
                assert "cut" in err
    assert readable or way in ("zip", "tar.bz2", "tar.xz", "tar.zst")  # these are one block


@pytest.mark.parametrize("way", ["tar", "zip"])
def test_any_byte_of_an_archive_may_be_wrong(way: str, tmp_path: Path) -> None:
    import random

    archive = pack(golden("basic"), way, tmp_path) if way == "tar" else None
    if archive is None:
        shutil.copytree(golden("basic"), tmp_path / "around" / "datastore")
        archive = pack(tmp_path / "around" / "datastore", way, tmp_path)
    data, chance = archive.read_bytes(), random.Random(5)
    for _ in range(6):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 20)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        archive.write_bytes(changed)
        assert run("verify", archive)[0] in (0, 1, 3, 4)
    assert {each.name for each in tmp_path.iterdir()} <= {archive.name, "private", "around"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_after_a_signal(number: int, tmp_path: Path, private: Path) -> None:
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("basic"), store)
    archive = pack(store, "tgz", tmp_path)
    # more than a pipe holds: it waits for its reader
    channel = "Deep.er.channel_name-1"
    command = [sys.executable, "-m", "stantools", "messages", str(archive), channel, "-o", "ndjson"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout and running.stdout.readline()
        assert [each.stat().st_mode & 0o777 for each in private.iterdir()] == [0o700]
        running.send_signal(number)
        running.wait(20)
    assert not list(private.iterdir())


def test_nothing_stays_when_the_reader_of_the_output_is_gone(tmp_path: Path, private: Path) -> None:
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("basic"), store)
    archive = pack(store, "tgz", tmp_path)
    command = f"{sys.executable} -m stantools verify {archive} -o json | head -c 1 > /dev/null"
    subprocess.run(["sh", "-c", command], check=False, stderr=subprocess.DEVNULL, timeout=60)
    deadline = time.monotonic() + 20
    while list(private.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(private.iterdir())


def test_files_that_are_written_name_the_archive(tmp_path: Path) -> None:
    """No private path is in an export, a plan of a migration or a page."""
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("basic"), store)
    archive = pack(store, "zip", tmp_path)
    for number, words in enumerate((("--format", "ndjson"), ("--table", "slices", "--format", "csv"))):
        assert run("export", archive, "--to", tmp_path / f"export{number}", *words)[0] == 0
    assert run("migrate", "plan", archive, "--out", tmp_path / "out", "--plan", tmp_path / "plan.yaml")[0] in (0, 1)
    assert run("report", archive, "--html", tmp_path / "page.html")[0] in (0, 1)
    written = [each for each in tmp_path.rglob("*") if each.is_file() and store not in each.parents]
    for each in written:
        assert b"private/stantools-" not in each.read_bytes(), each
    assert len(written) >= 7 and str(archive) in (tmp_path / "plan.yaml").read_text()


def test_only_the_channels_asked_for_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stantools.sources import archived_store

    copied: list[str] = []
    write = archived_store._write
    monkeypatch.setattr(archived_store, "_write", lambda path, *more: (copied.append(str(path)), write(path, *more))[1])
    store = tmp_path / "around" / "datastore"
    shutil.copytree(golden("basic"), store)
    (store.parent / "other.log").write_text("a log")
    names = [each.name for each in sorted(store.iterdir()) if each.is_dir()]
    archive = pack(store, "zip", tmp_path)
    assert run("messages", archive, names[0])[0] == 0
    assert {Path(each).parent.name for each in copied} == {names[0], "datastore"}
    assert "other.log" not in {Path(each).name for each in copied}
