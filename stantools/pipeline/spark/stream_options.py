"""Options of `format("stan")`, for `spark.read` and `readStream`, and the columns of a schema.

The options of the tables are those of `TableOptions`; streams have those of `StreamOptions` as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stantools.errors import UsageError
from stantools.options import Option
from stantools.pipeline.tables.discovery import absolute
from stantools.pipeline.tables.follow import Limit
from stantools.pipeline.tables.option_texts import SIZE, GivenOptions, names_of, spark_option
from stantools.pipeline.tables.schema import column_names, schema_of
from stantools.pipeline.tables.sql_parts import check_password
from stantools.pipeline.tables.table_options import TableOptions, check_columns, table_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class StreamOptions:
    #: `latest` begins with new messages.
    starting: str = spark_option(
        "earliest",
        startingOffsets=Option(
            help="earliest (existing messages first) or latest (only new messages); for a new query only",
            choices=("earliest", "latest"),
        ),
    )
    #: Limit of one batch.
    limit: Limit = spark_option(
        Limit(),
        maxBytesPerTrigger=SIZE.like(
            help="approximate bytes of data files per batch; at least one message of each channel"
        ),
        maxRowsPerTrigger=SIZE.like(help="maximum messages per batch"),
        maxFilesPerTrigger=SIZE.like(help="maximum slices per batch"),
    )

    @property
    def latest(self) -> bool:
        return self.starting == "latest"


#: options of `readStream`
STREAM_OPTIONS = names_of(StreamOptions)


def source_options(values: Mapping[str, str]) -> TableOptions:
    """Parses the options of a batch read or of a stream, ignoring those of streams."""
    passed_over = {name.lower() for name in STREAM_OPTIONS}
    options = table_options({name: value for name, value in values.items() if name.lower() not in passed_over})
    for path in options.paths:
        check_password(path)
    return replace(absolute(options), partitions=options.partitions or os.cpu_count() or 1)


def with_schema(options: TableOptions, schema: StructType) -> TableOptions:
    """Returns the options for the columns of a schema, the user's or ours; raises `UsageError` for unknown columns."""
    columns = check_columns(options.table, tuple(schema.names))
    if not columns:
        raise UsageError("the schema has no columns", f"its columns are: {', '.join(column_names(options.table))}")
    options = replace(options, columns=columns)
    for have, asked in zip(spark_schema(options), schema, strict=True):
        if have.dataType != asked.dataType:
            raise UsageError(
                f"column {asked.name}: is {have.dataType.simpleString()}, not {asked.dataType.simpleString()}",
                "give its type in the schema, and cast after reading",
            )
    return options


def spark_schema(options: TableOptions) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema_of(options.table, options.columns))


def stream_options(values: Mapping[str, str]) -> StreamOptions:
    known = {name.lower() for name in STREAM_OPTIONS}
    given = GivenOptions({name: value for name, value in values.items() if name.lower() in known}, STREAM_OPTIONS)
    sizes = (given.value(f"max{what}PerTrigger") for what in ("Bytes", "Rows", "Files"))
    return StreamOptions(**given.fields(StreamOptions), limit=Limit(*sizes))
