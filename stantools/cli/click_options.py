"""From declared options to click: verbs, common options, shared options.

An option is declared beside its field (`stantools.options`). A decorator adds the options of a dataclass, or a few
of them, and passes them on as one value: a verb's function takes `read_options: ReadOptions` instead of four loose
parameters. The console keeps the display options itself (`console.remember`).
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
from stantools.options import (
    CHANNELS,
    WORKERS,
    LimitOptions,
    Option,
    ReadingOptions,
    declared,
)
from stantools.secret import Secret

if TYPE_CHECKING:
    from stantools.store.limits import StoreLimits
    from stantools.store.read_options import ReadOptions

    _ParamType = click.ParamType[Any]
else:  # generic in newer releases of click only
    _ParamType = click.ParamType

#: Maximum number of channels to offer to a shell.
_MANY_CHANNELS = 500

_F = TypeVar("_F", bound=Callable[..., Any])
_Decorator = Callable[[Any], Any]


#: Choices that are longer together are in the help text of their option.
_LONGEST_CHOICES = 60
#: headings of options that most commands have
_READING, _OUTPUT = "Reading the store", "Output"


def verb(name: str, *formats: str, tables: bool = True, progress: bool = True) -> Callable[[_F], click.Command]:
    """Makes a function a verb: a click command with the summary from the table of verbs.

    The function's docstring is the help text (a line with a backslash and a b in front of a paragraph keeps its line
    breaks); its result is the exit code.

    Args:
        formats: Values of -o, the default first; without any there is no -o.
        tables: It prints tables: add --wide.
        progress: It can take long: add --progress.
    """
    return command(name, summaries()[name], *formats, tables=tables, progress=progress)


def command(
    name: str,
    summary: str | None,
    *formats: str,
    tables: bool = True,
    progress: bool = True,
) -> Callable[[_F], click.Command]:
    """Makes a function a click command; see `verb`."""

    def declare(function: _F) -> click.Command:
        help_text = inspect.cleandoc(function.__doc__ or "").replace("\\b\n", "\b\n")
        made = click.command(name, GroupedCommand, help=help_text, short_help=summary, context_settings=CONTEXT)(
            function
        )
        made.params += _display_options(
            formats, tables=tables and "table" in formats, progress=progress and bool(formats)
        )
        return made

    return declare


def _display_options(formats: tuple[str, ...], *, tables: bool, progress: bool) -> list[click.Option]:
    options: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    if formats:
        output = {"type": click.Choice(formats), "default": formats[0], "show_default": True}
        options.append((("-o", "--output"), {**output, "help": "Format of stdout."}))
    if tables:
        wide = "Do not cut tables to the width of the terminal."
        options.append((("--wide",), {"is_flag": True, "help": wide}))
        options.append((("--all", "everything"), {"is_flag": True, "help": "Print all rows of every table and list."}))
    if progress:
        modes = {"type": click.Choice(["auto", "bar", "json", "none"]), "default": "auto", "show_default": True}
        how = "Progress on stderr; auto is a bar on a terminal."
        options.append((("--progress",), {**modes, "help": how}))
    when = {"type": click.Choice(["auto", "always", "never"]), "default": "auto", "show_default": True}
    options.append((("--color",), {**when, "help": "When to color."}))
    options.append((("-v", "--verbose"), {"is_flag": True, "help": "More details on stderr."}))
    found = [click.Option(names, expose_value=False, callback=console.remember, **more) for names, more in options]
    _GROUPS.update((option, _OUTPUT) for option in found)
    return found


def complete_channel(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers the channels of the store named earlier on the line.

    It runs at every press of the tab key: it lists one directory, opens no file, and ignores errors.
    """
    # With an option that still lacks its value, click leaves the store among the unassigned words.
    store = ctx.params.get("store") or next(iter(ctx.params.get("stores") or ctx.args), None)
    if not store:
        return []
    from stantools.store.directory import open_datastore

    try:
        names = open_datastore(Path(store)).channel_names
    except StantoolsError:
        return []
    fitting = [name for name in names if name.startswith(incomplete) and name.isprintable()]
    return [CompletionItem(name) for name in fitting[:_MANY_CHANNELS]]


class PathType(click.Path):
    """A path. One that looks like an option becomes absolute, so that it works in every printed command."""

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; is a variable of the shell unset?", param, ctx)
        return super().convert(printable_path(value) if isinstance(value, str) else value, param, ctx)


def printable_path(text: str) -> str:
    plain = text.removeprefix("./")
    return os.path.abspath(plain) if plain.startswith("-") and plain != "-" else text  # noqa: PTH100


