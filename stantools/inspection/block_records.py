"""Every record of a block of a JetStream stream: messages, erased ones, tombstones, and the bytes in between.

A hash proves a record for its stream and block number, which directory and name tell; a block with the records of
another number is read as that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stantools.errors import StoreUnreadableError
from stantools.escaping import text
from stantools.inspection.records import FileRecord
from stantools.sources.source import NO_ACCOUNT
from stantools.store.mapping import Buffer
from stantools.streamfiles import highwayhash
from stantools.streamfiles.blocks import BlockContent, number_of_records
from stantools.streamfiles.damage import FLAW_TEXTS, Gap, scan
from stantools.streamfiles.directory import BlockFile, StoredStream
from stantools.streamfiles.headers import header_fields
from stantools.streamfiles.layout import HASH_SIZE, MESSAGES
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.sealing import ServerKeys

RECORD_TYPES = ("message", "tombstone", "erased", "erased")


def read_block(file: Path, server_key: bytes | None = None) -> Iterator[FileRecord]:
    """Iterates over every record of a block; together they cover all bytes of its plain content."""
    folder = file.absolute().parent
    stream_path = folder.parent
    account = stream_path.parent.parent.name if stream_path.parent.name == "streams" else NO_ACCOUNT
    keys = ServerKeys([server_key], account) if server_key else None
    stream = StoredStream(stream_path, account, keys)
    number = int(found[0]) if (found := re.match(r"[0-9]+", file.name)) else 0
    with stream.content(BlockFile(number, folder, file.name, folder.name or MESSAGES, file.stat().st_size)) as content:
        if content.sealed:
            raise StoreUnreadableError(
                f"{file}: is encrypted, and its key cannot be opened",
                "give the key of the server's configuration with --encryption-key-env or --encryption-key-file",
            )
        yield from _container(content, file.stat().st_size)
        names = (stream.name, str((stream.config or {}).get("name")))
        numbers = [number, *(each.number for each in stream.blocks)]
        proper = number_of_records(content.data, dict.fromkeys(names), dict.fromkeys(numbers)) or (stream.name, number)
        if proper != (stream.name, number):
            detail = f"the records are those of block {proper[1]} of stream {proper[0]}"
            yield FileRecord(0, len(content.data), "number", False, detail=detail)
        yield from _records(content.data, highwayhash.block_key(*proper))


def _container(content: BlockContent, size: int) -> Iterator[FileRecord]:
    if not content.compressed and not content.encrypted:
        return
    fields = {"compressed": content.compressed, "encrypted": content.encrypted, "plain_size": len(content.data)}
    problems = []
    if content.magic_damaged:
        problems.append("its first bytes are damaged")
    if content.damaged_chunks:
        problems.append(f"damaged chunks at {', '.join(map(str, content.damaged_chunks))}")
    if any(content.surplus):
        problems.append(f"{len(content.surplus)} bytes follow the compressed content")
    yield FileRecord(0, size, "container", not problems, detail="; ".join(problems), fields=fields)


def _records(data: Buffer | bytes, key: bytes) -> Iterator[FileRecord]:
    at = 0
    for piece in scan(data, key):
        if isinstance(piece, Gap):
            fields = {"sequence": piece.claimed} if piece.claimed else {}
            length = piece.end - piece.start
            yield FileRecord(piece.start, length, "damaged", False, detail=FLAW_TEXTS[piece.flaw], fields=fields)
            at = piece.end
            continue
        for row, length in enumerate(piece.length.tolist()):
            stored = int.from_bytes(data[at + length - HASH_SIZE : at + length], "little")
            kind = RECORD_TYPES[int(piece.flags[row])]
            yield FileRecord(at, length, kind, True, stored, stored, fields=block_fields(piece, row, kind))
            at += length


def block_fields(batch: RecordBatch, row: int, kind: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"sequence": int(batch.sequence[row]), "timestamp": int(batch.timestamp[row])}
    if kind != "message":
        return fields
    fields["subject"] = text(batch.subject(row))
    if headers := batch.header(row):
        fields["headers"] = header_fields(headers)
    return fields | {"size": int(batch.data_size[row]), "data": batch.data(row)}
