"""Taking the payload of a message along: to the clipboard, or to a file that is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stantools.browse.protobuf_fields import is_text
from stantools.browse.window import WindowMessage
from stantools.errors import StantoolsError
from tui.cells import Cell, counted, name_text
from tui.screens.base import ViewScreen
from tui.screens.prompt import PromptScreen
from tui.screens.question import QuestionScreen
from tui.screens.savepayload import file_name, save_problem


class Write(Protocol):
    """Writes a payload to a file; see `tui.screens.savepayload.write_payload`."""

    def __call__(self, path: Path, data: bytes, *, over: bool) -> None:
        """Writes the file, over one that is there if that is wanted."""
        ...


def copy_payload(screen: ViewScreen, message: WindowMessage) -> Cell:
    """Copies a payload, a text as it is and anything else in hex, and returns what was done."""
    text = is_text(message.data)
    screen.app.copy_to_clipboard(message.data.decode("utf-8") if text else message.data.hex())
    return f"copied {counted(len(message.data), 'byte')}{'' if text else ' in hex'}", "good"


def save_payload(
    screen: ViewScreen, channel: str, message: WindowMessage, write: Write, say: Callable[[Cell], None]
) -> None:
    """Asks for a file, asks again before one is replaced, and writes the payload to it.

    Args:
        screen: What asks.
        channel: The channel's name, of which a name for the file is made.
        message: The message, whole.
        write: Writes the file.
        say: Told what was done; what went wrong is told by the application.
    """
    store = screen.session.path

    def save(path: Path, *, over: bool) -> None:
        try:
            write(path, message.data, over=over)
        except StantoolsError as problem:
            screen.browser.fail(problem)
            return
        say((f"saved {counted(len(message.data), 'byte')} to {name_text(str(path))}", "good"))

    def named(text: str | None) -> None:
        if text is None:
            return
        path = Path(text).expanduser()
        if not os.path.lexists(path):
            save(path, over=False)
            return
        question = QuestionScreen(f"Replace {name_text(str(path))}?", "It is there already; what it holds is lost.")
        screen.app.push_screen(question, lambda yes: save(path, over=True) if yes else None)

    hint = "a file to write the payload to, outside of the store"
    proposed = file_name(channel, message)
    screen.app.push_screen(PromptScreen("file", hint, proposed, lambda text: save_problem(text, store)), named)
