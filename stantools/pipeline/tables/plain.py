"""The part of pyarrow that tables use, over lists and numpy arrays: for csv and ndjson without pyarrow.

Names, arguments and results are those of pyarrow, so that makers of rows work with either. Values are Python's, None
for null; moments are numbers in their unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

ArrowInvalid = ValueError

_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class DataType:
    name: str
    width: int | None = None  #: bits of a value; None if values differ in size
    item: DataType | None = None  #: item type of lists
    unit: str | None = None  #: unit of moments


def _type(name: str, width: int | None = None) -> Callable[[], DataType]:
    made = DataType(name, width)
    return lambda: made


string, binary, bool_ = _type("string"), _type("binary"), _type("bool", 1)
int32, int64, date32 = _type("int32", 32), _type("int64", 64), _type("date32", 32)


def timestamp(unit: str, tz: str | None = None) -> DataType:
    """Returns the type of moments; microseconds are the only unit."""
    if unit != "us":
        raise ArrowInvalid(f"timestamps in {unit}; expected us")
    return DataType("timestamp", 64, unit=unit)


def list_(item: DataType) -> DataType:
    return DataType("list", None, item)


@dataclass(frozen=True)
class SchemaField:
    name: str
    type: DataType


field = SchemaField


@dataclass(frozen=True)
class Schema:
    fields: tuple[SchemaField, ...]

    def __iter__(self) -> Iterator[SchemaField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.fields]

    def get_field_index(self, name: str) -> int:
        return next((place for place, each in enumerate(self.fields) if each.name == name), -1)

    def field(self, name: str) -> SchemaField:
        """Returns a column; raises KeyError for an unknown name."""
        if (place := self.get_field_index(name)) < 0:
            raise KeyError(name)
        return self.fields[place]


def schema(fields: Sequence[SchemaField]) -> Schema:
    return Schema(tuple(fields))


@dataclass(frozen=True)
class Array:
    values: list[Any] | npt.NDArray[Any]  #: a numpy array has no nulls
    type: DataType

    @classmethod
    def from_buffers(cls, kind: DataType, rows: int, buffers: Sequence[Any]) -> Array:
        """Makes an array of 64-bit numbers, or of binary values with 32-bit offsets, without nulls."""
        _, first, *data = buffers
        if not data:
            return cls(np.frombuffer(first, np.int64, rows), kind)
        ends, content = np.frombuffer(first, np.int32).tolist(), bytes(data[0])
        return cls([content[begin:end] for begin, end in pairwise(ends)], kind)

    def __len__(self) -> int:
        return len(self.values)

    def to_pylist(self) -> list[Any]:
        return self.values if isinstance(self.values, list) else self.values.tolist()

    def slice(self, begin: int, count: int | None = None) -> Array:
        """Returns consecutive values."""
        return Array(self.values[begin : None if count is None else begin + count], self.type)

    def take(self, rows: Array) -> Array:
        if isinstance(self.values, np.ndarray):
            return Array(self.values[rows.values], self.type)
        return Array([self.values[row] for row in rows.to_pylist()], self.type)

    def cast(self, kind: DataType) -> Array:
        """Converts bytes to text, and moments to days. Raises ArrowInvalid for bytes that are not UTF-8."""
        if kind == string():
            return Array([None if each is None else each.decode() for each in self.to_pylist()], kind)
        if kind == date32():
            days = (None if each is None else _EPOCH + timedelta(microseconds=each) for each in self.to_pylist())
            return Array(list(days), kind)
        return self.view(kind)

    def dictionary_encode(self, null_encoding: str = "encode") -> Dictionary:
        values = self.to_pylist()
        known = {value: place for place, value in enumerate(dict.fromkeys(values))}
        return Dictionary(array(np.fromiter(map(known.__getitem__, values), np.int64)), Array(list(known), self.type))

    def to_numpy(self, *, zero_copy_only: bool = False) -> npt.NDArray[Any]:
        """Returns the values, which must have no null."""
        return np.asarray(self.values)

    def view(self, kind: DataType) -> Array:
        return Array(self.values, kind)

    @property
    def nbytes(self) -> int:
        """Bytes of the same values in Arrow's memory."""
        rows = len(self)
        if isinstance(self.values, np.ndarray):
            return rows * self.values.itemsize
        known = [each for each in self.values if each is not None]
        nulls = 0 if len(known) == rows else _bits(rows)
        if self.type.width is not None:
            return nulls + _bits(rows * self.type.width)
        if self.type == string():
            return nulls + 4 * rows + len("".join(known).encode())
        if self.type.item is None:
            return nulls + 4 * rows + sum(map(len, known))
        return nulls + 4 * rows + Array([item for each in known for item in each], self.type.item).nbytes


def _bits(count: int) -> int:
    return (count + 7) // 8


@dataclass(frozen=True)
class Dictionary:
    indices: Array  #: for each row the position of its value
    dictionary: Array


@dataclass(frozen=True)
class RecordBatch:
    columns: Sequence[Array]
    schema: Schema

    @classmethod
    def from_arrays(cls, arrays: Sequence[Array], schema: Schema) -> RecordBatch:
        return cls(arrays, schema)

    @property
    def num_rows(self) -> int:
        return len(self.columns[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the same values in Arrow's memory."""
        return sum(column.nbytes for column in self.columns)

    def column(self, which: int | str) -> Array:
        return self.columns[self.schema.get_field_index(which) if isinstance(which, str) else which]

    def select(self, names: Sequence[str]) -> RecordBatch:
        return RecordBatch([self.column(name) for name in names], Schema(tuple(map(self.schema.field, names))))

    def slice(self, begin: int, count: int | None = None) -> RecordBatch:
        """Returns consecutive rows."""
        return RecordBatch([column.slice(begin, count) for column in self.columns], self.schema)

    def take(self, rows: Array) -> RecordBatch:
        return RecordBatch([column.take(rows) for column in self.columns], self.schema)


def concat_batches(batches: Sequence[RecordBatch]) -> RecordBatch:
    schema = batches[0].schema
    columns = zip(*(batch.columns for batch in batches), strict=True)
    return RecordBatch([_together(parts) for parts in columns], schema)


def _together(parts: Sequence[Array]) -> Array:
    arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
    if len(arrays) == len(parts):
        return Array(np.concatenate(arrays), parts[0].type)
    return Array([value for part in parts for value in part.to_pylist()], parts[0].type)


def array(values: Any, type: DataType | None = None, mask: npt.NDArray[np.bool_] | None = None) -> Array:
    """Makes a column of values or of a numpy array; null where the mask is true."""
    kind = type or int64()
    if mask is not None:
        listed = values.tolist() if isinstance(values, np.ndarray) else values
        return Array([None if null else value for value, null in zip(listed, mask.tolist(), strict=True)], kind)
    return Array(values if isinstance(values, np.ndarray) else list(values), kind)


def scalar(value: Any, type: DataType) -> Array:
    return Array([value], type)


def repeat(value: Array, rows: int) -> Array:
    return Array([*value.values] * rows, value.type)


def allocate_buffer(size: int) -> bytearray:
    return bytearray(size)


def py_buffer(content: Any) -> Any:
    return content
