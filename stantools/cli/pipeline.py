"""`stantools pipeline`: the heavy verbs over many stores, on Spark. Every job is imported only when it runs."""

from __future__ import annotations

import click

from stantools.cli.pipelineoptions import JOBS, submit_file
from stantools.cli.verbs import CONTEXT, LateGroup, summaries


class Jobs(LateGroup):
    """All jobs."""

    NOUN = "job"

    def summaries(self) -> dict[str, str]:
        """Returns the jobs, and what each does."""
        return JOBS

    def module_of(self, name: str) -> str:
        """Returns a job's module."""
        return f"stantools.cli.pipeline_{name}"

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
Run the heavy verbs over many stores at once, on Spark: on all cores here, or on a cluster.

STORES are stores, directories in which stores lie at any depth, single slices, directories of .bak slices, glob
patterns, or URLs that fsspec can open; every machine that works must be able to read them under the same name. What
comes out is what the verb of the same name says of each store, and the exit codes are the same; what cannot be read
is named, and the rest is done.

Spark is pyspark 4.1 or later (pip install 'stantools[spark]') with Java 17 or 21, found by JAVA_HOME or PATH. On a
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
