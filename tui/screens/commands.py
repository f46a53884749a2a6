"""The command lines that would have shown or done the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from tui.widgets.rowtable import Column, ListSource, RowTable


class CommandsScreen(ModalScreen[None]):
    """A list of command lines, the newest at the end.

    Args:
        commands: The command lines.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,at", "dismiss", "Close", id="commands.close"),
        Binding("y", "copy", "Copy", id="commands.copy"),
    ]

    def __init__(self, commands: Sequence[str]) -> None:
        super().__init__()
        self._commands = list(commands)

    def compose(self) -> ComposeResult:
        """The list."""
        column = Column("command", "the same on the command line (y copies)", 40, grows=True)
        yield RowTable(ListSource([column], [[command] for command in self._commands]), classes="sheet")

    def on_mount(self) -> None:
        """Begins with the newest."""
        table = self.query_one(RowTable)
        table.focus()
        table.cursor = len(self._commands) - 1

    def action_copy(self) -> None:
        """Copies the command line at the cursor to the clipboard of the terminal."""
        if self._commands:
            self.app.copy_to_clipboard(self._commands[self.query_one(RowTable).cursor])
            self.app.notify("copied")
