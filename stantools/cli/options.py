"""From declared options to click: verbs, what every verb takes, and what several share.

An option is declared beside the field that takes it (`stantools.options`). A decorator adds the options of a dataclass,
or a few of them, and hands them over as one value, so that a verb's function takes `reading: ReadOptions` instead of
four loose parameters. How things are shown is the console's own matter (`console.remember`): no verb hands it on.
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from stantools.cli import console
from stantools.cli.verbs import CONTEXT, summaries
from stantools.errors import StantoolsError, UsageError
from stantools.options import ACCEPT_UNREADABLE, CHANNELS, CRC_POLY, KEY, WORKERS, LimitOptions, Option, declared
from stantools.secret import Secret

if TYPE_CHECKING:
    from stantools.store.limits import StoreLimits
    from stantools.store.options import ReadOptions

    _ParamType = click.ParamType[Any]
else:  # generic in newer releases of click only
    _ParamType = click.ParamType

#: Channels that a shell is offered at most.
_MANY_CHANNELS = 500

_F = TypeVar("_F", bound=Callable[..., Any])
_Decorator = Callable[[Any], Any]

# Verbs


def verb(name: str, *formats: str, tables: bool = True, progress: bool = True) -> Callable[[_F], click.Command]:
    """Declares a function to be a verb: a click command with the summary from the table of verbs.

    The function's docstring is the help text (a line with a backslash and a b in front of a paragraph keeps its line
    breaks), what it returns is the exit code.

    Args:
        name: The verb.
        formats: What -o takes, the default first; none if there is no -o.
        tables: Tables are printed, so that there is --wide as well.
        progress: It can take a while, so that there is --progress.
    """
    return command(name, summaries()[name], *formats, tables=tables, progress=progress)


def command(
    name: str,
    summary: str | None,
    *formats: str,
    tables: bool = True,
    progress: bool = True,
    kind: type[click.Command] = click.Command,
) -> Callable[[_F], click.Command]:
    """Declares a function to be a command, of a kind; see `verb`."""

    def declare(function: _F) -> click.Command:
        help_text = inspect.cleandoc(function.__doc__ or "").replace("\\b\n", "\b\n")
        made = click.command(name, kind, help=help_text, short_help=summary, context_settings=CONTEXT)(function)
        made.params += _shown(formats, tables=tables and "table" in formats, progress=progress and bool(formats))
        return made

    return declare


def _shown(formats: tuple[str, ...], *, tables: bool, progress: bool) -> list[click.Option]:
    """Returns the options of how things are shown."""
    options: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    if formats:
        output = {"type": click.Choice(formats), "default": formats[0], "show_default": True}
        options.append((("-o", "--output"), {**output, "help": "Format of what goes to stdout."}))
    if tables:
        wide = "Do not cut tables to the width of the terminal."
        options.append((("--wide",), {"is_flag": True, "help": wide}))
    if progress:
        modes = {"type": click.Choice(["auto", "bar", "json", "none"]), "default": "auto", "show_default": True}
        how = "How to show progress on stderr; auto is a bar on a terminal."
        options.append((("--progress",), {**modes, "help": how}))
    when = {"type": click.Choice(["auto", "always", "never"]), "default": "auto", "show_default": True}
    options.append((("--color",), {**when, "help": "When to color."}))
    options.append((("-v", "--verbose"), {"is_flag": True, "help": "Say more, on stderr."}))
    return [click.Option(names, expose_value=False, callback=console.remember, **more) for names, more in options]


def complete_channel(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers the channels of the store that is named earlier on the line.

    It runs at every press of the tab key: it lists one directory, opens no file, and is silent about what is wrong.
    """
    # With an option that still lacks its value, click leaves the store among the words it could not place.
    store = ctx.params.get("store") or next(iter(ctx.args), None)
    if not store:
        return []
    from stantools.store.directory import open_datastore

    try:
        names = open_datastore(Path(store)).channel_names
    except StantoolsError:
        return []
    fitting = [name for name in names if name.startswith(incomplete) and name.isprintable()]
    return [CompletionItem(name) for name in fitting[:_MANY_CHANNELS]]


# Declared options


class PathType(click.Path):
    """A path. One like an option becomes absolute: it works in every command that is printed about it."""

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Turns the user's text into a path."""
        return super().convert(printable_path(value) if isinstance(value, str) else value, param, ctx)


def printable_path(text: str) -> str:
    """Returns a path that commands may name."""
    plain = text.removeprefix("./")
    return os.path.abspath(plain) if plain.startswith("-") and plain != "-" else text  # noqa: PTH100


