"""`stantools pipeline` itself: its help, its settings, and what is said before Spark is started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stantools.cli.main import cli
from stantools.cli.pipeline import submit_file
from stantools.cli.verbs import JOBS, summaries
from stantools.errors import ExitCode

ROOT = Path(__file__).parents[3]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["pipeline", *(str(word) for word in words)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    assert CliRunner().invoke(cli, ["sample", str(tmp_path / "store"), "--messages", "5"]).exit_code == 0
    return tmp_path / "store"


def alone(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, where there is no session."""
    return subprocess.run(
        [sys.executable, "-c", "from stantools.cli.main import main; main()", "pipeline", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_the_jobs_and_imports_nothing() -> None:
    said = run("--help")
    assert said.exit_code == 0
    for name in JOBS:
        assert f"{name} " in said.stdout
        assert summaries()[name].split(";")[0] in " ".join(said.stdout.split())
    code = (
        "import sys; from stantools.cli.main import cli\n"
        "try: cli.main(['pipeline', 'verify', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_an_unknown_job_is_answered_with_those_that_look_like_it() -> None:
    said = run("verfy", "x")
    assert said.exit_code == ExitCode.USAGE
    assert "unknown job verfy; did you mean verify?" in said.stderr


def test_the_file_for_spark_submit_is_printed() -> None:
    said = run("--submit-file")
    assert said.exit_code == 0
    assert Path(said.stdout.strip()) == submit_file()
    assert submit_file().is_file()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--conf", "spark.x"), "--conf spark.x: is not KEY=VALUE"),
        (("--conf", "executor.memory=1g"), "Spark's settings begin with spark."),
        (("--storage", "anon"), "--storage anon: is not KEY=VALUE"),
        (("--channel", "nobody"), "no channel of any store matches nobody"),
        (("--partitions", "0"), "0 is not in the range"),
    ],
)
def test_wrong_options_are_refused(words: tuple[str, ...], text: str, store: Path) -> None:
    said = run("verify", store, *words)
    assert said.exit_code == ExitCode.USAGE
    assert text in said.stderr


def test_nothing_at_all_to_read(tmp_path: Path) -> None:
    said = run("verify", tmp_path / "gone")
    assert said.exit_code == ExitCode.UNREACHABLE
    assert "gone: no such file or directory" in said.stderr
    (tmp_path / "empty").mkdir()
    assert run("verify", tmp_path / "empty").exit_code == ExitCode.UNREACHABLE


def test_what_is_missing_for_spark_is_named_at_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyspark = pytest.importorskip("pyspark")
    with monkeypatch.context() as nothing_runs:
        nothing_runs.setattr("stantools.pipeline.spark.session.active_session", lambda: None)
        nothing_runs.setattr(pyspark.SparkContext, "_gateway", None)
        wrong = run("verify", "--master", "lokal[2]", store)
        assert (wrong.exit_code, wrong.stdout) == (ExitCode.USAGE, "")
        assert "'lokal[2]' is not a Spark master\n  -> it is one of: local, local[2]," in wrong.stderr

        both = run("verify", "--master", "local", "--remote", "sc://localhost", store)
        assert both.exit_code == ExitCode.USAGE
        assert "--remote and --master exclude each other" in both.stderr

        connect = run("verify", "--master", "sc://localhost", store)
        assert connect.exit_code == ExitCode.USAGE
        assert "use --remote sc://localhost" in connect.stderr

        nothing_runs.setenv("JAVA_HOME", str(tmp_path))
        nothing_runs.setenv("PATH", str(tmp_path))
        java = run("verify", "--engine", "spark", store)
        assert java.exit_code == ExitCode.UNREACHABLE
        assert "Spark needs Java 17 to 25; none was found: JAVA_HOME is" in java.stderr
        assert "apt install openjdk-17" in java.stderr
        here = run("verify", store)
        assert (here.exit_code, here.stderr.split(":")[1]) == (ExitCode.CLEAN, " running in this process")

    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.1'\n")
    old = alone("verify", "--engine", "spark", store, PYTHONPATH=str(tmp_path))
    assert old.returncode == ExitCode.UNREACHABLE
    assert "pyspark 3.5.1 is too old: 4.1 or later is needed\n  -> " in old.stderr


def test_a_master_that_is_not_there_is_told_in_seconds(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    begin = time.monotonic()
    said = alone("verify", "--master", f"spark://127.0.0.1:{port}", store)
    assert time.monotonic() - begin < 30
    assert (said.returncode, said.stdout) == (ExitCode.UNREACHABLE, "")
    assert f"no Spark answers at spark://127.0.0.1:{port} (127.0.0.1:{port}: Connection refused)" in said.stderr
    assert "or run here: --master local[*]" in said.stderr


def test_archives_have_the_result_of_what_they_hold(store: Path, tmp_path: Path) -> None:
    archive = tmp_path / "shop.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(store, "shop")
    for verb, *words in (("verify", "-o", "json"), ("stats", "-o", "csv"), ("stats", "-o", "json")):
        said, expected = run(verb, archive, *words), run(verb, store, *words)
        assert said.exit_code == expected.exit_code
        assert comparable(said.stdout).replace(str(archive), str(store)) == comparable(expected.stdout)
    same = run("diff", archive, store)
    assert same.exit_code == ExitCode.CLEAN and "no difference" in same.stdout
    refused = run("verify", archive, "--engine", "spark")
    assert refused.exit_code == ExitCode.USAGE and "unpacked on this machine only" in refused.stderr


def comparable(text: str) -> str:
    return re.sub(r'"seconds": ?[\d.]+', "", text)


def test_stats_is_a_verb(store: Path) -> None:
    said = CliRunner().invoke(cli, ["stats", str(store), "-o", "csv"])
    assert said.exit_code == ExitCode.CLEAN and said.stdout == run("stats", store, "-o", "csv").stdout
