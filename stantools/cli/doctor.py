"""`stantools doctor`: the verdict on a store first, and the one next command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.forecast import Server
from stantools.cli.options import limit_options, options_of, reading_options, store_argument, verb
from stantools.cli.output import show
from stantools.errors import ExitCode, StantoolsError, StoreChangedError

if TYPE_CHECKING:
    from stantools.inspection.advice import Diagnosis
    from stantools.inspection.forecast import Forecast
    from stantools.inspection.survey import ChannelSurvey
    from stantools.store.directory import Datastore
    from stantools.store.options import ReadOptions

_COLORS = {"healthy": "green", "flawed": "yellow", "damaged": "red", "in danger": "red"}
_MANY = 8
_ALL = ": `stantools verify STORE`"

server_options = options_of(Server, "server", limit_options(), without=("server_version", "cluster_id", "read_buffer"))


@verb("doctor", "table", "json", tables=False)
@store_argument
@server_options
@reading_options()
def command(store: Path, server: Server, reading: ReadOptions) -> int:
    """Say what is the matter with STORE, what a start of the server would destroy, and the one next command.

    The first line is the verdict: healthy; flawed, when nothing is damaged but something is not as a healthy server
    leaves it; damaged; or in danger, when a start would destroy what is intact. Every byte is read and checked, as by
    `stantools verify`, and starts of the server are predicted, as by `stantools forecast`. Nothing is changed.

    `stantools STORE` is the same. Where STORE is left out, here and in all other verbs, it is the one that
    STANTOOLS_STORE names, otherwise the current directory or ./datastore if that is a store.

    Exit code 0: nothing is wrong, and a start is harmless. 1: something is.
    """
    from stantools.cli.opening import open_store

    diagnosis = examine(store, open_store(store, reading), server)
    show(diagnosis.as_json, lambda: _print(diagnosis))
    return exit_code(diagnosis)


def exit_code(diagnosis: Diagnosis) -> ExitCode:
    """Returns whether anything is wrong."""
    from stantools.inspection.advice import Health

    return ExitCode.CLEAN if diagnosis.state is Health.HEALTHY else ExitCode.FINDINGS


def examine(
    store: Path,
    opened: Datastore,
    server: Server,
    on_survey: Callable[[ChannelSurvey], object] | None = None,
    *,
    needs_start: bool = False,
) -> Diagnosis:
    """Reads everything, predicts starts, and says what that comes to; progress is shown.

    Args:
        store: The store's directory, as the user wrote it.
        opened: The store.
        server: How the server is started.
        on_survey: Called with the scan of each channel before it is let go.
        needs_start: That a start cannot be predicted is an error.

    Raises:
        StantoolsError: A start cannot be predicted, and that is an error; or the store changed meanwhile.
    """
    from stantools.cli.progress import Progress
    from stantools.inspection.advice import diagnose
    from stantools.inspection.ciphertext import find_ciphertext
    from stantools.inspection.forecast import forecast_versions
    from stantools.inspection.verify import verify
    from stantools.store.locks import find_uses

    uses = find_uses(opened.path)
    with Progress("verify", lambda: opened.data_size(opened.channel_names)) as shown:
        found = verify(
            opened,
            workers=server.workers,
            progress=shown.advance,
            on_finding=shown.found,
            on_survey=on_survey,
        )
    options = server.options(opened)
    starts: list[tuple[Forecast, Forecast]] = []
    with Progress("forecast", lambda: opened.data_size(opened.channel_names)) as shown:
        try:
            starts = forecast_versions(opened, options, progress=shown.advance)
        except StoreChangedError:
            raise
        except StantoolsError as problem:
            if needs_start:
                raise
            # The rest is worth knowing all the same.
            console.warning(f"what the server would do cannot be determined: {problem.message}", problem.remedy)
    return replace(diagnose(store, found, starts, uses), encryption=find_ciphertext(opened))


def print_verdict(diagnosis: Diagnosis) -> None:
    """Prints the verdict in one line, and what there is to say about encryption in a second."""
    state = console.paint(diagnosis.state.value, _COLORS[diagnosis.state.value], err=False, bold=True)
    click.echo(console.wrapped(f"{console.escape(str(diagnosis.path))}: {state}: {diagnosis.verdict}", 2))
    if encryption := diagnosis.encryption.sentence:
        click.echo(console.wrapped(console.filled(f"encryption: {encryption}"), 2))


def _print(diagnosis: Diagnosis) -> None:
    from stantools.cli.forecast import print_advice, print_outcomes, print_starts
    from stantools.inspection.findings import worst_first

    print_verdict(diagnosis)
    if diagnosis.starts:
        click.echo()
        print_starts(diagnosis.starts)
    click.echo()
    print_outcomes(diagnosis)
    ranked = worst_first(each for each in diagnosis.verified.findings if each.severity.value != "info")
    if ranked:
        click.echo("\nwrong:")
        for each in ranked[:_MANY]:
            place = console.escape(each.file) + (f" at {each.offset}" if each.offset is not None else "")
            click.echo(
                console.wrapped(f"  {place}: {console.escape_line(each.detail)} ({each.code})".replace("  : ", "  "), 4)
            )
        console.left_out(len(ranked) - _MANY, "finding", head="  ", tail=_ALL)
    click.echo()
    print_advice(diagnosis.advice)
