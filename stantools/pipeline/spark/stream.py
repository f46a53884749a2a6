"""Following stores that a server is writing: the reader of `spark.readStream.format("stan")`.

Its options are those of the batch source and some more (`options`). The channels share a limit in turns, so that
each advances. The rows are those of the batch source, and three more kinds without a message: status `removed`
(slices or a channel were removed unread; `seq` is the first missing message), `replaced` (the files are no longer
those read before; the stream continues with later messages) and `not-followed` (a second data file of the same slice
number). See `stantools.store.growing_channel` and `growing_slice` for the rules.

Spark calls the reader in a process beside the driver, which lives as long as the query, and, recreated, in the
tasks. A batch depends only on its offsets (`stantools.pipeline.tables.positions`) and on the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.install_hints import install_command
from stantools.pipeline.spark.failures import plain_errors
from stantools.pipeline.spark.stream_options import source_options, stream_options, with_schema
from stantools.pipeline.spark.tasks import begin_task
from stantools.pipeline.tables.discovery import discover
from stantools.pipeline.tables.follow import FollowPart, FoundStores, Limit, TableFollower
from stantools.pipeline.tables.model import Mode, SlicePiece, TableName
from stantools.pipeline.tables.planning import grouped
from stantools.pipeline.tables.positions import Offsets
from stantools.pipeline.tables.read import FOLLOW_REMEDY, read_work
from stantools.pipeline.tables.remote import is_remote
from stantools.pipeline.tables.slice_pieces import split_slice
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.ranges import Bounds

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as problem:
    raise StantoolsError(
        "following stores needs PySpark 4.2 or later: older versions do not pass the start of a batch to a source",
        install_command("pyspark>=4.2,<5", "pyarrow", "pandas"),
    ) from problem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: New bytes up to which a slice is read whole, whatever the bounds.
_SMALL_BYTES = 1 << 20
#: Cost of beginning a slice, in bytes of reading.
_START_COST = 1 << 17


class StanStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows stores; `values` are the options as Spark passes them, `schema` the selected columns."""

    def __init__(self, values: Mapping[str, str], schema: StructType) -> None:
        options = source_options(values)
        if options.table is not TableName.MESSAGES:
            raise UsageError(
                f"the table {options.table} cannot be followed, only messages can",
                "read it with spark.read, repeatedly if needed",
            )
        self._options = with_schema(options, schema)
        self._names = list(schema.names)
        self._stream = stream_options(values)
        self._follower: TableFollower | None = None
        for path in self._options.paths:
            if is_remote(path):
                raise UsageError(
                    f"{path}: a store can only be followed on the server's machine or on a shared file system",
                    "give a local path to readStream; spark.read accepts URLs",
                )

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with plain_errors():
            follower = self._followed()
            return (follower.newest() if self._stream.latest else follower.earliest()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns the configured limit; if there are several, all apply nevertheless."""
        limit = self._stream.limit
        if limit.bytes is not None:
            return ReadMaxBytes(limit.bytes)
        if limit.rows is not None:
            return ReadMaxRows(limit.rows)
        return ReadAllAvailable() if limit.files is None else ReadMaxFiles(limit.files)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with plain_errors():
            most = Limit() if isinstance(limit, ReadAllAvailable) else self._stream.limit
            begin = Offsets.from_json(start)
            end = self._followed().latest(begin, most)
            return start if end == begin else end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Makes the present end of the data the end of the query."""
        with plain_errors():
            self._followed().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns the backlog at the last look, for the query's progress."""
        if self._follower is None:
            return None
        lag = self._follower.lag
        return {"waitingBytes": lag.waiting_bytes, "waitingChannels": lag.waiting_channels}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with plain_errors():
            work: list[FollowPart] = []
            for each in self._followed().work(Offsets.from_json(start), Offsets.from_json(end)):
                if isinstance(each, SlicePiece):
                    work += _cut(each, self._options)
                elif self._options.mode is Mode.FAILFAST:
                    raise StoreUnreadableError(each.message, FOLLOW_REMEDY)
                elif self._options.mode is Mode.PERMISSIVE:
                    work.append(each)
            weights = [each.cost + _START_COST for each in work]
            return [InputPartition(tuple(group)) for group in grouped(work, weights, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        begin_task()
        with plain_errors():
            for batch in read_work(partition.value, self._options):
                yield batch if batch.schema.names == self._names else batch.rename_columns(self._names)

    def _followed(self) -> TableFollower:
        if self._follower is None:
            self._follower = TableFollower(self._find, self._options.channels, self._options.archived)
        return self._follower

    def _find(self) -> FoundStores:
        found, unreadable = discover(self._options)
        for store in found:
            if store.loose is not None:
                raise UsageError(
                    f"{store.ref.root}: holds slices without a store; only stores can be followed",
                    "name the directory given to the server as -dir; spark.read accepts slices",
                )
        return [store.ref for store in found], unreadable


def _cut(piece: SlicePiece, options: TableOptions) -> list[SlicePiece]:
    """Cuts a large new part of a slice, and drops pieces outside of the bounds."""
    if piece.cost <= (min(_SMALL_BYTES, options.split_bytes) if options.bounds != Bounds() else options.split_bytes):
        return [piece]
    parts = split_slice(piece.slice, options)
    return [replace(part, start=max(part.start, piece.start)) for part in parts if part.end > piece.start]
