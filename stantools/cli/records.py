"""`stantools records`: a single file, record by record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console
from stantools.cli.click_options import PathType, given, reading_options, verb
from stantools.cli.output import hex_dump, payload_text, show_records
from stantools.errors import StoreUnreadableError, UsageError
from stantools.escaping import shell_word
from stantools.notation import format_time
from stantools.options import DATA, Option

if TYPE_CHECKING:
    from stantools.store.read_options import ReadOptions

_RAFT = "raft"
_KINDS = ("server", "clients", "subs", "messages", "index", "block", _RAFT)
_COLUMNS = ("offset", "length", "type", "ok", "crc", "computed_crc", "detail")


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
        shown = (each.as_json() for each in records if not (damaged and each.ok))
        head = {"path": str(file), "kind": known.value if known else _RAFT, "crc_polynomial": polynomial}
        line, as_object = partial(_print_line, data or "none"), partial(_with_payload, data or "base64")
        return show_records(head, shown, line, _COLUMNS, as_object)


def _with_payload(data_format: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = dict(record["fields"])
    if (data := fields.pop("data", None)) is not None and data_format != "none":
        fields["data"] = payload_text(data, data_format)
    return {**record, "fields": fields}


def _print_line(data_format: str, record: Mapping[str, Any]) -> None:
    state = "ok " if record["ok"] else console.paint("BAD", "red", err=False)
    crc = "" if record["crc"] is None else f"0x{record['crc']:08x}"
    line = f"{record['offset']:>12}  {record['length']:>8}  {state}  {crc:<10}  {record['type']:<9}  "
    line += " ".join(
        f"time={format_time(value)}"
        if name == "timestamp"
        else f"{name}={console.escape(value) if isinstance(value, str | bytes) else value}"
        for name, value in record["fields"].items()
        if name != "data" and value not in ("", b"", 0, False)
    )
    if record["detail"]:
        line += f"  [{console.escape(record['detail'])}]"
    click.echo(line.rstrip())
    data = record["fields"].get("data")
    if data and data_format == "hex":
        click.echo(hex_dump(data), nl=False)
    elif data and data_format != "none":
        click.echo(f"{'':>26}{console.escape(data) if data_format == 'text' else payload_text(data, data_format)}")
