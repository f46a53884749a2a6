"""The Textual application: the open view, the lock against changes, and the list of equivalent command lines."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import Widget

import tui.screens
import tui.widgets
from stantools.errors import StantoolsError
from stantools.escaping import known
from stantools.home import expanded
from stantools.nats.connect_options import ConnectOptions
from tui.keys import DARK, LIGHT, KeySettings
from tui.opening import open_session
from tui.screens.base import ViewScreen
from tui.session import SourceSession
from tui.typeahead import TypeAhead
from tui.views import OF_A_CHANNEL, View, ViewTarget, screen_class

_THEMES = (
    Theme(
        name=DARK,
        primary="#4c8dff",
        secondary="#7aa2c7",
        accent="#e0af68",
        success="#73c991",
        warning="#e2c08d",
        error="#f14c4c",
        foreground="#d4d4d4",
        background="#14171c",
        surface="#1b1f26",
        panel="#262c36",
        dark=True,
    ),
    Theme(
        name=LIGHT,
        primary="#0b5fd1",
        secondary="#45678a",
        accent="#8a5a00",
        success="#1a7f37",
        warning="#8a6100",
        error="#c02020",
        foreground="#1c1f23",
        background="#ffffff",
        surface="#f5f7fa",
        panel="#e3e8ef",
        dark=False,
    ),
)


#: The word after `:` for a picture of the screen.
SCREENSHOT = "screenshot"


def _server_of(text: str) -> tuple[str | None, ConnectOptions | None]:
    """Returns the URL of monitoring endpoints, or a NATS server, from a URL. Raises `UsageError`."""
    from stantools.nats.login import NatsAddress
    from stantools.nats.monitoring import Address

    text = text.strip()
    if text.partition("://")[0] in ("nats", "tls", "ws", "wss"):
        NatsAddress.parse(text)
        return None, ConnectOptions(servers=(text,))
    Address.parse(text)
    return text, None


class Browser(App[None]):
    """The application.

    Without a session it shows running servers: those of `connecting` (NATS) and `monitor` (a URL of monitoring
    endpoints).
    """

    CSS_PATH = "style.tcss"
    TITLE = "stantools"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("colon", "go_to", "Go to", key_display=":", id="app.go_to"),
        Binding("at", "commands", "Commands", key_display="@", id="app.commands"),
        Binding("W", "unlock", "Lock/unlock", id="app.unlock"),
        Binding("q", "leave", "Quit", id="app.quit"),
        Binding("question_mark", "help", "Help", key_display="?", id="app.help"),
        Binding("R", "rescan", "Scan again", show=False, id="app.rescan"),
        Binding("E", "encryption_key", "Encryption key", show=False, id="app.encryption_key"),
        Binding("ctrl+t", "toggle_theme", "Dark or light", show=False, id="app.theme"),
        Binding("ctrl+s", "picture", "Screenshot (SVG)", show=False, id="app.screenshot"),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False, id="app.suspend"),
        Binding("1", "view('overview')", "Overview", show=False, id="view.overview"),
        Binding("2", "view('messages')", "Messages", show=False, id="view.messages"),
        Binding("3", "view('timeline')", "Timeline", show=False, id="view.timeline"),
        Binding("4", "view('slices')", "Slices", show=False, id="view.slices"),
        Binding("5", "view('subscriptions')", "Subscriptions and clients", show=False, id="view.subscriptions"),
        Binding("6", "view('findings')", "Findings", show=False, id="view.findings"),
        Binding("7", "view('plans')", "Plans", show=False, id="view.plans"),
        Binding("8", "view('live')", "Live", show=False, id="view.live"),
    ]

    def __init__(
        self,
        session: SourceSession | None,
        *,
        settings: KeySettings | None = None,
        connect_options: ConnectOptions | None = None,
        monitor: str | None = None,
    ) -> None:
        super().__init__()
        self.session = session
        self.settings = settings or KeySettings()
        self.connect_options = connect_options
        self.monitor = monitor
        self.commands: list[str] = []  #: command lines equivalent to the user's steps, oldest first
        self.unlocked = False
        self._opened = 0
        self.pane_sizes: dict[tuple[str, bool], int] = {}  #: by the pane's id, and whether it is beside its table
        self.typed = TypeAhead(self, super().on_event)
        for theme in _THEMES:
            self.register_theme(theme)
        self.theme = DARK
        if self.settings.theme in self.available_themes:
            self.theme = self.settings.theme
        self.set_keymap(dict(self.settings.keymap))

    def get_default_screen(self) -> Screen[Any]:
        return self._screen(View.OVERVIEW if self.session else View.LIVE, ViewTarget())

    def on_mount(self) -> None:
        for problem in self._setting_problems():
            self.notify(problem, title="settings", severity="warning", timeout=15, markup=False)
        if self.session is not None and self.session.job is None:
            self.call_after_refresh(self.session.start)
        self.app_resume_signal.subscribe(self, self._redraw)

    def _redraw(self, _app: App[Any]) -> None:
        for widget in self.screen.walk_children():
            widget.refresh()

    def on_unmount(self) -> None:
        if self.session is not None and self.session.job is not None:
            self.session.job.cancel()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            await self.typed.take(event)
        else:
            await super().on_event(event)

    @property
    def failure(self) -> Exception | None:
        return self._exception

    def _fatal_error(self) -> None:
        """Ends the program without a traceback on the terminal; the caller of `run` reports the error."""
        self._close_messages_no_wait()

    def _setting_problems(self) -> Iterable[str]:
        yield from self.settings.problems
        if self.settings.theme and self.settings.theme not in self.available_themes:
            yield f"unknown theme {self.settings.theme}; available themes: {', '.join(sorted(self.available_themes))}"
        if not self.settings.keymap:
            return
        known = {binding.id for _, binding in bindings()}
        for name in self.settings.keymap:
            if name not in known:
                yield f"unknown binding {name}; the help page (?) lists the ids"

    def _screen(self, view: View, place: ViewTarget) -> ViewScreen:
        screen: ViewScreen = screen_class(view)(self.session, place)
        return screen

    def open_view(self, view: View, place: ViewTarget | None = None, *, above: bool = False) -> None:
        """Opens a view at a place; the channel is that of the present view if the place names none.

        With `above`, Escape returns to the present view; otherwise it returns to the overview.
        """
        place = place or ViewTarget()
        if refusal := self.refusal(view, place):
            self.notify(refusal, severity="warning")
            return
        if self.session is None:
            self.close_views()  # the first view shows a running server
            return
        if view is View.LIVE and not (self.monitor or self.connect_options):
            self._ask_for_server(above=above)
            return
        if place.file is None:
            place = replace(place, channel=place.channel or self._channel(view))
        if not above:
            if self._refuse_to_leave():
                return
            self.close_views()
            if view is View.OVERVIEW:
                return
        self.push_screen(self._screen(view, place))

    def _ask_for_server(self, *, above: bool) -> None:
        from tui.screens.dialogs import PromptScreen

        def named(text: str | None) -> None:
            if text and text.strip():
                self.monitor, self.connect_options = _server_of(text)
                self.open_view(View.LIVE, above=above)

        def problem(text: str) -> str:
            try:
                _server_of(text)
            except StantoolsError as error:
                return f"{error.message}: {error.remedy}" if error.remedy else error.message
            return ""

        hint = "a server's monitoring, such as http://localhost:8222, or JetStream at nats://localhost:4222"
        self.push_screen(PromptScreen("URL of a running server", hint, check=problem), named)

    def view_bindings(self) -> Mapping[View, Binding]:
        bindings = self._bindings.copy()
        bindings.apply_keymap(self.settings.keymap)
        found = {binding.action: binding for _, binding in bindings}
        return {view: found[f"view('{view}')"] for view in View}

    def refusal(self, view: View, place: ViewTarget | None = None) -> str:
        """Returns the reason why a view cannot be opened, or "". `place` defaults to that of the present view."""
        if self.session is None:
            return "" if view is View.LIVE else "no store is open"
        named = place is not None and (place.file is not None or place.channel is not None)
        if view in OF_A_CHANNEL and not named and self._channel(view) is None:
            return "choose a channel first"
        return ""

    def open_store(self, path: Path) -> None:
        """Opens another store instead of the present one, which stays open if the other cannot be opened."""
        if self._refuse_to_leave():
            return
        old = self.session
        read_options, workers = (old.read_options, old.workers) if old is not None else (None, 2)
        try:
            session = open_session(path, read_options, workers=workers)
        except StantoolsError as problem:
            self.fail(problem)
            return
        if old is not None and old.job is not None:
            old.job.cancel()
        self.close_views()
        self.session, self.unlocked = session, False
        # The first screen of a Textual application cannot be replaced; each mode has a first screen of its own.
        before, self._opened = self.current_mode, self._opened + 1
        self.add_mode(f"store {self._opened}", lambda: self._screen(View.OVERVIEW, ViewTarget()))
        self.switch_mode(f"store {self._opened}")
        if self._opened > 1:
            self.remove_mode(before)
        session.start()

    def close_views(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def _channel(self, view: View) -> str | None:
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ViewScreen):
                channel = screen.channel if view in OF_A_CHANNEL else screen.place.channel
                if channel is not None:
                    return channel
        return None

    def note_command(self, words: Sequence[str]) -> None:
        """Remembers a command line that shows or does the same."""
        line = shlex.join(map(known, self._with_key(words)))
        if not self.commands or self.commands[-1] != line:
            self.commands.append(line)

    def _with_key(self, words: Sequence[str]) -> Sequence[str]:
        session = self.session
        if session is None or session.key is None or str(session.path) not in words:
            return words
        if any(word.startswith("--encryption-key") for word in words):
            return words
        return [*words, "--encryption-key-env", "NATS_STREAMING_ENCRYPTION_KEY"]

    def fail(self, problem: StantoolsError) -> None:
        text = problem.message + (f"\n{problem.remedy}" if problem.remedy else "")
        self.notify(known(text), severity="error", timeout=15, markup=False)

    def action_view(self, name: str) -> None:
        self.open_view(View(name))

    def action_leave(self) -> None:
        if not self._refuse_to_leave(" (or press Ctrl+Q)"):
            self.exit()

    def _refuse_to_leave(self, alternative: str = "") -> bool:
        for screen in self.screen_stack:
            if isinstance(screen, ViewScreen) and (reason := screen.busy()):
                self.notify(f"{reason}: cancel it first{alternative}", severity="warning", markup=False)
                return True
        return False

    def action_help(self) -> None:
        from tui.screens.dialogs import HelpScreen

        self.push_screen(HelpScreen(self.screen))

    def action_commands(self) -> None:
        from tui.screens.dialogs import CommandsScreen

        self.push_screen(CommandsScreen(self.commands))

    def action_go_to(self) -> None:
        from tui.screens.dialogs import GoToScreen

        screen = self.screen
        if isinstance(screen, ViewScreen):
            self.push_screen(GoToScreen(screen.go_to_hint(), self.session), self._go)

    def _go(self, text: str | None) -> None:
        text = (text or "").strip()
        if not text or not isinstance(self.screen, ViewScreen):
            return
        if problem := self.go_to(text):
            self.notify(problem, severity="warning", markup=False)

    def go_to(self, text: str) -> str:
        """Opens a place of the present view, a view, a channel, or a place in a channel.

        Returns the reason if there is none of that name.
        """
        screen = self.screen
        if isinstance(screen, ViewScreen):
            answer = screen.go_to(text)
            if answer is not None:
                return answer
        if text == SCREENSHOT or text.startswith(f"{SCREENSHOT} "):
            return self.take_screenshot(text.removeprefix(SCREENSHOT).strip())
        channel, _, place = text.rpartition(" ")
        if self.session and channel.strip() in self.session.channels and text not in self.session.channels:
            self.open_view(View.MESSAGES, ViewTarget(channel=channel.strip()))
            opened = self.screen
            if isinstance(opened, ViewScreen):
                opened.call_after_refresh(self._go_within, opened, place)
            return ""
        views = [view for view in View if view.value.startswith(text.lower())]
        if views and not (self.session and text in self.session.channels):
            self.open_view(views[0])
            return ""
        names = list(self.session.channels) if self.session else []
        found = [name for name in names if name == text] or [name for name in names if name.startswith(text)]
        found = found or [name for name in names if text.lower() in name.lower()]
        if not found:
            return f"{text}: not a place in this view, a view or a channel"
        self.open_view(View.MESSAGES, ViewTarget(channel=found[0]))
        return ""

    def _go_within(self, screen: ViewScreen, place: str) -> None:
        problem = screen.go_to(place)
        if problem is None:
            problem = f"{place}: not a place in {screen.NAME}; {screen.go_to_hint()}"
        if problem:
            self.notify(problem, severity="warning", markup=False)

    def action_picture(self) -> None:
        if problem := self.take_screenshot(""):
            self.notify(problem, severity="warning", markup=False)

    def take_screenshot(self, name: str) -> str:
        """Writes the screen as a picture (SVG) to a file; returns the reason if that is impossible."""
        from tui.screens.messages import save_problem, write_payload

        screen = self.screen
        view = screen.NAME if isinstance(screen, ViewScreen) and screen.NAME else View.OVERVIEW.value
        name = name or f"stantools-{view}-{time.strftime('%H%M%S')}.svg".replace(" ", "-")
        if self.session is not None and (problem := save_problem(name, self.session.path)):
            return problem
        try:
            path = expanded(name)
            write_payload(path, self.export_screenshot().encode(), over=False)
        except StantoolsError as problem:
            return f"{problem.message}; {problem.remedy}"
        self.notify(f"screenshot: {known(str(path))}", markup=False)
        return ""

    def action_unlock(self) -> None:
        self.unlocked = not self.unlocked
        for screen in self.screen_stack:
            if isinstance(screen, ViewScreen):
                screen.status_changed()
        text = "unlocked: plans can be carried out" if self.unlocked else "read only again"
        self.notify(text, severity="warning" if self.unlocked else "information")

    def action_encryption_key(self) -> None:
        from tui.screens.dialogs import PromptScreen

        if self.session is None:
            return
        given = "a key is set; an empty text removes it" if self.session.key else ""
        hint = f"the server's encryption key; it is kept in memory only{given and '; '}{given}"
        self.push_screen(PromptScreen("encryption key", hint, hidden=True), self._use_key)

    def _use_key(self, text: str | None) -> None:
        if text is None or self.session is None:
            return
        if text or self.session.key is not None:
            self.session.use_key(text.encode() or None)
            self.notify("payloads are decrypted with this key" if text else "the key is removed")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without a store, the actions unlock, rescan and encryption key are off."""
        if action in ("unlock", "rescan", "encryption_key") and self.session is None:
            return False
        return super().check_action(action, parameters)

    def action_rescan(self) -> None:
        if self.session is None:
            return
        try:
            self.session.rescan()
        except StantoolsError as problem:
            self.fail(problem)

    def action_toggle_theme(self) -> None:
        self.theme = LIGHT if self.current_theme.dark else DARK

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for view in View:
            if self.session is not None or view is View.LIVE:
                yield SystemCommand(f"View: {view.value}", f"Open the view {view.value}", partial(self.open_view, view))
        yield SystemCommand("Unlock or lock", "Allow or forbid changes", self.action_unlock)
        yield SystemCommand("Scan again", "Read the whole store again", self.action_rescan)
        yield SystemCommand("Encryption key", "Set the key for encrypted payloads", self.action_encryption_key)
        yield SystemCommand("Commands", "Equivalent command lines", self.action_commands)
        yield SystemCommand("Screenshot", "Write the screen as a picture (SVG)", self.action_picture)
        yield SystemCommand("Dark or light", "Change the theme", self.action_toggle_theme)
        yield SystemCommand("Keys", "The active keys", self.action_help)
        yield SystemCommand("Quit", "Leave", self.action_leave)


def bindings() -> Iterator[tuple[type, Binding]]:
    """Yields all bindings that have an id, each with its class; imports every screen."""
    for owner in _owners():
        for binding in Binding.make_bindings(owner.__dict__.get("BINDINGS", [])):
            if binding.id:
                yield owner, binding


def _owners() -> Iterator[type]:
    names = ["tui.app"]
    for package in (tui.screens, tui.widgets):
        names += sorted(each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))
    for name in names:
        module = importlib.import_module(name)
        for _, found in inspect.getmembers(module, inspect.isclass):
            if found.__module__ == name and issubclass(found, (App, Widget)):
                yield found
