"""What the jobs of `stantools pipeline` share: their list, where Spark is, the stores they are given, how they end."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stantools.cli import console
from stantools.cli.options import StoreArgument
from stantools.cli.values import Polynomial
from stantools.cli.verbs import CONTEXT
from stantools.errors import UsageError

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


def job(name: str) -> Callable[[Callable[..., int]], click.Command]:
    """Declares a function to be a job: a click command; its docstring is the help text, its result the exit code."""

    def declare(function: Callable[..., int]) -> click.Command:
        help_text = inspect.cleandoc(function.__doc__ or "").replace("\\b\n", "\b\n")
        return click.command(name, help=help_text, short_help=JOBS[name], context_settings=CONTEXT)(function)

    return declare


@dataclass(frozen=True)
class Cluster:
    """Where a job runs.

    Attributes:
        master: A Spark master; None is all cores here, or what spark-submit was told.
        remote: A Spark Connect server instead.
        conf: Spark's settings.
        partitions: Into how many tasks the work is cut; None leaves that to us.
    """

    master: str | None
    remote: str | None
    conf: Mapping[str, str]
    partitions: int | None


def cluster_options(function: _F) -> _F:
    """Adds the options of where a job runs and passes them on as `cluster: Cluster`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        from stantools.pipeline.spark.session import check_packages

        check_packages()
        values["cluster"] = Cluster(
            values.pop("master"), values.pop("remote"), _settings(values.pop("conf")), values.pop("partitions")
        )
        return function(*args, **values)

    options = (
        click.option(
            "--master",
            metavar="URL",
            help="Where Spark runs: local[2], spark://HOST:PORT, yarn, k8s://…; by default local[*,4]: all cores here, "
            "and up to 4 attempts of a task whose worker dies.",
        ),
        click.option("--remote", metavar="URL", help="A Spark Connect server instead of a master: sc://HOST:PORT."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's. May be repeated."),
        click.option(
            "--partitions",
            type=click.IntRange(1, 1_000_000),
            metavar="N",
            help="Cut the work into this many tasks; by default as its size and the cores ask for.",
        ),
    )
    decorated: Any = wrapper
    for option in reversed(options):
        decorated = option(decorated)
    return cast(_F, decorated)


def _settings(given: Sequence[str]) -> dict[str, str]:
    settings = {}
    for each in given:
        key, separator, value = each.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--conf {each}: is not KEY=VALUE", "for example: --conf spark.executor.memory=2g")
        if not key.strip().startswith("spark."):
            raise UsageError(f"--conf {each}: Spark's settings begin with spark.", f"did you mean spark.{each}?")
        settings[key.strip()] = value
    return settings


stores_argument = click.argument("stores", cls=StoreArgument, nargs=-1, required=True, metavar="STORES...")


def table_reading_options(*, unchecked: bool = True, remote: bool = True, local: bool = False) -> Callable[[_F], _F]:
    """Adds the options of how tasks read stores and passes them on as `reading: Reading`.

    Unlike those of the local verbs they are not resolved here: a key is looked up by the task that reads.

    Args:
        unchecked: Add --no-crc.
        remote: Add --storage, for stores that are not on a file system.
        local: There are no tasks; what is read is read here.
    """
    where = "" if local else ", where the tasks run"
    options = [
        click.option(
            "--crc-poly",
            type=Polynomial(),
            default="auto",
            show_default=True,
            metavar="N|NAME|auto",
            help="CRC polynomial, as in the server's -file_crc_poly: a number, ieee, castagnoli or koopman.",
        ),
    ]
    if remote:
        options.append(
            click.option(
                "--storage",
                multiple=True,
                metavar="KEY=VALUE",
                help="An option of fsspec for stores that are given as URLs. May be repeated.",
            )
        )
    if unchecked:
        options.append(
            click.option("--no-crc", is_flag=True, help="Do not check CRCs, like a server with -file_crc=false.")
        )
    options += [
        click.option(
            "--encryption-key-env",
            metavar="NAME",
            help=f"Variable that holds the server's encryption key{where}.",
        ),
        click.option(
            "--encryption-key-file",
            metavar="PATH",
            help=f"File with the server's encryption key{where}.",
        ),
    ]

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def wrapper(*args: Any, **values: Any) -> Any:
            values["reading"] = Reading(
                values.pop("crc_poly"),
                not values.pop("no_crc", False),
                values.pop("encryption_key_env", None),
                values.pop("encryption_key_file", None),
                tuple(values.pop("storage")) if remote else (),
            )
            return function(*args, **values)

        decorated: Any = wrapper
        for option in reversed(options):
            decorated = option(decorated)
        return cast(_F, decorated)

    return decorate


@dataclass(frozen=True)
class Reading:
    """How tasks read stores.

    Attributes:
        polynomial: CRC polynomial, None to find it out for each store.
        check_crc: Check CRCs.
        key_env: Variable with the encryption key.
        key_file: File with the encryption key.
        storage: Options for fsspec as KEY=VALUE.
    """

    polynomial: int | None
    check_crc: bool
    key_env: str | None
    key_file: str | None
    storage: tuple[str, ...]

    def table(self, stores: Sequence[str], **values: Any) -> TableOptions:
        """Makes options of a table for some stores.

        Args:
            stores: Paths, patterns or URLs; relative ones are taken from here.
            values: Further fields of `TableOptions`.

        Raises:
            UsageError: A path is empty, an option for fsspec is not KEY=VALUE, or two keys are given.
        """
        from stantools.pipeline.tables.options import TableOptions

        if "" in stores:
            raise UsageError("the path of a store is empty", "name a directory; the current one is .")
        if self.key_env and self.key_file:
            raise UsageError("--encryption-key-env and --encryption-key-file exclude each other", "give one of them")
        storage = []
        for each in self.storage:
            name, separator, value = each.partition("=")
            if not separator or not name:
                raise UsageError(f"--storage {each}: is not KEY=VALUE", "for example: --storage anon=true")
            storage.append((name, value))
        return TableOptions(
            tuple(path if "://" in path else os.path.abspath(path) for path in stores),  # noqa: PTH100
            polynomial=self.polynomial,
            check_crc=self.check_crc,
            key_env=self.key_env,
            key_file=str(Path(self.key_file).absolute()) if self.key_file else None,
            storage=tuple(storage),
            **values,
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
            conf=cluster.conf,
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


def report_failed(failed: Sequence[Failed]) -> None:
    """Says on stderr what could not be read."""
    for each in failed:
        console.error(each.message, each.remedy)


def submit_file() -> Path:
    """Returns the file to be given to spark-submit."""
    return Path(__file__).parent / "submit" / "pipeline.py"
