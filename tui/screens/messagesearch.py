"""Search in the messages of a channel: the question, the search in the background, the next match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from stantools.browse.search import Searcher, SearchQuery, parse_query
from stantools.errors import StantoolsError
from tui.cells import Cell, name_text
from tui.jobs import Job, JobState
from tui.screens.base import LatestWork, ViewScreen
from tui.screens.dialogs import PromptScreen
from tui.screens.messagetable import MessageTable
from tui.session import SourceSession

_SEARCH_HINT = "a text; r:REGEX; x:DE AD BEEF; upper case makes it case-sensitive; n next, N previous"


class MessageSearch:
    """A search from the cursor of a table of messages. The table posts its results."""

    def __init__(self, table: MessageTable, session: SourceSession) -> None:
        self._table = table
        self._session = session
        self._query: SearchQuery | None = None
        self._job: LatestWork[int | None] = LatestWork(table)

    @property
    def running(self) -> bool:
        return self._job.job is not None

    def progress(self) -> Iterable[Cell]:
        if self.running:
            yield (f"  searching{self._job.share_text()}, Esc cancels", "accent")

    def ask(self) -> None:
        self._table.app.push_screen(PromptScreen("search for", _SEARCH_HINT, check=_problem), self._search_entered)

    def again(self, direction: int) -> None:
        """Goes to the next (1) or previous (-1) match; without an earlier search, asks for one."""
        if self._query is None:
            self.ask()
        else:
            self._search(self._query, direction)

    def cancel(self) -> None:
        self._job.cancel()

    def _search_entered(self, text: str | None) -> None:
        if text is None or not text.strip():
            return
        self._query = parse_query(text)
        words = "stantools", "messages", str(self._session.path), self._table.channel
        cast(ViewScreen, self._table.screen).note(*words, *_options(self._query))
        self._search(self._query, 1)

    def _search(self, query: SearchQuery, direction: int) -> None:
        table, window = self._table, self._table.window
        if window is None:
            return
        at, count = table.cursor, len(window)
        searcher = Searcher(window, query)

        def work(job: Job[int | None]) -> int | None:
            try:
                if direction > 0:
                    found = searcher.forward(at + 1, count, job.advance)
                    return found if found is not None else searcher.forward(0, at + 1, job.advance)
                found = searcher.backward(0, at, job.advance)
                return found if found is not None else searcher.backward(at, count, job.advance)
            finally:
                searcher.close()

        self._job.start(
            Job("search", work, total=count),
            lambda job: self._ended(job, query, at, direction),
            lambda: table.post_message(table.Progress()),
        )
        table.say()

    def _ended(self, job: Job[int | None], query: SearchQuery, at: int, direction: int) -> None:
        table, shown = self._table, name_text(query.text)
        if job.state is JobState.CANCELLED:
            table.say(("the search was cancelled", "warn"))
        elif job.problem is not None:
            table.say((job.problem.message, "bad"))
        elif job.result is None:
            table.say((f"not found: {shown}", "warn"))
        else:
            row = job.result
            wrapped = row <= at if direction > 0 else row >= at
            table.go_to_row(row)  # this posts an empty text, so the remark must follow it
            around = f", from the {'start' if direction > 0 else 'end'} on" if wrapped else ""
            table.say((f"found: {shown}{around}", "good"), ("  n next  N previous", "dim"))


def _options(query: SearchQuery) -> list[str]:
    pattern, kind = query.text, query.text[:2]
    if kind in ("r:", "x:", "t:"):
        pattern = pattern[2:]
    if kind == "x:":
        digits = "".join(pattern.split()).removeprefix("0x")
        pattern = "".join(f"\\x{digits[at : at + 2]}" for at in range(0, len(digits), 2))
    regex = ["--regex"] if kind in ("r:", "x:") else []
    return ["--grep", pattern, *regex, *([] if query.case else ["--ignore-case"])]


def _problem(text: str) -> str:
    if not text.strip():
        return ""
    try:
        parse_query(text)
    except StantoolsError as problem:
        return f"{problem.message}: {problem.remedy}" if problem.remedy else problem.message
    return ""
