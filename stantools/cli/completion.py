"""`stantools completion`: the shell completes verbs, options, and the channels of a store."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from stantools.cli import console
from stantools.cli.options import given, verb
from stantools.errors import ExitCode, StoreUnwritableError, UsageError
from stantools.options import Option

_SHELLS = ("bash", "zsh", "fish")
#: What is left to do in a shell that does not look there by itself.
_LEFT = {
    "bash": "it works in new shells, where the package bash-completion is installed",
    "zsh": "it works in new shells whose ~/.zshrc has: fpath+=~/.zfunc; autoload -Uz compinit; compinit",
    "fish": "it works in new shells",
}


def _place(shell: str) -> Path:
    """Returns where a shell looks for the completion of a user's programs."""
    if shell == "bash":
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        return Path(os.environ.get("BASH_COMPLETION_USER_DIR") or data / "bash-completion") / "completions/stantools"
    if shell == "zsh":
        return Path.home() / ".zfunc" / "_stantools"
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return settings / "fish" / "completions" / "stantools.fish"


@verb("completion", progress=False, tables=False)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@given(install=Option(help="Write it to where the shell looks for it.", default=False))
def command(shell: str | None, install: bool) -> int:
    r"""Print the script by which a shell completes verbs, options and channels of a store, or install it.

    SHELL is the one of your login if it is left out.

    \b
      stantools completion --install
      stantools completion bash > /etc/bash_completion.d/stantools
    """
    from stantools.cli.main import cli

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name) if name in _SHELLS else None
    if found is None:
        raise UsageError(
            "SHELL is missing: which one do you use?", "for example: stantools completion bash (or zsh, or fish)"
        )
    script = found(cli, {}, "stantools", "_STANTOOLS_COMPLETE").source()
    if not install:
        click.echo(script)
        return ExitCode.CLEAN
    path = _place(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{script}\n", encoding="utf-8")
    except OSError as problem:
        raise StoreUnwritableError(f"{path}: {problem.strerror}", "print it, and put it where you can write") from None
    click.echo(f"{console.escape(str(path))}: written; {_LEFT[name]}")
    return ExitCode.CLEAN