class _ParsedType(_ParamType):
    """A click type of a function that raises ValueError."""

    name = "value"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def option_of(name: str, option: Option) -> Callable[[_F], _F]:
    """Adds a declared option under the name of a parameter."""
    if option.kind is Secret:
        return given(**_secret_options(name, option))
    flags = option.flags or (f"--{option.flag(name)}",)
    more: dict[str, Any] = {"help": option.help, "metavar": option.metavar, "required": option.required}
    choices = [str(each) for each in option.choices]
    if len("|".join(choices)) > _LONGEST_CHOICES and not option.metavar:
        more |= {"metavar": option.flag(name).upper(), "help": f"{option.help} One of: {', '.join(choices)}."}
    if option.default is False:
        return click.option(*flags, name, is_flag=True, help=option.help)
    if option.default == ():
        more["multiple"] = True
    else:
        default = str(option.default) if isinstance(option.default, enum.Enum) else option.default
        written = default if option.written is None else option.written
        more["show_default"] = bool(written) and not option.quiet
        # With a default, or None, which click takes for a value, a missing required option would not be noticed.
        if written is not None and not option.required:
            more["default"] = written
    if option.variable:
        more["envvar"] = option.variable
    if "--channel" in flags:
        more["shell_complete"] = complete_channel
    return click.option(*flags, name, type=_type_of(option), **more)


def _secret_options(name: str, secret: Option) -> dict[str, Option]:
    """Returns the options that name the place of a secret, which must not be in the list of processes."""
    variable, file = secret.notes
    return {
        f"{name}_env": Option(help=f"Variable that holds {secret.help}{variable}.", metavar="NAME"),
        f"{name}_file": Option(help=f"File with {secret.help}{file}.", kind=Path, metavar="PATH"),
    }


def _secret(name: str, option: Option, values: dict[str, Any]) -> Secret:
    """Takes a secret out of the values of its options."""
    variable, file = (values.pop(each) or None for each in _secret_options(name, option))
    if variable and file:
        flag = f"--{option.flag(name)}"
        raise UsageError(f"{flag}-env and {flag}-file exclude each other", "give one of them")
    return Secret(variable=variable, file=file)


def _type_of(option: Option) -> Any:
    if option.read is not None:
        return _ParsedType(option.read)
    if option.choices:
        return click.Choice([str(each) for each in option.choices], case_sensitive=not option.any_case)
    if option.kind is Path:
        return PathType()
    if option.least is None:
        return option.kind
    ranged: Any = click.IntRange if option.kind is int else click.FloatRange
    return ranged(option.least, option.most, min_open=option.above)


def each_of(*decorators: _Decorator) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        return functools.reduce(lambda made, add: add(made), reversed(decorators), function)

    return decorate


def given(**options: Option) -> Callable[[_F], _F]:
    """Adds options that are passed on one by one."""
    return each_of(*(option_of(name, option) for name, option in options.items()))


def folded(
    name: str,
    make: Callable[..., Any],
    options: Mapping[str, Option],
    *decorators: _Decorator,
    others: Sequence[str] = (),
    title: str = "",
) -> Callable[[_F], _F]:
    """Adds options, and passes on the one value made of them.

    Args:
        name: The parameter for the value.
        make: Called with the options by name.
        decorators: Add further options, passed on unchanged except for `others`.
        others: Parameters of the decorators that `make` takes if present.
        title: Heading of the options in a `GroupedCommand`.
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
    """Adds the options of a dataclass, and passes them on as one value of it.

    Args:
        taker: The dataclass. Its other fields come from the decorators, if they have them, else from their
            defaults.
        name: The parameter for the value.
        decorators: Further options.
        title: Heading of the options in a `GroupedCommand`.
        without: Fields whose options are omitted.
        helps: Different help texts by field.
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
    """Adds options that a `GroupedCommand` shows under a title; options already in a group stay there."""

    def decorate(function: _F) -> _F:
        others = list(getattr(function, "__click_params__", ()))
        decorated: Any = each_of(*decorators)(function)
        for parameter in decorated.__click_params__:
            if isinstance(parameter, click.Option) and not any(parameter is each for each in others):
                _GROUPS.setdefault(parameter, title)
        return cast(_F, decorated)

    return decorate


#: heading of each option
_GROUPS: weakref.WeakKeyDictionary[click.Parameter, str] = weakref.WeakKeyDictionary()


