"""JetStream directories and SQL stores in verbs over several: what is built works, the rest is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stantools.cli.main import cli
from stantools.cli.verbs import summaries
from stantools.errors import ExitCode
from stantools.store.sample import SampleOptions, write_sample
from tests import servers

#: A database that nobody reaches: its password must not be shown.
DATABASES = ("mysql://root:geheim@127.0.0.1:1/shop", "root:geheim@tcp(127.0.0.1:1)/shop")
KINDS = ("jetstream", "stream", "backup", "dump")
SPARK = ("--engine", "spark")


def run(*words: object) -> Result:
    result = CliRunner().invoke(cli, [str(each) for each in words])
    assert "error: unexpected" not in result.stderr and "Traceback" not in result.output, result.output
    return result


def document(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, golden_jetstream: Path, golden_sql: Path) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("kinds")
    write_sample(root / "file", SampleOptions(channels=1, messages=20))
    shutil.copytree(golden_jetstream / "ok_basic15" / "store", root / "nats")
    shutil.copy(golden_sql / "m_basic" / "dump.sql", root / "dump.sql")
    assert run("salvage", root / "nats", "--to", "backup", "--out", root / "backups").exit_code == ExitCode.CLEAN
    (stream,) = sorted((root / "nats" / "jetstream" / "$G" / "streams").iterdir())[:1]
    places = {
        "jetstream": root / "nats",
        "stream": stream,
        "dump": root / "dump.sql",
        "backup": root / "backups" / stream.name,
    }
    return places | {"file": root / "file"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["verify", "info", "salvage"])
def test_several_are_read_each_as_its_kind(verb: str, kind: str, sources: dict[str, Path], tmp_path: Path) -> None:
    words = ("--out", tmp_path / "new") if verb == "salvage" else ()
    done = run(verb, sources["file"], sources[kind], *words, "-o", "json")
    said = document(done)
    alone = run(verb, sources[kind], *(("--out", tmp_path / "alone") if verb == "salvage" else ()), "-o", "json")
    assert (done.exit_code, said["failed"]) == (alone.exit_code, [])
    assert [each["store"] for each in said["stores"]] == [str(sources["file"]), str(sources[kind])]
    both = said["stores"][1].keys() & document(alone).keys() - {"schema", "seconds", "out", "manifest"}
    assert {"streams", "findings", "channels"} & both
    assert {name: said["stores"][1][name] for name in both} == {name: document(alone)[name] for name in both}


def test_tables_have_the_columns_of_all_kinds(sources: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(sources["jetstream"], broken)
    block = next(iter(sorted(broken.rglob("*.blk"))))
    block.write_bytes(block.read_bytes()[:-3])
    (damaged := tmp_path / "damaged").mkdir()
    write_sample(damaged / "s", SampleOptions(channels=1, messages=20, damage=["flipped-byte"]))
    done = run("verify", damaged / "s", broken, "-o", "csv")
    header, *lines = done.stdout.splitlines()
    assert {"store", "channel", "seq", "account", "stream", "consumer"} <= set(header.split(","))
    assert {line.partition(",")[0] for line in lines} == {str(damaged / "s"), str(broken)}
    assert "not clean: 2 of 2 stores have findings" in run("verify", damaged / "s", broken).stdout


def test_patterns_that_match_in_one_source_leave_the_others_out(sources: dict[str, Path]) -> None:
    name = sources["stream"].name
    for verb, members in (("verify", "streams"), ("info", "streams")):
        said = document(run(verb, sources["jetstream"], sources["dump"], "--channel", name, "-o", "json"))
        assert [log["name"] for store in said["stores"] for log in store.get(members, ())] == [name]
    assert run("info", sources["jetstream"], sources["dump"], "--channel", "none.>").exit_code == ExitCode.USAGE


def test_finished_salvages_are_kept_until_the_source_changes(sources: dict[str, Path], tmp_path: Path) -> None:
    for kind in ("jetstream", "dump"):
        path = tmp_path / sources[kind].name
        shutil.copytree(sources[kind], path) if path.suffix == "" else shutil.copy(sources[kind], path)
    named, out = (tmp_path / "nats", tmp_path / "dump.sql", "--out", tmp_path / "new", "-o", "json"), tmp_path
    assert [each["kept"] for each in document(run("salvage", *named))["stores"]] == [False, False]
    assert [each["kept"] for each in document(run("salvage", *named))["stores"]] == [True, True]
    block = next(iter(sorted((tmp_path / "nats").rglob("*.blk"))))
    block.write_bytes(block.read_bytes()[:-3])
    (out / "dump.sql").write_bytes((out / "dump.sql").read_bytes() + b"-- later\n")
    again = document(run("salvage", *named))
    assert [Path(each["path"]).name for each in again["failed"]] == ["nats"], "another salvage is in its place"
    shutil.rmtree(tmp_path / "new" / "nats")
    assert [each["kept"] for each in document(run("salvage", *named))["stores"]] == [False, True]


def test_salvaged_streams_are_those_of_each_alone(sources: dict[str, Path], tmp_path: Path) -> None:
    assert run("salvage", sources["jetstream"], sources["file"], "--out", tmp_path / "new").exit_code == ExitCode.CLEAN
    assert run("salvage", sources["jetstream"], "--out", tmp_path / "alone").exit_code == ExitCode.CLEAN
    assert run("diff", sources["file"], tmp_path / "new" / "file").exit_code == ExitCode.CLEAN
    files = [
        {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}
        for root in (tmp_path / "new" / "nats", tmp_path / "alone")
    ]
    assert files[0] == files[1] and files[0]


@pytest.mark.skipif(servers.NEWEST not in servers.available(), reason="the newest nats-server is not here")
def test_streams_and_channels_are_migrated_together(sources: dict[str, Path], tmp_path: Path) -> None:
    named = ("jetstream", "dump", "file")
    with servers.NatsServer(tmp_path / "server", servers.NEWEST) as server:
        words = ("migrate", *(sources[each] for each in named), "--server", server.url, "--plans", tmp_path / "plans")
        clash = run(*words, "--dry-run")
        assert (
            clash.exit_code == ExitCode.REFUSED
            and "its stream orders is also planned for" in clash.stderr + clash.stdout
        )
        prefixes = ("--stream-prefix", "{store}-", "--subject-prefix", "{store}")
        words = (*words, *prefixes, "--yes", "-o", "json")
        done = run(*words)
        assert done.exit_code == ExitCode.CLEAN, done.output
        stores = document(done)["stores"]
        assert [Path(each["store"]) for each in stores] == [sources[each] for each in named]
        assert all(stream["compared"] for each in stores for stream in each["streams"])
        again = document(run(*words))
        assert {stream["outcome"] for each in again["stores"] for stream in each["streams"]} == {"complete before"}
        assert run(*words, "--verify").exit_code == ExitCode.CLEAN
        copy = shutil.copytree(sources["jetstream"], tmp_path / "copy")
        clash = run("migrate", sources["jetstream"], copy, "--server", server.url, "--dry-run")
        assert clash.exit_code == ExitCode.REFUSED and "keep their names" in clash.stdout + clash.stderr
        files = run("migrate", sources["jetstream"], sources["file"], "--out", tmp_path / "backups", "--yes")
        assert files.exit_code == ExitCode.USAGE and "go into a running server" in files.stderr


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("diff", "file"), ("jetstream", "stream", "backup")),
        (("verify", *SPARK), KINDS),
        (("info", *SPARK), KINDS),
        (("salvage", "--dry-run", *SPARK), KINDS),
        (("diff", "file", *SPARK), KINDS),
        (("migrate", "--dry-run", *SPARK), KINDS),
    ],
    ids=" ".join,
)
def test_what_is_not_built_is_one_sentence(
    words: tuple[str, ...], kinds: tuple[str, ...], sources: dict[str, Path], tmp_path: Path
) -> None:
    verb, *rest = (str(sources["file"]) if each == "file" else each for each in words)
    for kind in kinds:
        done = run(verb, sources[kind], *rest, *(("--server", "nats://127.0.0.1:1") if verb == "migrate" else ()))
        assert done.exit_code in (ExitCode.USAGE, ExitCode.UNREACHABLE), (kind, done.output)
        assert done.stdout == ""
        (said,) = [line for line in done.stderr.splitlines() if "error:" in line]
        assert "cannot be used for" in said or "has neither channels" in said or "compacts its blocks" in said, said


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        pytest.param(text, verb, marks=() if text == DATABASES[0] or verb in ("verify", "doctor") else pytest.mark.slow)
        for text in DATABASES
        for verb in sorted(
            set(summaries()) - {"explain", "sample", "completion", "broker", "pipeline", "records", "demo"}
        )
    ],
)
def test_no_verb_shows_the_password_of_a_database(
    text: str, verb: str, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb over several goes on with the other source; any other says why it cannot read the database."""
    monkeypatch.chdir(tmp_path)
    more = {
        "messages": ["channel"],
        "diff": [sources["file"]],
        "salvage": [sources["file"], "--out", "new"],
        "merge": [sources["file"], "--out", "new"],
        "compact": ["--out", "new"],
        "report": ["--html", "page.html"],
        "truncate-bad-eof": ["--dry-run"],
        "export": [sources["file"], "--to", "table"],
        "migrate": [sources["file"], "--out", "backups", "--dry-run"],
        "replay": ["--server", "nats://127.0.0.1:1"],
    }.get(verb, [sources["file"]] if verb in ("verify", "info", "stats") else [])
    done = run(verb, text, *more)
    assert done.exit_code in (ExitCode.FINDINGS, ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.REFUSED), done.output
    assert "No such option" not in done.stderr and "Missing" not in done.stderr, done.stderr
    assert "geheim" not in done.output + done.stderr
    assert not any("geheim" in str(each) for each in tmp_path.rglob("*"))


