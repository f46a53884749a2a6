"""The user's own command with one change: another user, or one more option."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import click

from stantools.escaping import shell_word

#: Placeholder in remedies for the arguments of `stantools`.
_PLACEHOLDER: Final = "stantools COMMAND"
#: Option that another user may not need.
ACCEPT_UNREADABLE: Final = "--accept-unreadable"
#: Options that name a variable, which another user's command needs.
_VARIABLES: Final = ("--encryption-key-env",)
_STORE_VARIABLE: Final = "STANTOOLS_STORE"

_words: list[str] = []


def keep(words: Sequence[str]) -> None:
    _words[:] = words


def repeated(text: str) -> str:
    """Fills the user's command into a remedy."""
    if _PLACEHOLDER not in text:
        return text
    command = " ".join(["stantools", *(shell_word(each) for each in _words if each != ACCEPT_UNREADABLE)])
    named = [_words[at + 1] for at, word in enumerate(_words[:-1]) if word in _VARIABLES]
    named += [word.partition("=")[2] for word in _words if word.startswith(tuple(f"{each}=" for each in _VARIABLES))]
    if os.environ.get(_STORE_VARIABLE):
        named.append(_STORE_VARIABLE)
    if named:
        text = text.replace("`sudo ", f"`sudo --preserve-env={','.join(named)} ")
    return text.replace(_PLACEHOLDER, command)


def may_add(group: click.Group, option: str) -> bool:
    """Returns whether the user's verb has an option that was not given."""
    command: click.Command | None = group
    for word in _words:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word) or group.get_command(click.Context(group), "doctor")
    return option not in _words and any(option in each.opts for each in (command.params if command else ()))
