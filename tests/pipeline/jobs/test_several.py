"""A verb over several sources says of each what it says of one alone, whatever kind of source it is."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stantools.cli.main import cli
from stantools.cli.verbs import JOBS
from stantools.errors import ExitCode
from stantools.store.sample import SampleOptions, write_sample
from tests.trees import tree


def run(*words: object) -> Result:
    result = CliRunner().invoke(cli, [str(each) for each in (*words, "--progress", "none")])
    assert "error: unexpected" not in result.stderr and "Traceback" not in result.output, result.output
    return result


def document(*words: object) -> Any:
    text = re.sub(r'"seconds": [\d.e-]+', '"seconds": 0', run(*words, "-o", "json").stdout)
    return json.loads(text)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, golden_clusters: Path) -> dict[str, Path]:
    """One source of each kind that all of these verbs take."""
    root = tmp_path_factory.mktemp("several")
    write_sample(root / "whole", SampleOptions(channels=2, messages=40))
    write_sample(root / "damaged", SampleOptions(channels=2, messages=40, seed=2, damage=["flipped-byte"]))
    (root / "parent").mkdir()
    shutil.copytree(root / "damaged", root / "parent" / "store")
    with tarfile.open(root / "packed.tgz", "w:gz") as packed:
        packed.add(root / "whole", "shop")
    (root / "cut.tgz").write_bytes((root / "packed.tgz").read_bytes()[:-600])
    channel = next(each for each in sorted((root / "whole").iterdir()) if each.is_dir())
    kinds = {name: root / name for name in ("whole", "damaged", "parent", "packed.tgz", "cut.tgz")}
    return kinds | {"channel": channel, "node": golden_clusters / "snapshots" / "nodes" / "a"}


@pytest.mark.parametrize("verb", ["verify", "info", "doctor"])
def test_each_of_several_is_what_it_is_alone(verb: str, sources: dict[str, Path]) -> None:
    sources = {kind: each for kind, each in sources.items() if verb != "doctor" or kind != "channel"}
    together = document(verb, *sources.values())
    assert together["failed"] == []
    for kind, said in zip(sources, together["stores"], strict=True):
        alone = document(verb, sources[kind])
        assert {name: said[name] for name in alone if name != "schema"} == {
            name: value for name, value in alone.items() if name != "schema"
        }, kind
        path = sources[kind] if kind != "parent" else sources[kind] / "store"
        assert said["store"] == str(path)
    assert run(verb, *sources.values()).exit_code == ExitCode.FINDINGS


@pytest.mark.parametrize("verb", ["verify", "info"])
def test_findings_and_channels_name_their_store(verb: str, sources: dict[str, Path]) -> None:
    pair = sources["damaged"], sources["whole"]
    header, *lines = run(verb, *pair, "-o", "csv").stdout.splitlines()
    assert header.startswith("store,")
    alone = [f"{path},{line}" for path in pair for line in run(verb, path, "-o", "csv").stdout.splitlines()[1:]]
    assert lines == alone and lines


def test_the_verdict_on_each_store_then_the_sum(sources: dict[str, Path], golden_jetstream: Path) -> None:
    """The worst of their codes, and the command for each; with a source that no server starts on."""
    streams = golden_jetstream / "dmg_flip_payload_noidx/store"
    named = [sources["whole"], sources["damaged"], sources["node"], streams]
    alone = [run("doctor", each).stdout for each in named]
    done = run("doctor", *named, sources["channel"])
    assert done.exit_code == ExitCode.FINDINGS and "cannot be used for a start of the server" in done.stderr
    *verdicts, total = done.stdout.split("\n\n")
    *last, total = total.splitlines()
    for path, verdict, whole in zip(named, [*verdicts, "\n".join(last)], alone, strict=True):
        said, joined = (" ".join(each.split()) for each in (verdict, whole))
        assert said.startswith(f"{path}: ") and said.partition(" next: ")[0].split("; ")[0] in joined
        assert said.partition(" next: ")[2] in joined and " next: " in said
    assert total == "5 stores: 1 in danger, 1 damaged, 2 healthy, 1 cannot be read"
    assert run("doctor", sources["whole"], sources["node"]).exit_code == ExitCode.CLEAN


def test_a_wrong_option_is_no_fault_of_the_stores(sources: dict[str, Path]) -> None:
    done = run("doctor", sources["whole"], sources["damaged"], "--server-user", "no-such-user")
    assert done.exit_code == ExitCode.USAGE and "there is no user no-such-user" in done.stderr and not done.stdout


def test_a_folder_of_nodes_is_each_of_its_nodes(sources: dict[str, Path]) -> None:
    nodes = sources["node"].parent
    assert [each["store"] for each in document("doctor", nodes)["stores"]] == [str(nodes / each) for each in "abc"]


def test_a_source_that_cannot_be_read_stops_no_other(sources: dict[str, Path], tmp_path: Path) -> None:
    said = document("verify", sources["whole"], tmp_path / "gone")
    assert [each["clean"] for each in said["stores"]] == [True]
    assert said["failed"][0]["path"] == str(tmp_path / "gone")
    assert run("verify", sources["whole"], tmp_path / "gone").exit_code == ExitCode.FINDINGS
    assert run("verify", tmp_path / "gone", tmp_path / "none").exit_code == ExitCode.UNREACHABLE


def test_a_folder_of_stores_and_a_pattern_are_several(sources: dict[str, Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(sources["whole"], tmp_path / name)
    for given in (tmp_path, tmp_path / "[ab]"):
        assert [Path(each["store"]).name for each in document("verify", given)["stores"]] == ["a", "b"]
    twice = document("verify", tmp_path / "a", tmp_path)
    assert [Path(each["store"]).name for each in twice["stores"]] == ["a", "b"], "each once"


def test_new_stores_of_several_are_those_of_each_alone(sources: dict[str, Path], tmp_path: Path) -> None:
    named = [sources[each] for each in ("whole", "damaged", "packed.tgz", "channel")]
    done = run("salvage", *named, "--out", tmp_path / "new")
    assert done.exit_code == ExitCode.LOSS, done.output
    for path, name in zip(named, ("whole", "damaged", "packed", named[3].name), strict=True):
        assert run("salvage", path, "--out", tmp_path / name).exit_code in (ExitCode.CLEAN, ExitCode.LOSS)
        assert tree(tmp_path / "new" / name) == tree(tmp_path / name), path
    again = document("salvage", *named, "--out", tmp_path / "new")
    assert all(each["kept"] for each in again["stores"]), "finished ones are kept, those of archives too"
    assert "/tmp/stantools-" not in (tmp_path / "new" / ".stantools-salvage" / "packed.json").read_text()


def test_a_store_and_an_archive_of_it_become_two_new_stores(sources: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sources["whole"], tmp_path / "shop")
    shutil.copy(sources["packed.tgz"], tmp_path / "shop.tgz")
    for number in range(2):  # the second time they are there
        done = run("salvage", tmp_path / "shop", tmp_path / "shop.tgz", "--out", tmp_path / "new")
        assert done.exit_code == ExitCode.CLEAN, (number, done.output)
    assert tree(tmp_path / "new" / "shop").keys() == tree(tmp_path / "new" / "shop.tgz").keys() != set()


def test_proven_messages_are_counted_as_of_one_store(sources: dict[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "length"
    write_sample(damaged, SampleOptions(channels=1, damage=["flipped-length"]))
    assert "messages: 100 messages intact" in run("verify", damaged).stdout
    table = run("verify", damaged, sources["whole"]).stdout
    (row,) = (line.split() for line in table.splitlines() if line.startswith(f"{damaged} "))
    assert row[1:3] == ["1", "100"], row


def test_folders_are_compared_store_by_store(sources: dict[str, Path], tmp_path: Path) -> None:
    for side in ("one", "two"):
        for name in ("whole", "damaged"):
            shutil.copytree(sources[name], tmp_path / side / name)
    assert run("diff", tmp_path / "one", tmp_path / "two").exit_code == ExitCode.CLEAN
    mixed = run("diff", sources["packed.tgz"], tmp_path / "one" / "whol?")
    assert mixed.exit_code == ExitCode.CLEAN and "no difference" in mixed.stdout


def test_a_missing_counterpart_is_no_difference(sources: dict[str, Path], tmp_path: Path) -> None:
    for side, names in (("one", ("whole", "damaged")), ("two", ("whole",))):
        for name in names:
            shutil.copytree(sources[name], tmp_path / side / name)
    done = run("diff", tmp_path / "one", tmp_path / "two")
    assert done.exit_code == ExitCode.FINDINGS and "has no counterpart damaged" in done.stderr
    assert "no difference, but 1 store cannot be compared; " in done.stdout


def test_the_column_store_has_absolute_paths(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sources["whole"], tmp_path / "shop")
    shutil.copy(sources["packed.tgz"], tmp_path / "shop.tgz")
    monkeypatch.chdir(tmp_path)
    for verb, words in (("stats", ("-o", "csv")), ("export", ("--to", "-", "--format", "csv", "--columns", "store"))):
        lines = run(verb, "shop", "shop.tgz", *words).stdout.splitlines()[1:]
        assert {line.split(",")[0] for line in lines} == {f"{tmp_path}/shop", f"{tmp_path}/shop.tgz"}, verb


def test_several_stores_are_migrated_one_by_one(sources: dict[str, Path], tmp_path: Path) -> None:
    named = sources["whole"], sources["packed.tgz"]
    words = ("--out", tmp_path / "backups", "--plans", tmp_path / "plans", "--yes")
    clash = run("migrate", *named, *words)
    assert clash.exit_code == ExitCode.REFUSED and "--stream-prefix '{store}-'" in clash.stderr
    words = (*words, "--stream-prefix", "{store}-", "--subject-prefix", "{store}")
    done = run("migrate", *named, *words, "-o", "json")
    assert done.exit_code == ExitCode.CLEAN, done.output
    assert [each["clean"] for each in json.loads(done.stdout)["stores"]] == [True, True]
    again = run("migrate", *named, *words, "--verify")
    assert again.exit_code == ExitCode.CLEAN and "4 streams of 2 stores as planned" in again.stdout
    assert run("migrate", *named, *words, "--plan", tmp_path / "x").exit_code == ExitCode.USAGE


@pytest.mark.parametrize("verb", JOBS)
def test_the_other_name_has_the_same_options(verb: str) -> None:
    one, other = (CliRunner().invoke(cli, [*words, verb, "--help"]).stdout for words in ([], ["pipeline"]))
    assert one and other.replace("pipeline ", "").split() == one.replace("pipeline ", "").split()
