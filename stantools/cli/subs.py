"""`stantools subs`: the subscriptions of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.click_options import channel_option, node_option, reading_options, store_argument, verb
from stantools.cli.output import show_records
from stantools.cli.reporttext import show
from stantools.errors import UsageError

if TYPE_CHECKING:
    from stantools.store.directory import Datastore
    from stantools.store.read_options import ReadOptions

_HISTORY = ("channel", "offset", "length", "type", "ok", "id", "seqno", "pending_after", "detail")


@verb("subs", "table", "json", "ndjson", "csv", progress=False)
@store_argument
@node_option
@channel_option
@click.option("--id", "ids", type=click.IntRange(0), multiple=True, metavar="ID", help="Only this subscription id.")
@click.option(
    "--status", "statuses", multiple=True, metavar="STATUS", help="Only active, offline, shadow, ghost, orphan."
)
@click.option("--history", is_flag=True, help="Every record instead of the resulting state.")
@reading_options()
def command(
    store: Path,
    channels: tuple[str, ...],
    ids: tuple[int, ...],
    statuses: tuple[str, ...],
    history: bool,
    read_options: ReadOptions,
) -> int:
    r"""Show the subscriptions of STORE as the server would recover them: position, pending messages, lag.

    \b
    status   active   its client is known; delivery continues
             offline  a durable of a disconnected client; it is kept
             shadow   keeps the position of a durable queue group without members
             ghost    durable queue member of an unknown client, which the
                      server deletes at its start
             orphan   not durable, of an unknown client: dropped, but still
                      in the file
    lag      messages not yet sent to it, or to any member of its queue group
    pending  messages sent and not acknowledged

    Those of a clustered node come from its newest snapshot and Raft log, as a leader would recover them. Of a JetStream
    directory the consumers are shown; --channel names streams.

    Exit code 1: a subs.dat or clients.dat is damaged (its intact part is shown), or there are ghosts.
    """
    from stantools.cli.opening import open_source
    from stantools.sources.source import Capability

    use = Capability.HISTORY if history else Capability.SUBSCRIPTIONS
    source = open_source(store, read_options, use, channels=channels)
    if source.holds_streams:
        if ids or statuses:
            raise UsageError("consumers of JetStream have neither ids nor a status", "leave out --id and --status")
        from stantools.inspection.stream_consumers import consumers_report

        return show(consumers_report(source, channels))
    if history:
        opened = source.store()
        records = (row for name in opened.chosen(channels) for row in _channel_history(opened, name, ids))
        return show_records({"path": str(opened.path)}, records, _print_record, _HISTORY)
    from stantools.inspection.source_queries import source_overview
    from stantools.inspection.subscribers_report import subscriptions_report

    source.check_matches(channels)
    return show(subscriptions_report(*source_overview(source, patterns=channels), ids, statuses))


def _channel_history(store: Datastore, name: str, ids: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    from stantools.browse.log_history import subscription_history
    from stantools.store.mapping import mapped

    path = store.channel(name).subs
    if path is None:
        return
    with mapped(path, sequential=True) as buffer:
        for each in subscription_history(buffer, store.crc, ids):
            numbers = {"channel": name, "id": each.id, "seqno": each.sequence, "pending_after": each.pending}
            shown = {**each.record.as_json(), **numbers}
            yield {column: shown[column] for column in (*_HISTORY, "fields")}


def _print_record(record: Mapping[str, Any]) -> None:
    line = f"{console.escape(record['channel'])}  {record['offset']:>10}  {record['type']:<8}"
    if (number := record["id"]) is not None:
        line += f"  sub {number:>4}"
    if (sequence := record["seqno"]) is not None:
        line += f"  seq {sequence:>8}"
    line += f"  pending {record['pending_after']}"
    shown = (
        f"{key}={console.escape(value) if isinstance(value, str) else value}"
        for key, value in record["fields"].items()
        if key not in ("id", "seqno") and value not in ("", 0, False)
    )
    line += "  " + " ".join(shown)
    if not record["ok"]:
        line += f"  {console.paint('BAD', 'red', err=False)} [{console.escape(record['detail'])}]"
    click.echo(line.rstrip())