#: What each verb over one store needs besides it; those over several are above.
ONE = {
    "doctor": (),
    "forecast": (),
    "report": ("--html", "page.html"),
    "subs": (),
    "clients": (),
    "messages": ("orders",),
    "truncate-bad-eof": ("--dry-run",),
    "compact": ("--out", "new"),
    "replay": ("--server", "nats://127.0.0.1:1", "--dry-run"),
}


@pytest.mark.parametrize("verb", ONE)
def test_a_verb_over_one_store_takes_every_kind_or_says_why_not(
    verb: str, sources: dict[str, Path], golden_clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    several = tmp_path / "several"
    for name in "ab":
        shutil.copytree(sources["file"], several / name)
    shutil.copytree(sources["file"], tmp_path / "parent" / "store")
    kinds = {**sources, "parent": tmp_path / "parent", "node": golden_clusters / "snapshots" / "nodes" / "a"}
    for kind, path in kinds.items():
        done = run(verb, path, *ONE[verb])
        shutil.rmtree("new", ignore_errors=True)
        Path("page.html").unlink(missing_ok=True)
        if done.exit_code > ExitCode.FINDINGS:
            assert len([line for line in done.stderr.splitlines() if "error:" in line]) == 1, (kind, done.output)
        if verb == "doctor" and kind not in ("stream", "backup"):
            assert done.exit_code in (ExitCode.CLEAN, ExitCode.FINDINGS), (kind, done.output)
    done = run(verb, several, *ONE[verb])
    if verb == "doctor":
        assert done.exit_code == ExitCode.CLEAN, done.output
        return
    assert done.exit_code == ExitCode.UNREACHABLE
    assert f"or all of them: `stantools verify {several}`" in " ".join(done.stderr.split())


def test_a_folder_of_nodes_is_several_where_a_node_is_read_by_itself(golden_clusters: Path) -> None:
    folder = golden_clusters / "snapshots" / "nodes"
    for verb in ("verify", "info"):
        said = document(run(verb, folder, "-o", "json"))
        assert [each["store"] for each in said["stores"]] == [str(folder / name) for name in "abc"]
    assert "cannot be used for a salvage" in run("salvage", folder, "--dry-run").stderr
