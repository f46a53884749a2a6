"""`stantools doctor`: the verdict on a store first, then the one next command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.click_options import limit_options, node_option, options_of, reading_options, store_argument, verb
from stantools.cli.diagnosis import (
    ServerFlags,
    examine,
    examine_node,
    print_advice,
    print_outcomes,
    print_starts,
    print_verdict,
)
from stantools.cli.output import show
from stantools.cli.reporttext import show as show_report
from stantools.errors import ExitCode

if TYPE_CHECKING:
    from stantools.inspection.advice import Diagnosis
    from stantools.inspection.node_diagnosis import NodeDiagnosis
    from stantools.store.read_options import ReadOptions

_MANY = 8
_ALL = ": `stantools verify STORE`"

server_options = options_of(
    ServerFlags, "server", limit_options(), without=("server_version", "cluster_id", "read_buffer")
)


@verb("doctor", "table", "json", tables=False)
@store_argument
@node_option
@server_options
@reading_options()
def command(store: Path, server: ServerFlags, read_options: ReadOptions) -> int:
    """Show the state of STORE, what a start of the server would destroy, and the one next command.

    The first line is the verdict: healthy; flawed (nothing is damaged, but something differs from the files of a
    healthy server); damaged; or in danger (a start would destroy intact data). Every byte is read and checked, as by
    `stantools verify`, and starts of the server are predicted, as by `stantools forecast`. Nothing is changed.

    STORE is the directory of a file store or the folder that holds one, a clustered node, a JetStream directory, or an
    archive of these.

    `stantools STORE` is the same. In all verbs, STORE defaults to STANTOOLS_STORE, otherwise to the current directory
    or ./datastore if that is a store.

    Exit code 0: no problem, and a start is harmless. 1: a problem, or a harmful start.
    """
    from stantools.cli.opening import open_source
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.FORECAST)
    if source.streams:
        from stantools.cli.progress import ByteProgress
        from stantools.inspection.stream_forecast.start_report import doctor_report, forecast_starts

        with ByteProgress("forecast") as shown:
            found = forecast_starts(source, None, shown.advance)
        return show_report(doctor_report(found))
    diagnosis = examine_node(source, server) if source.node else examine(source, server)
    show(diagnosis.as_json, lambda: _print(diagnosis))
    return exit_code(diagnosis)


def exit_code(diagnosis: Diagnosis | NodeDiagnosis) -> ExitCode:
    from stantools.inspection.advice import Health

    return ExitCode.CLEAN if diagnosis.state is Health.HEALTHY else ExitCode.FINDINGS


def _print(diagnosis: Diagnosis | NodeDiagnosis) -> None:
    from stantools.inspection.advice import Diagnosis
    from stantools.inspection.findings import worst_first

    print_verdict(diagnosis)
    if isinstance(diagnosis, Diagnosis):
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
