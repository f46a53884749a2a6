"""The verbs of the command line, grouped by the question they answer, and their modules.

`stantools --help` uses this table alone: no verb's module is imported until the verb runs. A new verb needs a row
here and a module `stantools.cli.<name with underscores>` with a click command `command`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from stantools.escaping import escape

#: summaries of verbs by question
QUESTIONS: dict[str, dict[str, str]] = {
    "What is in my store?": {
        "tui": "Look around in the terminal: channels, messages, damage, plans; or watch a running server.",
        "info": "Overview: server, clients, channels, slices, subscriptions and their lag.",
        "messages": "Print messages of a channel.",
        "subs": "Subscriptions: pending messages, lag, durables that would be lost.",
        "clients": "Clients that are registered in the store.",
        "records": "Every record of a single file, damaged or not.",
    },
    "What is wrong, and what would the server do?": {
        "doctor": "Verdict first: what is wrong, what a start would destroy, the one next command.",
        "verify": "Read and check every byte; say what is intact, damaged and missing.",
        "forecast": "Predict the server's behaviour if it is started now on this store.",
        "guard": "Run a server only if its start destroys nothing that is intact.",
        "report": "Write a page about a store, to attach to a ticket: verdict, findings, maps, timelines.",
        "explain": "Meaning and remedy of a finding or a line of the server's log.",
    },
    "How do I get my data back?": {
        "salvage": "Write a new store with every record that is intact.",
        "merge": "Merge the nodes of a cluster into one stand-alone store with all their data.",
        "truncate-bad-eof": "Repair in place, a file store as its server does; with a backup. Also: repair.",
        "compact": "Write a store without dead records and without messages beyond the limits.",
    },
    "How do I leave?": {
        "migrate": "Move channels into JetStream streams and durables into consumers, exactly, with proof.",
        "diff": "Compare every message of a store with another store, or with a JetStream stream.",
        "replay": "Publish messages again: to NATS subjects, to streams, or to a streaming server.",
        "export": "Write messages and other tables as Parquet, ndjson, csv, SQLite or DuckDB.",
    },
    "How do I do that with a thousand stores?": {
        "stats": "Messages, bytes, rates, gaps and sizes by channel and hour, as tables and as a page with plots.",
        "pipeline": "Verify, compare, count, export, salvage, migrate many stores, here or on Spark.",
    },
    "What do my old clients talk to until then?": {
        "broker": "Run the reference broker: clients of NATS Streaming connect to it unchanged.",
    },
    "How do I begin?": {
        "demo": "See it once: a store is filled, damaged, rescued and migrated, in 15 seconds.",
        "sample": "Write a sample store, healthy or damaged.",
        "completion": "Let your shell complete verbs, options and channels.",
    },
}

#: Verbs over several sources, which `stantools pipeline` runs as well.
JOBS = ("doctor", "verify", "info", "diff", "stats", "export", "salvage", "migrate")

#: other names of verbs
ALIASES = {"repair": "truncate-bad-eof"}
#: settings of every verb
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def summaries() -> dict[str, str]:
    return {name: summary for verbs in QUESTIONS.values() for name, summary in verbs.items()}


def module_of(name: str) -> str:
    """Returns the module of a verb."""
    return f"stantools.cli.{name.replace('-', '_')}"


class LazyGroup(click.Group):
    """A group whose commands are in modules of their own, imported only when they run."""

    #: noun for a command in messages
    NOUN = "command"

    def summaries(self) -> dict[str, str]:
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.summaries():
            return None
        command: click.Command = importlib.import_module(module_of(cmd_name)).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command; the error for an unknown one names similar ones."""
        name, known = args[0], self.summaries()
        if name not in known and not name.startswith("-"):
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else self.otherwise()
            ctx.fail(f"unknown {self.NOUN} {escape(name)}{hint}")
        return super().resolve_command(ctx, args)

    def otherwise(self) -> str:
        """Returns the hint for a word that resembles no command."""
        return ""
