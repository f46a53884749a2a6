"""Showing the row at the cursor in detail: at once, or a large message when it has been read."""

from __future__ import annotations

from stantools.browse.window import Row, Window, WindowMessage
from tui.jobs import Job, State
from tui.screens.base import ViewScreen
from tui.screens.messagerows import MessageRows
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
