"""JetStream directories and backups as sources: every stream is found, whatever is named."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import NotAStoreError
from stantools.inspection.stream_overview import stream_overviews
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
    with pytest.raises(NotAStoreError, match=r"JetStream store directory.*compacts its blocks itself") as problem:
        open_source(tmp_path / "store").require(Capability.COMPACTION)
    assert f"`stantools salvage {tmp_path / 'store'} --out NEW`" in problem.value.remedy


@pytest.mark.parametrize("verb", ["compact", "clients", "replay", "messages", "guard", "repair"])
def test_a_verb_that_is_not_for_streams_names_one_that_is(golden_jetstream: Path, tmp_path: Path, verb: str) -> None:
    """Of a directory, an archive of it, and a backup of one stream."""
    store = golden_jetstream / "ok_basic15/store"
    with tarfile.open(tmp_path / "saved.tar", "w") as tar:
        tar.add(store, "store")
    saved = backup(store / "jetstream/$G/streams/ORDERS", tmp_path / "saved", "stream.tar")
    words = {
        "compact": ("--out", str(tmp_path / "new")),
        "messages": ("ORDERS", "--follow"),
        "replay": ("--dry-run",),
        "repair": ("--in-place", "--yes"),
    }
    for path in (store, tmp_path / "saved.tar", saved):
        done = CliRunner().invoke(cli, [verb, str(path), *words.get(verb, ())], prog_name="stantools")
        text = " ".join(done.output.split())
        assert "Traceback" not in text and "unexpected" not in text and "/tmp/stantools-" not in text, text
        if path == store and verb in ("guard", "repair"):
            assert done.exit_code == 0, text
        elif verb == "guard" and path == saved:
            assert (done.exit_code, "no server starts on it" in text) == (0, True), text
        else:
            assert done.exit_code in (2, 3, 4) and "->" in text, text


def test_a_backup_with_folders_in_its_archive(golden_jetstream: Path, tmp_path: Path) -> None:
    saved = backup(golden_jetstream / "ok_basic15/store/jetstream/$G/streams/ORDERS", tmp_path / "saved", "stream.tar")
    with tarfile.open(saved / "stream.tar", "w") as tar:
        tar.add(golden_jetstream / "ok_basic15/store/jetstream/$G/streams/ORDERS", ".")
    source = open_source(saved)
    assert not source.flaws and StreamSurvey(source.streams[0]).intact == Ranges.of([(1, 65)])
    source.release()


def info(path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(cli, ["info", str(path), "-o", "json", *words], prog_name="stantools")
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, json.loads(done.stdout), done.stderr


#: Facts that servers of 2.9 count wrongly, and what servers say of a stream that was never used.
NOT_COMPARED = {
    ("ok_blocks9", "$G/ORDERS"): {"num_deleted"},
    ("ok_deletes9", "$G/ORDERS"): {"num_deleted"},
    ("ok_edges15", "$G/ORDERS"): {"num_deleted"},
    ("ok_edges9", "$G/ORDERS"): {"first_seq"},
}


def test_too_many_subjects_are_not_counted(
    golden_jetstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(golden_jetstream / "ok_basic15/store", tmp_path / "store")
    for index in (tmp_path / "store").rglob("index.db"):
        index.unlink()
    counts = [each["num_subjects"] for each in info(tmp_path / "store")[1]["streams"]]
    assert min(counts) > 1
    monkeypatch.setattr("stantools.streamfiles.subjects._MAX_SUBJECTS", 1)
    assert {each["num_subjects"] for each in info(tmp_path / "store")[1]["streams"]} == {None}


def test_info_is_what_the_server_says(golden_jetstream: Path) -> None:
    names = {"messages", "bytes", "first_seq", "last_seq", "num_deleted", "num_subjects"}
    consumers = 0
    for path in sorted(golden_jetstream.glob("ok_*/expected.json")):
        case, expected = path.parent.name, json.loads(path.read_text())
        key = expected["server_settings"]["jetstream"].get("key")
        request = SourceRequest(ReadOptions(encryption_key=key.encode() if key else None))
        found = {
            f"{each.account}/{each.name}": each
            for each in stream_overviews(open_source(path.parent / "store", request))
        }
        assert all(not each.problems for each in found.values() if case not in ("ok_deletes9", "ok_s2_10")), case
        for stream, seen in expected["original"]["streams"].items():
            if "writer_reads_less" in expected or (stream not in found and not seen["messages"]):
                continue
            said = found[stream].as_json()
            compared = names - NOT_COMPARED.get((case, stream), set())
            assert {name: said[name] for name in compared} == {name: seen[name] for name in compared}, (case, stream)
            states = {each["name"]: each for each in said["consumers"]}
            for name, state in (seen.get("consumers") or {}).items():
                if name in states:
                    consumers += 1
                    assert states[name]["delivered"] == state["delivered"], (case, stream, name)
                    assert states[name]["ack_floor"] == state["ack_floor"], (case, stream, name)
    assert consumers > 100


def test_info_on_the_command_line(golden_jetstream: Path) -> None:
    code, said, _ = info(golden_jetstream / "ok_basic15/store")
    assert (code, said["schema"], said["kind"]) == (0, 1, "jetstream")
    assert [(each["name"], each["messages"]) for each in said["streams"]] == [("EVENTS", 26), ("ORDERS", 65)]
    code, said, _ = info(golden_jetstream / "ok_basic15/store", "--channel", "EVENTS")
    assert [each["name"] for each in said["streams"]] == ["EVENTS"]
    code, said, stderr = info(golden_jetstream / "dmg_meta_sum_flip/store")
    assert code == 1 and "$G/ORDERS: meta.sum: it is" in stderr
    assert [each["messages"] for each in said["streams"]] == [12, 123]
    code, said, stderr = info(golden_jetstream / "enc_no_key/store")
    assert code == 1 and "meta.key: the stream is encrypted, and no key was given" in stderr
    for form in ("table", "csv", "ndjson"):
        done = CliRunner().invoke(cli, ["info", str(golden_jetstream / "ok_basic15/store"), "-o", form])
        assert done.exit_code == 0 and "EVENTS" in done.stdout


@pytest.mark.parametrize("verb", ["info", "verify", "doctor", "forecast", "subs", "salvage", "guard"])
def test_directories_without_a_stream(tmp_path: Path, verb: str) -> None:
    """A server has made its folders, and nothing else: a first start. Without its groups, a node begins anew."""
    (tmp_path / "new/jetstream/$G/streams").mkdir(parents=True)
    (tmp_path / "node/jetstream/$SYS/_js_").mkdir(parents=True)
    (tmp_path / "node/jetstream/$SYS/note").write_text("x")
    words = ("--out", str(tmp_path / "out")) if verb == "salvage" else ()
    for name, says in (("new", "without any file in it"), ("node", "without a stream or a Raft group")):
        done = CliRunner().invoke(cli, [verb, str(tmp_path / name), *words], prog_name="stantools")
        text = " ".join(done.output.split())
        if verb == "guard":
            assert done.exit_code == 0 and ("a first start" in text if name == "new" else says in text), text
        else:
            assert done.exit_code == 3 and says in text and "-dir" not in text, text


def test_a_node_whose_streams_were_deleted_as_orphans_is_not_healthy(golden_jetstream: Path) -> None:
    """Their messages are in the Raft logs alone; with a node that has the directories, nothing is said of logs."""
    nodes = golden_jetstream / "cl_after_orphans_15/store"
    done = CliRunner().invoke(cli, ["doctor", str(nodes / "n1"), "-o", "json"], prog_name="stantools")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["state"]) == (1, "damaged")
    assert document["next"]["commands"][1].startswith("stantools salvage")
    done = CliRunner().invoke(cli, ["verify", str(nodes / "n1"), "-o", "json"], prog_name="stantools")
    found = [each for each in json.loads(done.stdout)["findings"] if each["code"] == "js-orphan"]
    assert done.exit_code == 1 and "$G/ORDERS" in found[0]["detail"]
    done = CliRunner().invoke(cli, ["forecast", str(nodes / "n1")], prog_name="stantools")
    assert done.exit_code == 1 and "Only Raft logs are here of $G/ORDERS" in " ".join(done.stdout.split())
    assert open_source(golden_jetstream / "cl_ok_15/store/n1").logged_streams() == []


@pytest.mark.parametrize("lost", ["", "n1", "n1.copy"], ids=["whole", "node without meta group", "copy without it"])
def test_a_copy_of_a_node_is_no_node(golden_jetstream: Path, tmp_path: Path, lost: str) -> None:
    """As the advice to copy the directories first makes them: neither its vote nor its streams count twice."""
    place = shutil.copytree(golden_jetstream / "cl_meta_old/store", tmp_path / "nodes")
    plain = {verb: run_json(verb, place) for verb in ("info", "verify", "forecast", "doctor")}
    nodes = recognise(place).sentence
    for name in ("n1.copy", "n1 (copy)"):
        shutil.copytree(place / "n1", place / name)
    if lost:
        shutil.rmtree(place / lost / "jetstream/$SYS/_js_/_meta_")
    assert ", 3 nodes of" in nodes and recognise(place).sentence == f"{nodes}, and 2 copies of a node"
    source = open_source(place)
    assert {each.node for each in source.raft_groups} == {each.node for each in source.streams} == {"n1", "n2", "n3"}
    assert [str(place / name) in note for name, note in zip(("n1.copy", "n1 (copy)"), source.notes, strict=True)]
    if lost != "n1":
        for verb, before in plain.items():
            assert run_json(verb, place) == before, verb
    named = [place / each for each in ("n1", "n2", "n3")]
    assert run_json("forecast", *named, place / "n1.copy") == run_json("forecast", *named)


def run_json(*words: str | Path) -> Any:
    done = CliRunner().invoke(cli, [*map(str, words), "-o", "json"], prog_name="stantools")
    assert done.exit_code in (0, 1), done.output
    document = json.loads(done.stdout)
    document.pop("seconds", None)
    return document


def test_only_groups_tell_that_a_node_is_a_copy(golden_jetstream: Path, tmp_path: Path) -> None:
    """Streams are equal on all nodes, and files of zeros on all disks: without a group of its own, a node counts."""
    place = shutil.copytree(golden_jetstream / "cl_sys_lost_all/store", tmp_path / "nodes")
    assert jetstream.node_copies(jetstream.node_places(place)) == {}
    place = shutil.copytree(golden_jetstream / "cl_ok_15/store", tmp_path / "zeros")
    for each in place.glob("*/jetstream/$SYS/_js_/*/meta.inf"):
        each.write_bytes(bytes(each.stat().st_size))
    assert jetstream.node_copies(jetstream.node_places(place)) == {}


@pytest.mark.parametrize("verb", ["info", "verify", "subs"])
def test_a_stream_is_chosen_by_account_and_name(golden_jetstream: Path, verb: str) -> None:
    found = run_json(verb, golden_jetstream / "ok_accounts15/store", "--channel", "ACME/AUDIT")
    assert [(each["account"], each["name"]) for each in found["streams"]] == [("ACME", "AUDIT")]


def test_info_of_several_names_streams_of_which_only_a_log_is_here(golden_jetstream: Path) -> None:
    nodes = golden_jetstream / "cl_after_orphans_15/store"
    done = CliRunner().invoke(cli, ["info", str(nodes / "n1"), str(nodes / "n2")], prog_name="stantools")
    text = " ".join(done.stderr.split())
    assert done.exit_code == 1 and text.count("$G/ORDERS: only a Raft log of it is here") == 2, text
