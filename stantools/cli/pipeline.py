"""Verbs over several sources, here or on Spark; `stantools pipeline VERB` is another name of each.

One source that the door opens has the verb's own output; several, and those of `stantools pipeline`, have a table and
a document of stores. The work is done in threads of this process or in tasks of Spark (`stantools.work`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stantools.cli import click_options, console
from stantools.cli.click_options import declared_reading_options, options_of
from stantools.cli.progress import ByteProgress
from stantools.cli.verbs import CONTEXT, JOBS, LazyGroup, summaries
from stantools.errors import UsageError
from stantools.notation import format_size
from stantools.options import KEY, ReadingOptions, option
from stantools.work import ThreadWork, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stantools.pipeline.jobs.migrate import MigrateResult
    from stantools.pipeline.jobs.stats.summary import Stats
    from stantools.pipeline.jobs.stores import JobResult
    from stantools.pipeline.spark.tasks import Tasks
    from stantools.pipeline.tables.discovery import FoundStore
    from stantools.pipeline.tables.model import FailedRead
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.sources.source import Capability, Source

_F = TypeVar("_F", bound=Callable[..., Any])

#: Bytes from which Spark may be worth its start; with less even the slowest job ends in this process before Spark has
#: started (benchmarks/RESULTS.md, "Pipeline: start of Spark").
SPARK_PAYS = 2 << 30
#: Seconds without any executor between two warnings.
_IDLE_SECONDS = 20.0


class Jobs(LazyGroup):
    NOUN = "job"

    def summaries(self) -> dict[str, str]:
        return {each: summary for each, summary in summaries().items() if each in JOBS}

    def otherwise(self) -> str:
        return f"; the jobs are {', '.join(JOBS)}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the jobs from the table, without importing them."""
        with formatter.section("Jobs"):
            formatter.write_dl(list(self.summaries().items()))


