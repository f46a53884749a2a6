"""The messages of JetStream streams as Arrow batches, and the parts of their plan.

A part is a whole stream: whether a message was deleted follows from all of its blocks. It is read twice, once to know
which messages count, once for their content. Damaged and missing messages are rows after the intact ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stantools.errors import NotAStoreError, StantoolsError, StoreUnreadableError
from stantools.inspection.catalogue import CATALOGUE
from stantools.inspection.findings import Severity
from stantools.pipeline.tables.arrow import pa
from stantools.pipeline.tables.batches import gather, numbers, strings
from stantools.pipeline.tables.model import (
    STORE_TABLES,
    FailedRead,
    Mode,
    ReadCounter,
    Split,
    StreamPart,
    TableName,
    plain_text,
)
from stantools.pipeline.tables.schema import schema_of
from stantools.pipeline.tables.table_options import TableOptions
from stantools.sources.door import open_source
from stantools.sources.source import SourceRequest
from stantools.store.ranges import Ranges
from stantools.store.read_options import ReadOptions
from stantools.streamfiles.block_survey import BlockSurvey
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.headers import header_fields
from stantools.streamfiles.layout import MAX_SEQUENCE
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.sealing import ServerKeys
from stantools.streamfiles.survey import StreamSurvey

if TYPE_CHECKING:
    pass

_OK: Final = "ok"
_DAMAGED: Final = "damaged"
_MISSING: Final = "missing"
_UNREADABLE: Final = "unreadable"
_REMEDY: Final = "read with mode PERMISSIVE to have damage as rows, or DROPMALFORMED to leave it out"


def stream_parts(options: TableOptions) -> Iterator[StreamPart | FailedRead]:
    """Yields the streams of the directories that the options name, as they lie.

    Raises `UsageError` if patterns of channels are given and match no stream.
    """
    reading = ReadOptions(accept_unreadable=options.accept_unreadable)
    for path in options.paths:
        try:
            source = open_source(Path(path), SourceRequest(reading, options.channels))
            if not source.holds_streams:
                table = f"the table {TableName.STREAM_MESSAGES} is of JetStream directories"
                raise NotAStoreError(f"{path}: {source.found.sentence}; {table}", f"choose {', '.join(STORE_TABLES)}")
        except StantoolsError as problem:
            yield FailedRead.of(path, problem)
            continue
        for each in source.chosen_streams(options.channels):
            size = sum(block.size for block in each.blocks)
            yield StreamPart(path, str(each.path), each.account, each.name, each.other_names, size)


class StreamRows:
    """The rows of one stream. After `batches`, `survey` is its survey."""

    def __init__(self, part: StreamPart, options: TableOptions) -> None:
        self._part = part
        self._options = options
        self._schema = schema_of(TableName.STREAM_MESSAGES, options.columns)
        key = options.key.key()
        keys = ServerKeys((key,), part.account) if key else None
        self.stream = StoredStream(
            Path(part.path),
            part.account,
            keys,
            other_names=part.other_names,
            accept_unreadable=options.accept_unreadable,
        )
        self.survey: StreamSurvey | None = None

    def batches(self, counter: ReadCounter | None = None) -> Iterator[pa.RecordBatch]:
        survey = self.survey = StreamSurvey(self.stream, counter.data if counter else None)
        bounds = self._options.bounds
        chosen = Ranges.of([(bounds.first or 0, MAX_SEQUENCE if bounds.last is None else bounds.last)])
        for block, rows in survey.messages(survey.intact & chosen):
            for batch in self.parts_of(rows):
                yield self._batch(block, batch)
        yield from self._losses(survey, chosen)

    def parts_of(self, rows: RecordBatch) -> Iterator[RecordBatch]:
        """Yields the rows that the options select, in parts that are not too large."""
        bounds, options = self._options.bounds, self._options
        selected = np.ones(len(rows), np.bool_)
        if bounds.since is not None:
            selected &= rows.timestamp >= bounds.since
        if bounds.until is not None:
            selected &= rows.timestamp < bounds.until
        if not selected.all():
            rows = rows.take(selected)
        ends = np.cumsum(rows.data_size, dtype=np.int64)
        low = 0
        while low < len(rows):
            done = int(ends[low - 1]) if low else 0
            high = int(np.searchsorted(ends, done + max(options.batch_bytes, 1), "right"))
            high = min(max(high, low + 1), low + max(options.batch_rows, 1))
            yield rows.take(slice(low, high))
            low = high

    def _batch(self, block: BlockSurvey, rows: RecordBatch) -> pa.RecordBatch:
        count = len(rows)
        fixed = {
            "store": plain_text(self._part.store),
            "account": plain_text(self._part.account),
            "stream": plain_text(self._part.name),
            "block": plain_text(block.name),
            "state": _OK,
        }
        arrays = []
        for column in self._schema:
            name = column.name
            if name in fixed:
                arrays.append(pa.repeat(pa.scalar(fixed[name], pa.string()), count))
            elif name == "sequence":
                arrays.append(numbers(rows.sequence.view(np.int64), pa.int64()))
            elif name == "time":
                arrays.append(pa.array(rows.timestamp // 1000, pa.int64()).cast(column.type))
            elif name == "time_ns":
                arrays.append(numbers(rows.timestamp, pa.int64()))
            elif name == "size":
                arrays.append(numbers(rows.data_size, pa.int64()))
            elif name == "offset":
                arrays.append(numbers(rows.offset, pa.int64()))
            elif name == "subject":
                arrays.append(strings(rows.buffer, rows.subject_start, rows.subject_size))
            elif name == "payload":
                arrays.append(gather(rows.buffer, rows.data_start, rows.data_size))
            else:
                arrays.append(_headers(rows, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _losses(self, survey: StreamSurvey, chosen: Ranges) -> Iterator[pa.RecordBatch]:
        """Yields rows about damaged bytes and missing messages."""
        found: list[dict[str, Any]] = []
        for flaw in (*self.stream.flaws, *survey.flaws):
            serious = CATALOGUE[flaw.kind.value].severity is not Severity.INFO
            if serious and flaw.file.endswith(".blk") and (not flaw.sequence or flaw.sequence in chosen):
                place = {"block": flaw.file, "offset": flaw.offset, "size": flaw.length}
                found.append({"sequence": flaw.sequence, **place, "state": flaw.kind.value})
        told = [each["sequence"] for each in found if each["sequence"]]
        for first, last in survey.damaged & chosen:
            if not any(first <= each <= last for each in told):
                found.append({"sequence": first, "state": _DAMAGED})
        found += [{"sequence": first, "state": _MISSING} for first, _ in survey.missing & chosen]
        if self.stream.encrypted and self.stream.key is None:
            found.append({"state": _UNREADABLE})
        yield from odd_stream_rows(self._part, self._options, found)


def odd_stream_rows(
    part: StreamPart | FailedRead, options: TableOptions, found: list[dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Yields rows about losses; raises `StoreUnreadableError` for the first one in mode FAILFAST."""
    if not found or options.mode is Mode.DROPMALFORMED:
        return
    if options.mode is Mode.FAILFAST:
        first = found[0]
        place = part.path if isinstance(part, StreamPart) else part.root
        where = "".join(f", {name} {first[name]}" for name in ("block", "offset", "sequence") if first.get(name))
        raise StoreUnreadableError(f"{place}: {first['state']}{where}", _REMEDY)
    store = part.store if isinstance(part, StreamPart) else part.root
    base = {"store": plain_text(store)}
    if isinstance(part, StreamPart):
        base |= {"account": plain_text(part.account), "stream": plain_text(part.name)}
    schema = schema_of(TableName.STREAM_MESSAGES, options.columns)
    rows = [{**base, **each} for each in found]
    yield pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def read_streams(split: Split, options: TableOptions, counter: ReadCounter | None) -> Iterator[pa.RecordBatch]:
    """Reads the streams of a split; damage never raises, except in mode FAILFAST."""
    for part in split.parts:
        if isinstance(part, FailedRead):
            if options.mode is Mode.FAILFAST:
                raise StoreUnreadableError(part.message, part.remedy)
            yield from odd_stream_rows(part, options, [{"state": _UNREADABLE}])
        elif isinstance(part, StreamPart):
            yield from StreamRows(part, options).batches(counter)


def _headers(rows: RecordBatch, kind: pa.DataType) -> pa.Array:
    if not rows.header_size.any():
        return pa.array([[]] * len(rows), kind)
    return pa.array([list(header_fields(each).items()) if each else [] for each in rows.headers()], kind)
