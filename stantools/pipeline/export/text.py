"""Rows as text, a batch at a time: ndjson and csv; and values for a database without moments and lists.

Each column becomes a column of text, and the columns are joined into lines. No message is handled by itself: Arrow's
kernels, or operations on whole buffers, do it. One pass finds the texts that need escapes (quotes, control characters,
characters beyond ASCII); only these are handled one by one, equal ones once. Without pyarrow (`ValueRows`) the same
text is made value by value.

ndjson: one object per line with all columns in order. Text has the escapes of Python's json module (ASCII only),
`data` is base64, times are RFC 3339 in UTC, unknown values are null, lists are arrays, maps objects.

csv: RFC 4180 with a heading and line feeds. `data` is base64, times as above, lists and maps are json. An unknown value
is an empty field, an empty text is `""`.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Final

import numpy as np

from stantools.pipeline.export.export_layout import Format
from stantools.pipeline.tables.arrow import pa, pc
from stantools.pipeline.tables.value_rows import ValueRows

#: Arrow's text has 32-bit offsets; a batch of more bytes than this gets 64-bit ones, so that base64 fits as well.
_LARGE_FROM: Final = 512 << 20

#: Characters that json text escapes.
_NOT_PLAIN_JSON: Final = r"[^ !#-\[\]-~]"
_NOT_PLAIN_CSV: Final = r'[",\r\n]'
_csv_strange = re.compile(_NOT_PLAIN_CSV).search

_BASE64_PADDING: Final = (b"", b"\0\0", b"\0")

_compact = json.JSONEncoder(separators=(",", ":")).encode


def heading(names: Sequence[str], format: Format) -> bytes:
    return (",".join(names) + "\n").encode() if format is Format.CSV else b""


def encode(batch: pa.RecordBatch, format: Format) -> bytes | memoryview:
    """Returns the rows of a batch as ndjson or csv, each with its line break."""
    return encode_values(batch, format) if isinstance(batch, ValueRows) else encode_columns(batch, format)


def encode_values(rows: ValueRows, format: Format) -> bytes:
    """As `encode`, for rows of messages as values."""
    cells = [_cells(name, values, format) for name, values in rows.columns.items()]
    if format is Format.NDJSON:
        line = "{" + ",".join(f"{json.dumps(name)}:%s" for name in rows.columns) + "}\n"
    else:
        line = ",".join(["%s"] * len(cells)) + "\n"
    return "".join(map(line.__mod__, zip(*cells, strict=True))).encode()


def _cells(name: str, values: list[Any], format: Format) -> Iterable[str]:
    mark, null, quoted = ('"', "null", encode_basestring_ascii) if format is Format.NDJSON else ("", "", _csv_cell)
    known = [each for each in values if each is not None]
    texts: Iterator[str]
    if name == "data":
        texts = (f"{mark}{binascii.b2a_base64(each, newline=False).decode()}{mark}" for each in known)
    elif name == "timestamp":
        texts = (f"{mark}{each}Z{mark}" for each in np.datetime_as_string(np.array(known, "M8[us]")).tolist())
    elif known and isinstance(known[0], str):
        made = {each: quoted(each) for each in set(known)}
        texts = map(made.__getitem__, known)
    else:
        texts = map(str, known)
    return texts if len(known) == len(values) else [null if each is None else next(texts) for each in values]


def values(column: pa.Array) -> list[Any]:
    """Returns the values of a column: moments as in csv, lists as json, null as None."""
    kind = kind_of(column.type)
    if kind in ("list", "map"):
        return _json_texts(column)
    if kind != "timestamp":
        listed: list[Any] = column.to_pylist()
        return listed
    texts: list[Any] = _times(column, "").to_pylist()
    return texts


def _json_texts(column: pa.Array) -> list[str | None]:
    """Returns lists as arrays, and maps as objects."""
    made = dict if pa.types.is_map(column.type) else list
    return [None if each is None else _compact(made(each)) for each in column.to_pylist()]


def kind_of(type: pa.DataType) -> str:
    """Returns the name of a type without its brackets: `string`, `int64`, `timestamp`, `list` and so on."""
    return re.split(r"[\[<]", str(type))[0]


def _csv_cell(text: str) -> str:
    return text if text and not _csv_strange(text) else '"' + text.replace('"', '""') + '"'


def encode_columns(batch: pa.RecordBatch, format: Format) -> memoryview:
    """As `encode`, for Arrow's columns."""
    if not batch.num_rows:
        return memoryview(b"")
    large = batch.nbytes > _LARGE_FROM
    parts: list[pa.Array | str] = []
    if format is Format.NDJSON:
        for number, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            parts += [f"{',' if number else '{'}{json.dumps(name)}:", _texts(column, _json_text, "null", large)]
        parts.append("}\n")
    else:
        for number, column in enumerate(batch.columns):
            parts += [",", _texts(column, _csv_text, "", large)] if number else [_texts(column, _csv_text, "", large)]
        parts.append("\n")
    return _joined(parts, batch.num_rows, large)


