r"""The sink `jetstream`: messages of a DataFrame into JetStream streams, one per channel, exactly once and in order.

    from stantools.pipeline.spark import jetstream, read

    frame = read.read(spark, "/data/stores/*", mode="DROPMALFORMED")
    jetstream.write(frame, servers="nats://host:4222", stream_prefix="old-")

`write` collects the rows of every channel and sorts them. Callers that do so themselves can use the format, which
refuses rows out of order:

    jetstream.register(spark)
    frame.repartition("channel").sortWithinPartitions("channel", "seq") \
        .write.format("jetstream").option("servers", "nats://host:4222").mode("append").save()

A message keeps its sequence; sequences without a message stay empty. Existing messages must be the same and are not
written again: a job may run any number of times, and continues after a failure. Until a job has ended, the
descriptions of its streams say `stantools: not complete`. The time of a message is that of publishing; its headers
hold the original time, with channel and sequence (see docs/migration-guide.md). `jetstream_options` lists the
options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from stantools.errors import UsageError
from stantools.pipeline.spark.failures import clear_errors, plain_errors, telling
from stantools.pipeline.spark.jetstream_options import SinkOptions, sink_options
from stantools.pipeline.spark.jetstream_rows import OPTIONAL, REQUIRED, check_columns
from stantools.pipeline.spark.jetstream_task import TaskReport, check_server, commit, write_rows
from stantools.pipeline.spark.read import StanDataSource, StanReader
from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.option_texts import Value, spark_name, spark_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

FORMAT = "jetstream"


def register(spark: SparkSession) -> None:
    """Makes `format("jetstream")` known to a session."""
    spark.dataSource.register(JetStreamDataSource)


def write(frame: DataFrame, **options: Value | None) -> None:
    """Writes messages into streams, those of each channel in the order of their sequences.

    Args:
        frame: Messages, with the columns `channel`, `seq`, `data` and `timestamp_ns` (or `timestamp`); `reply`,
            `subject` and `status` are used if present.
        options: As for `option(…)`, or as Python names: `stream_prefix="old-"`, `max_age="72h"`.

    Raises:
        UsageError: An option is unknown or invalid, or columns are missing.
        RefusedError: A stream holds other messages, rows are not messages, or two rows have the same sequence.
        StantoolsError: The server cannot be used, or one of its limits was reached. The same call continues.
    """
    values = _check(frame, options)
    register(frame.sparkSession)
    # One task per channel: its messages must be stored in order anyway.
    ordered = _select_columns(frame).repartition("channel").sortWithinPartitions("channel", "seq")
    with clear_errors():
        ordered.write.format(FORMAT).options(**values).mode("append").save()


def write_stream(frame: DataFrame, **options: Value | None) -> DataStreamWriter:
    """Returns a writer of a streaming DataFrame into streams, to be given a checkpoint and started.

    Every micro-batch is appended to the streams and complete at its end. The rows of one task are sorted in memory;
    the source's `maxRowsPerTrigger` and `maxBytesPerTrigger` limit that.

    Args:
        frame: Streaming messages, with the columns of `write`.
        options: As for `write`.

    Raises:
        UsageError: An option is unknown or invalid, or columns are missing.
        StantoolsError: The server cannot be used.
    """
    values = _check(frame, options)
    register(frame.sparkSession)
    return _select_columns(frame).repartition("channel").writeStream.format(FORMAT).options(**values)


class JetStreamDataSource(DataSource):
    """The data source for `format("jetstream")`: streams of a server are written, directories of servers are read.

    `jetstream_options` lists the options of writing; those of reading are the ones of `format("stan")`.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Returns the columns of the streams of a directory."""
        return self._directory().schema()

    def reader(self, schema: StructType) -> StanReader:
        """Returns the reader of the streams of a directory."""
        return self._directory().reader(schema)

    def _directory(self) -> StanDataSource:
        with plain_errors():
            if not {name.lower() for name in self.options} & {"path", "paths"}:
                raise UsageError(
                    "Spark cannot read the streams of a server",
                    'name its JetStream directory: .load("/data/jetstream"); or compare them with a store: stantools '
                    "diff STORE SERVER#STREAM",
                )
            return StanDataSource({**self.options, "table": TableName.STREAM_MESSAGES.value})

    def writer(self, schema: StructType, overwrite: bool) -> JetStreamWriter:
        """Returns the writer of a job; UsageError for invalid options, StantoolsError without a server."""
        with plain_errors(), telling():
            return JetStreamWriter(self._options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> JetStreamStreamWriter:  # noqa: N802
        """Returns the writer of micro-batches; raises as `writer`."""
        with plain_errors(), telling():
            return JetStreamStreamWriter(self._options(schema, overwrite=overwrite))

    def _options(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise UsageError(
                "streams cannot be overwritten",
                'use mode("append"), which continues the existing streams; or remove them first, or write to others '
                "with the option streamPrefix",
            )
        options = sink_options(dict(self.options))
        check_columns({field.name: field.dataType for field in schema.fields}, origin=options.origin)
        check_server(options)
        return options


class CommitMessage(WriterCommitMessage):
    """Result of a task."""

    def __init__(self, written: TaskReport) -> None:
        self.written = written


class _Writer:
    """A writer; pickled and sent to the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def _write(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        with plain_errors(), telling():
            return CommitMessage(write_rows(self._options, batches))

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with plain_errors(), telling():
            commit(self._options, [each.written for each in messages if isinstance(each, CommitMessage)])


class JetStreamWriter(_Writer, DataSourceArrowWriter):
    """Writer of a job."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Writes the rows of a task; StantoolsError for a failure that another attempt may not have."""
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finishes all streams; StantoolsError if a task failed or a stream was changed since."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leaves the streams incomplete, as their descriptions say; the same job continues them."""


class JetStreamStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer of micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Writes the rows of a task, in any order; StantoolsError as of `JetStreamWriter.write`."""
        return self._write(_sort_rows(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Finishes all streams of a micro-batch; Spark may repeat the call after a restart."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leaves the streams as they are: Spark repeats a micro-batch with the same rows."""


def _sort_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields rows by channel and sequence."""
    import pyarrow as pa

    if listed := list(batches):
        table = pa.Table.from_batches(listed)
        yield from table.sort_by([("channel", "ascending"), ("seq", "ascending")]).to_batches(max_chunksize=16384)


def _check(frame: DataFrame, options: Mapping[str, Value | None]) -> dict[str, str]:
    """Checks options, columns and server; returns the options as texts."""
    values = {spark_name(name): spark_text(value) for name, value in options.items() if value is not None}
    checked = sink_options(values)
    check_columns(dict.fromkeys(frame.columns), origin=checked.origin)
    check_server(checked)
    return values


def _select_columns(frame: DataFrame) -> DataFrame:
    """Drops unused columns before rows move between machines."""
    wanted: Any = [name for name in frame.columns if name in {*REQUIRED, *OPTIONAL, "store", "slice", "offset"}]
    if "timestamp_ns" in wanted and "timestamp" in wanted:
        wanted.remove("timestamp")
    return frame.select(*wanted)
