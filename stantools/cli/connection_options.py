"""Connection to a NATS server: the options of every verb that uses one.

Defaults come from the named context of the `nats` command. Its selected context counts only for verbs that use
`or_selected`: a plan names its own target. Passwords are never options themselves, because the list of processes is
public.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import click

from stantools.cli import console
from stantools.cli.click_options import folded
from stantools.nats.connect_options import ConnectOptions, split_servers
from stantools.options import Option, declared
from stantools.secret import Secret


def _options() -> dict[str, Option]:
    """Returns the options of `ConnectOptions`, and the options that name the place of passwords and tokens."""
    options = {}
    for field, declaration in declared(ConnectOptions):
        options[field] = declaration
        if field == "user":
            for name, what in (("password", "the user's password"), ("token", "the token for login")):
                options[name] = Option(help=what, kind=Secret)
    return options


def _checked_options(servers: tuple[str, ...], context: str | None, **given: Any) -> ConnectOptions:
    if not console.is_verbose():
        # Connection failures are reported where they matter.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    for name in ("password", "token"):
        given[name] = given[name].word(name)
    environment = click.core.ParameterSource.ENVIRONMENT
    if context is not None and click.get_current_context().get_parameter_source("servers") is environment:
        servers = ()  # the command line precedes the environment
    options = _with_context(ConnectOptions(split_servers(servers), **given), context)
    # Without a server it stays so: the verb may know one.
    return options.checked() if options.servers else replace(options.checked(), servers=())


#: Adds the connection options and passes them on as `connecting: ConnectOptions`, checked.
connection_options = folded("connect_options", _checked_options, _options(), title="Connection")


def from_options(url: str, context: str | None) -> ConnectOptions:
    """Returns the options of a connection to a second server: its URL with a login, or a nats context."""
    return _with_context(ConnectOptions(split_servers((url,))), context or None).checked()


def _with_context(options: ConnectOptions, context: str | None) -> ConnectOptions:
    from stantools.nats.context import context_folder, over, read_context

    return options if context is None else over(options, read_context(context, context_folder()))


def or_selected(connect_options: ConnectOptions) -> ConnectOptions:
    """Returns the options of the selected nats context, if neither a server nor a context was given."""
    from stantools.nats.context import context_folder, selected_context

    if connect_options.servers or connect_options.context:
        return connect_options
    name = selected_context(context_folder())
    return _with_context(connect_options, name).checked() if name else connect_options
