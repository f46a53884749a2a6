"""What jobs say before Spark is started: packages that are missing, paths that are none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import ExitCode
from stantools.pipeline.tables.model import FailedRead


def run(*words: str) -> Any:
    return CliRunner().invoke(cli, list(words))


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
@pytest.mark.parametrize("job", ["verify", "stats", "diff", "export"])
def test_a_package_that_is_missing(job: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    more = ["--engine", "spark", *(["--to", "x"] if job == "export" else [])]
    result = run("pipeline", job, "nowhere", "nowhere", *more)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"the Python package {package} is not installed" in result.output
    assert "pip install 'pyspark<5,>=4.1' " in result.output


def test_an_empty_path_is_not_the_current_directory() -> None:
    result = run("pipeline", "verify", "")
    assert (result.exit_code, "the path is empty" in result.output) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("to", ["", "/"])
def test_an_export_to_nowhere(to: str, tmp_path: Path) -> None:
    result = run("export", str(tmp_path), "--to", to)
    assert (result.exit_code, "is not a directory of its own" in result.output) == (ExitCode.USAGE, True)


def test_what_cannot_be_read_is_named_as_closely_as_it_is_known() -> None:
    parts = [
        FailedRead("/s", "m"),
        FailedRead("/s", "m", channel="c"),
        FailedRead("/s", "m", channel="c", file="c/msgs.1.dat"),
    ]
    assert [part.path for part in parts] == ["/s", "/s/c", "/s/c/msgs.1.dat"]
