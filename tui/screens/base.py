"""What all views share: the line at the top, the keys at the bottom, and news of the session."""

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
from stantools.nats.options import ConnectOptions
from stantools.notation import format_size
from tui.cells import Cell, counted, cut, name_text, number, role_of, store_name, text_of
from tui.jobs import Job, JobState
from tui.session import StoreSession
from tui.views import Place, View
from tui.widgets.keyline import KeyLine, TabLine
from tui.widgets.line import Line

_T = TypeVar("_T")

#: How often a view looks whether something is new, in seconds.
LOOK = 0.1
#: Names in the line at the top are not cut to fewer characters.
_SHORTEST = 12


class Browser(Protocol):
    """What a view asks of the application that shows it; see `tui.app.Browser`."""

    unlocked: bool
    connecting: ConnectOptions | None
    monitor: str | None

    def view_bindings(self) -> Mapping[View, Binding]:
        """Returns what opens each view."""
        ...

    def refusal(self, view: View) -> str:
        """Says why a view cannot be opened now; "" if it can."""
        ...

    def open_view(self, view: View, place: Place | None = None, *, above: bool = False) -> None:
        """Opens a view at a place; `above` keeps the present one below it."""
        ...

    def open_store(self, path: Path) -> None:
        """Opens another store in the place of the present one."""
        ...

    def note_command(self, words: Sequence[str]) -> None:
        """Remembers a command line that shows or does the same."""
        ...

    def fail(self, problem: StantoolsError) -> None:
        """Says why something could not be done, and what can be."""
        ...

    def action_rescan(self) -> None:
        """Opens the store anew and scans it again."""
        ...


