"""`stantools broker`: the reference broker, with the original server's options."""

from __future__ import annotations

import click

from stantools.cli.verbs import summaries
from stantools.errors import UsageError
from stantools.install_hints import install_command


@click.command(
    "broker",
    short_help=summaries()["broker"],
    add_help_option=False,
    options_metavar="",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
def command(words: tuple[str, ...]) -> int:
    r"""Run the reference broker: clients of NATS Streaming connect to it unchanged.

    It accepts the options of the original server, like `stan-broker`; `stantools broker --help` lists them:

    \b
      stantools broker -st FILE -dir datastore -p 4222 -m 8222
    """
    try:
        from broker.cli import main
    except ImportError as error:
        remedy = f"install its packages: {install_command('aiohttp', 'bcrypt')}"
        raise UsageError(f"the broker cannot run: {error}", remedy) from error
    return main(list(words))
