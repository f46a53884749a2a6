"""Output of `stantools replay`: the plan, earlier losses, and the result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.output import place_text, print_json, table_text
from stantools.escaping import text
from stantools.notation import and_more, counted, format_size, format_time, some_of

if TYPE_CHECKING:
    from stantools.migration.replay.run import ReplayOutcome, ReplaySpeed
    from stantools.migration.replay.selection import ReplayPlan
    from stantools.migration.source import StoreSource

_MANY = 20
_SECOND = 1_000_000_000


def warn(source: StoreSource, *, key_given: bool) -> None:
    """Reports on stderr the messages that cannot be replayed, and suspicious ones."""
    losses = [dropped for dropped in source.plan.dropped if dropped.loss]
    for dropped in losses[:_MANY]:
        offset = dropped.offset if dropped.offset >= 0 else None
        console.warning(f"not intact: {place_text(dropped.file, offset, '', dropped.reason, dropped.sequences)}")
    if len(losses) > _MANY:
        console.warning(f"{and_more(len(losses) - _MANY, 'place', 'that is/that are')} not intact")
    if not key_given:
        sealed = [console.escape(channel.name) for channel in source.channels if channel.encrypted]
        if sealed:
            console.note(
                f"payloads of {some_of(sealed, 3)} may be encrypted and are sent as stored; to decrypt them, give "
                "--encryption-key-env or --encryption-key-file"
            )


def show_plan(plan: ReplayPlan, pace: ReplaySpeed, source: StoreSource) -> None:
    if console.output() == "json":
        document: dict[str, Any] = {
            "messages": plan.messages,
            "payload_bytes": plan.payload,
            "seconds": round(pace.seconds(plan), 3),
            "lost": source.plan.gone,
            "channels": _channels(plan),
        }
        print_json(document)
        return
    rows = [
        (
            channel.source.raw_name,
            channel.subject,
            channel.source.count,
            channel.source.first,
            channel.source.sequences.last,
            format_time(channel.source.first_timestamp),
            format_time(channel.source.last_timestamp),
        )
        for channel in plan.channels
    ]
    headers = ("channel", "to", "messages", "first", "last", "from", "until")
    click.echo(table_text(headers, rows, right=("messages", "first", "last")), nl=False)
    click.echo(f"would publish {_counted(plan)}{_takes(plan, pace)}; nothing was sent")


def show_outcome(left: ReplayPlan, outcome: ReplayOutcome, source: StoreSource, state: Path | None) -> None:
    """Prints the result of a replay; `state` is the state file of an unfinished one."""
    if console.output() == "json":
        document: dict[str, Any] = {
            "finished": outcome.finished,
            "messages": outcome.messages,
            "left": left.messages - outcome.messages,
            "already_there": outcome.again,
            "repeated": outcome.repeated,
            "seconds": round(outcome.seconds, 3),
            "lost": source.plan.gone,
            "state": None if state is None else os.fspath(state),
            "channels": _channels(left),
        }
        print_json(document)
    else:
        rate = outcome.messages / max(outcome.seconds, 1e-3)
        of_all = "" if outcome.finished else f"{outcome.messages} of "
        done = of_all + counted(left.messages if of_all else outcome.messages, "message")
        channels = counted(len(left.channels), "channel")
        click.echo(f"replayed {done} of {channels} in {outcome.seconds:.1f} s ({rate:.0f} a second)")
        if outcome.again:
            click.echo(f"{outcome.again} of them already existed")
        if outcome.repeated:
            click.echo(f"{outcome.repeated} were in flight when the connection broke, and were sent again or found")
    if state is not None:
        console.note(f"interrupted; {how_to_go_on(state)}")


def how_to_go_on(state: Path) -> str:
    return f"the same command with --resume continues from {console.escape(os.fspath(state))}"


def tell_pace(plan: ReplayPlan, pace: ReplaySpeed) -> None:
    """Notes on stderr the plan of a longer replay."""
    if pace.seconds(plan) >= 60:
        console.note(f"{_counted(plan)}{_takes(plan, pace)}; --speed sets the pace, Ctrl-C stops, --resume continues")


def _counted(plan: ReplayPlan) -> str:
    channels = counted(len(plan.channels), "channel")
    return f"{counted(plan.messages, 'message')} of {channels}, {format_size(plan.payload)}"


def _takes(plan: ReplayPlan, pace: ReplaySpeed) -> str:
    from stantools.notation import format_duration

    seconds = round(pace.seconds(plan))
    if not seconds:
        return ""
    word = "at most" if pace.longest_pause is not None else "about"
    return f", which takes {word} {format_duration(seconds * _SECOND)}"


def _channels(plan: ReplayPlan) -> list[dict[str, Any]]:
    return [
        {
            "name": channel.source.name,
            "to": text(channel.subject),
            "messages": channel.source.count,
            "first_seq": channel.source.first,
            "last_seq": channel.source.sequences.last,
            "first_timestamp_ns": channel.source.first_timestamp,
            "last_timestamp_ns": channel.source.last_timestamp,
        }
        for channel in plan.channels
    ]
