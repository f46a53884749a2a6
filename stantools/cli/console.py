"""What goes to the terminal besides data: escaped names, notes, errors, questions. All of it on stderr.

Texts may hold names that were not escaped, for instance those of files in error messages: whatever cannot be printed
is escaped here once more. Text that is printable stays as it is, so nothing is escaped twice.
"""

from __future__ import annotations

import os
import sys

import click

from stantools.errors import UsageError
from stantools.escaping import escape as escape
from stantools.escaping import escape_line as escape_line
from stantools.escaping import escape_lines as escape_lines

_VERBOSE = "stantools.verbose"
_COLOR = "stantools.color"


def note(text: str) -> None:
    """Prints something worth knowing."""
    _say(f"stantools: {escape_lines(text)}")


def warning(text: str, remedy: str = "") -> None:
    """Prints something that is not as it should be."""
    _say(f"stantools: {paint('warning', 'yellow')}: {escape_lines(text)}", remedy)


def error(text: str, remedy: str = "") -> None:
    """Prints why the work ended, and what can be done next."""
    _say(f"stantools: {paint('error', 'red')}: {escape_lines(text)}", remedy)


def _say(text: str, remedy: str = "") -> None:
    sys.stdout.flush()
    click.echo(text, err=True)
    if remedy:
        click.echo(f"  -> {escape_lines(remedy)}", err=True)


def confirm(question: str, *, yes: bool) -> bool:
    """Asks before something is changed; `--yes` answers for the user.

    Raises:
        UsageError: Nobody is there to answer.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to confirm this", "say --yes, or --dry-run to see the plan only")
    return click.confirm(question, err=True)


def set_verbose(ctx: click.Context) -> None:
    """Remembers that the user wants details."""
    ctx.meta[_VERBOSE] = True


def is_verbose(ctx: click.Context | None = None) -> bool:
    """Tells whether the user wants details."""
    ctx = ctx or click.get_current_context(silent=True)
    return bool(ctx and ctx.meta.get(_VERBOSE))


def set_color(ctx: click.Context, when: str) -> None:
    """Remembers when to use color: `auto`, `always` or `never`."""
    ctx.meta[_COLOR] = when


def paint(text: str, color: str, *, err: bool = True, bold: bool = False) -> str:
    """Colors a text if the stream that it goes to is a terminal, or if the user says so."""
    ctx = click.get_current_context(silent=True)
    when = ctx.meta.get(_COLOR, "auto") if ctx else "auto"
    if when == "auto":
        stream = sys.stderr if err else sys.stdout
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
            return text
    elif when == "never":
        return text
    return click.style(text, fg=color, bold=bold)