class _Parsed(_ParamType):
    """A click type around a function that raises ValueError."""

    name = "value"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Turns the user's text into a value; wrong usage if it makes no sense."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def option_of(name: str, option: Option) -> Callable[[_F], _F]:
    """Adds an option as it is declared, under the name of a parameter."""
    if option.kind is Secret:
        return given(**_places(name, option))
    flags = option.flags or (f"--{option.flag(name)}",)
    more: dict[str, Any] = {"help": option.help, "metavar": option.metavar, "required": option.required}
    if option.default is False:
        return click.option(*flags, name, is_flag=True, help=option.help)
    if option.default == ():
        more["multiple"] = True
    else:
        default = str(option.default) if isinstance(option.default, enum.Enum) else option.default
        written = default if option.written is None else option.written
        more["show_default"] = bool(written) and not option.quiet
        if written is not None:  # click takes None for a value: nothing that is required would be missing
            more["default"] = written
    if option.variable:
        more["envvar"] = option.variable
    if "--channel" in flags:
        more["shell_complete"] = complete_channel
    return click.option(*flags, name, type=_type_of(option), **more)


def _places(name: str, secret: Option) -> dict[str, Option]:
    """Returns the options that say where a secret is found: it is none itself, for others see the list of processes."""
    variable, file = secret.notes
    return {
        f"{name}_env": Option(help=f"Variable that holds {secret.help}{variable}.", metavar="NAME"),
        f"{name}_file": Option(help=f"File with {secret.help}{file}.", kind=Path, metavar="PATH"),
    }


def _secret(name: str, option: Option, values: dict[str, Any]) -> Secret:
    """Takes a secret out of the values of its options."""
    variable, file = (values.pop(each) or None for each in _places(name, option))
    if variable and file:
        flag = f"--{option.flag(name)}"
        raise UsageError(f"{flag}-env and {flag}-file exclude each other", "give one of them")
    return Secret(variable=variable, file=file)


def _type_of(option: Option) -> Any:
    if option.read is not None:
        return _Parsed(option.read)
    if option.choices:
        return click.Choice([str(each) for each in option.choices], case_sensitive=not option.any_case)
    if option.kind is Path:
        return PathType()
    if option.least is None:
        return option.kind
    ranged: Any = click.IntRange if option.kind is int else click.FloatRange
    return ranged(option.least, option.most, min_open=option.above)


def each_of(*decorators: _Decorator) -> Callable[[_F], _F]:
    """Adds options in this order."""

    def decorate(function: _F) -> _F:
        return functools.reduce(lambda made, add: add(made), reversed(decorators), function)

    return decorate


def given(**options: Option) -> Callable[[_F], _F]:
    """Adds options, each of which is passed on under its own name."""
    return each_of(*(option_of(name, option) for name, option in options.items()))


def folded(
    name: str,
    make: Callable[..., Any],
    options: Mapping[str, Option],
    *decorators: _Decorator,
    others: Sequence[str] = (),
    title: str = "",
) -> Callable[[_F], _F]:
    """Adds options, and passes on what is made of them.

    Args:
        name: The parameter that it is passed on as.
        make: Is called with the options by name.
        options: The options.
        decorators: Add further options, which are passed on as they are, but for `others`.
        others: What the decorators pass on, and `make` takes if it is there.
        title: What a `GroupedCommand` shows the options under.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def wrapper(*args: Any, **values: Any) -> Any:
            taken = {each: values.pop(each) for each in (*options, *others) if each in values}
            for each, option in options.items():
                if option.kind is Secret:
                    taken[each] = _secret(each, option, values)
                elif isinstance(option.choices, type) and taken[each] is not None:
                    taken[each] = option.choices(taken[each])
            return function(*args, **values, **{name: make(**taken)})

        own = given(**options)
        return each_of(in_group(title, own) if title else own, *decorators)(cast(_F, wrapper))

    return decorate


def options_of(
    taker: type,
    name: str,
    *decorators: _Decorator,
    title: str = "",
    without: Container[str] = (),
    **helps: str,
) -> Callable[[_F], _F]:
    """Adds the options that a dataclass declares, and passes them on as one value of it.

    Args:
        taker: The dataclass. Its other fields are what the decorators pass on, if they do, else as they are.
        name: The parameter that it is passed on as.
        decorators: Further options.
        title: What a `GroupedCommand` shows the options under.
        without: Fields whose options are not offered here.
        helps: Help texts that are otherwise here, by field.
    """
    all_of_them = dict(declared(taker))
    options = {
        each: option.like(help=helps.get(each, option.help))
        for each, option in all_of_them.items()
        if each not in without
    }
    others = [each.name for each in fields(taker) if each.name not in all_of_them]
    return folded(name, taker, options, *decorators, others=others, title=title)


def in_group(title: str, *decorators: _Decorator) -> Callable[[_F], _F]:
    """Adds options that a `GroupedCommand` shows under a title; those that are in a group already stay there."""

    def decorate(function: _F) -> _F:
        others = list(getattr(function, "__click_params__", ()))
        decorated: Any = each_of(*decorators)(function)
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


# What several verbs share


class StoreArgument(click.Argument):
    """The store that a verb works on; where none is named, the usual one.

    What STANTOOLS_STORE names, else the current directory or `./datastore` if that is a store. Whatever was taken is
    said on stderr, and is what STORE stands for in remedies. A single word in front of which the store was left out
    belongs to the argument that follows. Nodes that --node describes (`node_option`) are taken as well.
    """

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns the store that was named, or the usual one."""
        value, source = super().consume_value(ctx, opts)
        if described := opts.get("nodes"):
            value = self._with_nodes(ctx, value, opts)
        elif self.required and not ctx.resilient_parsing and (lacking := self._lacking(ctx, opts)) is not None:
            from stantools.cli.opening import usual_store

            if usual := usual_store(ctx):
                if lacking is not self:
                    cast(dict[str, Any], opts)[lacking.name] = value
                value = usual if self.nargs == 1 else (usual,)
        named = value if isinstance(value, tuple) else (value,)
        if len(named) == 1 and isinstance(named[0], str) and not described:
            console.set_store(ctx, printable_path(named[0]))
        return value, source

    def _with_nodes(self, ctx: click.Context, value: Any, opts: Mapping[str, Any]) -> Any:
        """Returns what was named together with the nodes that were described; verbs find them by `opening.node_at`.

        Where a verb takes two, the nodes come first.
        """
        from stantools.cli.opening import describe_node

        described = opts["nodes"]
        try:
            paths = [describe_node(ctx, each) for each in described]
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, self, param_hint="'--node'") from error
        if len(described) == 1:
            console.set_store(ctx, f"--node={described[0]}")
        if self.nargs != 1:
            return (*(value if isinstance(value, tuple) else ()), *paths)
        others = [each for each in ctx.command.params if isinstance(each, click.Argument) and each is not self]
        words = [each for each in (value, *(opts.get(each.name) for each in others)) if isinstance(each, str)]
        first, *rest = *paths, *words
        if len(rest) > len(others):
            one = "two stores, or nodes" if others else "one store, or one node"
            raise click.UsageError(f"this verb takes {one}", ctx)
        cast(dict[str, Any], opts).update(zip((each.name for each in others), rest, strict=False))
        return first

    def _lacking(self, ctx: click.Context, opts: Mapping[str, Any]) -> click.Parameter | None:
        """Returns the last positional argument if the command line has no word for it."""
        last = [each for each in ctx.command.params if isinstance(each, click.Argument)][-1]
        value = opts.get(last.name)
        return None if isinstance(value, str) or (value and isinstance(value, tuple)) else last


