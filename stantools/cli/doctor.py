"""`stantools doctor`: the verdict on a store first, then the one next command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli.click_options import limit_options, node_option, options_of, reading_options, store_argument, verb
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show
from stantools.inspection.start_options import StartOptions

if TYPE_CHECKING:
    from stantools.store.read_options import ReadOptions

start_options = options_of(
    StartOptions, "server", limit_options(), without=("server_version", "cluster_id", "read_buffer")
)


@verb("doctor", "table", "json", tables=False)
@store_argument
@node_option
@start_options
@reading_options()
def command(store: Path, server: StartOptions, read_options: ReadOptions) -> int:
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
    from stantools.inspection.diagnosis_report import diagnosis_report
    from stantools.inspection.source_queries import diagnose_node_source, diagnose_source
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.FORECAST)
    if source.holds_streams:
        from stantools.inspection.stream_forecast.streams_doctor import diagnose_streams

        return show(diagnose_streams(source, ByteProgress))
    if source.node:
        return show(diagnosis_report(diagnose_node_source(source, server.workers, ByteProgress)))
    return show(diagnosis_report(diagnose_source(source, server, ByteProgress)))
