"""A message, or a note between messages, with all known facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

from rich.segment import Segment
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.strip import Strip

from stantools.browse.payload_views import LEVELS, Line, PayloadForm, Syntax, likely_form, lines_of
from stantools.browse.window import Row, RowNote, RowNoteKind, WindowMessage
from stantools.escaping import escape
from stantools.format.layout import Flag
from stantools.notation import cut, format_size, format_time
from stantools.streamfiles.headers import header_fields
from tui.cells import Cell, Role, counted, role_of, text_of
from tui.widgets.line import TextLine as LineWidget
from tui.widgets.lines import LineView, moving

_ROLES: dict[Syntax, Role] = {
    "": "",
    "key": "accent",
    "string": "good",
    "number": "strong",
    "word": "strong",
    "mark": "dim",
    "note": "dim",
}
_ORDER = list(PayloadForm)
#: Minimum number of columns for sequence and time on one line.
_WIDE = 76
#: Headers that are listed.
_HEADERS = 6
#: Flags in words.
FLAG_WORDS: dict[Flag, str] = {
    Flag.FOREIGN_SUBJECT: "of another subject",
    Flag.REDELIVERED: "redelivered fields, which no server stores",
    Flag.UNUSUAL: "unusual encoding",
    Flag.BAD_CRC: "CRC differs",
}
_WHY: dict[RowNoteKind, str] = {
    RowNoteKind.GAP: "The channel's files do not contain these sequences.",
    RowNoteKind.DELETED: "Their messages were deleted, by a client, a limit, or an acknowledgement.",
    RowNoteKind.DAMAGE: "These bytes are not a good record. x shows them; f shows how the server reads them.",
    RowNoteKind.BACK: "Repeated records (a copied slice), or a restart of the channel, follow.",
    RowNoteKind.INDEX: "The messages are read from the data file instead. f shows the server's behaviour.",
    RowNoteKind.NAMED: "They are in the index, but not in the data: they are lost unless another copy has them.",
    RowNoteKind.UNINDEXED: "They are intact in the data file. A salvage keeps them.",
    RowNoteKind.FOREIGN: "The subject in the records differs from the channel's name.",
    RowNoteKind.FILE: "The readable part of the file is shown.",
    RowNoteKind.PENDING: "It is being read in the background.",
}


class TextPane(LineView):
    """Lines of cells; their text is escaped."""

    BINDINGS: ClassVar[list[BindingType]] = [*moving("text", "First line", "Last line")]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Sequence[Cell]] = ()

    def show(self, lines: Sequence[Sequence[Cell]], *, keep: bool = False) -> None:
        """Replaces the lines; with `keep`, the scroll position stays."""
        self.lines = lines
        self.virtual_size = Size(max(self.scrollable_content_region.width, 1), max(len(lines), 1))
        if not keep:
            self.scroll_to_line(0)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        width, base = self.scrollable_content_region.width, self.rich_style
        if row >= len(self.lines):
            return Strip.blank(width, base)
        segments = [Segment(text_of(cell), base + self.role_style(role_of(cell))) for cell in self.lines[row]]
        return Strip(segments).crop_extend(0, width, base)


class MessageDetail(Vertical):
    """A row of a channel: header fields, and the payload in one of several forms."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._row: Row | None = None
        self._form: PayloadForm | None = None
        self._levels = LEVELS
        self._key = False

    @property
    def message(self) -> WindowMessage | None:
        return self._row if isinstance(self._row, WindowMessage) else None

    @property
    def form(self) -> PayloadForm:
        if self._form is not None or self.message is None:
            return self._form or PayloadForm.TEXT
        return likely_form(self.message.data)

    def compose(self) -> ComposeResult:
        yield LineWidget(id="message-head")
        yield LineWidget(id="message-form")
        yield TextPane(id="message-body")

    def on_resize(self, _event: events.Resize) -> None:
        self._write()

    def show(self, row: Row | None, *, key: bool = False) -> None:
        """Shows a row, or nothing. With `key`, payloads are decrypted."""
        self._row, self._key = row, key
        if self.is_mounted:
            self._write()

    def show_loading(self, row: WindowMessage) -> None:
        self._row = None
        self.query_one("#message-head", LineWidget).show_lines([[(f"sequence {row.sequence}", "strong")]])
        size = format_size(row.record_size)
        self.query_one("#message-form", LineWidget).show((f"reading {size} …", "dim"))
        self.query_one(TextPane).show([])

    def next_form(self) -> None:
        self._form = _ORDER[(_ORDER.index(self.form) + 1) % len(_ORDER)]
        self._write()

    def fold(self, levels: int) -> None:
        """Shows more or fewer levels of a structure."""
        self._levels = min(max(self._levels + levels, 1), 64)
        self._write(keep=True)

    def scroll_body(self, pages: float) -> None:
        pane = self.query_one(TextPane)
        pane.action_by(int(pages * max(pane.scrollable_content_region.height, 2)))

    def _write(self, *, keep: bool = False) -> None:
        head, form, pane = (self.query_one(f"#message-{name}") for name in ("head", "form", "body"))
        assert isinstance(head, LineWidget) and isinstance(form, LineWidget) and isinstance(pane, TextPane)
        width = max(self.content_size.width - 2, 8)
        row = self._row
        if not isinstance(row, WindowMessage):
            form.show()
            head.show_lines(_of_note(row, width) if row is not None else [])
            pane.show([])
            return
        head.show_lines([_cut_cells(line, width) for line in _fields(row, width, key=self._key)])
        chosen = self.form
        cells: list[Cell] = []
        for each in _ORDER:
            cells += [
                (f"[{each.value}]" if each is chosen else f" {each.value} ", "accent" if each is chosen else "dim")
            ]
        form.show(*cells, (f"  {format_size(len(row.data))}  v view  y copy  w save", "dim"))
        pane.show(_PayloadLines(lines_of(row.data, chosen, width, self._levels)), keep=keep)


