"""Conditions of a query that Spark passes to the source: the files and records they exclude, and the rows they keep.

A condition on the channel, the store, the slice, the sequence or the time first reduces the plan, so that slices and
parts of slices are not read. Then every accepted condition is evaluated on the rows, as SQL defines it (unknown is
not true), because Spark does not evaluate it again: `EXPLAIN FORMATTED` shows it as pushed. Conditions that cannot
be evaluated exactly stay with Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from stantools.pipeline.tables.model import TableName
from stantools.pipeline.tables.schema import SCHEMAS
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import subject_matches
from stantools.store.ranges import Bounds

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_WITH_VALUE = (
    spark.EqualTo,
    spark.EqualNullSafe,
    spark.GreaterThan,
    spark.GreaterThanOrEqual,
    spark.LessThan,
    spark.LessThanOrEqual,
)
_ON_TEXT = (spark.StringStartsWith, spark.StringEndsWith, spark.StringContains)


@dataclass(frozen=True)
class PushedFilters:
    table: TableName
    filters: tuple[spark.Filter, ...] = ()  #: conditions that `understands` accepts

    def narrow(self, options: TableOptions) -> TableOptions | None:
        """Returns options that read less, or None if no row can meet the conditions."""
        channels = self._channels(options.channels)
        bounds = self._bounds(options.bounds)
        stores = self._names("store", options.stores)
        has_slices = self.table in (TableName.MESSAGES, TableName.SLICES)
        slices = self._names("slice", options.slices) if has_slices else options.slices
        if channels is None or bounds is None or stores is None or slices is None:
            return None
        return replace(options, channels=channels, bounds=bounds, stores=stores, slices=slices)

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow.compute as pc

        mask = None
        for condition in self.filters:
            one = _evaluate(condition, batch)
            mask = one if mask is None else pc.and_kleene(mask, one)
        if mask is None or pc.all(mask, skip_nulls=False).as_py():
            return batch
        return batch.filter(mask)

    def _names(self, column: str, given: tuple[str, ...]) -> tuple[str, ...] | None:
        """Returns the selected names: () for all, None for none."""
        names = self._values(column)
        if names is None:
            return given
        return tuple(name for name in names if not given or name in given) or None

    def _channels(self, patterns: tuple[str, ...]) -> tuple[str, ...] | None:
        if "channel" not in SCHEMAS[self.table].names:
            return patterns
        names = self._values("channel")
        if names is not None:
            taken = [name for name in names if not patterns or any(subject_matches(each, name) for each in patterns)]
            if any(_is_pattern(name) or "\\" in name for name in taken):
                # A name is meant, but options take patterns; and a backslash may stand for a byte that is not UTF-8.
                return patterns
            return tuple(taken) or None
        prefixes = [
            each.value
            for each in self.filters
            if isinstance(each, spark.StringStartsWith) and each.attribute == ("channel",)
        ]
        usable = [each for each in prefixes if each.endswith(".") and not _is_pattern(each) and "\\" not in each]
        if usable and not patterns:
            return (max(usable, key=len) + ">",)
        return patterns

    def _values(self, column: str) -> list[str] | None:
        """Returns the only possible values of a text column, or None if unknown."""
        found: list[str] | None = None
        for each in self.filters:
            if not isinstance(each, (spark.EqualTo, spark.EqualNullSafe, spark.In)) or each.attribute != (column,):
                continue
            values = list(dict.fromkeys(each.value if isinstance(each, spark.In) else [each.value]))
            if any(not isinstance(value, str) for value in values):
                continue
            found = values if found is None else [value for value in found if value in values]
        return found

    def _bounds(self, bounds: Bounds) -> Bounds | None:
        if self.table is not TableName.MESSAGES:
            return bounds
        first, last = self._range("seq")
        low, high = self._range("timestamp_ns")
        low_us, high_us = self._range("timestamp")
        first, last = _highest(bounds.first, first), _lowest(bounds.last, last)
        # The column is the time cut to microseconds; one more on each side excludes nothing wrongly.
        since = _highest(bounds.since, low, None if low_us is None else (low_us - 1) * 1000)
        until = _lowest(
            bounds.until, None if high is None else high + 1, None if high_us is None else (high_us + 2) * 1000
        )
        if last is not None and (last < 0 or (first is not None and last < first)):
            return None
        if since is not None and until is not None and until <= since:
            return None
        if first is not None and first <= 0:
            first = bounds.first
        return Bounds(first, last, since, until)

    def _range(self, column: str) -> tuple[int | None, int | None]:
        """Returns the lowest and highest possible value of a column of integers or times."""
        low: int | None = None
        high: int | None = None
        for each in self.filters:
            if isinstance(each, spark.Not) or getattr(each, "attribute", None) != (column,):
                continue
            if isinstance(each, (spark.EqualTo, spark.EqualNullSafe)) and each.value is not None:
                low, high = _highest(low, _number(each.value)), _lowest(high, _number(each.value))
            elif isinstance(each, spark.In) and each.value:
                numbers = [_number(value) for value in each.value]
                low, high = _highest(low, min(numbers)), _lowest(high, max(numbers))
            elif isinstance(each, spark.GreaterThan):
                low = _highest(low, _number(each.value) + 1)
            elif isinstance(each, spark.GreaterThanOrEqual):
                low = _highest(low, _number(each.value))
            elif isinstance(each, spark.LessThan):
                high = _lowest(high, _number(each.value) - 1)
            elif isinstance(each, spark.LessThanOrEqual):
                high = _lowest(high, _number(each.value))
        return low, high


def understands(table: TableName, columns: Sequence[str], condition: spark.Filter) -> bool:
    """Returns whether a condition on these columns can be evaluated exactly as Spark would."""
    if isinstance(condition, spark.Not):
        return not isinstance(condition.child, spark.Not) and understands(table, columns, condition.child)
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(path) != 1 or path[0] not in columns:
        return False
    if isinstance(condition, (spark.IsNull, spark.IsNotNull)):
        return True
    kind = SCHEMAS[table].field(path[0]).type
    if isinstance(condition, spark.In):
        return all(_same_kind(kind, value) for value in condition.value)
    if isinstance(condition, _ON_TEXT):
        return str(kind) == "string"
    return isinstance(condition, _WITH_VALUE) and _same_kind(kind, condition.value)


def _same_kind(kind: pa.DataType, value: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return type(value) is int and abs(value) < 1 << (kind.bit_width - 1)
    if pa.types.is_timestamp(kind):
        return isinstance(value, datetime) and value.tzinfo is not None
    return bool(pa.types.is_string(kind)) and isinstance(value, str)


def _evaluate(condition: spark.Filter, batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(condition, spark.Not):
        return pc.invert(_evaluate(condition.child, batch))
    column = batch.column(batch.schema.get_field_index(condition.attribute[0]))  # type: ignore[attr-defined]
    if isinstance(condition, spark.IsNull):
        return pc.is_null(column)
    if isinstance(condition, spark.IsNotNull):
        return pc.is_valid(column)
    if isinstance(condition, spark.In):
        found = pc.is_in(column, value_set=pa.array(condition.value, column.type))
        return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))
    if isinstance(condition, spark.StringStartsWith):
        return pc.starts_with(column, condition.value)
    if isinstance(condition, spark.StringEndsWith):
        return pc.ends_with(column, condition.value)
    if isinstance(condition, spark.StringContains):
        return pc.match_substring(column, condition.value)
    value = pa.scalar(condition.value, column.type)  # type: ignore[attr-defined]
    if isinstance(condition, spark.EqualNullSafe):
        return pc.fill_null(pc.equal(column, value), False)
    compare = {
        spark.EqualTo: pc.equal,
        spark.GreaterThan: pc.greater,
        spark.GreaterThanOrEqual: pc.greater_equal,
        spark.LessThan: pc.less,
        spark.LessThanOrEqual: pc.less_equal,
    }
    return compare[type(condition)](column, value)


def _is_pattern(name: str) -> bool:
    return "*" in name or ">" in name


def _number(value: int | datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) else value


def _highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _lowest(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
