"""A payload as lines of text, JSON, protobuf or hex.

A line consists of pieces with a syntax role each, which a screen can color. The pieces are as in the payload: the
caller makes them safe to show.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from stantools.browse.protobuf_fields import WireField, guesses, is_text, read_wire
from stantools.escaping import columns_of, escape, escape_line
from stantools.notation import cut

#: The syntax role of a piece of a line.
Syntax = Literal["", "key", "string", "number", "word", "mark", "note"]
Piece = tuple[str, Syntax]
Line = list[Piece]

#: Maximum number of bytes for JSON and protobuf.
MAX_STRUCTURE = 1 << 18
#: Bytes of a text that are shown, and bytes from which the form is guessed: a few milliseconds of work.
MAX_TEXT, _SAMPLE = 1 << 16, 1 << 13
#: Default number of levels of a structure that are shown.
LEVELS = 3
_MAX_LINES = 5000
_HEX_WIDTH = 16
_SHORT = 48


class PayloadForm(enum.StrEnum):
    TEXT = "text"
    JSON = "JSON"
    PROTOBUF = "protobuf"
    HEX = "hex"


def likely_form(data: bytes) -> PayloadForm:
    """Returns the best form for a first look at a payload."""
    if not data:
        return PayloadForm.TEXT
    start = data[:64].lstrip()[:1]
    if start in (b"{", b"[") and parse_json(data) is not None:
        return PayloadForm.JSON
    sample = data[:_SAMPLE]
    text = sample.decode("utf-8", "surrogateescape")
    # Text may hold a few control characters or invalid bytes.
    if is_text(sample) or sum(each.isprintable() or each in "\n\r\t" for each in text) * 10 > len(text) * 8:
        return PayloadForm.TEXT
    if len(data) <= MAX_STRUCTURE:
        message = read_wire(data)
        if not message.problem and message.fields and all(each.number < 1000 for each in message.fields):
            return PayloadForm.PROTOBUF
    return PayloadForm.HEX


def parse_json(data: bytes) -> tuple[Any] | None:
    """Returns the JSON value of a payload in a tuple, or None if it is no JSON or too large."""
    if len(data) > MAX_STRUCTURE:
        return None
    try:
        # Not strict: a control character in a string does not hide the rest.
        text = data.decode("utf-8")
        return (json.loads(text, strict=False, parse_int=str_number, parse_float=str_number),)
    except (ValueError, RecursionError):
        return None


class str_number(str):  # noqa: N801
    """A number as it is written, in full precision and of any length."""

    __slots__ = ()


def lines_of(data: bytes, form: PayloadForm, width: int, levels: int = LEVELS) -> Sequence[Line]:
    """Formats a payload in lines of up to `width` columns; deeper `levels` of a structure are folded."""
    if not data:
        return [[("the payload is empty", "note")]]
    if form is PayloadForm.HEX:
        return HexLines(data, 16 if width >= 76 else 8)
    if form is PayloadForm.JSON:
        found = parse_json(data)
        if found is not None:
            return _limited(_json(found[0], levels))
        size = f"it has {len(data):,} bytes" if len(data) > MAX_STRUCTURE else "it is none"
        return [[(f"not shown as JSON: {size}", "note")], *text_lines(data, width)]
    if form is PayloadForm.PROTOBUF:
        return _limited(protobuf_lines(data, levels))
    return text_lines(data, width)


def text_lines(data: bytes, width: int) -> list[Line]:
    r"""Breaks a text into lines, at its line breaks and at the width. Unprintable bytes appear as `\xNN`."""
    width = max(width, 8)
    lines: list[Line] = []
    text = data[:MAX_TEXT].decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    for line in text.split("\n"):
        shown = line.replace("\t", "    ")
        shown = shown if shown.isprintable() else escape(shown)
        lines += [[(part, "")] for part in _wrapped_lines(shown, width)] or [[]]
        if len(lines) > _MAX_LINES:
            break
    if len(data) > MAX_TEXT:
        lines.append([(f"… {len(data) - MAX_TEXT:,} bytes more: w saves them all, hex shows them", "note")])
    return lines


def _wrapped_lines(line: str, width: int) -> Iterator[str]:
    """Breaks a line at a number of columns; wide characters take two."""
    if line.isascii():
        yield from (line[at : at + width] for at in range(0, len(line), width))
        return
    begin = taken = 0
    for at, letter in enumerate(line):
        columns = columns_of(letter)
        if taken + columns > width:
            yield line[begin:at]
            begin, taken = at, 0
        taken += columns
    if begin < len(line):
        yield line[begin:]


def _limited(lines: Iterator[Line]) -> list[Line]:
    kept: list[Line] = []
    for line in lines:
        if len(kept) >= _MAX_LINES:
            kept.append([("… more lines", "note")])
            break
        kept.append(line)
    return kept


def _json(value: Any, levels: int) -> Iterator[Line]:
    """Formats a value of any depth in lines, without recursion."""
    stack: list[tuple[Iterator[tuple[Line, Any, bool]], str]] = []
    yield from _begin([], value, True, levels, stack)
    while stack:
        items, closing = stack[-1]
        item = next(items, None)
        if item is None:
            stack.pop()
            comma = closing.endswith(",")
            yield [("  " * len(stack), ""), (closing[0], "mark"), *([(",", "mark")] if comma else [])]  # type: ignore[list-item]
            continue
        lead, inner, last = item
        yield from _begin([("  " * len(stack), ""), *lead], inner, last, levels, stack)


def _begin(
    lead: Line, value: Any, last: bool, levels: int, stack: list[tuple[Iterator[tuple[Line, Any, bool]], str]]
) -> Iterator[Line]:
    comma: Line = [] if last else [(",", "mark")]
    if isinstance(value, dict | list) and value:
        opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
        if len(stack) >= levels:
            what = "keys" if isinstance(value, dict) else "values"
            yield [*lead, (opening, "mark"), (f"… {len(value)} {what}", "note"), (closing, "mark"), *comma]
            return
        yield [*lead, (opening, "mark")]
        stack.append((_members(value), closing + ("" if last else ",")))
        return
    yield [*lead, _scalar(value), *comma]


def _members(value: dict[str, Any] | list[Any]) -> Iterator[tuple[Line, Any, bool]]:
    count = len(value)
    if isinstance(value, dict):
        for number, (key, inner) in enumerate(value.items(), 1):
            yield [(_quoted(key), "key"), (": ", "mark")], inner, number == count
    else:
        for number, inner in enumerate(value, 1):
            yield [], inner, number == count


def _scalar(value: Any) -> Piece:
    if isinstance(value, str_number):
        return str(value), "number"
    if isinstance(value, str):
        return _quoted(value), "string"
    if isinstance(value, dict | list):
        return "{}" if isinstance(value, dict) else "[]", "mark"
    if isinstance(value, float):  # NaN and Infinity, which are not JSON but accepted
        return json.dumps(value), "number"
    return json.dumps(value), "word"


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else escape_line(quoted)


def protobuf_lines(data: bytes, levels: int) -> Iterator[Line]:
    """Formats the fields that bytes may hold, one per line."""
    message = read_wire(data)
    yield from _fields(message.fields, 0, levels)
    if message.problem:
        rest = len(data) - message.end
        yield [(f"{rest:,} bytes from {message.end} on make no sense: {message.problem}", "note")]
        shown = data[message.end : message.end + _SHORT].hex(" ")
        yield [(shown + (" …" if rest > _SHORT else ""), "")]


def _fields(fields: list[WireField], level: int, levels: int) -> Iterator[Line]:
    for each in fields:
        lead: Line = [("  " * level, ""), (f"{each.number}", "key"), (": ", "mark")]
        if each.fields or each.wire == "group":
            if level + 1 >= levels:
                yield [*lead, ("{", "mark"), (f"… {len(each.fields)} fields", "note"), ("}", "mark")]
                continue
            yield [*lead, ("{", "mark"), (f"  {each.wire}, {each.size} bytes", "note")]
            yield from _fields(each.fields, level + 1, levels)
            yield [("  " * level, ""), ("}", "mark")]
        elif isinstance(each.value, bytes):
            yield [*lead, *_value(each.value, each.wire == "text")]
        else:
            meant = ", ".join(guesses(each))
            yield [*lead, (str(each.value), "number"), (f"  {each.wire}" + (f", {meant}" if meant else ""), "note")]


def _value(value: bytes, text: bool) -> Iterator[Piece]:
    if text:
        yield _quoted(value.decode("utf-8")), "string"
    else:
        yield value[:_SHORT].hex(" ") + (" …" if len(value) > _SHORT else ""), ""
        yield f"  {len(value):,} bytes", "note"


class HexLines(Sequence[Line]):
    """Bytes in hex with their offsets and characters, `width` bytes per line; a line is made on access."""

    def __init__(self, data: bytes, width: int = _HEX_WIDTH) -> None:
        self._data = data
        self._width = width

    def __len__(self) -> int:
        return -(-len(self._data) // self._width)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = number * self._width
        part = self._data[at : at + self._width]
        half = self._width // 2
        digits = part[:half].hex(" ") + "  " + part[half:].hex(" ")
        line: Line = [
            (f"{at:08x}  ", "note"),
            (f"{digits:<{self._width * 3}}", ""),
            ("  " + _UNSEEN.sub(".", part.decode("latin-1")), "string"),
        ]
        return line


_BREAKS = re.compile("[\n\r\t]+")
_UNSEEN = re.compile("[^ -~]")


def preview(data: bytes, width: int) -> str:
    """Returns the beginning of a payload in one line of at most `width` characters, safe to show."""
    text = data[: width * 4].decode("utf-8", "surrogateescape")
    return cut(escape(_BREAKS.sub(" ", text)), width)
