"""Writes man pages from the declarations that `--help` is made of.

python docs/manpages.py FOLDER     (or: make man)
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from broker.config.catalogue import SECTIONS
from stantools import __version__
from stantools.cli.main import cli
from stantools.cli.verbs import QUESTIONS, summaries
from stantools.server_options import Support

_BROKER = """\
A server for clients of NATS Streaming, which connect to it unchanged. Options, files and monitoring are those of the
original server. One or two dashes are the same; a value follows as the next word or behind `=`.
"""
_FILES = "Guides and reference come with the source, in docs/."


def pages() -> dict[str, str]:
    """Returns the pages by file name."""
    found = {"stantools.1": _overview(), "stan-broker.1": _broker()}
    above = click.Context(cli, info_name="stantools")
    for name in summaries():
        for path, own, command in _commands(above, name):
            page = path.replace(" ", "-")
            found[f"{page}.1"] = _page(page, command.get_short_help_str(400), _body(own, command))
    return found


def _commands(above: click.Context, name: str) -> Iterator[tuple[str, click.Context, click.Command]]:
    """Iterates over a verb and what belongs to it; what a group does by itself is its hidden command."""
    assert isinstance(above.command, click.Group)
    command = above.command.get_command(above, name)
    assert command is not None
    with click.Context(command, info_name=name, parent=above, **command.context_settings) as own:
        inner = _inner(own, command)
        plain = next((each for each in inner.values() if each.hidden), None)
        if plain is None:
            yield own.command_path, own, command
        for each in inner.values():
            if each is not plain:
                yield from _commands(own, str(each.name))
    if plain is not None:
        with click.Context(plain, info_name=name, parent=above, **plain.context_settings) as own:
            plain.short_help = command.short_help
            yield own.command_path, own, plain


def _inner(own: click.Context, command: click.Command) -> dict[str, click.Command]:
    """Returns the commands of a group."""
    names = command.list_commands(own) if isinstance(command, click.Group) else []
    found = {name: command.get_command(own, name) for name in names if isinstance(command, click.Group)}
    return {name: each for name, each in found.items() if each is not None}


def _page(name: str, summary: str, body: Iterator[str]) -> str:
    head = f'.TH {_inert(name.upper())} 1 "" "stantools {__version__}" "stantools"\n'
    text = "".join(body)
    return f"{head}.SH NAME\n{_inert(name)} \\- {_inert(summary.rstrip('.'))}\n{text}.SH SEE ALSO\n{_also(name)}\n"


def _also(name: str) -> str:
    others = ["stantools", *(f"stantools-{verb}" for verb in summaries()), "stan-broker"]
    wanted = others if name == "stantools" else ["stantools", "stan-broker"]
    return ",\n".join(f".BR {_inert(each)} (1)" for each in wanted if each != name)


def _body(own: click.Context, command: click.Command) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(own))
    yield f".SH SYNOPSIS\n.B {_inert(own.command_path)}\n{_inert(usage)}\n"
    yield f".SH DESCRIPTION\n{_text(inspect.cleandoc(command.help or '').replace(chr(92) + 'b', chr(8)))}"
    records = [param.get_help_record(own) for param in command.get_params(own) if isinstance(param, click.Option)]
    rows = [record for record in records if record]
    if rows and not own.ignore_unknown_options:
        yield ".SH OPTIONS\n"
        yield from (_row(names, text) for names, text in rows)
    if inner := _inner(own, command):
        yield ".SH COMMANDS\n"
        yield from (_row(name, each.get_short_help_str(400)) for name, each in inner.items())


def _overview() -> str:
    def body() -> Iterator[str]:
        yield ".SH SYNOPSIS\n.B stantools\n[OPTIONS] COMMAND [ARGS]...\n"
        yield f".SH DESCRIPTION\n{_text(inspect.cleandoc(cli.help or ''))}"
        for question, verbs in QUESTIONS.items():
            yield f".SS {_inert(question)}\n"
            yield from (_row(name, summary) for name, summary in verbs.items())
        yield f".SH NOTES\n{_text(cli.epilog or '')}.PP\n{_FILES}\n"

    return _page("stantools", "inspect, check and rescue NATS Streaming file stores", body())


def _broker() -> str:
    def body() -> Iterator[str]:
        yield f".SH SYNOPSIS\n.B stan\\-broker\n[OPTIONS]\n.SH DESCRIPTION\n{_text(_BROKER)}"
        for section in SECTIONS:
            options = [option for _, option in section.options if option.flags]
            if options:
                yield f".SS {_inert(section.title)}\n"
            for option in options:
                names = ", ".join(f"-{name}" if len(name) < 4 else f"--{name}" for name in option.flags)
                state = "" if option.support is Support.WORKS else f" ({option.support.value})"
                yield _row(names, f"{option.help}{state}")

    return _page("stan-broker", "run a server for clients of NATS Streaming", body())


def _row(names: str, text: str) -> str:
    return f".TP\n.B {_inert(names)}\n{_inert(text) or '.'}\n"


def _text(text: str) -> str:
    """Turns a help text into paragraphs; those that keep their line breaks are set as they are."""
    parts = []
    for paragraph in text.strip().split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if first.strip() == "\b":
            lines = "\n".join(_inert(line) for line in rest.split("\n"))
            parts.append(f".PP\n.nf\n{lines}\n.fi\n")
        else:
            lines = "\n".join(_inert(line.strip()) for line in paragraph.split("\n"))
            parts.append(f".PP\n{lines}\n")
    return "".join(parts)


def _inert(text: str) -> str:
    """Returns text in which nothing is a request; what is between backticks is bold."""
    flat = text.replace("\\", "\\e").replace("-", "\\-")
    flat = re.sub(r"[^\x00-\x7f]", lambda sign: f"\\[u{ord(sign[0]):04X}]", flat)
    bold = re.sub(r"`([^`\n]+)`", r"\\fB\1\\fR", flat)
    return f"\\&{bold}" if bold[:1] in (".", "'") else bold


def main() -> None:
    """Writes all pages into a folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = pages()
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")
    sys.stderr.write(f"{folder}: {len(found)} man pages\n")


if __name__ == "__main__":
    main()
