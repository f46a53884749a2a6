"""The sample stores are what our own code writes, and the demo works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.programs import load
from tests.trees import tree

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return load(ROOT / "samples" / "make_samples.py")


def test_samples_are_what_is_written(maker: ModuleType, tmp_path: Path) -> None:
    maker.write(tmp_path)
    for name in maker.SAMPLES:
        assert tree(ROOT / "samples" / name) == tree(tmp_path / name), f"{name}: run make samples"


def test_every_sample_is_described(maker: ModuleType) -> None:
    text = (ROOT / "samples" / "README.md").read_text(encoding="utf-8")
    directories = {path.name for path in (ROOT / "samples").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert directories == {*maker.SAMPLES, "broker", "deployment", "guard", "monitoring", "streams-damaged"}
    described = [*maker.SAMPLES, *(path.name for path in (ROOT / "samples" / "broker").iterdir())]
    for name in described:
        assert f"| `{name}` |" in text


@pytest.mark.parametrize("name", ["healthy", "gaps", "encrypted", "castagnoli"])
def test_healthy_samples_are_clean(run, name: str) -> None:
    assert run("verify", ROOT / "samples" / name).code == 0
    assert run("forecast", ROOT / "samples" / name).code == 0


@pytest.mark.parametrize("name", ["torn", "flipped", "lost", "restarted"])
def test_damaged_samples_are_not(run, name: str) -> None:
    assert run("verify", ROOT / "samples" / name).code == 1


def test_demo(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "stantools", "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for text in ("not clean", "does not start", "verify is clean and the server would start", "What was saved"):
        assert text in result.stdout
    assert "orders: 2 pending again [1899, 1900], then 100 new ones from 1901 to 2000" in result.stdout
    assert (tmp_path / "stantools-demo" / "saved").is_dir()


def test_a_demo_empties_no_directory_of_others(run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    found = run("demo", "--out", tmp_path / "mine")
    assert found.code == 4
    assert "not the directory of a demo" in found.err
    assert (tmp_path / "mine" / "file").exists()
