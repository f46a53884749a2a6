"""The shared vocabulary of the verbs: one decorator for each group of options.

A decorator adds its options to a verb and hands them over as one value, so that a verb's function takes
`reading: ReadOptions` instead of four loose parameters.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stantools.cli import console
from stantools.cli.completion import complete_channel
from stantools.cli.values import Duration, Moment, Polynomial, SequenceRange, Size
from stantools.errors import UsageError

if TYPE_CHECKING:
    from stantools.store.limits import ChannelLimits, StoreLimits

_F = TypeVar("_F", bound=Callable[..., Any])

#: The variable from which the server itself takes its key.
SERVER_KEY_VARIABLE = "NATS_STREAMING_ENCRYPTION_KEY"


def in_group(title: str, *decorators: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Adds options that a `GroupedCommand` shows under a title; those that are in a group already stay there."""

    def decorate(function: _F) -> _F:
        others = list(getattr(function, "__click_params__", ()))
        decorated: Any = function
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        for parameter in decorated.__click_params__:
            if isinstance(parameter, click.Option) and not any(parameter is each for each in others):
                _GROUPS.setdefault(parameter, title)
        return cast(_F, decorated)

    return decorate


#: Option -> the title that it is shown under.
_GROUPS: weakref.WeakKeyDictionary[click.Parameter, str] = weakref.WeakKeyDictionary()


class GroupedCommand(click.Command):
    """A command that shows its options in groups, as `in_group` made them; what is in none comes first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options, group by group."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                groups.setdefault(_GROUPS.get(parameter, "Options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _each(*decorators: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class StoreArgument(click.Argument):
    """The store that a verb works on; where none is named, the usual one.

    What STANTOOLS_STORE names, else the current directory or `./datastore` if that is a store. Whatever was taken is
    said on stderr, and is what STORE stands for in remedies. A single word in front of which the store was left out
    belongs to the argument that follows.
    """

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns the store that was named, or the usual one."""
        value, source = super().consume_value(ctx, opts)
        if not ctx.resilient_parsing and (lacking := self._lacking(ctx, opts)) is not None:
            from stantools.cli.opening import usual_store

            if usual := usual_store(ctx):
                if lacking is not self:
                    cast(dict[str, Any], opts)[lacking.name] = value
                value = usual if self.nargs == 1 else (usual,)
        named = value if isinstance(value, tuple) else (value,)
        if len(named) == 1 and isinstance(named[0], str):
            console.set_store(ctx, named[0])
        return value, source

    def _lacking(self, ctx: click.Context, opts: Mapping[str, Any]) -> click.Parameter | None:
        """Returns the last positional argument if the command line has no word for it."""
        last = [each for each in ctx.command.params if isinstance(each, click.Argument)][-1]
        value = opts.get(last.name)
        return None if isinstance(value, str) or (value and isinstance(value, tuple)) else last


store_argument = click.argument(
    "store", cls=StoreArgument, type=click.Path(readable=False, path_type=Path), metavar="STORE"
)
file_argument = click.argument("file", type=click.Path(readable=False, path_type=Path), metavar="FILE")

channel_option = click.option(
    "--channel",
    "channels",
    multiple=True,
    metavar="PATTERN",
    shell_complete=complete_channel,
    help="Only channels that match; * is one token, > the rest. May be repeated.",
)
sequence_option = click.option(
    "--seq",
    "sequences",
    type=SequenceRange(),
    metavar="A:B",
    help="Only these sequences, both ends included; negative ones count from the end: -10: is the last ten.",
)
time_options = _each(
    click.option("--since", type=Moment(), metavar="TIME", help="Not older: RFC 3339, or an age such as 1d3h."),
    click.option("--until", type=Moment(), metavar="TIME", help="Older than this: RFC 3339, or an age such as 1d3h."),
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask before changing something.")


def _note_verbose(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        console.set_verbose(ctx)


def _note_color(ctx: click.Context, _param: click.Parameter, value: str) -> None:
    console.set_color(ctx, value)


common_options = _each(
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=_note_color,
        help="When to color.",
    ),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_note_verbose,
        help="Say more, on stderr.",
    ),
)

