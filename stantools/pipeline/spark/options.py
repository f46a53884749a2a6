"""What `format("stan")` takes, by `spark.read` and by `readStream`: options, and the columns of a schema.

The options of the tables are those of `TableOptions`; streams have those of `StreamOptions` on top of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from stantools.errors import UsageError
from stantools.options import Option
from stantools.pipeline.tables.discovery import absolute
from stantools.pipeline.tables.follow import Limit
from stantools.pipeline.tables.options import TableOptions, check_columns, table_options
from stantools.pipeline.tables.schema import SCHEMAS, schema_of
from stantools.pipeline.tables.texts import SIZE, Given, names_of, spark_option

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: An option for Spark alone.
PUSHDOWN = "pushdown"
PUSHDOWN_OPTION = Option(
    help="true hands conditions of the query to the source; see the guide before using it",
    choices=("auto", "true", "false"),
)


@dataclass(frozen=True)
class StreamOptions:
    """What is special about a stream."""

    #: `latest` begins with what is added.
    starting: str = spark_option(
        "earliest",
        startingOffsets=Option(
            help="earliest (what is there comes first) or latest (only what is added); for a new query only",
            choices=("earliest", "latest"),
        ),
    )
    #: What one batch takes.
    limit: Limit = spark_option(
        Limit(),
        maxBytesPerTrigger=SIZE.like(
            help="bytes of data files that one batch takes, about; at least one message of each channel"
        ),
        maxRowsPerTrigger=SIZE.like(help="messages that one batch takes at most"),
        maxFilesPerTrigger=SIZE.like(help="slices that one batch touches at most"),
    )

    @property
    def latest(self) -> bool:
        """It begins with what is added."""
        return self.starting == "latest"


#: Options of `readStream`.
STREAM_OPTIONS = names_of(StreamOptions)


def source_options(values: Mapping[str, str]) -> TableOptions:
    """Reads the options of a batch read or of a stream, passing over what is for Spark alone.

    Args:
        values: As Spark passes them.

    Raises:
        UsageError: A name is not known, or a value makes no sense.
    """
    passed_over = {PUSHDOWN, *(name.lower() for name in STREAM_OPTIONS)}
    may_push(values)
    options = table_options({name: value for name, value in values.items() if name.lower() not in passed_over})
    return replace(absolute(options), partitions=options.partitions or os.cpu_count() or 1)


def may_push(values: Mapping[str, str]) -> bool:
    """Returns whether conditions may be taken over from Spark.

    Raises:
        UsageError: The option has another value.
    """
    given = {name: value for name, value in values.items() if name.lower() == PUSHDOWN}
    wanted = Given(given, {PUSHDOWN: PUSHDOWN_OPTION}).value(PUSHDOWN, "auto")
    # What came with LIMIT push-down: the plan of a query belongs to that query alone.
    return wanted == "true" or (wanted == "auto" and hasattr(DataSourceReader, "pushLimit"))


def with_schema(options: TableOptions, schema: StructType) -> TableOptions:
    """Returns the options for the columns of a schema, the user's own or ours.

    Raises:
        UsageError: A column is none of the table or of another type.
    """
    columns = check_columns(options.table, tuple(schema.names))
    if not columns:
        raise UsageError("the schema has no columns", f"its columns are: {', '.join(SCHEMAS[options.table].names)}")
    options = replace(options, columns=columns)
    for have, asked in zip(spark_schema(options), schema, strict=True):
        if have.dataType != asked.dataType:
            raise UsageError(
                f"column {asked.name}: is {have.dataType.simpleString()}, not {asked.dataType.simpleString()}",
                "give its type in the schema, and cast after reading",
            )
    return options


def spark_schema(options: TableOptions) -> StructType:
    """Returns Spark's schema of the columns that are wanted."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema_of(options.table, options.columns))


def stream_options(values: Mapping[str, str]) -> StreamOptions:
    """Reads the options that only streams have.

    Raises:
        UsageError: One makes no sense.
    """
    known = {name.lower() for name in STREAM_OPTIONS}
    given = Given({name: value for name, value in values.items() if name.lower() in known}, STREAM_OPTIONS)
    sizes = (given.value(f"max{what}PerTrigger") for what in ("Bytes", "Rows", "Files"))
    return StreamOptions(**given.fields(StreamOptions), limit=Limit(*sizes))
