"""The table of raw records: every record of any file, and every range of bytes that is none.

As `stantools records` shows them. `status` is `ok`, `damaged`, or `unreadable` for a file that cannot be opened; what
is damaged has its kind as `type`. What a record says is in `fields` as json, payloads in base64.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

from stantools.errors import StoreUnreadableError
from stantools.inspection.records import kind_of, read_records
from stantools.notation import counted
from stantools.pipeline.tables.model import Mode
from stantools.pipeline.tables.parts import LocalPart, Row, int64, text
from stantools.pipeline.tables.text import plain_text
from stantools.store.mapping import mapped


def rows(here: LocalPart) -> Iterator[Row]:
    """Gives the rows of one file.

    Raises:
        StoreUnreadableError: The file cannot be read, or a record is damaged, and the mode is FAILFAST.
    """
    options, part = here.options, here.part
    kind = kind_of(here.file.name)
    assert kind is not None
    base = {"store": here.store, "channel": text(part.channel), "file": text(part.file)}
    channel = b"" if part.channel is None else os.fsencode(part.channel)
    wants_fields = not options.columns or "fields" in options.columns
    try:
        with mapped(here.file, sequential=True) as buffer:
            for record in read_records(buffer, kind, here.crc, channel=channel):
                if not record.ok and options.mode is not Mode.PERMISSIVE:
                    if options.mode is Mode.DROPMALFORMED:
                        continue
                    raise _DamagedError(
                        f"{here.file}: damaged at offset {record.offset}, {counted(record.length, 'byte')}: "
                        f"{record.detail or record.type}",
                        "use mode PERMISSIVE to see it as a row, or look at it with `stantools records FILE`",
                    )
                yield {
                    **base,
                    "offset": record.offset,
                    "type": record.type,
                    "size": record.length,
                    "status": "ok" if record.ok else "damaged",
                    "stored_crc": int64(record.crc),
                    "computed_crc": int64(record.computed),
                    "detail": plain_text(record.detail),
                    "fields": _json(record.fields) if wants_fields else None,
                }
    except _DamagedError:
        raise
    except StoreUnreadableError as error:
        if options.mode is Mode.FAILFAST:
            raise
        if options.mode is Mode.PERMISSIVE:
            yield {**base, "status": "unreadable", "detail": plain_text(error.message)}


class _DamagedError(StoreUnreadableError):
    """A record is damaged, which is an error in mode FAILFAST only."""


def _json(fields: dict[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in fields.items()}, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode("ascii")
    return plain_text(value) if isinstance(value, str) else value
