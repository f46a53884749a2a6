"""What the jobs of `stantools pipeline` share: their list, where Spark is, the stores they are given, how they end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stantools.cli import console
from stantools.cli.options import (
    CRC_POLY,
    KEY_ENV,
    KEY_FILE,
    NO_CRC,
    StoreArgument,
    command,
    folded,
    options_of,
)
from stantools.errors import UsageError
from stantools.options import Option, option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stantools.cli.progress import Progress
    from stantools.pipeline.jobs.outcome import Failed
    from stantools.pipeline.spark.progress import Tasks
    from stantools.pipeline.tables.options import TableOptions

_F = TypeVar("_F", bound=Callable[..., Any])

#: Job -> what it does, in one line. The module of a job is `stantools.cli.pipeline_<job>`, with a command `command`.
JOBS = {
    "verify": "Read and check every byte of many stores; say what is intact, damaged and missing.",
    "diff": "Compare every message of stores with the stores of the same names elsewhere.",
    "stats": "Messages, bytes, rates, gaps and sizes by channel and hour, as tables and as a page with plots.",
    "export": "Write messages and other tables as Parquet, ndjson or csv.",
    "salvage": "Write new stores with every record that is intact.",
    "migrate": "Move channels into JetStream streams, one task a channel, with proof.",
}

#: Seconds without any executor until it is said, and again after.
_IDLE_SECONDS = 20.0


def job(name: str, *formats: str) -> Callable[[_F], click.Command]:
    """Declares a function to be a job; see `stantools.cli.options.verb`."""
    return command(name, JOBS[name], *formats)


@dataclass(frozen=True)
class Cluster:
    """Where a job runs.

    Attributes:
        master: A Spark master; None is all cores here, or what spark-submit was told.
        remote: A Spark Connect server instead.
        conf: Spark's settings, as KEY=VALUE.
        partitions: Into how many tasks the work is cut; None leaves that to us.
    """

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
        from stantools.pipeline.spark.session import check_packages

        check_packages()
        for each in self.conf:
            key, separator, _ = each.partition("=")
            if not separator or not key.strip():
                raise UsageError(f"--conf {each}: is not KEY=VALUE", "for example: --conf spark.executor.memory=2g")
            if not key.strip().startswith("spark."):
                raise UsageError(f"--conf {each}: Spark's settings begin with spark.", f"did you mean spark.{each}?")

    @property
    def settings(self) -> dict[str, str]:
        """Spark's settings by name."""
        return {key.strip(): value for key, _, value in (each.partition("=") for each in self.conf)}


#: Adds the options of where a job runs and passes them on as `cluster: Cluster`.
cluster_options = options_of(Cluster, "cluster")
stores_argument = click.argument("stores", cls=StoreArgument, nargs=-1, required=True, metavar="STORES...")


def table_reading_options(*, unchecked: bool = True, remote: bool = True, local: bool = False) -> Callable[[_F], _F]:
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
        "encryption_key_env": KEY_ENV.like(help=f"Variable that holds the server's encryption key{where}."),
        "encryption_key_file": KEY_FILE.like(help=f"File with the server's encryption key{where}."),
    }
    return folded("reading", _reading, options)


def _reading(
    crc_poly: int | None,
    encryption_key_env: str | None,
    encryption_key_file: Path | None,
    storage: tuple[str, ...] = (),
    no_crc: bool = False,
) -> TableOptions:
    from stantools.pipeline.tables.options import TableOptions

    if encryption_key_env and encryption_key_file:
        raise UsageError("--encryption-key-env and --encryption-key-file exclude each other", "give one of them")
    named = []
    for each in storage:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise UsageError(f"--storage {each}: is not KEY=VALUE", "for example: --storage anon=true")
        named.append((name, value))
    return TableOptions(
        (),
        polynomial=crc_poly,
        check_crc=not no_crc,
        key_env=encryption_key_env,
        key_file=str(encryption_key_file.absolute()) if encryption_key_file else None,
        storage=tuple(named),
    )


@contextlib.contextmanager
def on_spark(cluster: Cluster, name: str, progress: Progress | None = None) -> Iterator[SparkSession]:
    """Opens a session for a job, shows how far its tasks are, and closes the session if it was not there before.

    What Spark raises meanwhile is turned into exceptions of ours.

    Args:
        cluster: Where it runs.
        name: The job, for Spark's own pages.
        progress: Is told how many tasks are done.
    """
    from stantools.pipeline.spark.failures import clear_errors
    from stantools.pipeline.spark.progress import watching
    from stantools.pipeline.spark.session import session

    where = cluster.remote or cluster.master
    if console.is_verbose():
        console.note(f"starting Spark on {where or 'the master it was submitted to, or on all cores here'}")
    idle = _Idle()

    def show(tasks: Tasks) -> None:
        if progress is not None and tasks.total:
            progress.tasks(tasks.done, tasks.total)
        idle.told(tasks)

    with (
        session(
            cluster.master,
            name=f"stantools {name}",
            conf=cluster.settings,
            remote=cluster.remote,
            quiet=not console.is_verbose(),
        ) as spark,
        clear_errors(),
        watching(spark, show),
    ):
        yield spark


class _Idle:
    """Says when the cluster gives us nothing to run on: Spark waits for it, silently and for as long as it takes."""

    def __init__(self) -> None:
        self._next = _IDLE_SECONDS

    def told(self, tasks: Tasks) -> None:
        if not tasks.idle:
            self._next = _IDLE_SECONDS
        elif tasks.idle >= self._next:
            self._next = tasks.idle + 3 * _IDLE_SECONDS
            console.warning(
                f"{tasks.total - tasks.done} tasks have been waiting for {tasks.idle:.0f} s: no executor takes them",
                "see on the cluster's page whether workers have cores and memory free; --conf spark.executor.memory=… "
                "asks for less; Ctrl-C gives up",
            )


def no_channel(patterns: Sequence[str]) -> UsageError:
    """Returns that none of the stores has a channel that was asked for."""
    listed = ", ".join(map(console.escape, patterns))
    return UsageError(f"no channel of any store matches {listed}", "see: stantools info STORE")


def report_failed(failed: Sequence[Failed]) -> None:
    """Says on stderr what could not be read."""
    for each in failed:
        console.error(each.message, each.remedy)


def submit_file() -> Path:
    """Returns the file to be given to spark-submit."""
    return Path(__file__).parent / "submit" / "pipeline.py"
