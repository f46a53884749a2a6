"""The command that installs a missing package is the one of the installer that made the environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from stantools.install_hints import install_command


def test_in_an_environment_of_pipx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = tmp_path / "venvs" / "stantools"
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert "pipx" not in install_command("pyarrow")
    (prefix / "pipx_metadata.json").touch()
    assert install_command("pyarrow").startswith("pipx inject stantools 'pyarrow>=")


def test_in_an_environment_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    assert install_command("pyarrow").startswith(f"uv pip install --python {sys.executable} ")
