"""`stantools records`: a single file, record by record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.click_options import PathType, given, reading_options, verb
from stantools.cli.output import hex_dump, payload_text, plain, print_csv, print_ndjson
from stantools.errors import ExitCode, StoreUnreadableError, UsageError
from stantools.escaping import shell_word
from stantools.notation import format_time
from stantools.options import DATA, Option

if TYPE_CHECKING:
    from stantools.inspection.records import FileRecord
    from stantools.store.read_options import ReadOptions

_RAFT = "raft"
_KINDS = ("server", "clients", "subs", "messages", "index", "block", _RAFT)


@verb("records", "table", "ndjson", "json", "csv", tables=False, progress=False)
@click.argument("file", type=PathType(), metavar="FILE")
@given(
    kind=Option(help="Kind of the file, if its name does not tell.", choices=_KINDS),
    damaged=Option(help="Only damaged records and ranges.", default=False),
    data=DATA.like(help="Form of message payloads; default: none in tables, base64 elsewhere."),
)
@reading_options(partial=False)
def command(file: Path, kind: str | None, damaged: bool, data: str | None, read_options: ReadOptions) -> int:
    """Dump FILE record by record: offset, length, type, CRC, decoded fields, and the damage in between.

    FILE is any single file of a store: server.dat, clients.dat, subs.dat, msgs.N.dat, msgs.N.idx, a .bak, or a copy
    with another name and --kind. In an archive it is ARCHIVE/FILE. For a clustered node's raft.log it prints the
    entries, also those left in free pages; encrypted ones need the key. Of a block of a JetStream stream, N.blk, the
    directories name the stream, whose name and number are in the hashes; offsets are those in its plain content.

    Exit code 1: the file is damaged.
    """
    from stantools.cli.opening import file_crc, open_file
    from stantools.format.encryption import raft_cipher
    from stantools.inspection.block_records import read_block
    from stantools.inspection.records import FileKind, kind_of, read_raft_entries, read_records
    from stantools.sources.door import recognise
    from stantools.sources.source import Capability
    from stantools.store.directory import RAFT_LOG_FILE
    from stantools.store.mapping import mapped

    if kind is None or not file.exists():
        file = open_file(file, read_options)
    raft = kind == _RAFT if kind else file.name == RAFT_LOG_FILE
    known = None if raft else FileKind(kind) if kind else kind_of(file.name)
    if file.is_dir():
        raise StoreUnreadableError(
            f"{file}: is a directory, expected a single file of a store",
            f"stantools doctor {shell_word(str(file))}, if it is a store; otherwise name one of its files",
        )
    if not raft and known is None and not file.exists():
        raise StoreUnreadableError(f"{file}: no such file", "name a file of a store")
    if not raft and known is None and (found := recognise(file)).kind.capabilities:
        raise found.refusal(Capability.HISTORY)
    if not raft and known is None:
        raise UsageError(
            f"{console.escape(str(file))}: the name does not tell the kind of file", f"add --kind {'|'.join(_KINDS)}"
        )
    with mapped(file, sequential=not raft) as buffer:
        polynomial, key = 0, read_options.encryption_key
        if known is FileKind.BLOCK:
            records = read_block(file, key)
        elif known is None:
            records = read_raft_entries(buffer, raft_cipher(key) if key else None)
        else:
            crc = file_crc(file, buffer, read_options)
            polynomial = crc.polynomial
            directory = file.absolute().parent
            in_store = (directory / "subs.dat").exists() or (directory.parent / "server.dat").exists()
            channel = directory.name.encode("utf-8", "surrogateescape") if in_store else b""
            records = read_records(buffer, known, crc, channel=channel)
        counted = _RecordCount(records, damaged)
        output = console.output()
        if output == "table":
            for record in counted:
                _print_line(record, data or "none")
        elif output == "csv":
            rows = ([r.offset, r.length, r.type, r.ok, r.crc, r.computed, r.detail] for r in counted)
            print_csv(("offset", "length", "type", "ok", "crc", "computed_crc", "detail"), rows)
        else:
            objects = (_json(record, data or "base64") for record in counted)
            if output == "ndjson":
                print_ndjson(objects)
            else:
                _print_json(file, known.value if known else _RAFT, polynomial, objects)
    return ExitCode.FINDINGS if counted.bad else ExitCode.CLEAN


class _RecordCount:
    """Passes records on and counts the bad ones."""

    def __init__(self, records: Iterator[FileRecord], only_damaged: bool) -> None:
        self._records = records
        self._only_damaged = only_damaged
        self.bad = 0

    def __iter__(self) -> Iterator[FileRecord]:
        for record in self._records:
            self.bad += not record.ok
            if not record.ok or not self._only_damaged:
                yield record


def _json(record: FileRecord, data_format: str) -> dict[str, Any]:
    value = record.as_json()
    data = record.fields.get("data")
    if data is not None:
        fields = dict(record.fields)
        if data_format == "none":
            del fields["data"]
        else:
            fields["data"] = payload_text(data, data_format)
        value["fields"] = fields
    return value


def _print_json(file: Path, kind: str, polynomial: int, objects: Iterator[dict[str, Any]]) -> None:
    import json

    head = {"schema": 1, "path": plain(str(file)), "kind": kind, "crc_polynomial": polynomial}
    click.echo(json.dumps(head)[:-1] + ', "records": [', nl=False)
    for number, value in enumerate(objects):
        click.echo((",\n  " if number else "\n  ") + json.dumps(plain(value)), nl=False)
    click.echo("\n]}")


def _print_line(record: FileRecord, data_format: str) -> None:
    state = "ok " if record.ok else console.paint("BAD", "red", err=False)
    crc = "" if record.crc is None else f"0x{record.crc:08x}"
    line = f"{record.offset:>12}  {record.length:>8}  {state}  {crc:<10}  {record.type:<9}"
    fields = (
        (name, value) for name, value in record.fields.items() if name != "data" and value not in ("", b"", 0, False)
    )
    line += "  " + " ".join(_field(name, value) for name, value in fields)
    if record.detail:
        line += f"  [{console.escape(record.detail)}]"
    click.echo(line.rstrip())
    data = record.fields.get("data")
    if data and data_format != "none":
        if data_format == "hex":
            click.echo(hex_dump(data), nl=False)
        else:
            shown = console.escape(data) if data_format == "text" else payload_text(data, data_format)
            click.echo(f"{'':>26}{shown}")


def _field(name: str, value: Any) -> str:
    if name == "timestamp":
        return f"time={format_time(value)}"
    return f"{name}={console.escape(value) if isinstance(value, str | bytes) else value}"
