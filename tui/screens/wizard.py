"""A wizard on the screen: options, preview, confirmation, progress, result."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Input

from stantools.errors import ExitCode, StantoolsError
from stantools.inspection.report import Report, ReportRemark
from tui.cells import Cell, Role, text_of
from tui.jobs import Job
from tui.plans.account import AccountRows
from tui.plans.flow import PhaseProgress, WizardFlow, WizardStep
from tui.plans.form import FieldError, FormField
from tui.plans.wizard import PlanOutcome, PlanPreview, Wizard
from tui.screens.base import ViewScreen
from tui.screens.dialogs import QuestionScreen
from tui.session import SourceSession
from tui.views import View, ViewTarget
from tui.widgets.form import FormView
from tui.widgets.line import TextLine
from tui.widgets.rowtable import RowTable

#: The steps for the user, with the steps of the flow.
_TRAIL: Sequence[tuple[str, frozenset[WizardStep]]] = (
    ("choose", frozenset({WizardStep.CHOOSE})),
    ("preview", frozenset({WizardStep.LOOK, WizardStep.PREVIEW})),
    ("confirm", frozenset({WizardStep.CONFIRM})),
    ("run", frozenset({WizardStep.RUN})),
    ("result", frozenset({WizardStep.RESULT})),
)
_SIGNS: dict[Role, str] = {"good": "✓ ", "warn": "! ", "bad": "✗ "}
#: Obstacles that are shown; usually there is one.
_OBSTACLES = 3
_KEYS_OF_FORM = "↑↓ field   ␣ or ←→ choose   ⏎ preview   esc back"
#: Seconds for the cleanup of a cancelled run when the program ends.
_CLEANUP_TIMEOUT = 10.0


class _AccountTable(RowTable):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Continue", id="wizard.next"),
    ]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        screen = self.screen
        return action != "choose" or (isinstance(screen, WizardScreen) and screen.check_action("next", ()))


class WizardScreen(ViewScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "next", "Continue", id="wizard.next"),
        Binding("o", "open", "Open the new store", id="wizard.open"),
        Binding("y", "copy", "Copy command", id="wizard.copy"),
        Binding("c", "cancel", "Cancel", id="wizard.cancel"),
        Binding("escape", "back", "Back", id="wizard.back"),
    ]
    TAB = View.PLANS
    #: Each step sets its own focus; a hidden widget must get no keys after a dialog.
    AUTO_FOCUS = ""

    def __init__(self, session: SourceSession, place: ViewTarget, wizard: Wizard[Any]) -> None:
        super().__init__(session, place)
        self.flow = WizardFlow(wizard)
        self._pace: PhaseProgress | None = None
        self._asking: QuestionScreen | None = None
        self._unlocked: bool | None = None
        self._field: FormField | None = None  # the one with the cursor

    def trail(self) -> Iterable[Cell]:
        yield from super().trail()
        yield from ("plans", (self.flow.wizard.VERB, "strong"))

    def compose_body(self) -> Iterable[Widget]:
        yield TextLine(id="trail")
        yield TextLine(id="said")
        with ContentSwitcher(initial="form", id="steps"):
            yield FormView(self.flow.wizard.form, id="form")
            yield TextLine(id="progress")
            yield _AccountTable(AccountRows(Report(), 80), id="account")
            with Vertical(id="confirm"):
                yield TextLine(id="question")
                yield Input(placeholder="the store's name", compact=True, id="name")
                yield TextLine(id="why-not")
        yield TextLine(id="hint")
        yield TextLine(id="command")

    def on_mount(self) -> None:
        self._show()

    def on_resize(self) -> None:
        self._show_said()
        self._show_account()

    def status_changed(self) -> None:
        """Also follows the lock against changes."""
        super().status_changed()
        if self.is_mounted and self._unlocked != self.browser.unlocked:
            self._unlocked = self.browser.unlocked
            if self.flow.step is WizardStep.CONFIRM:
                self._show()
            self._show_hint()

    def busy(self) -> str:
        return self.flow.writing

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        step = self.flow.step
        if action == "open":
            outcome = self.flow.outcome
            return step is WizardStep.RESULT and outcome is not None and outcome.opens is not None
        if action == "cancel":
            return step in (WizardStep.LOOK, WizardStep.RUN)
        if action == "next":
            return step in (WizardStep.CHOOSE, WizardStep.PREVIEW)
        if action == "copy":
            return step in (WizardStep.PREVIEW, WizardStep.RESULT)
        return True

    # Texts

    def _show(self) -> None:
        step = self.flow.step
        cells: list[Cell] = []
        for name, steps in _TRAIL:
            at = step in steps
            cells += [(f"▸ {name}" if at else name, "accent" if at else "dim"), "   "]
        self.query_one("#trail", TextLine).show(*cells)
        self._show_command()
        hint = self.query_one("#hint", TextLine)
        hint.display = step is WizardStep.CHOOSE
        self.query_one("#steps", ContentSwitcher).current = {
            WizardStep.CHOOSE: "form",
            WizardStep.LOOK: "progress",
            WizardStep.RUN: "progress",
            WizardStep.CONFIRM: "confirm",
        }.get(step, "account")
        self._show_said()
        if step is WizardStep.CHOOSE:
            self.query_one(FormView).focus_field()
        elif step in (WizardStep.PREVIEW, WizardStep.RESULT):
            self._show_account()
            table = self.query_one("#account", RowTable)
            table.cursor = 0
            table.focus()
        elif step is WizardStep.CONFIRM:
            self._show_question()
        else:
            self.set_focus(None)
            self._show_progress()
        self.refresh_bindings()

    def _show_command(self) -> None:
        shown = self.query_one("#command", TextLine)
        outcome = self.flow.outcome
        if outcome is not None and self.flow.step is WizardStep.RESULT:
            rows: list[list[Cell]] = []
            for each in outcome.report.next:
                rows.append([("Next: ", "strong"), each.text])
                rows += [[(f"$ {line}", "accent")] for line in each.commands]
            shown.show_lines(rows if outcome.next_command else [*rows, [(f"$ {self._line()}", "dim")]])
            return
        shown.show((f"$ {self._line()}", "accent"))

    def _line(self) -> str:
        return shlex.join(self.flow.wizard.command())

    def _show_said(self) -> None:
        flow = self.flow
        rows: list[list[Cell]] = []
        if flow.problem is not None:
            rows += _problem_rows(flow.problem)
            rows.append([("Escape goes back to the options, which are kept.", "dim")])
        elif flow.step is WizardStep.RESULT and flow.cancelled:
            rows.append([("! ", "warn"), ("cancelled: " + flow.wizard.cancelled(), "warn")])
        elif flow.step is WizardStep.RESULT and flow.outcome is not None:
            outcome = flow.outcome
            rows += _account_rows(outcome.report, self.size.width - 2)
            code = ExitCode(outcome.report.code)
            rows.append([("exit code ", "dim"), (str(code.value), outcome.role), f": {outcome.meaning}"])
        elif flow.step is WizardStep.PREVIEW and flow.preview is not None:
            rows += _preview_rows(flow.preview, self.size.width - 2)
        said = self.query_one("#said", TextLine)
        said.display = bool(rows)
        said.show_lines(rows)

    def _show_account(self) -> None:
        flow, report, warnings = self.flow, Report(), list[ReportRemark]()
        if flow.step is WizardStep.PREVIEW and flow.preview is not None:
            report, warnings = flow.preview.report, flow.preview.warnings
        elif flow.step is WizardStep.RESULT and flow.outcome is not None:
            report = flow.outcome.report
        self.query_one("#account", RowTable).source = AccountRows(report, self.size.width - 3, warnings)

    def _show_question(self) -> None:
        wizard, unlocked = self.flow.wizard, self.browser.unlocked
        rows: list[list[Cell]] = [[(wizard.question(), "strong")]]
        if wizard.changes_store:
            rows.append([("! The store itself is changed; its old state is kept beside it.", "bad")])
        rows.append([""])
        if unlocked:
            rows.append(["Type the name of the store and press Enter to begin: ", (wizard.source.name, "accent")])
        else:
            rows.append([("✗ Read only: press W to allow changes.", "bad")])
        self.query_one("#question", TextLine).show_lines(rows)
        self.query_one("#why-not", TextLine).show("")
        field = self.query_one("#name", Input)
        field.display = unlocked
        field.value = ""
        if unlocked:
            field.focus()
        else:
            self.set_focus(None)

    def _show_hint(self) -> None:
        first: list[Cell] = []
        if self._field is not None:
            first = [(f"{self._field.name}: ", "strong"), (self._field.help, "dim")]
        elif not self.browser.unlocked:
            first = [("Read only: W, here or later, allows changes.", "dim")]
        self.query_one("#hint", TextLine).show_lines([first, [(_KEYS_OF_FORM, "dim")]])

    def _show_progress(self) -> None:
        if self._pace is None:
            return
        rows: list[Sequence[Cell]] = [self._pace.line(max(min(self.size.width - 50, 40), 10)), [""]]
        if self.flow.job is not None and self.flow.job.cancelling:
            rows.append([("cancelling and undoing partial changes…", "warn")])
        else:
            rows.append([("c or Escape cancels", "dim")])
        self.query_one("#progress", TextLine).show_lines(rows)

    # Steps

    @on(FormView.Reached)
    def _reached(self, event: FormView.Reached) -> None:
        self._field = event.field
        self._show_hint()

    @on(FormView.Changed)
    def _changed(self) -> None:
        self._show_command()

    # A message can arrive after its step has ended.

    @on(FormView.Submitted)
    def _form_filled(self) -> None:
        if self.flow.step is WizardStep.CHOOSE:
            self.action_next()

    @on(RowTable.Selected)
    def _agreed(self) -> None:
        if self.flow.step is WizardStep.PREVIEW:
            self.action_next()

    def action_next(self) -> None:
        flow = self.flow
        if flow.step is WizardStep.CHOOSE:
            job = self.flow.look()
            self._pace = PhaseProgress(job, "bytes")
            self.note(*self.flow.wizard.command())
            self.watch_job(job, lambda: self._plan_made(job), self._show_progress)
            self._show()
        elif flow.step is WizardStep.PREVIEW:
            if flow.confirm():
                self._show()
            elif text := flow.obstacle():
                self.notify(text, severity="warning", markup=False)

    def _plan_made(self, job: Job[PlanPreview]) -> None:
        self.flow.looked(job)
        self._show()
        problem = self.flow.problem
        if isinstance(problem, FieldError):
            # The form is invalid: back to it.
            self.flow.back()
            self._show()
            self.query_one(FormView).focus_field(problem.name)
            self.query_one("#said", TextLine).show_lines(_problem_rows(problem))
            self.query_one("#said").display = True

    @on(Input.Submitted, "#name")
    def _named(self, event: Input.Submitted) -> None:
        event.stop()
        text, unlocked = event.value.strip(), self.browser.unlocked
        if reason := self.flow.answer(text, unlocked=unlocked):
            self.query_one("#why-not", TextLine).show((f"✗ {reason}", "bad"))
            return
        job = self.flow.run(text, unlocked=unlocked)
        self._pace = PhaseProgress(job, self.flow.wizard.UNIT)
        self.watch_job(job, lambda: self._ran(job), self._show_progress)
        self._show()

    def _ran(self, job: Job[PlanOutcome]) -> None:
        if self._asking is not None and self._asking.is_current:
            self._asking.dismiss(False)
        self._asking = None
        self.flow.ran(job)
        self._show()
        outcome = self.flow.outcome
        changed = outcome.changed if outcome is not None else self.flow.wizard.changes_store
        if changed:
            self.browser.action_rescan()

    def action_cancel(self) -> None:
        """Cancels the job; a run only after a question."""
        job = self.flow.job
        if job is None or not job.running:
            return
        if self.flow.step is WizardStep.LOOK:
            job.cancel()
        elif self.flow.step is WizardStep.RUN and self._asking is None:
            self._asking = QuestionScreen(f"Cancel {self.flow.wizard.VERB}?", f"Then {self.flow.wizard.cancelled()}.")
            self.app.push_screen(self._asking, self._confirmed)

    def _confirmed(self, yes: bool | None) -> None:
        self._asking = None
        if yes and self.flow.job is not None:
            self.flow.job.cancel()

    def action_back(self) -> None:
        if self.flow.step in (WizardStep.LOOK, WizardStep.RUN):
            self.action_cancel()
        elif self.flow.back():
            self._show()
        else:
            super().action_back()

    def action_copy(self) -> None:
        outcome = self.flow.outcome
        following = outcome.next_command if outcome is not None and self.flow.step is WizardStep.RESULT else ""
        self.app.copy_to_clipboard(following or self._line())
        self.notify("copied")

    def action_open(self) -> None:
        outcome = self.flow.outcome
        if outcome is not None and outcome.opens is not None:
            self.browser.open_store(outcome.opens)

    def on_unmount(self) -> None:
        """Gives a cancelled run time for its cleanup when the program ends."""
        if self.flow.writing and self.flow.job is not None:
            self.flow.job.cancel()
            self.flow.job.wait(_CLEANUP_TIMEOUT)


def _problem_rows(problem: StantoolsError) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for number, line in enumerate(problem.message.split("\n")):
        rows.append([("✗ " if not number else "  ", "bad"), (line, "bad")])
    if problem.remedy:
        rows.append([("  → ", "accent"), problem.remedy])
    return rows


def _preview_rows(preview: PlanPreview, width: int) -> list[list[Cell]]:
    rows = _account_rows(preview.report, width)
    for each in preview.obstacles[:_OBSTACLES]:
        rows += _problem_rows(each)
    if len(preview.obstacles) > _OBSTACLES:
        rows.append([(f"  and {len(preview.obstacles) - _OBSTACLES} more reasons", "bad")])
    if preview.idle:
        rows.append([(preview.idle, "strong")])
    return rows


def _account_rows(report: Report, width: int) -> list[list[Cell]]:
    verdict, role = report.verdict, report.role
    rows: list[list[Cell]] = [[(f"{_SIGNS.get(role, '')}{verdict}", role)]] if verdict else []
    facts: list[Cell] = []
    used = 0
    for label, value in report.facts:
        length = len(label) + 1 + len(text_of(value))
        if facts and used + 3 + length > width:
            rows.append(facts)
            facts, used = [], 0
        if facts:
            facts.append("   ")
            used += 3
        facts += [(f"{label} ", "dim"), value]
        used += length
    return [*rows, facts] if facts else rows
