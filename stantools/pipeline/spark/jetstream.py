r"""The sink `jetstream`: messages of a DataFrame into JetStream streams, exactly once and in order, a stream a channel.

    from stantools.pipeline.spark import jetstream, read

    frame = read.read(spark, "/data/stores/*", mode="DROPMALFORMED")
    jetstream.write(frame, servers="nats://host:4222", stream_prefix="old-")

`write` brings the rows of every channel together and into their order. Who does that otherwise may use the format
itself, which checks and refuses rows that are not in order:

    jetstream.register(spark)
    frame.repartition("channel").sortWithinPartitions("channel", "seq") \
        .write.format("jetstream").option("servers", "nats://host:4222").mode("append").save()

A message keeps its sequence; sequences without a message stay empty. What was there before must be the same, and is not
written again, so the same job may be run any number of times, and after a failure it continues where it was. Until a
job has come to its end, the descriptions of its streams say `stantools: not complete`. The time of a message is that of
publishing; the old one, with channel and sequence, is in its headers (see docs/migration-guide.md). The options are
listed in `jetstream_options`.
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
from stantools.pipeline.spark.jetstream_task import Written, check_server, commit, write_rows
from stantools.pipeline.tables.texts import Value, spark_name, spark_text

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
    """Writes messages into streams, those of every channel in the order of their sequences.

    Args:
        frame: Messages, with the columns `channel`, `seq`, `data` and `timestamp_ns` (or `timestamp`); `reply`,
            `subject` and `status` are looked at where they are.
        options: As `option(…)` takes them, or in Python's way: `stream_prefix="old-"`, `max_age="72h"`.

    Raises:
        UsageError: An option is not known or makes no sense, or columns are missing.
        RefusedError: A stream holds something else, rows are no messages, or there are two of one sequence.
        StantoolsError: The server cannot be used, or a limit of it was reached. The same call again continues.
    """
    values = _checked(frame, options)
    register(frame.sparkSession)
    # A channel has to come together, in one task: its messages are stored one behind the other anyhow.
    ordered = _chosen(frame).repartition("channel").sortWithinPartitions("channel", "seq")
    with clear_errors():
        ordered.write.format(FORMAT).options(**values).mode("append").save()


def write_stream(frame: DataFrame, **options: Value | None) -> DataStreamWriter:
    """Returns what writes a streaming DataFrame into streams; give it a checkpoint and start it.

    Every micro-batch is a part of the streams, written behind what they hold, and complete when it is done. The rows
    of one task are sorted in memory; the source's `maxRowsPerTrigger` and `maxBytesPerTrigger` keep that small.

    Args:
        frame: Messages as they come, with the columns that `write` takes.
        options: As for `write`.

    Raises:
        UsageError: An option is not known or makes no sense, or columns are missing.
        StantoolsError: The server cannot be used.
    """
    values = _checked(frame, options)
    register(frame.sparkSession)
    return _chosen(frame).repartition("channel").writeStream.format(FORMAT).options(**values)


class JetStreamDataSource(DataSource):
    """Streams of a JetStream as a place to write to; see `jetstream_options` for the options."""

    @classmethod
    def name(cls) -> str:
        """Returns what `format(…)` is given."""
        return FORMAT

    def schema(self) -> StructType:
        """Refuses: it is only written to.

        Raises:
            UsageError: Always.
        """
        with plain_errors():
            raise UsageError(
                "streams are not read by Spark", "compare them with a store: stantools diff STORE SERVER#STREAM"
            )

    def writer(self, schema: StructType, overwrite: bool) -> JetStreamWriter:
        """Returns what writes the rows of a DataFrame, if that can be.

        Raises:
            UsageError: An option or the mode makes no sense, or columns are missing.
            StantoolsError: The server cannot be used.
        """
        with plain_errors(), telling():
            return JetStreamWriter(self._options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> JetStreamStreamWriter:  # noqa: N802
        """Returns what writes micro-batches; raises as `writer`."""
        with plain_errors(), telling():
            return JetStreamStreamWriter(self._options(schema, overwrite=overwrite))

    def _options(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise UsageError(
                "streams are not overwritten",
                'use mode("append"), which goes on with what is there; or remove the streams first, or write to others '
                "with the option streamPrefix",
            )
        options = sink_options(dict(self.options))
        check_columns({field.name: field.dataType for field in schema.fields}, origin=options.origin)
        check_server(options)
        return options


class CommitMessage(WriterCommitMessage):
    """What a task has written."""

    def __init__(self, written: Written) -> None:
        self.written = written


class _Writer:
    """What writes; pickled and sent to the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def _write(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        with plain_errors(), telling():
            return CommitMessage(write_rows(self._options, batches))

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with plain_errors(), telling():
            commit(self._options, [each.written for each in messages if isinstance(each, CommitMessage)])


class JetStreamWriter(_Writer, DataSourceArrowWriter):
    """Writes a job."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Writes the rows of a task.

        Raises:
            StantoolsError: Something that may be otherwise at the next attempt.
        """
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finishes all streams.

        Raises:
            StantoolsError: A task could not do its work, or a stream is not as it was left.
        """
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leaves streams as they are: they say that they are not complete, and the same job continues them."""


class JetStreamStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Writes the rows of a task, which come in no order.

        Raises:
            StantoolsError: Something that may be otherwise at the next attempt.
        """
        return self._write(_sorted(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Finishes all streams of a micro-batch; Spark may ask for that again after a restart.

        Raises:
            StantoolsError: A task could not do its work, or a stream is not as it was left.
        """
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leaves streams as they are: Spark repeats a micro-batch with the same rows."""


def _sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields rows by channel and sequence."""
    import pyarrow as pa

    if listed := list(batches):
        table = pa.Table.from_batches(listed)
        yield from table.sort_by([("channel", "ascending"), ("seq", "ascending")]).to_batches(max_chunksize=16384)


def _checked(frame: DataFrame, options: Mapping[str, Value | None]) -> dict[str, str]:
    """Returns options as texts, once everything that can be known before is seen to be right."""
    values = {spark_name(name): spark_text(value) for name, value in options.items() if value is not None}
    checked = sink_options(values)
    check_columns(dict.fromkeys(frame.columns), origin=checked.origin)
    check_server(checked)
    return values


def _chosen(frame: DataFrame) -> DataFrame:
    """Leaves out columns that are not needed, before they are moved between machines."""
    wanted: Any = [name for name in frame.columns if name in {*REQUIRED, *OPTIONAL, "store", "slice", "offset"}]
    if "timestamp_ns" in wanted and "timestamp" in wanted:
        wanted.remove("timestamp")
    return frame.select(*wanted)
