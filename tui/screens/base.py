"""The base of all views: status line, keys, background jobs, and polling of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

from stantools.errors import StantoolsError
from stantools.nats.connect_options import ConnectOptions
from stantools.notation import cut, format_size
from tui.cells import Cell, counted, name_text, number, role_of, store_name, text_of
from tui.jobs import Job, JobState
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.keyline import KeyLine, TabLine
from tui.widgets.line import TextLine

_T = TypeVar("_T")

#: Polling interval of a view, in seconds.
LOOK = 0.1
#: Names in the status line keep at least this many characters.
_MIN_NAME = 12


class BrowserActions(Protocol):
    """The part of `tui.app.Browser` that a view uses."""

    unlocked: bool
    connect_options: ConnectOptions | None
    monitor: str | None
    pane_sizes: dict[tuple[str, bool], int]

    def view_bindings(self) -> Mapping[View, Binding]: ...

    def refusal(self, view: View) -> str: ...

    def open_view(self, view: View, place: ViewTarget | None = None, *, above: bool = False) -> None: ...

    def open_store(self, path: Path) -> None: ...

    def note_command(self, words: Sequence[str]) -> None: ...

    def fail(self, problem: StantoolsError) -> None: ...

    def action_rescan(self) -> None: ...


class ViewScreen(Screen[None]):
    """A view of a store.

    A view fills `compose_body`; `facts_changed` is called when the session has news. The equivalent command line
    goes to `note`. Without a session it is a view of a running server.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False, id="view.back"),
    ]
    #: Name of the view in the status line.
    NAME: ClassVar[str] = ""
    #: The tab of the view.
    TAB: ClassVar[View]

    def __init__(self, session: SourceSession | None, place: ViewTarget) -> None:
        super().__init__()
        self.place = place
        self._session = session
        self._shown_stamp: tuple[object, ...] = ()
        self._jobs: list[tuple[Job[Any], Timer]] = []

    @property
    def session(self) -> SourceSession:
        assert self._session is not None
        return self._session

    @property
    def browser(self) -> BrowserActions:
        return cast(BrowserActions, self.app)

    @property
    def channel(self) -> str | None:
        return self.place.channel

    def compose(self) -> ComposeResult:
        yield TextLine(id="status")
        if self._session is not None:
            names = self._session.VIEW_NAMES
            yield TabLine(self.TAB, self.browser.view_bindings, self.browser.refusal, names)
        yield from self.compose_body()
        yield KeyLine()

    def compose_body(self) -> Iterable[Widget]:
        raise NotImplementedError

    def on_mount(self) -> None:
        self._look()
        self.set_interval(LOOK, self._look)

    def on_resize(self) -> None:
        self.status_changed()

    def on_screen_resume(self) -> None:
        self.status_changed()
        self._shown_stamp = ()
        self._look()

    def _stamp(self) -> tuple[object, ...]:
        """Differs from the last value whenever the session has news."""
        assert self._session is not None
        job = self._session.job
        return self._session.revision, job and job.state

    def _look(self) -> None:
        if self._session is None or not self.is_current:
            return
        known = self._stamp()
        if self._shown_stamp != known:
            self._shown_stamp = known
            self.facts_changed()
            self.status_changed()
        elif self._session.job is not None and self._session.job.running:
            self.status_changed()

    @property
    def up_to_date(self) -> bool:
        return self._session is None or self._shown_stamp == self._stamp()

    @property
    def working(self) -> bool:
        return bool(self._jobs)

    def facts_changed(self) -> None:
        """Called when the session has news, when the view is opened, and when it is seen again."""

    def status_changed(self) -> None:
        if self.is_mounted:
            self.query_one("#status", TextLine).show(*_fitting(self.status_cells(), self.size.width - 2))

    def status_cells(self) -> Sequence[Cell]:
        lock: Cell = ("UNLOCKED", "bad") if self.browser.unlocked else ("READ ONLY", "good")
        cells: list[Cell] = [lock]
        if self._session is not None:
            cells += [" ", (store_name(self._session.named), "strong")]
        for part in self.trail():
            cells += [" › ", part]
        if self._session is not None:
            cells += ["  ", *_scan_cells(self._session)]
        return cells

    def trail(self) -> Iterable[Cell]:
        if self.NAME:
            usual = self._session is None or self.TAB.value != self.NAME
            yield self.NAME if usual else self.session.VIEW_NAMES.get(self.TAB, self.NAME)
        if self.place.channel is not None:
            yield name_text(self.place.channel), "strong"

    def go_to(self, text: str) -> str | None:
        """Goes to a place of this view that the user typed after `:`.

        Returns:
            "" after success, the reason if it is impossible, or None if the text is no place of this view.
        """
        return None

    def go_to_hint(self) -> str:
        """Text about the places that can be typed after `:`, besides views and channels."""
        return ""

    def busy(self) -> str:
        """Text about a write in progress that must not be abandoned; "" if none."""
        return ""

    def note(self, *words: str) -> None:
        self.browser.note_command(words)

    def begin(
        self,
        name: str,
        work: Callable[[Job[_T]], _T],
        done: Callable[[_T], None],
        on_failure: Callable[[], None] = lambda: None,
        total: int = 0,
    ) -> None:
        """Runs `work` in a thread, then `done` with its result in the user interface.

        `on_failure` is called after a cancellation, or a failure, which is shown to the user. `total` is the amount
        of work.
        """
        job: Job[_T] = Job(name, work, total=total)

        def ended() -> None:
            if job.problem is not None:
                self.browser.fail(job.problem)
            if job.state is JobState.DONE:
                done(job.result)
            else:
                on_failure()

        self.watch_job(job, ended)

    def watch_job(
        self, job: Job[Any], done: Callable[[], None], progress: Callable[[], object] | None = None
    ) -> Job[Any]:
        """Starts a job and shows its progress. Closing the view cancels it.

        Args:
            job: A job that was not started yet.
            done: Called once in the user interface after the end of the job, in whichever state.
            progress: Called ten times a second while the job runs.
        """

        def look() -> None:
            if job.running:
                if progress:
                    progress()
                return
            timer.stop()
            if (job, timer) in self._jobs:  # a timer can fire once more after it was stopped
                self._jobs.remove((job, timer))
                done()

        timer = self.set_interval(LOOK / 2, look)
        self._jobs.append((job, timer))
        return job.start()

    def on_unmount(self) -> None:
        for job, timer in self._jobs:
            timer.stop()
            job.cancel()

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()


