"""`stantools clients`: the clients of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.click_options import node_option, reading_options, store_argument, verb
from stantools.cli.output import show_records
from stantools.cli.reporttext import show

if TYPE_CHECKING:
    from stantools.store.directory import Datastore
    from stantools.store.read_options import ReadOptions

_HISTORY = ("offset", "length", "type", "ok", "id", "detail")


@verb("clients", "table", "json", "ndjson", "csv", progress=False)
@store_argument
@node_option
@click.option("--history", is_flag=True, help="Every record instead of the clients registered at the end.")
@reading_options()
def command(store: Path, history: bool, read_options: ReadOptions) -> int:
    """Show the clients registered in STORE, with the number of their subscriptions.

    A client that closed its connection is not listed; one that was connected when the server stopped is still
    registered, and the server will ping it after the next start. Unregistered owners of subscriptions are shown as
    unknown.

    Those of a clustered node are in its newest snapshot and Raft log.

    Exit code 1: clients.dat is damaged or missing; its intact part is shown.
    """
    from stantools.cli.opening import open_source
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.HISTORY if history else Capability.SUBSCRIPTIONS)
    if history:
        opened = source.store()
        return show_records({"path": str(opened.path)}, _records(opened), _print_record, _HISTORY)
    from stantools.inspection.source_queries import source_overview
    from stantools.inspection.subscribers_report import clients_report

    return show(clients_report(*source_overview(source)))


def _print_record(record: Mapping[str, Any]) -> None:
    state = "" if record["ok"] else f"  {console.paint('BAD', 'red', err=False)} [{console.escape(record['detail'])}]"
    inbox = f"  {console.escape(address)}" if (address := record["fields"].get("hb_inbox")) else ""
    name = console.escape(record["id"] or "")
    click.echo(f"{record['offset']:>10}  {record['type']:<8}  {name}{inbox}{state}".rstrip())


def _records(store: Datastore) -> Iterator[dict[str, Any]]:
    from stantools.inspection.records import FileKind, read_records
    from stantools.store.mapping import mapped

    if store.clients is None:
        return
    with mapped(store.clients, sequential=True) as buffer:
        for record in read_records(buffer, FileKind.CLIENTS, store.crc):
            if record.type == "version" and record.ok:
                continue
            shown = {**record.as_json(), "id": record.fields.get("id")}
            yield {name: shown[name] for name in (*_HISTORY, "fields")}
