"""`stantools pipeline`: the heavy verbs over many stores, on Spark or here; what its jobs have in common.

A job is `job` in the module of the verb of the same name, beside the verb's own `command`, and is imported only when it
runs. Both take the same options and print the same; a job has the library do it on Spark, or by threads of this process
(`stantools.work`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stantools.cli import console, options
from stantools.cli.options import NO_CRC, folded, options_of
from stantools.cli.options import command as command_of
from stantools.cli.verbs import CONTEXT, LateGroup, summaries
from stantools.errors import UsageError
from stantools.notation import format_size
from stantools.options import ACCEPT_UNREADABLE, CRC_POLY, KEY, Option, option
from stantools.secret import Secret
from stantools.work import Threads, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stantools.cli.progress import Progress
    from stantools.pipeline.jobs.migrate import MigrateResult
    from stantools.pipeline.jobs.stats.summary import Stats
    from stantools.pipeline.jobs.stores import JobResult
    from stantools.pipeline.spark.tasks import Tasks
    from stantools.pipeline.tables.model import Failed
    from stantools.pipeline.tables.options import TableOptions

_F = TypeVar("_F", bound=Callable[..., Any])

#: Job -> what it does, in one line. Its module is that of the verb.
JOBS = {
    "verify": "Read and check every byte of many stores; say what is intact, damaged and missing.",
    "diff": "Compare every message of stores with the stores of the same names elsewhere.",
    "stats": "Messages, bytes, rates, gaps and sizes by channel and hour, as tables and as a page with plots.",
    "export": "Write messages and other tables as Parquet, ndjson or csv.",
    "salvage": "Write new stores with every record that is intact.",
    "migrate": "Move channels into JetStream streams, one task a channel, with proof.",
}

#: Stores of which the findings, or what was lost, are printed.
NAMED = 10
#: Bytes to be read from which Spark may be worth its start; with less even the slowest job is done in this process
#: before Spark has begun (benchmarks/RESULTS.md, "Pipeline: start of Spark").
SPARK_PAYS = 2 << 30
#: Seconds without any executor until it is said, and again after.
_IDLE_SECONDS = 20.0


class Jobs(LateGroup):
    """All jobs."""

    NOUN = ATTRIBUTE = "job"

    def summaries(self) -> dict[str, str]:
        """Returns the jobs, and what each does."""
        return JOBS

    def otherwise(self) -> str:
        """Names the jobs."""
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
Run the heavy verbs over many stores at once: on Spark, on all cores here or on a cluster, or by threads of one process.

STORES are stores, directories in which stores lie at any depth, single slices, directories of .bak slices, glob
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
    help="Print the file that spark-submit runs.",
)
def command() -> None:
    """The group of jobs."""


def job(name: str, *formats: str) -> Callable[[_F], click.Command]:
    """Declares a function to be a job; see `stantools.cli.options.verb`."""
    return command_of(name, JOBS[name], *formats)


@dataclass(frozen=True)
class Cluster:
    """Where a job runs."""

    engine: str = option(
        "What does the work: threads of this process (local), or Spark. auto: Spark if --master, --remote, --conf or "
        f"spark-submit name it, or if there are {SPARK_PAYS >> 30} GiB to read or more.",
        default="auto",
        choices=("auto", "local", "spark"),
    )
    master: str | None = option(
        "Where Spark runs: local[2], spark://HOST:PORT, yarn, k8s://…; by default local[*,4]: all cores here, "
        "and up to 4 attempts of a task whose worker dies.",
        metavar="URL",
    )
    remote: str | None = option("A Spark Connect server instead of a master: sc://HOST:PORT.", metavar="URL")
    conf: tuple[str, ...] = option("A setting of Spark's. May be repeated.", default=(), metavar="KEY=VALUE")
    partitions: int | None = option(
        "Cut the work into this many tasks; by default as its size and the cores ask for.",
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
            raise UsageError("--engine local does not use Spark, which other options describe", "leave out one of them")
        if self._on_spark():
            from stantools.pipeline.spark.session import check_packages

            check_packages()

    def _on_spark(self) -> bool:
        """Returns whether Spark is asked for, however much there is to do."""
        from stantools.pipeline.spark.session import active_session, submitted

        if self.engine != "auto":
            return self.engine == "spark"
        return bool(self.master or self.remote or self.conf) or submitted() or active_session() is not None

    @contextlib.contextmanager
    def work(self, name: str, size: int, progress: Progress | None = None) -> Iterator[Work]:
        """Begins a job where it is to run, and says where that is.

        Args:
            name: The job.
            size: Bytes that it has to read.
            progress: Called with how many of Spark's tasks are done.
        """
        if not self._on_spark() and (self.engine == "local" or size < SPARK_PAYS):
            if self.engine == "auto":
                console.note(
                    f"running in this process: {format_size(size)} take less time than Spark takes to start; "
                    f"it can pay from {format_size(SPARK_PAYS)} on, and --engine spark uses it anyway"
                )
            yield Threads(os.cpu_count() or 1)
            return
        from stantools.pipeline.spark.tasks import SparkWork

        with self.session(name, progress) as spark:
            yield SparkWork(spark, self.partitions)

    @contextlib.contextmanager
    def session(self, name: str, progress: Progress | None = None) -> Iterator[SparkSession]:
        """Opens a session for a job, shows how far its tasks are, and closes the session if it was not there before.

        What Spark raises meanwhile is turned into exceptions of ours.

        Args:
            name: The job, for Spark's own pages.
            progress: Called with how many tasks are done.
        """
        from stantools.pipeline.spark.failures import clear_errors
        from stantools.pipeline.spark.session import active_session, session, submitted
        from stantools.pipeline.spark.tasks import watching

        if active_session() is None:
            where = (
                self.remote or self.master or ("the master it was submitted to" if submitted() else "all cores here")
            )
            console.note(f"waiting for Spark to start on {where}, which takes ten seconds or more")
        quiet = not console.is_verbose()
        conf = {key.strip(): value for key, _, value in (each.partition("=") for each in self.conf)}
        with (
            session(self.master, name=f"stantools {name}", conf=conf, remote=self.remote, quiet=quiet) as spark,
            clear_errors(),
            watching(spark, _Watch(progress).show),
        ):
            yield spark


class _Watch:
    """Shows how many tasks are done, and says when nothing takes them: Spark waits for it, silently, without end."""

    def __init__(self, progress: Progress | None) -> None:
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
                "see on the cluster's page whether workers have cores and memory free; --conf spark.executor.memory=… "
                "asks for less; Ctrl-C gives up",
            )


#: Adds the options of where a job runs and passes them on as `cluster: Cluster`.
cluster_options = options_of(Cluster, "cluster")
stores_argument = options.stores_argument("STORES...", str)


def reading_options(*, unchecked: bool = True, remote: bool = True, local: bool = False) -> Callable[[_F], _F]:
    """Adds the options of how tasks read stores and passes them on as `reading: TableOptions`, without paths.

    A key is not looked up here, as for the local verbs, but by the task that reads.

    Args:
        unchecked: Add --no-crc.
        remote: Add --storage, for stores that are not on a file system.
        local: There are no tasks; what is read is read here.
    """
    where = "" if local else ", where the tasks run"
    storage = Option(
        help="An option of fsspec for stores that are given as URLs. May be repeated.", default=(), metavar="KEY=VALUE"
    )
    options = {
        "crc_poly": CRC_POLY,
        **({"storage": storage} if remote else {}),
        **({"no_crc": NO_CRC} if unchecked else {}),
        "encryption_key": KEY.like(notes=(where, where)),
        "accept_unreadable": ACCEPT_UNREADABLE,
    }
    return folded("reading", _reading, options)


def _reading(
    crc_poly: int | None,
    encryption_key: Secret,
    accept_unreadable: bool,
    storage: tuple[str, ...] = (),
    no_crc: bool = False,
) -> TableOptions:
    from stantools.pipeline.tables.options import TableOptions

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


def report_failed(failed: Sequence[Failed]) -> None:
    """Says on stderr what could not be read."""
    for each in failed:
        console.error(each.message, each.remedy)


def ended(result: JobResult[Any] | MigrateResult | Stats) -> int:
    """Says on stderr what could not be read; returns the exit code."""
    report_failed(result.failed)
    return result.exit_code


def print_heading(root: str, end: str = "") -> None:
    """Prints the store that what follows is about, where there are several."""
    click.echo(console.paint(console.escape(root), "cyan", err=False) + end)


def submit_file() -> Path:
    """Returns the file to be given to spark-submit."""
    return Path(__file__).parent / "submit" / "pipeline.py"