class LatestWork(Generic[_T]):
    """A job of which only the latest counts: a new one cancels the one before, whose end is not reported."""

    def __init__(self, node: DOMNode) -> None:
        self._node = node
        #: The running job, if any.
        self.job: Job[_T] | None = None

    def start(
        self,
        job: Job[_T],
        done: Callable[[Job[_T]], None],
        progress: Callable[[], object] | None = None,
        *,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts a job.

        Args:
            job: A job that was not started yet.
            done: Called after its end, unless a later job was started.
            progress: Called while it runs.
            dropped: Called instead of `done` if a later job was started.
        """
        self.cancel()
        self.job = job

        def ended() -> None:
            if job is self.job:
                self.job = None
                done(job)
            else:
                dropped()

        cast(ViewScreen, self._node.screen).watch_job(job, ended, progress)

    def cancel(self) -> None:
        if self.job is not None:
            self.job.cancel()

    def share_text(self) -> str:
        """Returns the share completed as ` 45%`; "" if unknown."""
        share = self.job.share if self.job is not None else None
        return f" {share:.0%}" if share is not None else ""


def _fitting(cells: Sequence[Cell], width: int) -> Sequence[Cell]:
    """Cuts long names, the longest first, so that the findings still fit on the line."""
    shown = list(cells)
    while (over := sum(cell_len(text_of(cell)) for cell in shown) - width) > 0:
        names = [place for place, cell in enumerate(shown) if role_of(cell) == "strong"]
        longest = max(names, key=lambda place: len(text_of(shown[place])), default=None)
        if longest is None or len(text := text_of(shown[longest])) <= _MIN_NAME:
            break
        shown[longest] = (cut(text, max(len(text) - over, _MIN_NAME)), "strong")
    return shown


def _scan_cells(session: SourceSession) -> Sequence[Cell]:
    job = session.job
    if job is None:
        return []
    if job.state is JobState.FAILED and job.problem is not None:
        return [(f"the scan ended: {job.problem.message}", "bad")]
    if job.running:
        share = f" {job.share:.0%}" if job.share is not None else ""
        rate = ""
        if job.phase == "checking every byte" and job.seconds > 1:
            rate = f" {format_size(int(job.done / job.seconds))}/s"
        return [(f"{job.phase}{share}{rate}", "accent")]
    severities = session.totals.severities
    errors, warnings = severities.get("error", 0), severities.get("warning", 0)
    if errors:
        cells: list[Cell] = [(f"✗ {counted(errors, 'error')}", "bad")]
        if warnings:
            cells.append((f"  ! {counted(warnings, 'warning')}", "warn"))
        return cells
    if warnings:
        return [(f"! {counted(warnings, 'warning')}", "warn")]
    if missing := sum(each.missing.count() for each in session.outcomes.values()):
        return [(f"i nothing damaged, {number(missing)} missing before", "accent")]
    return [("✓ clean", "good")]
