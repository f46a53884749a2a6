"""`stantools pipeline`: the heavy verbs over many stores, on Spark or locally; common parts of its jobs.

A job is the function `job` in the module of the verb of the same name, beside the verb's `command`, and is imported
only when it runs. Both have the same options and output; a job runs the library on Spark or in threads of this
process (`stantools.work`).
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
from stantools.cli.click_options import NO_CRC, folded, options_of
from stantools.cli.click_options import command as command_of
from stantools.cli.own_command import JOBS
from stantools.cli.verbs import CONTEXT, LazyGroup, summaries
from stantools.errors import UsageError
from stantools.notation import format_size
from stantools.options import ACCEPT_UNREADABLE, CRC_POLY, KEY, Option, option
from stantools.secret import Secret
from stantools.work import ThreadWork, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stantools.cli.progress import ByteProgress
    from stantools.pipeline.jobs.migrate import MigrateResult
    from stantools.pipeline.jobs.stats.summary import Stats
    from stantools.pipeline.jobs.stores import JobResult
    from stantools.pipeline.spark.tasks import Tasks
    from stantools.pipeline.tables.model import FailedRead
    from stantools.pipeline.tables.table_options import TableOptions

_F = TypeVar("_F", bound=Callable[..., Any])

#: Bytes from which Spark may be worth its start; with less even the slowest job ends in this process before Spark has
#: started (benchmarks/RESULTS.md, "Pipeline: start of Spark").
SPARK_PAYS = 2 << 30
#: Seconds without any executor between two warnings.
_IDLE_SECONDS = 20.0


class Jobs(LazyGroup):
    NOUN = ATTRIBUTE = "job"

    def summaries(self) -> dict[str, str]:
        return JOBS

    def otherwise(self) -> str:
        return f"; the jobs are {', '.join(JOBS)}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the jobs from the table, without importing them."""
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


def _print_submit_file(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(str(submit_file()))
        ctx.exit()


_HELP = """\
Run the heavy verbs over many stores at once: on Spark (local cores or a cluster), or in threads of one process.

STORES are stores, directories with stores at any depth, single slices, directories of .bak slices, glob
patterns, or URLs that fsspec can open; every machine that works must be able to read them under the same name. What
comes out is what the verb of the same name says of each store, and the exit codes are the same; what cannot be read
is named, and the rest is done.

What is too little for Spark to pay is done here, with the same result; --engine decides otherwise.

Spark is pyspark 4.1 or later (the extra `spark`) with Java 17 or 21, found by JAVA_HOME or PATH. On a
cluster, the workers' Python (PYSPARK_PYTHON) needs what stantools depends on; the package itself is brought along.
With spark-submit, it has to be installed there as well:

\b
  stantools pipeline verify /archive/stores
  stantools pipeline stats /archive/stores --report page.html --master spark://HOST:7077
  spark-submit --master yarn $(stantools pipeline --submit-file) verify /archive/stores

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


def job(name: str, *formats: str) -> Callable[[_F], click.Command]:
    """Makes a function a job; see `stantools.cli.click_options.verb`."""
    return command_of(name, JOBS[name], *formats)


@dataclass(frozen=True)
class Cluster:
    engine: str = option(
        "The engine: threads of this process (local), or Spark. auto: Spark with --master, --remote, --conf or "
        f"spark-submit name it, or if there are {SPARK_PAYS >> 30} GiB to read or more.",
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
        return bool(self.master or self.remote or self.conf) or submitted() or active_session() is not None

    @contextlib.contextmanager
    def work(self, name: str, size: int, progress: ByteProgress | None = None) -> Iterator[Work]:
        """Begins a job on the chosen engine, which it notes.

        Args:
            name: The job.
            size: Bytes to read.
            progress: Shows the number of finished tasks.
        """
        if not self.on_spark() and (self.engine == "local" or size < SPARK_PAYS):
            if self.engine == "auto":
                console.note(
                    f"running in this process: {format_size(size)} are read faster than Spark starts; it can pay from "
                    f"{format_size(SPARK_PAYS)} on (--engine spark uses it anyway)"
                )
            yield ThreadWork(os.cpu_count() or 1)
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
stores_argument = click_options.stores_argument("STORES...", str)


def reading_options(*, unchecked: bool = True, remote: bool = True, local: bool = False) -> Callable[[_F], _F]:
    """Adds the options for reading stores in tasks, passed on as `table_options: TableOptions`, without paths.

    The reading task looks up the key; local verbs do so at once.

    Args:
        unchecked: Add --no-crc.
        remote: Add --storage, for stores at URLs.
        local: There are no tasks; this process reads.
    """
    where = "" if local else ", where the tasks run"
    storage = Option(help="An option of fsspec for stores at URLs. May be repeated.", default=(), metavar="KEY=VALUE")
    options = {
        "crc_poly": CRC_POLY,
        **({"storage": storage} if remote else {}),
        **({"no_crc": NO_CRC} if unchecked else {}),
        "encryption_key": KEY.like(notes=(where, where)),
        "accept_unreadable": ACCEPT_UNREADABLE,
    }
    return folded("table_options", _table_options, options)


def _table_options(
    crc_poly: int | None,
    encryption_key: Secret,
    accept_unreadable: bool,
    storage: tuple[str, ...] = (),
    no_crc: bool = False,
) -> TableOptions:
    from stantools.pipeline.tables.table_options import TableOptions

    named = []
    for each in storage:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise UsageError(f"--storage {each}: is not KEY=VALUE", "for example: --storage anon=true")
        named.append((name, value))
    if encryption_key.file:
        encryption_key = replace(encryption_key, file=encryption_key.file.absolute())
    return TableOptions(
        (),
        polynomial=crc_poly,
        check_crc=not no_crc,
        key=encryption_key,
        accept_unreadable=accept_unreadable,
        storage=tuple(named),
    )


def unpacked(stores: Sequence[str], channels: Sequence[str], cluster: Cluster) -> tuple[tuple[str, ...], Cluster]:
    """Returns stores with private copies in place of archives; only this process can read these."""
    from stantools.cli import opening

    if not any(map(opening.is_archive, stores)):
        return tuple(stores), cluster
    if cluster.on_spark():
        raise UsageError(
            "an archive is unpacked on this machine only, but tasks of Spark may run elsewhere",
            "leave out the options for Spark, or unpack the archive where all workers can read it",
        )
    return opening.unpacked(stores, channels), replace(cluster, engine="local")


def report_failed(failed: Sequence[FailedRead]) -> None:
    for each in failed:
        console.error(each.message, each.remedy)


def ended(result: JobResult[Any] | MigrateResult | Stats) -> int:
    """Reports failures on stderr; returns the exit code."""
    report_failed(result.failed)
    return result.exit_code


def submit_file() -> Path:
    return Path(__file__).parent / "submit" / "pipeline.py"
