"""`stantools doctor`: the verdict on sources first, then the one next command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stantools.cli import pipeline
from stantools.cli.click_options import limit_options, node_option, options_of, verb
from stantools.cli.progress import ByteProgress
from stantools.cli.reporttext import show
from stantools.inspection.start_options import StartOptions

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster
    from stantools.pipeline.tables.table_options import TableOptions

start_options = options_of(
    StartOptions, "server", limit_options(), without=("server_version", "cluster_id", "read_buffer")
)


@verb("doctor", "table", "json", tables=False)
@pipeline.stores_argument
@node_option
@start_options
@pipeline.reading_options(remote=False)
@pipeline.cluster_options
def command(stores: tuple[str, ...], server: StartOptions, table_options: TableOptions, cluster: Cluster) -> int:
    """Show the state of STORE, what a start of the server would destroy, and the one next command.

    The first line is the verdict: healthy; flawed (nothing is damaged, but something differs from the files of a
    healthy server); damaged; or in danger (a start would destroy intact data). Every byte is read and checked, as by
    `stantools verify`, and starts of the server are predicted, as by `stantools forecast`. Nothing is changed.

    STORE is the directory of a file store or the folder that holds one, a clustered node, a JetStream directory, or an
    archive of these. Of several stores, each has its verdict and its next command; the last line counts them.

    `stantools STORE` is the same. In all verbs, STORE defaults to STANTOOLS_STORE, otherwise to the current directory
    or ./datastore if that is a store.

    Exit code 0: no problem, and a start is harmless. 1: a problem, or a harmful start, or one of several stores that
    cannot be read.
    """
    from stantools.inspection.source_queries import doctor_source
    from stantools.sources.source import Capability

    sources = pipeline.named_sources(stores, table_options, cluster, Capability.FORECAST, Capability.SURVEY)
    if sources.alone:
        return show(doctor_source(sources.alone, server, ByteProgress))
    from stantools.pipeline.jobs.doctor import run_doctor
    from stantools.pipeline.jobs.store_reports import doctor_stores_report

    size, threads = sum(each.data_size() for each in sources.found), pipeline.threads(server.workers)
    with ByteProgress("doctor", 2 * size) as shown, sources.cluster.work("doctor", size, shown, threads) as work:
        result = run_doctor(work, sources.found, sources.failed, sources.options, server, progress=shown.advance)
    show(doctor_stores_report(result))
    return pipeline.ended(result)