def _texts(column: pa.Array, quoted: Callable[[pa.Array], pa.Array], null: str, large: bool) -> pa.Array | str:
    """Returns a column as text without nulls (`null` in their place), or one text if all rows have the same."""
    kind = column.type
    if column.null_count == len(column):
        return null
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(column, quoted, null)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        lists = pa.array(_json_texts(column), pa.string())
        return _strings(lists, quoted if not null else lambda texts: texts, null)
    if pa.types.is_binary(kind):
        text, mark = base64_of(column, large), '"' if null else ""
        text = pc.binary_join_element_wise(_scalar(mark, large), text, _scalar(mark, large), _scalar("", large))
    elif pa.types.is_timestamp(kind):
        text = _times(column, '"' if null else "")
    else:
        text = column.cast(pa.string())
    return text.fill_null(_scalar(null, pa.types.is_large_string(text.type))) if column.null_count else text


def _strings(column: pa.Array, quoted: Callable[[pa.Array], pa.Array], null: str) -> pa.Array | str:
    if not column.null_count and pc.all(pc.equal(column, column[0])).as_py():
        only: str = quoted(column[:1])[0].as_py()
        return only
    encoded = column.dictionary_encode()
    texts = quoted(encoded.dictionary).take(encoded.indices)
    return texts.fill_null(null) if texts.null_count else texts


def _json_text(texts: pa.Array) -> pa.Array:
    """Returns strings as json, with quotes."""
    strange = pc.match_substring_regex(texts, _NOT_PLAIN_JSON)
    simple = pc.binary_join_element_wise('"', texts, '"', "")
    return _with_strange(simple, texts, strange, json.dumps)


def _csv_text(texts: pa.Array) -> pa.Array:
    """Returns strings as csv, with quotes where needed."""
    strange = pc.or_(pc.match_substring_regex(texts, _NOT_PLAIN_CSV), pc.equal(texts, ""))
    return _with_strange(texts, texts, strange, _csv_cell)


def _with_strange(simple: pa.Array, texts: pa.Array, mask: pa.Array, encoded: Callable[[str], str]) -> pa.Array:
    """Replaces the simple form of the texts that need escapes, one by one."""
    if not pc.any(mask).as_py():
        return simple
    careful = pa.array([encoded(text) for text in texts.filter(mask).to_pylist()], simple.type)
    return pc.replace_with_mask(simple, mask, careful)


def _times(column: pa.Array, mark: str) -> pa.Array:
    """Returns moments as RFC 3339 in UTC, with the digits of their unit."""
    # Without a time zone Arrow is ten times as fast.
    text = column.cast(pa.int64()).view(pa.timestamp(column.type.unit)).cast(pa.string())
    return pc.binary_join_element_wise(mark, pc.replace_substring(text, " ", "T"), f"Z{mark}", "")


def base64_of(column: pa.Array, large: bool = False) -> pa.Array:
    """Returns binaries as base64, with 64-bit offsets if `large`; null stays null.

    All are encoded in one operation, each padded with zeros to a multiple of three bytes; the last characters of
    padded ones are corrected afterwards.
    """
    kind, width = (pa.large_string(), np.int64) if large else (pa.string(), np.int32)
    binary = pa.large_binary() if large else pa.binary()
    sizes = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    over = sizes % 3
    filling = pa.array(_BASE64_PADDING, binary).take(pa.array(over))
    filled = pc.binary_join_element_wise(column.fill_null(b"").cast(binary), filling, pa.scalar(b"", binary))
    _, ends, data = filled.buffers()
    begin, end = (np.frombuffer(ends, width)[filled.offset + at].item() for at in (0, len(column)))
    encoded = binascii.b2a_base64(memoryview(data)[begin:end], newline=False) if end > begin else b""
    text = np.frombuffer(bytearray(encoded), np.uint8)
    places = np.zeros(len(column) + 1, np.int64)
    np.cumsum((sizes + 2) // 3 * 4, out=places[1:], dtype=np.int64)
    text[places[1:][over != 0] - 1] = ord("=")
    text[places[1:][over == 1] - 2] = ord("=")
    valid = column.is_valid().buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(
        kind, len(column), [valid, pa.py_buffer(places.astype(width, copy=False)), pa.py_buffer(text)]
    )


def _joined(parts: list[pa.Array | str], count: int, large: bool) -> memoryview:
    """Joins columns to lines; returns the text of all lines."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1 and isinstance(merged[0], str):
        return memoryview((merged[0] * count).encode())
    kind = pa.large_string() if large else pa.string()
    columns = [_scalar(part, large) if isinstance(part, str) else part.cast(kind) for part in merged]
    lines = pc.binary_join_element_wise(*columns, _scalar("", large))
    _, ends, data = lines.buffers()
    places = np.frombuffer(ends, np.int64 if large else np.int32)
    return memoryview(data)[places[lines.offset] : places[lines.offset + count]]


def _scalar(text: str, large: bool) -> pa.Scalar:
    return pa.scalar(text, pa.large_string() if large else pa.string())
