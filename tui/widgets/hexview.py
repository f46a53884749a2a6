"""The bytes of a record, with its fields marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from stantools.browse.record_fields import PartRole, RecordPart
from stantools.browse.record_reader import part_at
from tui.widgets.lines import LineView, moving

_ROW = 16
#: Bytes read at once.
_BLOCK = 1 << 12

#: Reads `length` bytes at an offset; fewer at the end of the file.
Read = Callable[[int, int], bytes]


class HexView(LineView):
    """Bytes of a file in rows of sixteen, each field in its colour; the selected field is reversed.

    Rows with damage have a mark, visible without colours.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *moving("hex", "Beginning", "End"),
        Binding("left,h", "field(-1)", "Previous field", show=False, id="hex.field_before"),
        Binding("right,l", "field(1)", "Next field", key_display="→", id="hex.next_field"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "hexview--offset",
        "hexview--chosen",
        *(f"hexview--{role.value}" for role in PartRole),
    }

    @dataclass
    class FieldChosen(Message):
        field: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._read: Read = lambda _offset, _length: b""
        self._start = self._length = 0
        self._parts: list[RecordPart] = []
        self._field = 0
        self._blocks: dict[int, bytes] = {}

    @property
    def field(self) -> int:
        return self._field

    def show(self, read: Read, start: int, length: int, parts: Sequence[RecordPart]) -> None:
        """Shows `length` bytes from the offset `start`; `parts` are their fields."""
        self._read, self._start, self._length, self._parts = read, start, length, list(parts)
        self._blocks.clear()
        self._field = 0
        self.virtual_size = Size(_ROW * 4 + 14, max(-(-length // _ROW), 1))
        self.scroll_to(0, 0, animate=False, immediate=True, force=True)
        self.refresh()

    def choose(self, field: int) -> None:
        if not self._parts:
            return
        self._field = max(0, min(field, len(self._parts) - 1))
        row = (self._parts[self._field].start - self._start) // _ROW
        top, height = self.scroll_offset.y, max(self.scrollable_content_region.height, 1)
        if not top <= row < top + height:
            self.scroll_to_line(max(row - height // 3, 0))
        self.refresh()

    def _bytes(self, offset: int, length: int) -> bytes:
        begin = offset // _BLOCK * _BLOCK
        found = b""
        while begin < offset + length:
            if begin not in self._blocks:
                if len(self._blocks) > 16:
                    self._blocks.clear()
                self._blocks[begin] = self._read(begin, _BLOCK)
            block = self._blocks[begin]
            found += block[max(offset - begin, 0) : offset + length - begin]
            begin += _BLOCK
        return found

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width = self.scrollable_content_region.width
        base = self.rich_style
        at = (scroll_y + y) * _ROW
        if at >= self._length:
            return Strip.blank(width, base)
        return self._row(at, base).crop_extend(scroll_x, scroll_x + width, base)

    def _row(self, at: int, base: Style) -> Strip:
        offset = self._start + at
        count = min(_ROW, self._length - at)
        data = self._bytes(offset, count)
        places = [part_at(self._parts, offset + n) for n in range(count)]
        wrong = any(p >= 0 and self._parts[p].role is PartRole.WRONG for p in places)
        mark = "✗" if wrong else "▸" if self._field in places and self._parts else " "
        segments = [
            Segment(mark, self._part_style(PartRole.WRONG) if wrong else base),
            Segment(f"{offset:08x} ", base + self.get_component_rich_style("hexview--offset", partial=True)),
        ]
        text: list[Segment] = []
        for n in range(_ROW):
            space = "  " if n == 8 else " "
            if n >= count:
                segments.append(Segment(space + "  ", base))
                continue
            place = places[n]
            style = base + self._part_style(self._parts[place].role) if place >= 0 else base
            if 0 <= place == self._field:
                style += self.get_component_rich_style("hexview--chosen", partial=True)
            # The space between two bytes of the selected field belongs to it.
            joined = n > 0 and place == places[n - 1] == self._field
            segments.append(Segment(space, style if joined else base))
            shown = data[n] if n < len(data) else None
            segments.append(Segment(f"{shown:02x}" if shown is not None else "··", style))
            printable = shown is not None and 0x20 <= shown < 0x7F
            text.append(Segment(chr(shown) if printable and shown is not None else "·", style))
        return Strip([*segments, Segment("  ", base), *text]).simplify()

    def _part_style(self, role: PartRole) -> Style:
        return self.get_component_rich_style(f"hexview--{role.value}", partial=True)

    def action_field(self, step: int) -> None:
        self.choose(self._field + step)
        self.post_message(self.FieldChosen(self._field))

    def on_click(self, event: events.Click) -> None:
        column = event.x + self.scroll_offset.x - 11
        column -= 1 if column >= 8 * 3 else 0
        at = (self.scroll_offset.y + event.y) * _ROW + column // 3
        if 0 <= column < _ROW * 3 and at < self._length and (place := part_at(self._parts, self._start + at)) >= 0:
            self.choose(place)
            self.post_message(self.FieldChosen(place))
