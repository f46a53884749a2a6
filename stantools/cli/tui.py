"""`stantools tui`: the browser for the terminal; also installed as `stan-tui`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli.click_options import PathType, StoreArgument, node_option, reading_options, verb, workers_option
from stantools.cli.connection_options import connection_options
from stantools.errors import ExitCode, UsageError
from stantools.escaping import escape_line
from stantools.home import settings_directory
from stantools.install_hints import install_command

if TYPE_CHECKING:
    from stantools.nats.connect_options import ConnectOptions
    from stantools.store.read_options import ReadOptions


@verb("tui")
@click.argument("store", cls=StoreArgument, type=PathType(), metavar="[STORE]", required=False)
@node_option
@click.option(
    "--monitor", metavar="URL", help="Watch a running server by its monitoring URL, such as http://host:8222."
)
@connection_options
@click.option("--config", type=PathType(), metavar="FILE", help="Keys, theme and mouse; see the TUI guide.")
@click.option(
    "--mouse/--no-mouse", default=None, help="Leave the mouse to the terminal, to select and copy text.  [default: on]"
)
@workers_option
@reading_options()
def command(
    store: Path | None,
    monitor: str | None,
    connect_options: ConnectOptions,
    config: Path | None,
    mouse: bool | None,
    workers: int,
    read_options: ReadOptions,
) -> int:
    r"""Browse STORE in the terminal: content, problems, remedies. Nothing is changed unless unlocked.

    \b
      stantools tui STORE
      stantools tui --monitor http://host:8222
      stantools tui STORE --server nats://host:4222    compares its streams

    Press ? for the keys. NO_COLOR switches colors off.
    """
    server = connect_options if connect_options.servers or connect_options.context else None
    if store is None and monitor is None and server is None:
        from stantools.cli.opening import usual_store

        store = Path(usual) if (usual := usual_store(click.get_current_context())) else None
    if store is None and monitor is None and server is None:
        raise UsageError("no STORE and no server was given", "name a STORE, or a server with --monitor or --server")
    if monitor is not None:
        from stantools.nats.monitoring import Address

        Address.parse(monitor)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the browser needs a terminal", "for programs: stantools info, verify, messages with -o json")
    # Loading the user interface, and opening an archive, take a moment.
    opened = f"opening {escape_line(str(store))}" if store is not None else "connecting"
    sys.stdout.write(f"\r{opened} …")
    sys.stdout.flush()
    try:
        from tui.app import Browser
    except ImportError as error:
        raise UsageError(f"the browser cannot run: {error}", f"install it: {install_command('textual')}") from error
    from stantools.cli.opening import open_source
    from stantools.sources.source import Capability
    from tui.keys import read_settings
    from tui.opening import session_of
    from tui.session import SourceSession

    session: SourceSession | None = None
    if store is not None:
        session = session_of(open_source(store, read_options, Capability.SURVEY), workers=workers)
    settings = read_settings(config or settings_directory() / "stantools" / "tui.toml", must_exist=config is not None)
    browser = Browser(session, settings=settings, connect_options=server, monitor=monitor)
    # A big store's facts are hundreds of thousands of objects: a garbage collection of these takes longer than a key
    # may.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    sys.stdout.write("\r\x1b[K")
    sys.stdout.flush()
    browser.run(mouse=settings.mouse if mouse is None else mouse)
    if browser.failure is not None:
        raise browser.failure
    return ExitCode.CLEAN


def console() -> None:
    from stantools.cli.main import be_interruptible, cli

    be_interruptible()
    sys.argv[1:1] = ["tui"]
    cli.main(prog_name="stan-tui")