def _print_submit_file(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(str(submit_file()))
        ctx.exit()


_HELP = """\
Run verbs over many stores at once, in threads of this process or on Spark (local cores or a cluster).

`stantools pipeline VERB` is another name of `stantools VERB` with the same options. Its output lists stores even if
there is one. It starts Spark by itself if there are 2 GiB or more to read: with less, this process ends before Spark
would have started, with the same result. --engine chooses.

STORE is a store, a channel of one, a node of a cluster, an archive, a directory with stores at any depth, a single
slice, a directory of .bak slices, a glob pattern, or a URL that fsspec can open. On a cluster, every machine must be
able to read it under the same name. Each store is judged as by the verb alone, with the same exit codes. Stores that
cannot be read are named, and the others are processed.

Spark is pyspark 4.1 or later (the extra `spark`) with Java 17 or 21, found by JAVA_HOME or PATH. On a cluster, the
workers' Python (PYSPARK_PYTHON) needs the packages that stantools depends on; a job sends stantools itself. For
spark-submit, install stantools there as well:

\b
  stantools pipeline verify /archive/stores
  stantools pipeline stats /archive/stores --report page.html \\
    --master spark://HOST:7077
  spark-submit --master yarn $(stantools pipeline --submit-file) \\
    verify /archive/stores

Guide: docs/pipeline-guide.md
"""


@click.group("pipeline", cls=Jobs, help=_HELP, short_help=summaries()["pipeline"], context_settings=CONTEXT)
@click.option(
    "--submit-file",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_submit_file,
    help="Print the path of the file for spark-submit.",
)
def command() -> None: ...


def as_job(ctx: click.Context | None = None) -> bool:
    """Returns whether the verb runs under its other name, `stantools pipeline VERB`."""
    ctx = ctx or click.get_current_context(silent=True)
    while ctx and ctx.command is not command:
        ctx = ctx.parent
    return ctx is not None


@dataclass(frozen=True)
class Cluster:
    engine: str = option(
        "The engine: threads of this process (local), or Spark. auto: Spark if --master, --remote, --conf or "
        f"spark-submit name it, or `stantools pipeline` has {SPARK_PAYS >> 30} GiB or more to read.",
        default="auto",
        choices=("auto", "local", "spark"),
    )
    master: str | None = option(
        "Spark's master: local[2], spark://HOST:PORT, yarn, k8s://…; by default local[*,4]: all cores here, "
        "and up to 4 attempts of a task whose worker dies.",
        metavar="URL",
    )
    remote: str | None = option("A Spark Connect server instead of a master: sc://HOST:PORT.", metavar="URL")
    conf: tuple[str, ...] = option("A setting of Spark. May be repeated.", default=(), metavar="KEY=VALUE")
    partitions: int | None = option(
        "Number of tasks; by default chosen by size and cores.",
        kind=int,
        least=1,
        most=1_000_000,
        metavar="N",
    )

    def __post_init__(self) -> None:
        for each in self.conf:
            key, separator, _ = each.partition("=")
            if not separator or not key.strip():
                raise UsageError(f"--conf {each}: is not KEY=VALUE", "for example: --conf spark.executor.memory=2g")
            if not key.strip().startswith("spark."):
                raise UsageError(f"--conf {each}: Spark's settings begin with spark.", f"did you mean spark.{each}?")
        if self.engine == "local" and (self.master or self.remote or self.conf):
            raise UsageError("--engine local contradicts the options for Spark", "leave out one of them")
        if self.on_spark():
            from stantools.pipeline.spark.session import check_packages

            check_packages()

    def on_spark(self) -> bool:
        """Returns whether Spark is required, whatever the size of the work."""
        from stantools.pipeline.spark.session import active_session, submitted

        if self.engine != "auto":
            return self.engine == "spark"
        if self.master or self.remote or self.conf:
            return True
        return as_job() and (submitted() or active_session() is not None)

    @contextlib.contextmanager
    def work(
        self, name: str, size: int, progress: ByteProgress | None = None, workers: int | None = None
    ) -> Iterator[Work]:
        """Begins a job on the chosen engine, which it notes.

        Args:
            name: The job.
            size: Bytes to read.
            progress: Shows the number of finished tasks.
            workers: Number of threads of this process; by default one for each core.
        """
        automatic = self.engine == "auto" and as_job()
        if not self.on_spark() and (not automatic or size < SPARK_PAYS):
            if automatic and size:
                console.note(
                    f"running in this process: {format_size(size)} to read, and Spark pays from "
                    f"{format_size(SPARK_PAYS)} on; --engine spark starts it"
                )
            yield ThreadWork(workers or os.cpu_count() or 1)
            return
        from stantools.pipeline.spark.tasks import SparkWork

        with self.session(name, progress) as spark:
            yield SparkWork(spark, self.partitions)

    @contextlib.contextmanager
    def session(self, name: str, progress: ByteProgress | None = None) -> Iterator[SparkSession]:
        """Opens a session for a job, shows the progress of its tasks, and closes the session unless it existed before.

        Exceptions of Spark become ours.
        """
        from stantools.pipeline.spark.failures import clear_errors
        from stantools.pipeline.spark.session import active_session, session, submitted
        from stantools.pipeline.spark.tasks import watching

        if active_session() is None:
            where = (
                self.remote or self.master or ("the master it was submitted to" if submitted() else "all cores here")
            )
            console.note(f"starting Spark on {where}, which takes ten seconds or more")
        quiet = not console.is_verbose()
        conf = {key.strip(): value for key, _, value in (each.partition("=") for each in self.conf)}
        with (
            session(self.master, name=f"stantools {name}", conf=conf, remote=self.remote, quiet=quiet) as spark,
            clear_errors(),
            watching(spark, _TaskProgress(progress).show),
        ):
            yield spark


class _TaskProgress:
    """Shows the number of finished tasks, and warns if no executor takes them: Spark waits silently, without end."""

    def __init__(self, progress: ByteProgress | None) -> None:
        self._progress = progress
        self._next = _IDLE_SECONDS

    def show(self, tasks: Tasks) -> None:
        if self._progress is not None and tasks.total:
            self._progress.tasks(tasks.done, tasks.total)
        if not tasks.idle:
            self._next = _IDLE_SECONDS
        elif tasks.idle >= self._next:
            self._next = tasks.idle + 3 * _IDLE_SECONDS
            console.warning(
                f"{tasks.total - tasks.done} tasks have been waiting for {tasks.idle:.0f} s: no executor takes them",
                "check the cluster's page for free cores and memory; --conf spark.executor.memory=… "
                "requests less; Ctrl-C cancels",
            )


#: Adds the options of `Cluster`, passed on as `cluster: Cluster`.
cluster_options = options_of(Cluster, "cluster")
stores_argument = click_options.stores_argument("STORE...", click_options.SourceType())


def reading_options(*, unchecked: bool = True, remote: bool = True) -> Callable[[_F], _F]:
    """Adds the options for reading stores here or in tasks, passed on as `table_options: TableOptions`, without paths.

    Args:
        unchecked: Add --no-crc.
        remote: Add --storage, for stores at URLs.
    """
    without = {*(() if unchecked else ("no_crc",)), *(() if remote else ("storage",))}
    key = KEY.like(notes=tuple(f"{note}; on Spark, where the tasks run" for note in KEY.notes))
    return declared_reading_options("table_options", _table_options, without, encryption_key=key)


def _table_options(given: ReadingOptions) -> TableOptions:
    from stantools.pipeline.tables.table_options import TableOptions

    storage = []
    for each in given.storage:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise UsageError(f"--storage {each}: is not KEY=VALUE", "for example: --storage anon=true")
        storage.append((name, value))
    key = given.encryption_key
    return TableOptions(
        polynomial=given.crc_poly,
        check_crc=not given.no_crc,
        key=replace(key, file=key.file.absolute()) if key.file else key,
        accept_unreadable=given.accept_unreadable,
        storage=tuple(storage),
        sql_driver=given.sql_driver,
        sql_password=given.sql_password,
    )


def threads(workers: int) -> int | None:
    """Returns the number of threads for several sources: as the user says, otherwise one for each core."""
    source = click.get_current_context().get_parameter_source("workers")
    return None if source is click.core.ParameterSource.DEFAULT else workers


@dataclass(frozen=True)
class NamedSources:
    """The sources of a verb: one path, opened as it is, or the stores that a search finds."""

    options: TableOptions  #: with absolute paths
    cluster: Cluster
    alone: Source | None = None
    found: Sequence[FoundStore] = ()
    failed: Sequence[FailedRead] = ()

    def several(self) -> NamedSources:
        """Returns the source that is alone as one of several."""
        from stantools.pipeline.tables.discovery import discover

        if self.alone is None:
            return self
        found, _ = discover(self.options, lambda _: self.alone)
        return replace(self, cluster=_reaching(self.cluster, found), alone=None, found=found)

    def together(self) -> list[Source] | None:
        """Returns the sources of one plan: one store, or the nodes of one cluster; None for several stores."""
        if self.alone:
            return [self.alone]
        if as_job() or self.failed or self.cluster.on_spark():
            return None
        sources = [each.source for each in self.found if each.source and _is_node(each.source)]
        one_kind = len({each.holds_streams for each in sources}) == 1
        return sources if one_kind and len(sources) == len(self.found) else None


def _is_node(source: Source) -> bool:
    """Returns whether a source is a node of a cluster, or the file store of one."""
    from stantools.store.serverinfo import readable_server_info

    if source.nodes or source.raft_groups:
        return True
    if source.holds_streams or source.sql:
        return False
    server = readable_server_info(source.store())
    return bool(server and server.node_id)


def named_sources(
    stores: Sequence[str], options: TableOptions, cluster: Cluster, *uses: Capability, channels: Sequence[str] = ()
) -> NamedSources:
    """Opens the sources of a verb for its uses.

    A source that is alone is opened for the verb's own output, except as a job or on Spark.
    """
    from stantools.cli.opening import check_tasks, described, open_named, recognise_named

    on_spark, whole = cluster.on_spark(), options.of(stores, channels=tuple(channels))
    reading = options.read_options(here=not on_spark)
    if len(stores) == 1 and not on_spark and not as_job():
        (path, recognised), *more = recognise_named(stores[0], uses).items()
        if not more and (source := open_named(path, recognised, reading, *uses, channels=channels, alone=True)):
            return NamedSources(whole, cluster, source)
    from stantools.pipeline.tables.discovery import discover  # a source alone needs nothing of it

    paths = (each if described(each) else path for each, path in zip(stores, whole.paths, strict=True))
    named = {path: found for each in paths for path, found in recognise_named(each, uses).items()}

    def opening(path: str) -> Source | None:
        if on_spark and (recognised := named[path]):
            check_tasks(recognised)
        return open_named(path, named[path], reading, *uses, channels=channels)

    found, failed = discover(replace(whole, paths=tuple(named)), opening)
    return NamedSources(whole, _reaching(cluster, found), None, found, failed)


def _reaching(cluster: Cluster, found: Sequence[FoundStore]) -> Cluster:
    """Returns the cluster, or this process alone if only it can read a store."""
    sources = [each.source for each in found if each.source]
    return replace(cluster, engine="local") if any(each.only_here for each in sources) else cluster


def table_paths(
    stores: Sequence[str],
    channels: Sequence[str],
    cluster: Cluster,
    options: TableOptions,
    *,
    sql_tasks: bool = False,
) -> tuple[tuple[str, ...], Cluster]:
    """Returns the paths of a table, with private copies in place of archives, SQL stores and backups of streams.

    Only this process can read these. With `sql_tasks`, tasks of Spark open SQL stores themselves.
    """
    from stantools.cli.opening import check_tasks, described, is_archive, open_source
    from stantools.pipeline.tables.sql_parts import check_password
    from stantools.sources import jetstream, sql
    from stantools.sources.door import recognise
    from stantools.sources.source import Capability

    paths = list(stores)
    absolute = options.of(stores).paths  # the column `store` has them, also those of archives
    for number, (given, whole) in enumerate(zip(stores, absolute, strict=True)):
        path = Path(given if described(given) else whole)
        found = recognise(path)
        if sql_tasks and cluster.on_spark() and found.kind in (sql.DUMP, sql.DATABASE):
            check_password(stores[number])
            continue
        if cluster.on_spark() and found.kind is not jetstream.JETSTREAM:
            check_tasks(found)
        if is_archive(found) or found.kind in (sql.DUMP, sql.DATABASE, jetstream.BACKUP):
            source = open_source(path, options.read_options(), Capability.TABLE, channels=channels, found=found)
            if source.holds_streams:
                paths[number] = str(source.streams[0].path)
            else:
                paths[number] = str(source.store().path if source.sql else source.place)
    return tuple(paths), cluster if paths == list(stores) else replace(cluster, engine="local")


def report_failed(failed: Sequence[FailedRead]) -> None:
    for each in failed:
        console.error(each.message, each.remedy)


def ended(result: JobResult[Any] | MigrateResult | Stats) -> int:
    """Reports failures on stderr; returns the exit code."""
    report_failed(result.failed)
    return result.exit_code


def submit_file() -> Path:
    return Path(__file__).parent / "submit" / "pipeline.py"
