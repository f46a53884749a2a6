"""What goes to the terminal besides data: escaped names, notes, errors, questions. All of it on stderr.

Texts may hold names that were not escaped, for instance those of files in error messages: whatever cannot be printed
is escaped here once more. Text that is printable stays as it is, so nothing is escaped twice.
"""

from __future__ import annotations

import os
import sys
import textwrap
from typing import Any

import click

from stantools.cli import own_words
from stantools.errors import UsageError
from stantools.escaping import UNBROKEN, fill_in, store_names
from stantools.escaping import escape as escape
from stantools.escaping import escape_line as escape_line
from stantools.escaping import escape_lines as escape_lines
from stantools.notation import and_more


def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keeps the value of an option that says how things are shown: a click callback. No verb hands it on."""
    ctx.meta[f"stantools.{param.name}"] = value
    if param.name == "color" and value != "auto":  # click colors what is not a terminal only when asked to
        ctx.find_root().color = ctx.color = value == "always"


def _kept(name: str, otherwise: Any = None, ctx: click.Context | None = None) -> Any:
    ctx = ctx or click.get_current_context(silent=True)
    return ctx.meta.get(f"stantools.{name}", otherwise) if ctx else otherwise


def output() -> str:
    """Returns the format of what goes to stdout: `table`, `json`, `ndjson` or `csv`."""
    return str(_kept("output", "table"))


def progress() -> str:
    """Returns how progress is shown: `auto`, `bar`, `json` or `none`."""
    return str(_kept("progress", "auto"))


def is_verbose(ctx: click.Context | None = None) -> bool:
    """Returns whether the user wants details."""
    return bool(_kept("verbose", ctx=ctx))


def set_store(ctx: click.Context, path: str) -> None:
    """Remembers which store the user works on, to name it in remedies."""
    ctx.meta["stantools.store"] = path


def store() -> str:
    """Returns the store that the user works on, as it was named; "" if there is none."""
    return str(_kept("store", ""))


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
    click.echo(wrapped(filled(text), 2, err=True), err=True)
    if remedy:
        click.echo(wrapped(f"  -> {escape_lines(filled(remedy))}", 5, err=True), err=True)


def filled(text: str, **names: str) -> str:
    """Puts the user's own paths into the commands of a text: the store of this run for STORE, a new name for NEW.

    Args:
        text: A remedy.
        names: What else commands may name, such as CHANNEL.
    """
    if path := store():
        names = {**store_names(path), **names}
    return own_words.repeated(fill_in(text, names))


def left_out(count: int, noun: str = "", *, head: str = "", tail: str = "") -> None:
    """Prints the last line of a list that leaves some out, `… and 3 more notes`; nothing if it leaves out none.

    Args:
        count: How many it leaves out, if it is more than none.
        noun: What, when it is one.
        head: What the lines of the list begin with.
        tail: Where the others are to be found; commands in it get the user's paths.
    """
    if count > 0:
        click.echo(f"{head}{and_more(count, noun)}{filled(tail)}")


def confirm(question: str, *, yes: bool) -> bool:
    """Asks before something is changed; `--yes` answers for the user.

    Raises:
        UsageError: Nobody is there to answer.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("no terminal to confirm this on", "say --yes, or --dry-run to see the plan only")
    return click.confirm(question, err=True)


def tell_cut() -> None:
    """Says at the end, once, that tables were cut to fit the terminal."""
    ctx = click.get_current_context(silent=True)
    if ctx and not _kept("cut"):
        ctx.meta["stantools.cut"] = True
        ctx.call_on_close(lambda: note("tables are cut to the width of the terminal; --wide shows all"))


def width(*, err: bool = False) -> int | None:
    """Returns how many columns stdout or stderr has; None if it is no terminal, or if the user wants tables whole."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty() or (not err and _kept("wide")):
        return None
    given = os.environ.get("COLUMNS", "")
    try:
        return int(given) if given.isdecimal() and int(given) else os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(text: str, indent: int = 0, *, err: bool = False, otherwise: int | None = None) -> str:
    """Breaks a text into lines as wide as the terminal, but no command, so that it can be pasted.

    Args:
        text: What begins at the left; line breaks in it count.
        indent: How many spaces the lines that follow begin with.
        err: It goes to stderr.
        otherwise: How wide lines are where there is no terminal; None leaves the text as it is.
    """
    columns = width(err=err) or otherwise
    if columns is None:
        return text
    whole = UNBROKEN.sub(lambda each: each[0].replace(" ", "\0"), text)
    lines = (
        textwrap.fill(line, columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
        for line in whole.split("\n")
    )
    return "\n".join(lines).replace("\0", " ")


def paint(text: str, color: str, *, err: bool = True, bold: bool = False) -> str:
    """Colors a text if the stream that it goes to is a terminal, or if the user says so."""
    when = _kept("color", "auto")
    if when == "auto":
        stream = sys.stderr if err else sys.stdout
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
            return text
    elif when == "never":
        return text
    return click.style(text, fg=color, bold=bold)