def stores_argument(metavar: str, kind: Any = None) -> _Decorator:
    """Adds an argument of one store or several; passes them on as `stores`."""
    return click.argument(
        "stores", cls=StoreArgument, nargs=-1, required=True, type=kind or PathType(), metavar=metavar
    )


store_argument = click.argument("store", cls=StoreArgument, type=PathType(), metavar="STORE")
#: For verbs that know nodes: `StoreArgument` takes the nodes for stores.
node_option = click.option(
    "--node",
    "nodes",
    multiple=True,
    expose_value=False,
    metavar="NAME:data=DIR,raft=DIR",
    help="A node whose directories are in different places, with a name for it; one of the two may be left out.",
)
channel_option = given(channels=CHANNELS)
workers_option = given(workers=WORKERS)
_DRY_RUN = Option(help="Say what would be done; change nothing.", default=False)
dry_run_option = given(dry_run=_DRY_RUN)


@dataclass(frozen=True)
class Consent:
    """Whether anything is changed."""

    dry_run: bool = _DRY_RUN.field()
    yes: bool = Option(help="Do not ask before changing something.", default=False).field()


consent_options = options_of(Consent, "consent")


NO_CRC = Option(help="Do not check CRCs, like a server with -file_crc=false.", default=False)


def reading_options(*, unchecked: bool = True, partial: bool = True) -> Callable[[_F], _F]:
    """Adds the options of how to read files and passes them on as `reading: ReadOptions`.

    Args:
        unchecked: Add --no-crc. What keeps good records must know which are good.
        partial: Add --accept-unreadable. A single file is read or not.
    """
    checks = {"no_crc": NO_CRC} if unchecked else {}
    accepts = {"accept_unreadable": ACCEPT_UNREADABLE} if partial else {}
    options = {"crc_poly": CRC_POLY, **checks, "encryption_key": KEY, **accepts}
    return folded("reading", _reading, options)


def _reading(
    crc_poly: int | None, encryption_key: Secret, accept_unreadable: bool = False, no_crc: bool = False
) -> ReadOptions:
    from stantools.store.options import ReadOptions

    return ReadOptions(crc_poly, not no_crc, encryption_key.key(), accept_unreadable)


def limit_options(*, unlimited: bool = False) -> Callable[[_F], _F]:
    """Adds the server's channel limits and passes them on as `limits: StoreLimits | None`, None if none was given.

    Args:
        unlimited: What is not given is not limited, instead of being the server's default.
    """

    def limits(**given: int | None) -> StoreLimits | None:
        from stantools.store.limits import UNLIMITED, ChannelLimits, PatternLimits

        return PatternLimits.given(LimitOptions(**given), UNLIMITED if unlimited else ChannelLimits())

    return folded("limits", limits, dict(declared(LimitOptions)))
