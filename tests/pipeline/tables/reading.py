"""Reading tables in tests, and what is expected in them, told by the functions that local verbs use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from stantools.format.crc import IEEE, Crc
from stantools.inspection.stored_messages import MessageReader, Selection, StoredMessage
from stantools.inspection.survey import SliceSurvey, survey_slice
from stantools.pipeline.tables.message_rows import read_piece
from stantools.pipeline.tables.model import ReadCounter, SliceRef, StoreRef, TableName
from stantools.pipeline.tables.schema import schema_of
from stantools.pipeline.tables.slice_pieces import split_slice
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import ChannelFiles, SliceFiles, open_datastore

#: What a row of the messages table is compared by.
Row = tuple[Any, ...]
MESSAGE_STATUSES = ("ok", "repaired", "sealed", "out-of-range")


def ref_of(root: Path, channel: str, files: SliceFiles, polynomial: int = IEEE) -> SliceRef:
    """A slice as the tables know it."""
    assert files.data is not None
    index = None if files.index is None else str(files.index)
    return SliceRef(
        StoreRef(str(root), polynomial),
        channel,
        files.number,
        files.archived,
        str(files.data),
        index,
        files.data_size,
        files.index_size,
    )


def slices_of(files: ChannelFiles) -> list[SliceFiles]:
    """All slices of a channel in the order of the messages table."""
    slices = [each for each in (*files.slices, *files.archived) if each.data]
    return sorted(slices, key=lambda each: (each.number, not each.archived))


def channels_of(root: Path) -> Iterator[ChannelFiles]:
    """The channels of a store."""
    yield from open_datastore(root).channels()


def batches_of(ref: SliceRef, options: TableOptions, counter: ReadCounter | None = None) -> list[pa.RecordBatch]:
    """All batches of a slice, read piece by piece."""
    pieces = split_slice(ref, options, counter)
    return [batch for piece in pieces for batch in read_piece(piece, options, counter)]


def rows_of(ref: SliceRef, options: TableOptions, counter: ReadCounter | None = None) -> list[dict[str, Any]]:
    """All rows of a slice."""
    batches = batches_of(ref, options, counter)
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        assert batch.schema.names == list(options.columns or schema_of(TableName.MESSAGES).names)
    return [row for batch in batches for row in batch.to_pylist()]


def expected_messages(files: ChannelFiles, polynomial: int, key: bytes | None, selection: Selection) -> list[Row]:
    """Messages as `stantools messages` reads them."""
    reader = MessageReader(files, Crc(polynomial), key=key, archived=True)
    return [
        (
            item.sequence if item.sequence < 2**63 else None,
            item.timestamp,
            text(item.subject),
            text(item.reply),
            item.data,
            f"{text(files.raw_name)}/{item.file}",
            item.offset,
        )
        for item in reader.read(selection)
        if isinstance(item, StoredMessage)
    ]


def found_messages(rows: list[dict[str, Any]]) -> list[Row]:
    """The same of the rows of a table."""
    names = ("seq", "timestamp_ns", "subject", "reply", "data", "slice", "offset")
    return [tuple(row[name] for name in names) for row in rows if row["status"] in MESSAGE_STATUSES]


def surveyed(files: SliceFiles, channel: str, polynomial: int = IEEE) -> SliceSurvey:
    """What verify goes by."""
    return survey_slice(files, os.fsencode(channel), Crc(polynomial))


def expected_damages(survey: SliceSurvey) -> list[Row]:
    """Damaged ranges as verify knows them."""
    found = [each.damage for each in survey.damages]
    return [(each.offset, each.length, each.kind.value, each.sequence) for each in found if each.repair is None]


def found_damages(rows: list[dict[str, Any]]) -> list[Row]:
    """The same of the rows of a table."""
    return [
        (row["offset"], row["size"], row["status"], row["seq"])
        for row in rows
        if row["status"] not in (*MESSAGE_STATUSES, "unreadable")
    ]


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