class GroupedCommand(click.Command):
    """A command that shows its options in groups; those without come first, those about its output last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as problem:  # the parser's errors do not name the command
            problem.ctx = problem.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        help_option = self.get_help_option(ctx)
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                title = _OUTPUT if parameter is help_option else _GROUPS.get(parameter, "Options")
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


#: the option of a verb that reads a copy of a server (`migration.protocol_copy.ProtocolSource`) instead of STORE
REPLACES_STORE = "source"


class StoreArgument(click.Argument):
    """The store of a verb; by default the usual one.

    The default is STANTOOLS_STORE, else the current directory or `./datastore` if that is a store; it is noted on
    stderr, and replaces STORE in remedies. If only one word is given and another argument follows, the word belongs
    to that one. Nodes that --node describes (`node_option`) are accepted as well.
    """

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        value, source = super().consume_value(ctx, opts)
        if described := opts.get("nodes"):
            value = self._with_nodes(ctx, value, opts)
        elif replaced := opts.get(REPLACES_STORE):
            if isinstance(value, tuple) and value:
                raise click.UsageError("STORE and --from exclude each other: a copy of the server is the store", ctx)
            value = (opts.get("copy") or f"{opts.get('cluster_id') or replaced}.copy",)
        elif self.required and not ctx.resilient_parsing and (lacking := self._missing_argument(ctx, opts)) is not None:
            from stantools.cli.opening import no_store, usual_store

            if usual := usual_store(ctx):
                if lacking is not self:
                    cast(dict[str, Any], opts)[lacking.name] = value
                value = usual if self.nargs == 1 else (usual,)
            elif not (isinstance(value, str | tuple) and value):
                raise no_store()
        named = value if isinstance(value, tuple) else (value,)
        if len(named) == 1 and isinstance(named[0], str) and not described:
            console.set_store(ctx, printable_path(named[0]))
        return value, source

    def _with_nodes(self, ctx: click.Context, value: Any, opts: Mapping[str, Any]) -> Any:
        """Returns the given paths with the described nodes, which verbs find by `opening.open_source`.

        If a verb takes two, the nodes come first.
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

    def _missing_argument(self, ctx: click.Context, opts: Mapping[str, Any]) -> click.Parameter | None:
        """Returns the last positional argument if the command line has no word for it."""
        last = [each for each in ctx.command.params if isinstance(each, click.Argument)][-1]
        value = opts.get(last.name)
        return None if isinstance(value, str) or (value and isinstance(value, tuple)) else last


class SourceType(_ParamType):
    """A path, a glob pattern or a URL, as a text; one that looks like an option becomes absolute."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return printable_path(value)


def stores_argument(metavar: str, kind: Any = None) -> _Decorator:
    """Adds an argument of one store or several, passed on as `stores`."""
    return click.argument(
        "stores", cls=StoreArgument, nargs=-1, required=True, type=kind or PathType(), metavar=metavar
    )


store_argument = click.argument("store", cls=StoreArgument, type=PathType(), metavar="STORE")
#: For verbs that know nodes: `StoreArgument` accepts the nodes as stores.
node_option = click.option(
    "--node",
    "nodes",
    multiple=True,
    expose_value=False,
    metavar="NAME:data=DIR,raft=DIR",
    help="A node with its directories in different places, and a name for it; one of the two may be left out.",
)
channel_option = given(channels=CHANNELS)
workers_option = given(workers=WORKERS)
_DRY_RUN = Option(help="Show the plan; change nothing.", default=False)
dry_run_option = given(dry_run=_DRY_RUN)


@dataclass(frozen=True)
class ChangeMode:
    dry_run: bool = _DRY_RUN.field()
    yes: bool = Option(help="Do not ask before a change.", default=False).field()


consent_options = options_of(ChangeMode, "consent")


def reading_options(*, unchecked: bool = True, partial: bool = True) -> Callable[[_F], _F]:
    """Adds the options for reading files, passed on as `read_options: ReadOptions`.

    Args:
        unchecked: Add --no-crc; not for verbs that must know which records are good.
        partial: Add --accept-unreadable; not for a single file.
    """
    without = {"storage", *(() if unchecked else ("no_crc",)), *(() if partial else _OF_STORES)}

    def read_options(given: ReadingOptions) -> ReadOptions:
        from stantools.store.read_options import ReadOptions

        plain = (given.crc_poly, not given.no_crc, None, given.accept_unreadable, given.sql_driver)
        options = ReadOptions(*plain, key_words=given.encryption_key.words("--encryption-key"))
        return options.with_secrets(given.encryption_key, given.sql_password)

    return declared_reading_options("read_options", read_options, without)


#: options of reading that a single file does not have
_OF_STORES = ("accept_unreadable", "sql_driver", "sql_password")


def declared_reading_options(
    name: str, convert: Callable[[ReadingOptions], Any], without: Container[str], **changes: Option
) -> Callable[[_F], _F]:
    """Adds the options for reading, and passes them on as one converted value; `changes` are other declarations."""
    options = {each: changes.get(each, option) for each, option in declared(ReadingOptions) if each not in without}
    return folded(name, lambda **given: convert(ReadingOptions(**given)), options, title=_READING)


def limit_options(*, unlimited: bool = False) -> Callable[[_F], _F]:
    """Adds the server's channel limits, passed on as `limits: StoreLimits | None`; None if none was given.

    `unlimited`: a limit that is not given does not apply; otherwise it is the server's default.
    """

    def limits(**given: int | None) -> StoreLimits | None:
        from stantools.store.limits import UNLIMITED, ChannelLimits, PatternLimits

        return PatternLimits.given(LimitOptions(**given), UNLIMITED if unlimited else ChannelLimits())

    return folded("limits", limits, dict(declared(LimitOptions)))
