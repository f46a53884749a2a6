"""Salvaging many stores writes what the local salvage of each writes, whatever is killed or done twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import ExitCode, RefusedError, StoreUnwritableError
from stantools.inspection import survey_jobs
from stantools.pipeline.jobs import salvage, salvageplans
from stantools.pipeline.jobs.salvageplans import REPORTS, store_names
from stantools.pipeline.tables.table_options import TableOptions
from stantools.recovery.salvage import SalvageOptions, plan_salvage
from stantools.recovery.salvage import apply as apply_module
from stantools.recovery.salvage.apply import building, copy_channels
from stantools.recovery.salvage.manifest import plan_summary
from stantools.store import durable
from stantools.store.directory import MANIFEST_FILE, open_datastore
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import KINDS_OF_STORES, golden_cases, load_expected
from tests.pipeline.jobs.salvaging import run_job, salvage_here
from tests.trees import tree

IEEE = 0xEDB88320
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody pulls a plug here.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(durable, "sync_file_system", lambda _: True)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "old" / "store"
    root.parent.mkdir()
    write_sample(root, SampleOptions(messages=120, size=64))
    age(root)
    return root


def age(root: Path) -> None:
    """Lets a store have been left alone for long: nobody has to watch whether it is in use."""
    for path in root.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000), follow_symlinks=False)


def damage(root: Path) -> None:
    path = next(path for path in sorted(root.glob("*/msgs.2.dat")))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    age(root)


@pytest.mark.parametrize(
    ("channel_bytes", "cases"),
    [
        pytest.param(0, sorted(KINDS_OF_STORES), id="slices"),
        pytest.param(1 << 40, sorted(KINDS_OF_STORES)[::6], id="channels"),
        pytest.param(0, golden_cases(), marks=pytest.mark.slow, id="slices-all"),
        pytest.param(1 << 40, golden_cases()[::6], marks=pytest.mark.slow, id="channels-more"),
    ],
)
def test_golden_stores_become_what_the_local_salvage_makes_of_them(
    channel_bytes: int,
    cases: list[str],
    golden_copy: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both where channels are surveyed slice by slice and where they are surveyed as a whole."""
    monkeypatch.setattr(survey_jobs, "CHANNEL_BYTES", channel_bytes)
    monkeypatch.setattr(salvage, "GROUP_BYTES", 1 if channel_bytes else 64 << 20)
    roots: dict[int, list[Path]] = {}
    for case in cases:
        if case == "no_permission_dat" and os.geteuid() != 0:
            continue
        roots.setdefault(load_expected(case)["options"]["file_crc_poly"], []).append(golden_copy(case))
    for polynomial, stores in roots.items():
        out = tmp_path / f"new {polynomial}"
        result = run_job(stores, out, polynomial, cluster_id="test-cluster")
        assert [Path(each.root) for each in result.stores] == stores
        assert not result.failed
        for root, got in zip(stores, result.stores, strict=True):
            assert got.name == root.name and not got.is_wrong, got.report["check"]
            plan = salvage_here(root, tmp_path / "local", polynomial, cluster_id="test-cluster")
            assert got.report["summary"] == plan_summary(plan)
            assert tree(out / got.name) == tree(tmp_path / "local"), root.name
            assert (out / got.name).stat().st_mode == (tmp_path / "local").stat().st_mode
            shutil.rmtree(tmp_path / "local")
        assert {path.name for path in out.iterdir()} == {REPORTS, *(root.name for root in stores)}


