"""How to reach a NATS server: the options that every verb has that talks to one.

What is not given comes from the context of the `nats` command that is named. The one that happens to be selected
there counts only for verbs that ask for it with `or_selected`: who goes by a plan goes where the plan says. Passwords
are never options themselves: others could see them in the list of processes.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stantools.cli import console
from stantools.cli.options import in_group
from stantools.errors import StoreUnreadableError, UsageError

if TYPE_CHECKING:
    from stantools.nats.options import ConnectOptions

_F = TypeVar("_F", bound=Callable[..., Any])

#: Where the official tools look for the server.
SERVER_VARIABLE = "NATS_URL"

_path = click.Path(path_type=Path)
_DECORATORS: list[Callable[[Any], Any]] = [
    click.option(
        "--server",
        "servers",
        multiple=True,
        envvar=SERVER_VARIABLE,
        metavar="URL",
        help=f"NATS server, such as nats://host:4222; several with commas, or repeated. [env: {SERVER_VARIABLE}]",
    ),
    click.option("--context", "nats_context", metavar="NAME", help="Take what is not given from this nats context."),
    click.option("--user", metavar="NAME", help="User name."),
    click.option("--password-env", metavar="NAME", help="Variable that holds the user's password."),
    click.option("--password-file", type=_path, metavar="PATH", help="File with the user's password."),
    click.option("--token-env", metavar="NAME", help="Variable that holds the token to log in with."),
    click.option("--token-file", type=_path, metavar="PATH", help="File with the token to log in with."),
    click.option("--nkey", type=_path, metavar="PATH", help="File with the seed of the user's nkey."),
    click.option("--creds", type=_path, metavar="PATH", help="The user's credentials file."),
    click.option("--tls-ca", type=_path, metavar="PATH", help="Certificates of the authorities to trust."),
    click.option("--tls-cert", type=_path, metavar="PATH", help="Our certificate."),
    click.option("--tls-key", type=_path, metavar="PATH", help="The key of our certificate."),
    click.option("--tls-insecure", is_flag=True, help="Do not check the server's certificate."),
    click.option("--tls-hostname", metavar="NAME", help="The name in the server's certificate, if not the URL's."),
    click.option("--tls-first", is_flag=True, help="The server wants TLS at once (handshake_first)."),
    click.option("--js-domain", metavar="NAME", help="JetStream domain."),
    click.option("--js-api-prefix", metavar="PREFIX", help="Subject prefix of the JetStream API."),
    click.option("--inbox-prefix", metavar="PREFIX", help="Subject prefix on which answers come."),
    click.option(
        "--timeout",
        type=click.FloatRange(0, 86400, min_open=True),
        default=None,
        metavar="SECONDS",
        help="How long to wait for a connection or an answer.  [default: 5]",
    ),
]


def connection_options(function: _F) -> _F:
    """Adds the options for connecting and passes them on as `connecting: ConnectOptions`, checked."""

    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        if not console.is_verbose():
            # What goes wrong in connections is told by us, in other words, where it matters.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        values["connecting"] = _connecting(values)
        return function(*args, **values)

    return cast(_F, in_group("Connection", *_DECORATORS)(wrapper))


def _connecting(values: dict[str, Any]) -> ConnectOptions:
    """Takes the options out of a verb's values."""
    from stantools.nats.context import context_folder, over, read_context
    from stantools.nats.options import ConnectOptions, split_servers

    given = {
        "servers": split_servers(values.pop("servers")),
        "password": _secret("password", values),
        "token": _secret("token", values),
        "domain": values.pop("js_domain"),
        "api_prefix": values.pop("js_api_prefix"),
    }
    for name in ("user", "nkey", "creds", "tls_ca", "tls_cert", "tls_key", "tls_hostname", "inbox_prefix"):
        given[name] = values.pop(name)
    for name in ("tls_insecure", "tls_first"):
        given[name] = values.pop(name)
    timeout, context = values.pop("timeout"), values.pop("nats_context")
    if timeout is not None:
        given["timeout"] = timeout
    if context is not None and _from_environment("servers"):
        given["servers"] = ()  # what is said on the command line comes before what happens to be set
    options = ConnectOptions(**given)
    if context is not None:
        options = over(options, read_context(context, context_folder()))
    # Where no server is named, it stays so: the verb may know one.
    return options.checked() if options.servers else replace(options.checked(), servers=())


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


def _secret(name: str, values: dict[str, Any]) -> str | None:
    variable, path = values.pop(f"{name}_env"), values.pop(f"{name}_file")
    if variable and path:
        raise UsageError(f"--{name}-env and --{name}-file exclude each other", "give one of them")
    if variable:
        text = os.environ.get(variable, "")
        if not text:
            raise UsageError(f"the environment variable {console.escape(variable)} is not set", "export it first")
        return text
    if path:
        from stantools.nats.credentials import read_secret

        try:
            return read_secret(path).decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise StoreUnreadableError(f"{path}: holds no text", f"give the file with the {name}") from None
    return None
