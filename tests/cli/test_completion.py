"""The shell completes what the program takes, with the script that is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stantools.errors import UsageError
from stantools.home import expanded
from stantools.nats.context import context_folder, context_names

#: Lets bash ask for completions as it does at the tab key.
_ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_stantools_completion stantools
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "BASH_COMPLETION_USER_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/stantools"),
        ("zsh", ".zfunc/_stantools"),
        ("fish", ".config/fish/completions/stantools.fish"),
    ],
)
def test_installed_where_shells_look(run, home: Path, shell: str, place: str) -> None:
    printed = run("completion", shell)
    assert printed.code == 0
    assert "_STANTOOLS_COMPLETE" in printed.out
    for _ in range(2):  # the second one writes it anew
        installed = run("completion", shell, "--install")
        assert installed.code == 0
        assert str(home / place) in installed.out
    assert (home / place).read_text() == printed.out


def test_the_shell_of_the_login(run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run("completion").out == run("completion", "fish").out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    outcome = run("completion")
    assert outcome.code == 2
    assert "SHELL is missing" in outcome.err


def test_a_user_without_a_home(run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])  # an unknown user, as in a container
    monkeypatch.chdir(home)
    for shell in ("bash", "zsh", "fish"):
        assert run("completion", shell).code == 0
        outcome = run("completion", shell, "--install")
        assert outcome.code == 2
        assert "home directory is unknown" in outcome.err
    assert not list(home.iterdir())
    assert context_names(context_folder()) == []
    with pytest.raises(UsageError, match="no home directory is known"):
        expanded("~/x")
    with pytest.raises(UsageError, match="no home directory is known"):
        expanded("~nobody-of-this-name/x")
    assert expanded("x/~") == Path("x/~")


def test_where_nothing_can_be_written(run, home: Path) -> None:
    (home / ".zfunc").write_text("")
    outcome = run("completion", "zsh", "--install")
    assert outcome.code == 3
    assert str(home / ".zfunc" / "_stantools") in outcome.err


def test_in_a_real_shell(run, home: Path, golden: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = home / "completion"
    script.write_text(run("completion", "bash").out)
    program = home / "bin" / "stantools"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stantools "$@"\n')
    program.chmod(0o755)

    def ask(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", _ASK, "ask", script, "stantools", *words],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(Path.cwd())},
        )  # fmt: skip
        return done.stdout.split()

    assert ask("ver") == ["verify"]
    assert ask("verify", "--enc") == ["--encryption-key-env", "--encryption-key-file"]
    store = golden / "basic" / "datastore"
    channels = sorted(each.name for each in store.iterdir() if each.is_dir())
    assert sorted(ask("messages", str(store), "")) == channels