class _PayloadLines(Sequence[Sequence[Cell]]):
    """Lines of a payload as cells, made on access."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: Any) -> Any:
        return [(text, _ROLES[syntax]) for text, syntax in self._lines[number]]


def _fields(message: WindowMessage, width: int, *, key: bool) -> Iterator[Sequence[Cell]]:
    moment: list[Cell] = [("time ", "dim"), format_time(message.timestamp)]
    since: Cell = (f"{message.timestamp} ns", "dim")
    number: list[Cell] = [("seq ", "dim"), (str(message.sequence), "strong"), "  "]
    if width >= _WIDE:
        yield [*number, *moment, "  ", since]
    else:
        yield [*number, since]
        yield moment
    yield [
        ("at ", "dim"),
        escape(message.file),
        f":{message.offset}",
        ("  record ", "dim"),
        f"{message.record_size + 8:,} bytes",
        *((("  CRC ", "dim"), f"0x{message.crc:08x}") if message.headers is None else _hash(message)),
    ]
    yield [
        ("subject ", "dim"),
        escape(message.subject),
        *([("  reply ", "dim"), escape(message.reply)] if message.reply else []),  # type: ignore[list-item]
    ]
    if message.headers:
        for name, values in islice(header_fields(message.headers).items(), _HEADERS):
            yield [(f"{name}: ", "accent"), ", ".join(values)]
    remarks = list(_remarks(message, key=key))
    if remarks:
        yield [("! ", "warn"), ("; ".join(remarks), "warn")]


def _hash(message: WindowMessage) -> Iterator[Cell]:
    yield from (("  hash ", "dim"), f"0x{message.crc:016x}" if message.whole else "not read")


def _remarks(message: WindowMessage, *, key: bool) -> Iterable[str]:
    if message.error:
        yield f"cannot be decrypted: {message.error}"
    elif message.encrypted:
        yield "decrypted" if key else "encrypted: set the key (E) to see it"
    if message.proven:
        yield "its record header is damaged, the message is proven"
    for flag, words in FLAG_WORDS.items():
        if message.flags & flag:
            yield words


def _of_note(note: RowNote, width: int) -> list[Sequence[Cell]]:
    lines: list[Sequence[Cell]] = [[part] for part in _wrapped(note.sentence(), width)]
    lines += [[]]
    lines += [[(part, "dim")] for part in _wrapped(_WHY[note.kind], width)]
    if note.messages > 1:
        lines.append([(counted(note.messages, "message"), "dim")])
    return lines


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in escape(text).split(" "):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _cut_cells(cells: Sequence[Cell], width: int) -> Sequence[Cell]:
    """Truncates a line where it would be wrapped."""
    kept: list[Cell] = []
    for cell in cells:
        text, role = (cell, "") if isinstance(cell, str) else cell
        kept.append((cut(text, width), role))  # type: ignore[arg-type]
        width -= len(text)
        if width <= 0:
            break
    return kept