class ViewScreen(Screen[None]):
    """A view of a store.

    A view fills `compose_body`, and is told by `facts_changed` when the session knows more. It is given the place to
    look at when it is made. The equivalent command line goes to `note`.

    Args:
        session: The store; None for a view of something that is running.
        place: Where to look.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False, id="view.back"),
    ]
    #: Name of the view for its line at the top.
    NAME: ClassVar[str] = ""
    #: The view whose tab this is, or belongs to.
    TAB: ClassVar[View]

    def __init__(self, session: StoreSession | None, place: Place) -> None:
        super().__init__()
        self.place = place
        self._session = session
        self._seen: tuple[object, ...] = ()
        self._jobs: list[tuple[Job[Any], Timer]] = []

    @property
    def session(self) -> StoreSession:
        """The store."""
        assert self._session is not None
        return self._session

    @property
    def browser(self) -> Browser:
        """The application."""
        return cast(Browser, self.app)

    @property
    def channel(self) -> str | None:
        """The channel that this view shows, for views that are opened from here."""
        return self.place.channel

    def compose(self) -> ComposeResult:
        """The line at the top, the tabs, the view, the keys."""
        yield Line(id="status")
        if self._session is not None:
            yield TabLine(self.TAB, self.browser.view_bindings, self.browser.refusal)
        yield from self.compose_body()
        yield KeyLine()

    def compose_body(self) -> Iterable[Widget]:
        """Yields the widgets of the view."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Begins to look for news."""
        self._look()
        self.set_interval(LOOK, self._look)

    def on_resize(self) -> None:
        """Cuts the line at the top anew."""
        self.status_changed()

    def on_screen_resume(self) -> None:
        """Shows at once what has become known while another view was open."""
        self.status_changed()
        self._seen = ()
        self._look()

    def _stamp(self) -> tuple[object, ...]:
        """What differs whenever there is something new to show of the store."""
        assert self._session is not None
        job = self._session.job
        return self._session.revision, job and job.state

    def _look(self) -> None:
        if self._session is None or not self.is_current:
            return
        known = self._stamp()
        if self._seen != known:
            self._seen = known
            self.facts_changed()
            self.status_changed()
        elif self._session.job is not None and self._session.job.running:
            self.status_changed()

    @property
    def up_to_date(self) -> bool:
        """Whether all that is known of the store is shown."""
        return self._session is None or self._seen == self._stamp()

    @property
    def working(self) -> bool:
        """Whether something that was begun for this view continues in the background."""
        return bool(self._jobs)

    def facts_changed(self) -> None:
        """The session knows more; also called once when the view is opened and when it is seen again."""

    def status_changed(self) -> None:
        """Writes the line at the top anew."""
        if self.is_mounted:
            self.query_one("#status", Line).show(*_fitting(self.status_cells(), self.size.width - 2))

    def status_cells(self) -> Sequence[Cell]:
        """Returns the line at the top: lock, where we are, findings, progress."""
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
        """Yields where we are in the store."""
        if self.NAME:
            yield self.NAME
        if self.place.channel is not None:
            yield name_text(self.place.channel), "strong"

    def go_to(self, text: str) -> str | None:
        """Goes to a place within this view that the user has typed after `:`.

        Returns:
            "" if it is done, a text that says why not, or None if this is no place of this view.
        """
        return None

    def go_to_hint(self) -> str:
        """Says what can be typed after `:` here, besides views and channels."""
        return ""

    def busy(self) -> str:
        """Says what must not be left alone, if something is being written; else ""."""
        return ""

    def note(self, *words: str) -> None:
        """Remembers the command line that shows the same."""
        self.browser.note_command(words)

    def begin(
        self,
        name: str,
        work: Callable[[Job[_T]], _T],
        done: Callable[[_T], None],
        otherwise: Callable[[], None] = lambda: None,
        total: int = 0,
    ) -> None:
        """Does something in the background.

        Args:
            name: What, for people.
            work: Does it.
            done: Takes the result, in the user interface.
            otherwise: Called if it was cancelled, or has failed, which the user sees.
            total: How much there is to do, if that is known.
        """
        job: Job[_T] = Job(name, work, total=total)

        def ended() -> None:
            if job.problem is not None:
                self.browser.fail(job.problem)
            if job.state is JobState.DONE:
                done(job.result)
            else:
                otherwise()

        self.watch_job(job, ended)

    def watch_job(
        self, job: Job[Any], done: Callable[[], None], progress: Callable[[], object] | None = None
    ) -> Job[Any]:
        """Starts a job, and shows its progress until it has ended. It is cancelled when the view is closed.

        Args:
            job: A job that was not started yet.
            done: Called once in the user interface when it has ended, whatever way; look at its state.
            progress: Called ten times a second while it runs.
        """

        def look() -> None:
            if job.running:
                if progress:
                    progress()
                return
            timer.stop()
            if (job, timer) in self._jobs:  # a timer may tick once more after it was stopped
                self._jobs.remove((job, timer))
                done()

        timer = self.set_interval(LOOK / 2, look)
        self._jobs.append((job, timer))
        return job.start()

    def on_unmount(self) -> None:
        """Cancels what was running for this view."""
        for job, timer in self._jobs:
            timer.stop()
            job.cancel()

    def action_back(self) -> None:
        """Goes back to the view that this one was opened from."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()


class Latest(Generic[_T]):
    """A kind of work of which only the latest counts: what begins cancels what ran before, whose end is not reported.

    Args:
        node: The view, or a widget in it.
    """

    def __init__(self, node: DOMNode) -> None:
        self._node = node
        #: The job that runs; None if none does.
        self.job: Job[_T] | None = None

    def start(
        self,
        job: Job[_T],
        done: Callable[[Job[_T]], None],
        progress: Callable[[], object] | None = None,
        *,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts a job; see `ViewScreen.watch_job`.

        Args:
            job: A job that was not started yet.
            done: Called with it when it has ended, if none was started since.
            progress: Called while it runs.
            dropped: Called instead of `done` if one was.
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
        """Ends the job that runs."""
        if self.job is not None:
            self.job.cancel()

    def share_text(self) -> str:
        """Returns how much is done, as ` 45%`; "" if nobody knows."""
        share = self.job.share if self.job is not None else None
        return f" {share:.0%}" if share is not None else ""


def _fitting(cells: Sequence[Cell], width: int) -> Sequence[Cell]:
    """Cuts long names, the longest first, so that what was found still fits on the line."""
    shown = list(cells)
    while (over := sum(cell_len(text_of(cell)) for cell in shown) - width) > 0:
        names = [place for place, cell in enumerate(shown) if role_of(cell) == "strong"]
        longest = max(names, key=lambda place: len(text_of(shown[place])), default=None)
        if longest is None or len(text := text_of(shown[longest])) <= _SHORTEST:
            break
        shown[longest] = (cut(text, max(len(text) - over, _SHORTEST)), "strong")
    return shown


def _scan_cells(session: StoreSession) -> Sequence[Cell]:
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
