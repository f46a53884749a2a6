"""The verbs of the command line, grouped by the question they answer, and how a verb's module is found.

`stantools --help` is answered from this table alone: no verb's module is imported until the verb runs. A new
verb needs a row here and a module `stantools.cli.<name with underscores>` with a click command `command`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from stantools.escaping import escape

#: Question -> verb -> what it does, in one line.
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
        "forecast": "Predict what the server does with this store if it is started now.",
        "report": "Write a page about a store, to attach to a ticket: verdict, findings, maps, timelines.",
        "explain": "What a finding or a line of the server's log means, and what helps.",
    },
    "How do I get my data back?": {
        "salvage": "Write a new store with every record that is intact.",
        "merge": "Merge the nodes of a cluster: one standalone store with everything they hold.",
        "truncate-bad-eof": "The server's own repair, with a report and a backup of what it cuts.",
        "compact": "Write a store without dead records and without messages that limits removed.",
    },
    "How do I leave?": {
        "migrate": "Move channels into JetStream streams and durables into consumers, exactly, with proof.",
        "diff": "Compare every message of a store with another store, or with a JetStream stream.",
        "replay": "Publish messages again: to NATS subjects, to streams, or to a streaming server.",
        "export": "Write messages and other tables as Parquet, ndjson, csv, SQLite or DuckDB.",
    },
    "How do I do that with a thousand stores?": {
        "pipeline": "Verify, compare, count, export, salvage, migrate many stores, here or on Spark.",
    },
    "What do my old clients talk to until then?": {
        "broker": "Run the reference broker: clients of NATS Streaming connect to it unchanged.",
    },
    "How do I begin?": {
        "sample": "Write a sample store, healthy or damaged.",
        "completion": "Let your shell complete verbs, options and channels.",
    },
}

#: Settings of every verb.
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def summaries() -> dict[str, str]:
    """Returns what each verb does in one line, in the order of the help page."""
    return {name: summary for verbs in QUESTIONS.values() for name, summary in verbs.items()}


def module_of(name: str) -> str:
    """Returns the module that a verb lives in, and the job of the same name."""
    return f"stantools.cli.{name.replace('-', '_')}"


class LateGroup(click.Group):
    """A group whose commands are in modules of their own, which are imported only when they run."""

    #: What its commands are called.
    NOUN = "command"
    #: What a command is called in its module.
    ATTRIBUTE = "command"

    def summaries(self) -> dict[str, str]:
        """Returns what each command does in one line, in the order of the help page."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in the order of the help page."""
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command's module."""
        if cmd_name not in self.summaries():
            return None
        command: click.Command = getattr(importlib.import_module(module_of(cmd_name)), self.ATTRIBUTE)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command; an unknown one is answered with the ones that look like it."""
        name, known = args[0], self.summaries()
        if name not in known and not name.startswith("-"):
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else self.otherwise()
            ctx.fail(f"there is no {self.NOUN} {escape(name)}{hint}")
        return super().resolve_command(ctx, args)

    def otherwise(self) -> str:
        """Returns what is said of a word that looks like no command."""
        return ""
