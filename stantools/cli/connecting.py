"""How to reach a NATS server: the options that every verb has that talks to one.

What is not given comes from the context of the `nats` command that is named. The one that happens to be selected
there counts only for verbs that ask for it with `or_selected`: who goes by a plan goes where the plan says. Passwords
are never options themselves: others could see them in the list of processes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import click

from stantools.cli import console
from stantools.cli.options import folded
from stantools.nats.options import ConnectOptions, split_servers
from stantools.options import Option, declared
from stantools.secret import Secret


def _options() -> dict[str, Option]:
    """Returns what `ConnectOptions` declares, and where passwords and tokens are found."""
    options = {}
    for field, declaration in declared(ConnectOptions):
        options[field] = declaration
        if field == "user":
            for name, what in (("password", "the user's password"), ("token", "the token to log in with")):
                options[name] = Option(help=what, kind=Secret)
    return options


def _connecting(servers: tuple[str, ...], context: str | None, **given: Any) -> ConnectOptions:
    from stantools.nats.context import context_folder, over, read_context

    if not console.is_verbose():
        # We report what goes wrong in connections, in other words, where it matters.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    for name in ("password", "token"):
        given[name] = given[name].word(name)
    if context is not None and _from_environment("servers"):
        servers = ()  # what is said on the command line comes before what happens to be set
    options = ConnectOptions(split_servers(servers), **given)
    if context is not None:
        options = over(options, read_context(context, context_folder()))
    # Where no server is named, it stays so: the verb may know one.
    return options.checked() if options.servers else replace(options.checked(), servers=())


#: Adds the options for connecting and passes them on as `connecting: ConnectOptions`, checked.
connection_options = folded("connecting", _connecting, _options(), title="Connection")


def or_selected(connecting: ConnectOptions) -> ConnectOptions:
    """Returns the options with those of the selected nats context, if neither a server nor a context was given."""
    from stantools.nats.context import context_folder, over, read_context, selected_context

    if connecting.servers or connecting.context:
        return connecting
    folder = context_folder()
    name = selected_context(folder)
    return over(connecting, read_context(name, folder)).checked() if name else connecting


def _from_environment(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.ENVIRONMENT
