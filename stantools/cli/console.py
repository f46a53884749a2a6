"""Terminal output other than data, all on stderr: escaped names, notes, errors, questions.

Texts may hold unescaped names, for instance of files in error messages: unprintable characters are escaped here once
more. Printable text stays as it is, so nothing is escaped twice.
"""

from __future__ import annotations

import os
import sys
import textwrap
from typing import Any

import click

from stantools.cli import own_command
from stantools.errors import ExitCode, UsageError
from stantools.escaping import UNBROKEN, columns_of, fill_in, store_names
from stantools.escaping import escape as escape
from stantools.escaping import escape_line as escape_line
from stantools.escaping import escape_lines as escape_lines
from stantools.notation import and_more


def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keeps the value of a display option (a click callback), which verbs do not pass on."""
    ctx.meta[f"stantools.{param.name}"] = value
    if param.name == "color" and value != "auto":  # click colors output other than a terminal only on request
        ctx.find_root().color = ctx.color = value == "always"


def _setting(name: str, default: Any = None, ctx: click.Context | None = None) -> Any:
    ctx = ctx or click.get_current_context(silent=True)
    return ctx.meta.get(f"stantools.{name}", default) if ctx else default


def output() -> str:
    """Returns the format of stdout: `table`, `json`, `ndjson` or `csv`."""
    return str(_setting("output", "table"))


def progress() -> str:
    """Returns the kind of progress: `auto`, `bar`, `json` or `none`."""
    return str(_setting("progress", "auto"))


def shows_all() -> bool:
    """Whether the user wants every row of tables and lists."""
    return bool(_setting("everything"))


def is_verbose(ctx: click.Context | None = None) -> bool:
    return bool(_setting("verbose", ctx=ctx))


#: environment variables that this program has set for itself
added_variables: list[str] = []

#: key of a context's meta: the source lacks something, so the exit code is not CLEAN
FLAWED = "stantools.flawed"


def set_store(ctx: click.Context, path: str) -> None:
    """Keeps the user's store, to name it in remedies."""
    from stantools.sqlstore.address import without_password

    ctx.meta["stantools.store"] = without_password(path)


def store() -> str:
    """Returns the user's store as it was named; "" if there is none."""
    return str(_setting("store", ""))


def note(text: str, remedy: str = "") -> None:
    _say(f"stantools: {escape_lines(text)}", remedy)


def warning(text: str, remedy: str = "") -> None:
    _say(f"stantools: {paint('warning', 'yellow')}: {escape_lines(text)}", remedy)


def error(text: str, remedy: str = "") -> None:
    _say(f"stantools: {paint('error', 'red')}: {escape_lines(text)}", remedy)


def _say(text: str, remedy: str = "") -> None:
    sys.stdout.flush()
    click.echo(wrapped(filled(text), 2, err=True), err=True)
    if remedy:
        click.echo(wrapped(f"  -> {escape_lines(filled(remedy))}", 5, err=True), err=True)


def filled(text: str, **names: str) -> str:
    """Puts the user's paths into the commands of a text: the store of this run for STORE, a new name for NEW.

    `names` are further placeholders, such as CHANNEL.
    """
    if path := store():
        names = {**store_names(path), **names}
    return own_command.repeated(fill_in(text, names))


def left_out(count: int, noun: str = "", *, head: str = "", tail: str = "") -> None:
    """Prints the last line of a shortened list, `… and 3 more notes`; nothing if the list is complete.

    Args:
        head: Beginning of the list's lines.
        tail: Where to find the others; commands in it get the user's paths.
    """
    if count > 0:
        click.echo(f"{head}{and_more(count, noun)}{filled(tail)}")


def confirm(question: str, *, yes: bool) -> bool:
    """Asks before a change; `--yes` answers for the user. Raises `UsageError` without a terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("no terminal for the confirmation", "add --yes, or --dry-run for the plan only")
    return click.confirm(wrapped(question, 2, err=True), err=True)


def declined(later: str = "") -> ExitCode:
    """Says that nothing was changed, as the user did not agree; `later` is the command that does it later."""
    note(f"nothing was changed{f'; later: {later}' if later else ''}")
    return ExitCode.REFUSED


def tell_cut(column: str = "") -> None:
    """Notes once, at the end, that tables were cut to fit the terminal, and the columns that were left out."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return
    missing = ctx.meta.get("stantools.cut")
    if missing is None:
        missing = ctx.meta["stantools.cut"] = dict[str, None]()

        def tell() -> None:
            without = f", without {', '.join(missing)}" if missing else ""
            note(f"tables are cut to the width of the terminal{without}; --wide shows all")

        ctx.call_on_close(tell)
    if column:
        missing[column] = None


def width(*, err: bool = False) -> int | None:
    """Returns the columns of stdout or stderr; None without a terminal, or if the user wants full tables."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty() or (not err and _setting("wide")):
        return None
    given = os.environ.get("COLUMNS", "")
    try:
        return int(given) if given.isdecimal() and int(given) else os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(text: str, indent: int = 0, *, err: bool = False, default_width: int | None = None) -> str:
    """Wraps a text to the width of the terminal, without breaking commands, which must stay pasteable.

    Args:
        text: Begins at the left; its line breaks are kept.
        indent: Spaces in front of the following lines.
        err: It goes to stderr.
        default_width: Width without a terminal; None leaves the text as it is.
    """
    columns = width(err=err) or default_width
    if columns is None:
        return text
    whole = UNBROKEN.sub(lambda each: each[0].replace(" ", "\0"), text)
    paragraphs = _Paragraphs(columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(paragraphs.fill, whole.split("\n"))).replace("\0", " ")


class _Paragraphs(textwrap.TextWrapper):
    """Wraps by the columns that words take: none for colors, two for wide characters."""

    def _split(self, text: str) -> list[str]:
        return list(map(_ShownWord, super()._split(text)))


class _ShownWord(str):
    def __len__(self) -> int:
        return sum(map(columns_of, click.unstyle(self)))


def paint(text: str, color: str, *, err: bool = True, bold: bool = False) -> str:
    """Colors a text if its stream is a terminal or the user wants colors."""
    when = _setting("color", "auto")
    if when == "auto":
        stream = sys.stderr if err else sys.stdout
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
            return text
    elif when == "never":
        return text
    return click.style(text, fg=color, bold=bold)