workers_option = click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=2,
    show_default=True,
    metavar="N",
    help="Files that are read at the same time.",
)
progress_option = click.option(
    "--progress",
    type=click.Choice(["auto", "bar", "json", "none"]),
    default="auto",
    show_default=True,
    help="How to show progress on stderr; auto is a bar on a terminal.",
)


def _note_wide(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        console.set_wide(ctx)


def output_option(*formats: str, tables: bool = True) -> Callable[[_F], _F]:
    """Adds `-o`, of which the first format is the default, and `--wide` where there are tables."""
    wide = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_note_wide,
        help="Do not cut tables to the width of the terminal.",
    )
    output = click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of what goes to stdout.",
    )
    return _each(output, wide) if tables and "table" in formats else output


_key_decorators: Callable[[Any], Any] = _each(
    click.option(
        "--encryption-key-env",
        metavar="NAME",
        help=f"Variable that holds the server's encryption key; its own is {SERVER_KEY_VARIABLE}.",
    ),
    click.option(
        "--encryption-key-file",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="File with the server's encryption key; a line break at its end does not count.",
    ),
)


def key_options(function: _F) -> _F:
    """Adds the options for the encryption key and passes it on as `encryption_key: bytes | None`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        values["encryption_key"] = _key(values.pop("encryption_key_env"), values.pop("encryption_key_file"))
        return function(*args, **values)

    return cast(_F, _key_decorators(wrapper))


def reading_options(*, key: bool = True, unchecked: bool = True) -> Callable[[_F], _F]:
    """Adds the options of how to read files and passes them on as `reading: ReadOptions`.

    Args:
        key: Add the options for the encryption key as well; every verb that is given a store takes them.
        unchecked: Add --no-crc. What keeps good records must know which are good.
    """
    decorators: list[Callable[[Any], Any]] = [
        click.option(
            "--crc-poly",
            type=Polynomial(),
            default="auto",
            show_default=True,
            metavar="N|NAME|auto",
            help="CRC polynomial, as in the server's -file_crc_poly: a number, ieee, castagnoli or koopman.",
        ),
    ]
    if unchecked:
        no_crc = "Do not check CRCs, like a server with -file_crc=false."
        decorators.append(click.option("--no-crc", is_flag=True, help=no_crc))
    if key:
        decorators.append(_key_decorators)

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def wrapper(*args: Any, **values: Any) -> Any:
            from stantools.store.options import ReadOptions

            given = _key(values.pop("encryption_key_env", None), values.pop("encryption_key_file", None))
            values["reading"] = ReadOptions(values.pop("crc_poly"), not values.pop("no_crc", False), given)
            return function(*args, **values)

        return cast(_F, _each(*decorators)(wrapper))

    return decorate


def _key(variable: str | None, path: Path | None) -> bytes | None:
    if variable and path:
        raise UsageError("--encryption-key-env and --encryption-key-file exclude each other", "give one of them")
    if not variable and not path:
        return None
    from stantools.store.options import key_from_file, key_from_variable

    return key_from_variable(variable) if variable else key_from_file(cast(Path, path))


def limit_options(function: _F) -> _F:
    """Adds the server's channel limits and passes them on as `limits: GivenLimits | None`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        given = GivenLimits(values.pop("max_msgs"), values.pop("max_bytes"), values.pop("max_age"))
        values["limits"] = None if given == GivenLimits() else given
        return function(*args, **values)

    decorated = _each(
        click.option("--max-msgs", type=click.IntRange(0), metavar="N", help="The server's -mm; 0 is no limit."),
        click.option("--max-bytes", type=Size(), metavar="SIZE", help="The server's -mb; 0 is no limit."),
        click.option(
            "--max-age", type=Duration(), metavar="AGE", help="The server's -ma, such as 72h; 0s is no limit."
        ),
    )(wrapper)
    return cast(_F, decorated)


@dataclass(frozen=True)
class GivenLimits:
    """The channel limits that the user gave; None where nothing was given."""

    max_msgs: int | None = None
    max_bytes: int | None = None
    max_age_ns: int | None = None

    def over(self, base: ChannelLimits) -> StoreLimits:
        """Returns the limits of a store: what was given, and the base for the rest."""
        from stantools.store.limits import PatternLimits, StoreLimits

        return StoreLimits(0, PatternLimits(self.max_msgs, self.max_bytes, self.max_age_ns).over(base))
