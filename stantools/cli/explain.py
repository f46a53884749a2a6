"""`stantools explain`: the meaning of a finding code or a log line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from stantools.cli import console
from stantools.cli.click_options import verb
from stantools.cli.output import print_json
from stantools.cli.reporttext import show
from stantools.errors import ExitCode, StoreUnreadableError, UsageError, readable
from stantools.escaping import shell_word
from stantools.notation import counted

if TYPE_CHECKING:
    from stantools.inspection.explain import Explanation

#: Columns of a text without a terminal.
_WIDTH = 100


@verb("explain", "table", "json", progress=False)
@click.argument("words", nargs=-1, metavar="[CODE | LOG LINE | FILE | -]")
def command(words: tuple[str, ...]) -> int:
    """Explain a finding of `stantools verify`, or lines of the server's log.

    Paste one log line or several, quoted or not, also in the form of Docker, journald, syslog and Kubernetes. In a
    whole log, from FILE or stdin (- or no name), each line about the store is explained once. Without any of
    these, every finding code is listed. The commands name your store if STANTOOLS_STORE, the current directory or
    ./datastore is one.
    """
    from stantools.inspection.catalogue import CATALOGUE
    from stantools.inspection.explain import explain, explain_log, similar_codes
    from stantools.inspection.report import listing

    text = " ".join(words)
    log = _log(words)
    if log is not None:
        found = explain_log(log)
    else:
        found = explain_log(text.splitlines()) if "\n" in text.strip() else explain(text)
    if not words and not found and (log is None or not log.lines):
        codes = [{"code": e.code, "severity": e.severity.value, "meaning": e.meaning} for e in CATALOGUE.values()]
        return show(listing("codes", codes, fold=("meaning",)))
    if not found and log is None:
        close = similar_codes(text)
        raise UsageError(
            f"{console.escape(text[:200])}: neither a finding code nor a known error or warning of a server",
            f"did you mean {' or '.join(close)}?" if close else "`stantools explain` lists all codes",
        )
    if log is not None and not found:
        console.note(f"read {counted(log.lines, 'line')}; none is an error or a warning that is known")
    if console.output() == "json":
        print_json({"explanations": [each.as_json() for each in found]})
    elif found:
        from stantools.cli.opening import usual_store

        usual_store(click.get_current_context())
        _print(found)
    return ExitCode.CLEAN


class _Log:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.lines = 0

    def __iter__(self) -> Iterator[str]:
        with self._file:
            for line in self._file:
                self.lines += 1
                yield line.decode("utf-8", "surrogateescape")


def _log(words: tuple[str, ...]) -> _Log | None:
    """Returns the log to read; None if the words themselves are to be explained."""
    if words == ("-",) or (not words and not sys.stdin.isatty()):
        return _Log(sys.stdin.buffer)
    path = Path(words[0]) if len(words) == 1 else None
    try:
        if path is None or "\n" in words[0] or not path.exists():
            return None
    except OSError:  # a line that is too long for a file name
        return None
    if path.is_dir():
        raise StoreUnreadableError(f"{path}: is a directory, not a log", f"stantools doctor {shell_word(words[0])}")
    with readable(path):
        return _Log(path.open("rb"))


def _print(found: Sequence[Explanation]) -> None:
    shown: set[str] = set()
    for number, each in enumerate(found):
        if number:
            click.echo()
        click.echo(console.paint(console.escape(each.subject), "cyan", err=False, bold=True))
        parts = {
            "what": console.filled(each.meaning),
            "why": each.cause,
            "server": each.server,
            "next": "as above" if each.remedy in shown else console.filled(each.remedy),
            "codes": ", ".join(each.codes),
        }
        shown |= {each.remedy} if each.remedy else set()
        for title, text in parts.items():
            if text:
                click.echo(console.wrapped(f"  {title:<7} {console.escape_lines(text)}", 10, default_width=_WIDTH))
