"""`stantools completion`: completion of verbs, options and channels in the shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from stantools.cli import console
from stantools.cli.click_options import given, verb
from stantools.errors import ExitCode, StoreUnwritableError, UsageError
from stantools.home import below_home, settings_directory
from stantools.options import Option

_SHELLS = ("bash", "zsh", "fish")
#: Remaining steps in shells that do not look there by themselves.
_LEFT = {
    "bash": "it works in new shells, where the package bash-completion is installed",
    "zsh": "it works in new shells whose ~/.zshrc has: fpath+=~/.zfunc; autoload -Uz compinit; compinit",
    "fish": "it works in new shells",
}


def _place(shell: str) -> Path:
    if shell == "bash":
        data = Path(os.environ.get("XDG_DATA_HOME") or below_home(".local", "share"))
        return Path(os.environ.get("BASH_COMPLETION_USER_DIR") or data / "bash-completion") / "completions/stantools"
    if shell == "zsh":
        return below_home(".zfunc", "_stantools")
    return settings_directory() / "fish" / "completions" / "stantools.fish"


@verb("completion", progress=False, tables=False)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@given(install=Option(help="Write it to the directory that the shell reads.", default=False))
def command(shell: str | None, install: bool) -> int:
    r"""Print or install the script that lets a shell complete verbs, options and channels of a store.

    SHELL is your login shell by default.

    \b
      stantools completion --install
      stantools completion bash > /etc/bash_completion.d/stantools
    """
    from stantools.cli.main import cli

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in _SHELLS else None
    if found is None:
        raise UsageError("SHELL is missing", "for example: stantools completion bash (or zsh, or fish)")
    script = found(cli, {}, "stantools", "_STANTOOLS_COMPLETE").source()
    if not install:
        click.echo(script)
        return ExitCode.CLEAN
    path = _place(name)
    if path.parts[0] == "~":
        raise UsageError("your home directory is unknown", "set HOME, or write the script without --install to a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{script}\n", encoding="utf-8")
    except OSError as problem:
        raise StoreUnwritableError(
            f"{path}: {problem.strerror}", "print it, and write it to a directory of your choice"
        ) from None
    click.echo(f"{console.escape(str(path))}: written; {_LEFT[name]}")
    return ExitCode.CLEAN
