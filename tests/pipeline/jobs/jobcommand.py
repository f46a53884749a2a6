"""Running commands in this process, and stores for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from stantools.cli.main import cli
from stantools.errors import ExitCode


def run(*words: object, code: ExitCode) -> Any:
    """Runs a command, which has to end with this code."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def sample(path: Path, *words: object) -> Path:
    """Writes a store with several slices."""
    path.parent.mkdir(exist_ok=True, parents=True)
    run("sample", path, "--slice-msgs", 40, "--size", 64, *words, code=ExitCode.CLEAN)
    return path
