"""Searching the messages of a channel: what is asked for, the search in the background, the next match."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from stantools.browse.search import Query, Searcher, parse_query
from stantools.errors import StantoolsError
from tui.cells import Cell, name_text
from tui.jobs import Job, State
from tui.screens.base import ViewScreen
from tui.screens.dialogs import PromptScreen
from tui.screens.messagecursor import MessageRows
from tui.widgets.rowtable import RowTable

_SEARCH_HINT = "a text; r:REGEX; x:DE AD BEEF; capitals make case count; n next, N previous"


class MessageSearch:
    """The search of a screen that has one table of messages.

    Args:
        screen: Whose messages are searched, from the cursor of its table on.
        channel: The channel's name.
        rows: The rows that are searched.
        go: Shows a row.
        say: Tells how it has ended; without a text, that there is nothing to tell.
        changed: Called when `cells` has something else to say.
    """

    def __init__(
        self,
        screen: ViewScreen,
        channel: str,
        rows: MessageRows,
        *,
        go: Callable[[int], None],
        say: Callable[..., None],
        changed: Callable[[], None],
    ) -> None:
        self._screen = screen
        self._channel = channel
        self._rows = rows
        self._go, self._say, self._changed = go, say, changed
        self._query: Query | None = None
        self._job: Job[int | None] | None = None

    @property
    def running(self) -> bool:
        """It is searched."""
        return self._job is not None

    def cells(self) -> Iterable[Cell]:
        """Gives how far the search is."""
        if self._job is not None:
            share = f" {self._job.share:.0%}" if self._job.share is not None else ""
            yield (f"  searching{share}, Esc cancels", "accent")

    def ask(self) -> None:
        """Asks what to look for, and looks for it."""
        self._screen.app.push_screen(PromptScreen("search for", _SEARCH_HINT, check=_problem), self._asked)

    def again(self, way: int) -> None:
        """Goes to the next match, or asks what to look for if nothing was.

        Args:
            way: 1 for the next one, -1 for the one before.
        """
        if self._query is None:
            self.ask()
        else:
            self._search(self._query, way)

    def cancel(self) -> None:
        """Ends the search that is running."""
        if self._job is not None:
            self._job.cancel()

    def _asked(self, text: str | None) -> None:
        if text is None or not text.strip():
            return
        self._query = parse_query(text)
        self._screen.note(
            "stantools", "messages", str(self._screen.session.path), self._channel, *_options(self._query)
        )
        self._search(self._query, 1)

    def _search(self, query: Query, way: int) -> None:
        window = self._rows.window
        if window is None:
            return
        self.cancel()
        at, count = self._screen.query_one(RowTable).cursor, len(window)
        session = self._screen.session
        searcher = Searcher(window, query, session.crc, os.fsencode(self._channel), session.reading.encryption_key)

        def work(job: Job[int | None]) -> int | None:
            try:
                if way > 0:
                    found = searcher.forward(at + 1, count, job.advance)
                    return found if found is not None else searcher.forward(0, at + 1, job.advance)
                found = searcher.backward(0, at, job.advance)
                return found if found is not None else searcher.backward(at, count, job.advance)
            finally:
                searcher.close()

        job: Job[int | None] = Job("search", work, total=count)

        def done() -> None:
            if job is not self._job:
                return
            self._job = None
            self._ended(job, query, at, way)

        self._job = job
        self._screen.watch_job(job, done, self._changed)
        self._say()

    def _ended(self, job: Job[int | None], query: Query, at: int, way: int) -> None:
        shown = name_text(query.text)
        if job.state is State.CANCELLED:
            self._say(("the search was cancelled", "warn"))
        elif job.problem is not None:
            self._say((job.problem.message, "bad"))
        elif job.result is None:
            self._say((f"not found: {shown}", "warn"))
        else:
            row = job.result
            wrapped = row <= at if way > 0 else row >= at
            self._go(row)
            around = f", from the {'start' if way > 0 else 'end'} on" if wrapped else ""
            self._say((f"found: {shown}{around}", "good"), ("  n next  N previous", "dim"))


def _options(query: Query) -> list[str]:
    """Returns the options of the command line that look for the same."""
    pattern, kind = query.text, query.text[:2]
    if kind in ("r:", "x:", "t:"):
        pattern = pattern[2:]
    if kind == "x:":
        digits = "".join(pattern.split()).removeprefix("0x")
        pattern = "".join(f"\\x{digits[at : at + 2]}" for at in range(0, len(digits), 2))
    regex = ["--regex"] if kind in ("r:", "x:") else []
    return ["--grep", pattern, *regex, *([] if query.case else ["--ignore-case"])]


def _problem(text: str) -> str:
    """Says why a text cannot be searched for; nothing typed ends the question."""
    if not text.strip():
        return ""
    try:
        parse_query(text)
    except StantoolsError as problem:
        return f"{problem.message}: {problem.remedy}" if problem.remedy else problem.message
    return ""
