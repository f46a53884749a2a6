"""`stantools pipeline`: the heavy verbs over many stores, on Spark. Every job is imported only when it runs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util

import click

from stantools.cli import console
from stantools.cli.pipelineoptions import JOBS, submit_file
from stantools.cli.verbs import CONTEXT, summaries


class Jobs(click.Group):
    """A group whose commands are the jobs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the jobs that are there."""
        return [name for name in JOBS if importlib.util.find_spec(_module(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a job."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(_module(cmd_name)).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the job; an unknown one is answered with those that look like it."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the jobs are {', '.join(known)}"
            ctx.fail(f"there is no job {console.escape(name)}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the jobs from the table, without importing them."""
        with formatter.section("Jobs"):
            formatter.write_dl([(name, JOBS[name]) for name in self.list_commands(ctx)])


def _module(name: str) -> str:
    return f"stantools.cli.pipeline_{name}"


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
