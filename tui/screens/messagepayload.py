"""The message at the cursor, whole: read in the background where it is large, copied, or saved to a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stantools.browse.payload_views import Form, likely_form
from stantools.browse.protobuf_fields import is_text
from stantools.browse.window import Row, Window, WindowMessage
from stantools.errors import StantoolsError, StoreUnwritableError
from tui.cells import Cell, counted, name_text
from tui.jobs import Job, State
from tui.screens.base import ViewScreen
from tui.screens.dialogs import PromptScreen, QuestionScreen
from tui.screens.messagecursor import MessageRows
from tui.widgets.messagedetail import MessageDetail
from tui.widgets.rowtable import RowTable

#: A larger message is read in the background.
_AT_ONCE = 1 << 21


class DetailLoading:
    """Fills the detail of a screen that has one, and one table of messages.

    Args:
        screen: The screen.
        rows: What has the window that is shown.
    """

    def __init__(self, screen: ViewScreen, rows: MessageRows) -> None:
        self._screen = screen
        self._rows = rows
        self._job: Job[Row] | None = None

    def show(self, row: Row | None) -> None:
        """Shows the row at the cursor.

        Args:
            row: As the table shows it; the payload may have been cut.
        """
        detail, at = self._screen.query_one(MessageDetail), self._screen.query_one(RowTable).cursor
        window = self._rows.window
        key = window is not None and window.decrypts
        if window is None or not isinstance(row, WindowMessage) or row.whole:
            detail.show(row, key=key)
        elif row.record_size <= _AT_ONCE:
            detail.show(window.row(at), key=key)
        else:
            detail.show_loading(row)
            self._load(window, at, key=key)

    def _load(self, window: Window, at: int, *, key: bool) -> None:
        mine = window.another()
        if self._job is not None:
            self._job.cancel()
        job: Job[Row] = Job("message", lambda _: mine.row(at))

        def done() -> None:
            mine.close()
            still = job is self._job and self._screen.query_one(RowTable).cursor == at
            if still and job.state is State.DONE:
                self._screen.query_one(MessageDetail).show(job.result, key=key)

        self._job = job
        self._screen.watch_job(job, done)


_ENDINGS = {Form.JSON: "json", Form.TEXT: "txt", Form.PROTOBUF: "bin", Form.HEX: "bin"}
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)
_LONGEST = 80


def file_name(channel: str, message: WindowMessage) -> str:
    """Proposes a name for the file of a payload; there is nothing in it but letters, digits, dots and dashes."""
    name = _UNSAFE.sub("_", channel)[:_LONGEST].lstrip(".-") or "message"
    return f"{name}-{message.sequence}.{_ENDINGS[likely_form(message.data)]}"


def save_problem(text: str, store: Path) -> str:
    """Says why a name cannot be taken, "" if it can.

    Args:
        text: What the user typed.
        store: The store, which is never written to.
    """
    if not text.strip():
        return "name a file"
    try:
        path = Path(text).expanduser().resolve()
        if path.is_dir():
            return "that is a directory"
        if path.is_relative_to(store.resolve()):
            return "that is in the store, which is only read; choose another place"
        if not path.parent.is_dir():
            return "there is no such directory"
    except (OSError, ValueError, RuntimeError) as problem:
        return f"that is no name for a file: {problem}"
    return ""


def write_payload(path: Path, data: bytes, *, over: bool) -> None:
    """Writes a file.

    Args:
        path: Where.
        data: What.
        over: Replace a file that is there.

    Raises:
        StoreUnwritableError: It cannot be written, or is there already.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if over else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o666), "wb") as file:  # noqa: PTH123
            file.write(data)
    except OSError as problem:
        raise StoreUnwritableError(
            f"{path}: cannot be written: {problem.strerror}", "choose another name or place"
        ) from problem


class Write(Protocol):
    """Writes a payload to a file; see `tui.screens.messagepayload.write_payload`."""

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
