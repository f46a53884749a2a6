"""The rows of a channel as its files are: opened at once, found out in the background, watched and followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stantools.browse.window import Window, open_window, refine
from stantools.errors import StantoolsError
from stantools.inspection.survey import ChannelSurvey
from stantools.store.directory import ChannelFiles
from tui.cells import Cell
from tui.jobs import Job, State
from tui.screens.base import ViewScreen
from tui.screens.messagecursor import MessageRows
from tui.widgets.rowtable import RowTable

#: What tells that the files of a channel have changed; () if its directory is gone.
_Signature = tuple[object, ...]


class MessageFiles:
    """Keeps the rows of a screen that has one table of messages up with the channel's files.

    Args:
        screen: What shows the rows.
        channel: The channel's name.
        rows: What has the window that is shown.
        put: Puts a window in place of the one that is shown, with the cursor on the last row if that is wanted.
        changed: Called when `cells`, `state` or `follows` is something else.
    """

    def __init__(
        self,
        screen: ViewScreen,
        channel: str,
        rows: MessageRows,
        *,
        put: Callable[[Window, bool], None],
        changed: Callable[[], None],
    ) -> None:
        self._screen = screen
        self._channel = channel
        self._rows = rows
        self._put, self._changed = put, changed
        self._files: ChannelFiles | None = None
        self._known: ChannelSurvey | None = None
        self._stamp: _Signature = ()
        self._job: Job[tuple[Window, _Signature]] | None = None
        self._state = ""
        self._follows = False

    @property
    def state(self) -> str:
        """What is wrong with the files since they were opened."""
        return self._state

    @property
    def follows(self) -> bool:
        """New messages are shown as they come."""
        return self._follows

    def cells(self) -> Iterable[Cell]:
        """Gives how far it is with finding out all rows."""
        if self._job is not None and self._rows.window is not None and not self._rows.window.exact:
            share = f" {self._job.share:.0%}" if self._job.share is not None else ""
            yield (f"  looking for gaps{share}", "accent")

    def open(self) -> Window | None:
        """Opens the files and returns what is known of the rows at once; None, with a state, if they cannot be."""
        self._known = self._survey()
        session = self._screen.session
        try:
            self._files = session.store.channel(self._channel)
            window = open_window(
                self._files,
                session.crc,
                key=session.reading.encryption_key,
                survey=self._known,
            )
        except StantoolsError as problem:
            self._state = problem.message
            self._changed()
            return None
        self._stamp = _signature(self._files)
        return window

    def facts_changed(self) -> None:
        """The channel was scanned, or the store was opened anew."""
        survey = self._survey()
        if survey is None:
            self._known = None  # a new scan has begun
        elif survey is not self._known and self._files is not None:
            self._known = survey
            self.refine()
        window = self._rows.window
        if window is not None and window.key != self._screen.session.reading.encryption_key:
            if self._job is not None:
                self.refine()  # what is being found out would be read with the old key
            self._put(window.with_key(self._screen.session.reading.encryption_key), False)
            self._changed()

    def _survey(self) -> ChannelSurvey | None:
        facts = self._screen.session.channels.get(self._channel)
        return facts.survey if facts is not None else None

    def refine(self, *, to_end: bool = False) -> None:
        """Finds out all rows in the background, by the files as they are now.

        Args:
            to_end: The cursor is to be on the last row then.
        """
        if self._job is not None and self._job.running:
            self._job.cancel()
        have, known, session, live = self._rows.window, self._known, self._screen.session, self._follows
        name = self._channel

        def work(job: Job[tuple[Window, _Signature]]) -> tuple[Window, _Signature]:
            files = session.store.channel(name)
            seen = _signature(files)
            job.total = sum(each.index_size or each.data_size for each in files.slices)
            window = refine(
                have,
                files,
                session.crc,
                key=session.reading.encryption_key,
                survey=known,
                live=live,
                progress=job.advance,
            )
            return window, seen

        job = Job("rows", work)

        def done() -> None:
            if job is not self._job:
                return
            self._job = None
            if job.state is State.DONE:
                window, self._stamp = job.result
                self._state = ""
                self._files = window.files
                self._put(window, to_end)
            elif job.problem is not None:
                self._state = job.problem.message
            self._changed()

        self._job = job
        self._screen.watch_job(job, done, self._changed)

    def watch(self) -> None:
        """Looks whether the files have changed, and says so or goes on with them."""
        if self._files is None or (self._job is not None and self._job.running):
            return
        now = _signature(self._files)
        if now == self._stamp:
            return
        if not now:
            self._stamp = now
            self._state = "the channel's directory is gone; what could be read before is still shown"
        elif self._follows:
            self.catch_up()
        else:
            self._stamp = now
            self._state = "the files have changed since they were opened: F follows them, R reads everything again"
        self._changed()

    def follow(self) -> bool:
        """Begins to show new messages as they come, or ends it, and tells whether there are files to follow now."""
        self._follows = not self._follows
        return self._follows and self._files is not None

    def catch_up(self) -> None:
        """Goes on with the files as they are now; the cursor stays at the end if it is there."""
        at_end = self._screen.query_one(RowTable).cursor >= len(self._rows) - 1
        try:
            self._files = self._screen.session.store.channel(self._channel)
        except StantoolsError as problem:
            self._state = problem.message
            return
        self._stamp = _signature(self._files)
        self._state = ""
        self.refine(to_end=at_end)


def _signature(files: ChannelFiles) -> _Signature:
    try:
        status = files.path.stat()
    except OSError:
        return ()
    found: list[object] = [status.st_ino, status.st_mtime_ns]
    last = files.slices[-1] if files.slices else None
    for path in (last.data, last.index) if last is not None else ():
        try:
            status = path.stat() if path is not None else status
            found += [status.st_ino, status.st_mtime_ns, status.st_size]
        except OSError:
            found.append(None)
    return tuple(found)