def test_options_are_those_of_the_local_verb(store: Path, golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    gaps, archived = golden_copy("dmg_middle_slice_missing"), golden_copy("archived_bak")
    options = {"fill_gaps": True, "archived": True}
    run_job([gaps, archived], tmp_path / "new", **options)
    for root in (gaps, archived):
        out = tmp_path / f"local-{root.name}"
        salvage_here(root, out, IEEE, **options)
        assert tree(tmp_path / "new" / root.name) == tree(out)
    channel = open_datastore(store).channel_names[0]
    result = run_job([gaps, store], tmp_path / "one", patterns=(channel,))
    assert [[each["name"] for each in found.report["channels"]] for found in result.stores] == [[channel]]


def test_attempts_of_the_same_task_do_not_disturb_each_other(store: Path, tmp_path: Path) -> None:
    damage(store)
    plan = salvage_here(store, tmp_path / "local", IEEE)
    with building(plan, tmp_path / "new", group=1 << 30) as build:
        (item,) = build.items
        work = item.attempts
        # One was killed in the middle, another when it had moved its first channel.
        (work / "killed" / "half").mkdir(parents=True)
        (work / "killed" / "half" / "msgs.1.dat").write_bytes(b"\1\0\0\0half")
        copy_channels(item)
        later = sorted(path for path in Path(item.content).iterdir() if path.is_dir())[1:]
        for path in later:
            shutil.rmtree(path)
        with ThreadPoolExecutor(4) as pool:
            copied = list(pool.map(copy_channels, [item] * 4))
        assert all(each == copied[0] for each in copied)
        assert [path.name for path in work.iterdir()] == ["killed"]
        build.take(0, copied[0])
        build.complete()
        assert not (tmp_path / "new").exists()
    assert tree(tmp_path / "new") == tree(tmp_path / "local")
    # One that wakes up when everything is over changes nothing.
    with pytest.raises(StoreUnwritableError, match="does not exist where the task runs"):
        copy_channels(item)
    assert tree(tmp_path / "new") == tree(tmp_path / "local")
    assert not list(tmp_path.glob(".*"))


def test_what_tasks_have_written_is_looked_at(store: Path, tmp_path: Path) -> None:
    plan = plan_salvage(open_datastore(store), SalvageOptions())
    new = building(plan, tmp_path / "new", group=1 << 30)
    with pytest.raises(StoreUnwritableError, match="were written"), new as build:
        build.take(0, copy_channels(build.items[0]))
        data = next(Path(build.items[0].content).glob("*/msgs.1.dat"))
        data.write_bytes(data.read_bytes()[:-1])
        build.complete()
    assert not (tmp_path / "new").exists()


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.pipeline.jobs.salvaging import run_job
from tests.trees import tree
store, out, local, points = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
wanted = tree(local)
killed = whole = 0
for point in map(int, points.split(",")):
    child = os.fork()
    if not child:
        left = point
        def counted(call):
            def run(*args, **kw):
                global left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return call(*args, **kw)
            return run
        for name in ("fsync", "rename", "replace", "write", "writev", "mkdir", "open", "rmdir", "unlink"):
            setattr(os, name, counted(getattr(os, name)))
        run_job([store], out)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    killed += os.WIFSIGNALED(status)
    assert os.WIFSIGNALED(status) or status == 0, status
    if (out / "store").exists():
        whole += 1
        assert tree(out / "store") == wanted, point
    result = run_job([store], out)
    assert not result.failed and tree(out / "store") == wanted, point
    assert sorted(path.name for path in out.iterdir()) == [".stantools-salvage", "store"], point
    import shutil
    shutil.rmtree(out)
print(killed, whole)
"""


def test_killed_at_any_point_and_run_again(store: Path, tmp_path: Path) -> None:
    damage(store)
    salvage_here(store, tmp_path / "local", IEEE)
    # More often where channels, and where the store, are given their names (about 420 calls in all).
    chosen = [*range(0, 270, 60), *range(270, 280, 3), *range(342, 358, 3), *range(360, 440, 30)]
    points = ",".join(map(str, chosen))
    words = [sys.executable, "-c", _KILLED, store, tmp_path / "new", tmp_path / "local", points]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    killed, whole = map(int, done.stdout.split())
    assert killed > 10 and whole > 3, "before and after the store was in its place"


def test_what_is_finished_is_kept_and_anything_else_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "old" / "second"
    shutil.copytree(store, second)
    damage(second)
    out = tmp_path / "new"
    first = run_job([store, second], out)
    assert first.exit_code == ExitCode.LOSS and not any(each.kept for each in first.stores)
    before = tree(out)
    with monkeypatch.context() as patch:
        patch.setattr(survey_jobs, "survey_slice", lambda *_: pytest.fail("it was read again"))
        again = run_job([store, tmp_path / "old"], out)
    assert again.exit_code == ExitCode.LOSS and all(each.kept for each in again.stores)
    assert [each.report for each in again.stores] == json.loads(json.dumps([each.report for each in first.stores]))
    assert tree(out) == before
    # The new stores are not salvaged themselves.
    job = salvageplans.plan_job(TableOptions((str(tmp_path),)), SalvageOptions(), str(out))
    assert sorted(work.name for work in job.stores) == ["second", "store"]
    assert sum("was made by a salvage" in text for text in job.passed) == 2

    # Killed when the store was there, but not what is said of it.
    shutil.rmtree(out / REPORTS)
    again = run_job([store, second], out)
    assert all(each.kept and each.report["check"]["starts"] for each in again.stores)
    assert {name: data for name, data in tree(out).items() if not name.startswith(".")} == {
        name: data for name, data in before.items() if not name.startswith(".")
    }
    # A store that was removed is made again.
    shutil.rmtree(out / "store")
    assert [each.kept for each in run_job([store, second], out).stores] == [False, True]
    # One that has changed since, and something that is not a salvage of it.
    damage(store)
    shutil.rmtree(out / "second")
    (out / "second").mkdir()
    (out / "second" / "letter").write_text("mine")
    result = run_job([store, second], out)
    assert result.exit_code == ExitCode.UNREACHABLE and not result.stores
    changed, strange = sorted((each.message for each in result.failed), reverse=True)
    assert f"{out}/store: exists already, and is another salvage" in changed
    assert f"{out}/second: exists already, and is not a salvage" in strange
    assert (out / "second" / "letter").read_text() == "mine"


def test_what_fails_does_not_keep_the_rest_from_being_done(
    store: Path, golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnamed = golden_copy("dmg_server_missing")
    loose = tmp_path / "loose"
    shutil.copytree(next(path.parent for path in store.glob("*/msgs.1.dat")), loose)
    result = run_job([store, unnamed, loose, tmp_path / "gone"], tmp_path / "new")
    assert [each.name for each in result.stores] == ["store"]
    assert {Path(each.path).name for each in result.failed} == {"dmg_server_missing", "loose", "gone"}
    assert any("the cluster id can no longer be read from server.dat" in each.message for each in result.failed)
    assert result.exit_code == ExitCode.REFUSED
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [REPORTS, "store"]
    result = run_job([store, tmp_path / "gone"], None)
    assert result.exit_code == ExitCode.FINDINGS
    assert [each.report["written"] for each in result.stores] == [False]
    result = run_job([unnamed], tmp_path / "new")
    assert result.exit_code == ExitCode.REFUSED and not result.stores

    # A task that cannot write: nothing is left of the store, and it is told why.
    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(apply_module, "sync_tree", full)
        result = run_job([store], tmp_path / "full")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "No space left on device" in result.failed[0].message and result.failed[0].remedy
    assert list((tmp_path / "full").iterdir()) == []
    with pytest.raises(RefusedError, match="inside"):
        run_job([store], store / "new")
    assert not (store / "new").exists()


def test_names_tell_stores_apart() -> None:
    assert store_names(["/a/x", "/a/y"]) == ["x", "y"]
    assert store_names(["/n1/data", "/n2/data", "/n3/other"]) == ["n1-data", "n2-data", "other"]
    assert store_names(["/a/n1/Data", "/b/n1/data"]) == ["a-n1-Data", "b-n1-data"]
    assert store_names(["/.hidden", "/"]) == ["hidden", "store"]
    assert store_names(["/n2/data"], {"/n1/data": "data"}) == ["n2-data"]
    assert store_names(["/n1/data", "/n2/data"], {"/n1/data": "data"}) == ["data", "n2-data"]
    clash = store_names(["/a-b/c", "/a/b-c", "/c"])
    assert len(set(clash)) == 3 and clash == store_names(["/a-b/c", "/a/b-c", "/c"])
    long = store_names([f"/{'ü' * 127}/x", f"/{'ü' * 127}y/x"])
    assert len(set(long)) == 2 and all(len(name.encode()) <= 210 for name in long)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), ExitCode.USAGE, "--out is missing"),
        (("--out", "s3a://bucket/new"), ExitCode.USAGE, "must be on a file system"),
        (("s3a://bucket/old", "--out", "new"), ExitCode.USAGE, "on a file system, not at a URL"),
        (("--out", "new", "--channel", "nobody"), ExitCode.USAGE, "no channel of any store matches nobody"),
        (("--out", "gone/new"), ExitCode.UNREACHABLE, "cannot be written: No such file"),
        (("--out", "file"), ExitCode.UNREACHABLE, "exists already and is not a directory"),
    ],
)
def test_what_is_refused_before_spark_is_started(
    words: tuple[str, ...], code: int, text: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    said = CliRunner().invoke(cli, ["pipeline", "salvage", str(store), *words])
    assert said.exit_code == code, said.output
    assert text in said.stderr
    assert not (tmp_path / "new" / MANIFEST_FILE).exists()
