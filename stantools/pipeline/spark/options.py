"""What `format("stan")` is told, by `spark.read` and by `readStream`: options, and the columns of a schema.

The options of the tables are those of `stantools.pipeline.tables.options`. Streams have these on top of them:

    startingOffsets      earliest (what is there comes first) or latest (only what is added); for a new query only
    maxBytesPerTrigger   bytes of data files that one batch takes, about; at least one message
    maxRowsPerTrigger    messages that one batch takes at most
    maxFilesPerTrigger   slices that one batch touches at most
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from stantools.errors import UsageError
from stantools.notation import parse_size
from stantools.pipeline.tables.discovery import absolute
from stantools.pipeline.tables.options import TableOptions, check_columns, table_options
from stantools.pipeline.tables.schema import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from stantools.pipeline.tables.follow import Limit

#: Options that are for Spark alone. `pushdown`: auto (where Spark does it safely), true or false.
PUSHDOWN = "pushdown"

#: Options of `readStream`; what they mean is written in the head of this module.
STREAM_OPTIONS = ("startingOffsets", "maxBytesPerTrigger", "maxRowsPerTrigger", "maxFilesPerTrigger")

_EARLIEST, _LATEST = "earliest", "latest"


def source_options(values: Mapping[str, str]) -> TableOptions:
    """Reads the options of a batch read or of a stream, passing over what is for Spark alone.

    Args:
        values: As Spark gives them.

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
    text = values.get(PUSHDOWN, "auto")
    wanted = text.strip().lower()
    if wanted not in ("auto", "true", "false"):
        raise UsageError(f"option pushdown: {text!r} is not known", "it takes one of: auto, true, false")
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
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = SCHEMAS[options.table]
    wanted = options.columns or tuple(schema.names)
    return from_arrow_schema(pa.schema([schema.field(name) for name in wanted]))


@dataclass(frozen=True)
class StreamOptions:
    """What is special about a stream.

    Attributes:
        latest: Begin with what is added.
        limit: What one batch takes.
    """

    latest: bool
    limit: Limit


def stream_options(values: Mapping[str, str]) -> StreamOptions:
    """Reads the options that only streams have.

    Raises:
        UsageError: One makes no sense.
    """
    from stantools.pipeline.tables.follow import Limit

    given = {name.lower(): str(value).strip() for name, value in values.items()}
    starting = given.get("startingoffsets", _EARLIEST).lower()
    if starting not in (_EARLIEST, _LATEST):
        raise UsageError(f"option startingOffsets: {starting!r} is none", f"it takes one of: {_EARLIEST}, {_LATEST}")
    sizes = {}
    for name in ("maxBytesPerTrigger", "maxRowsPerTrigger", "maxFilesPerTrigger"):
        if (text := given.get(name.lower())) is not None:
            try:
                sizes[name] = parse_size(text)
            except ValueError as error:
                raise UsageError(f"option {name}: {error}", "give a number of 1 or more") from error
            if sizes[name] < 1:
                raise UsageError(f"option {name}: {text!r} is not 1 or more", "leave it out to have no limit")
    limit = Limit(sizes.get("maxBytesPerTrigger"), sizes.get("maxRowsPerTrigger"), sizes.get("maxFilesPerTrigger"))
    return StreamOptions(starting == _LATEST, limit)
