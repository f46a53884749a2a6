"""What all wizards have: forms, the way through, the pace of the work; and the choice between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.cli.main import cli
from stantools.errors import RefusedError, StantoolsError
from stantools.inspection.report import RemarkList, Report, ReportRemark, ReportSection, ReportTable, columns
from stantools.store.sample import SampleOptions, write_sample
from tests.tui import wizards
from tests.tui.conftest import check_sizes, screen_text, until
from tui.jobs import Job, JobState
from tui.plans.account import MANY, AccountRows
from tui.plans.flow import PhaseProgress, WizardFlow, WizardStep
from tui.plans.form import FLAG, NO, YES, FieldError, FormField, OptionForm, optional, path, whole_number
from tui.plans.wizard import WIZARDS, PlanOutcome, PlanPreview, SourceStore, Wizard
from tui.screens.wizard import WizardScreen
from tui.views import View
from tui.widgets.form import FormView


class Quiet(Wizard[str]):
    """Does nothing, and can be determined to fail."""

    VERB = "salvage"

    def __init__(self) -> None:
        super().__init__(SourceStore(Path("/somewhere/store")), FormField("out", "where", "new", parse=path))
        self.obstacles: list[StantoolsError] = []
        self.idle = ""
        self.problem: StantoolsError | None = None
        self.ran = False

    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> str:
        if self.problem:
            raise self.problem
        preview.obstacles, preview.idle = self.obstacles, self.idle
        return "plan"

    def question(self) -> str:
        return "Really?"

    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        self.ran = True
        if self.problem:
            raise self.problem
        return PlanOutcome(Report(verdict="done"))


class TestForm:
    def test_words_are_those_of_the_command_line(self) -> None:
        form = OptionForm(
            FormField("out", "where", "a b"),
            FormField("channel", "which", "a.*  b.>", many=True),
            FormField("force", "insist", NO, NO, FLAG),
            FormField("mode", "how", "one", "one", ("one", "two")),
            FormField("empty", "nothing"),
        )
        assert form.words() == ["--out", "a b", "--channel", "a.*", "--channel", "b.>"]
        form.fields["force"].value, form.fields["mode"].value = YES, "two"
        assert form.words(without={"out", "channel"}) == ["--force", "--mode", "two"]

    def test_what_makes_no_sense_names_the_field(self) -> None:
        form = OptionForm(FormField("max-msgs", "a number", "many", parse=optional(whole_number)))
        with pytest.raises(FieldError, match="--max-msgs: 'many' is not a number") as told:
            form.value("max-msgs")
        assert told.value.name == "max-msgs"
        form.fields["max-msgs"].value = " "
        assert form.value("max-msgs") is None
        with pytest.raises(FieldError, match="give one"):
            form.needed("max-msgs", "give one")

    @pytest.mark.parametrize("verb", [each.verb for each in WIZARDS])
    def test_fields_are_options_of_the_verb(self, verb: str, tmp_path: Path) -> None:
        store = tmp_path / "store"
        write_sample(store, SampleOptions(channels=1, messages=3))
        command = cli.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        if verb == "migrate":
            command = command.commands["run"]  # type: ignore[attr-defined]
        options = {name: each for each in command.params for name in each.opts}
        chosen = next(each for each in WIZARDS if each.verb == verb)
        assert chosen is not None
        for field in chosen.make(wizards.source(store)).form:
            option = options[f"--{field.name}"]
            assert option.is_flag == field.is_flag, field.name  # type: ignore[attr-defined]
            assert option.multiple == field.many or field.name == "server", field.name  # type: ignore[attr-defined]
            if field.choices and not field.is_flag and field.name != "replicas":
                choices = list(option.type.choices)  # type: ignore[attr-defined]
                if field.name == "server-version":  # a plan for a file store offers no version of nats-server
                    choices = [each for each in choices if each.startswith("0.")]
                assert [each for each in field.choices if each] == choices, field.name
            elif field.default and not field.is_flag and field.name not in ("backup", "plan"):
                assert str(option.default) == field.default, field.name


class TestFlow:
    def wizard(self) -> tuple[Quiet, WizardFlow]:
        wizard = Quiet()
        return wizard, WizardFlow(wizard)

    def look(self, flow: WizardFlow) -> None:
        job = flow.look()
        job.start().wait(10)
        flow.looked(job)

    def test_whole_way(self) -> None:
        wizard, flow = self.wizard()
        assert flow.step is WizardStep.CHOOSE
        self.look(flow)
        assert flow.step is WizardStep.PREVIEW and flow.confirm() and flow.step is WizardStep.CONFIRM
        assert "press W" in flow.answer("store", unlocked=False)
        assert "exactly: store" in flow.answer("Store", unlocked=True)
        assert "store" in flow.answer("", unlocked=True)
        for text, unlocked in (("store", False), ("stor", True), ("store ", True), ("", True)):
            with pytest.raises(RuntimeError):
                flow.run(text, unlocked=unlocked)
        assert not wizard.ran
        job = flow.run("store", unlocked=True)
        assert flow.writing
        job.start().wait(10)
        flow.ran(job)
        assert flow.step is WizardStep.RESULT and flow.outcome is not None and not flow.writing
        assert not flow.back()

    def test_a_run_needs_every_step(self) -> None:
        wizard, flow = self.wizard()
        assert not flow.confirm()
        with pytest.raises(RuntimeError):
            flow.run("store", unlocked=True)
        wizard.obstacles = [RefusedError("in use")]
        self.look(flow)
        assert not flow.confirm() and flow.obstacle() == "in use"
        wizard.obstacles, wizard.idle = [], "nothing to do"
        self.look(flow)
        assert not flow.confirm() and flow.obstacle() == "nothing to do"
        with pytest.raises(RuntimeError):
            flow.run("store", unlocked=True)

    def test_failures(self) -> None:
        wizard, flow = self.wizard()
        wizard.problem = StantoolsError("broken")
        self.look(flow)
        assert flow.step is WizardStep.PREVIEW and flow.problem is wizard.problem and not flow.confirm()
        assert flow.back() and flow.step is WizardStep.CHOOSE and flow.problem is None
        wizard.problem = None
        self.look(flow)
        flow.confirm()
        assert flow.back() and flow.step is WizardStep.PREVIEW
        flow.confirm()
        wizard.problem = StantoolsError("full")
        job = flow.run("store", unlocked=True)
        job.start().wait(10)
        flow.ran(job)
        assert flow.step is WizardStep.RESULT and flow.problem is wizard.problem
        assert flow.back() and flow.step is WizardStep.CHOOSE

    def test_an_old_job_does_not_count(self) -> None:
        _, flow = self.wizard()
        old = flow.look()
        self.look(flow)
        flow.confirm()
        old.start().wait(10)
        flow.looked(old)
        assert flow.step is WizardStep.CONFIRM


class TestPace:
    def test_line(self) -> None:
        now = 100.0
        job: Job[None] = Job("salvage", lambda _: None)
        pace = PhaseProgress(job, "bytes", lambda: now)
        assert pace.line(10) == [("salvage", "strong"), "  ", "…"]
        job.begin_phase("writing", 4 << 20)
        pace.line(10)
        now += 0.5
        job.done = 1 << 20
        assert [str(cell[0]) if isinstance(cell, tuple) else cell for cell in pace.line(4)] == [
            "writing", "  ", "█   ", "  25%",
        ]  # fmt: skip
        now += 1.5
        text = "".join(cell[0] if isinstance(cell, tuple) else cell for cell in pace.line(4))
        assert text == "writing  █     25%  512.0 KiB/s  0:06 left"
        job.begin_phase("verifying", 0)
        assert pace.line(4) == [("verifying", "strong"), "  ", "…"]

    def test_messages(self) -> None:
        now = 0.0
        job: Job[None] = Job("migrate", lambda _: None)
        pace = PhaseProgress(job, "messages", lambda: now)
        now, job.done = 2.0, 3000
        text = "".join(cell[0] if isinstance(cell, tuple) else cell for cell in pace.line(4))
        assert text == "migrate  3,000 messages  1.5k messages/s"


class TestAccount:
    def test_no_endless_list(self) -> None:
        report = Report()
        report.list_remarks([ReportRemark("lost", str(number)) for number in range(MANY + 7)], "place")
        rows = AccountRows(report, 40)
        assert len(rows) == MANY + 1
        assert rows.rows(MANY, MANY + 1) == [[("… and 7 more places", "dim")]]

    def test_a_window_of_rows(self) -> None:
        report = Report(tables=[ReportTable(columns("letter", "twice"), [("a", "aa"), ("b", "bb")])])
        report.remark("lost", "one")
        report.remark("left out", "two")
        rows = AccountRows(report, 40)
        assert len(rows) == 5
        assert rows.rows(1, 4) == [["b", "bb"], [("", "")], [("lost: one", "dim")]]
        assert rows.rows(4, 9) == [[("left out: two", "dim")]]

    def test_columns_of_a_table(self) -> None:
        titles = columns("name", "count", "none", "lost", numbers=("count", "lost"), roles={"lost": "bad"})
        rows = [("a\x1b[1m", 1234567, None, 0), ("b" * 99, 2, None, 3)]
        account = AccountRows(Report(tables=[ReportTable(titles, rows, limit=1)]), 80)
        # Empty columns are left out; a column of numbers is as wide as they are, one of text grows.
        assert [(each.title, each.width, each.right, each.grows) for each in account.columns] == [
            ("name", 20, False, True),
            ("count", 9, True, False),
            ("lost", 4, True, False),
        ]
        assert account.rows(0, 2) == [["a\\x1b[1m", "1,234,567", "0"], ["b" * 99, "2", ("3", "bad")]]

    def test_all_tables_are_shown(self) -> None:
        """The biggest has the columns of the screen, the others are lines, those of sections as well."""
        nodes = ReportTable(columns("node", "term", "error"), [("a\x1b", 7, None), ("b", None, "gone")])
        channels = ReportTable(columns("channel"), [("one",), ("two",), ("three",)])
        report = Report(tables=[nodes, channels])
        report.sections.append(ReportSection(tables=[ReportTable(columns("client", "subs"), [("me", 2)])]))
        rows = AccountRows(report, 80)
        shown = [cell if isinstance(cell, str) else cell[0] for row in rows.rows(0, len(rows)) for cell in row]
        assert [each for each in shown if each] == [
            "one",
            "two",
            "three",
            "a\\x1b: term 7",
            "b: error gone",
            "me: subs 2",
        ]

    def test_warnings_come_first(self) -> None:
        report = Report(warnings=[ReportRemark("failed", "two", "bad", "again")])
        report.remark("lost", "three")
        rows = AccountRows(report, 40, [ReportRemark("warning", "one", "warn")])
        texts = [cell[0] for [cell] in rows.rows(0, 9)]
        assert texts == ["warning: one", "failed: two → again", "lost: three"]


@given(st.text())
def test_numbers(text: str) -> None:
    try:
        assert whole_number(text) >= 0
    except ValueError:
        assert not (text.isascii() and text.isdecimal())


@given(st.lists(st.text()), st.integers(1, 200))
def test_remarks_are_lines_that_are_harmless(texts: list[str], width: int) -> None:
    rows = AccountRows(Report(remarks=[RemarkList([ReportRemark("lost", text) for text in texts])]), width)
    lines = rows.rows(0, len(rows))
    assert len(lines) == len(rows) >= len(texts)
    for [cell] in lines:
        text = cell if isinstance(cell, str) else cell[0]
        assert text.isprintable() and len(text) <= max(width, 20)


def test_where_new_things_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    write_sample(store, SampleOptions(channels=1, messages=3))
    assert wizards.source(store).beside(".new") == str(tmp_path / "store.new")
    (tmp_path / "store.new").touch()
    assert wizards.source(store).beside(".new") == str(tmp_path / "store.new-2")
    assert wizards.source(store).beside(".new", new=False) == str(tmp_path / "store.new")
    monkeypatch.chdir(store)
    here = wizards.source(Path())
    assert here.name == "store"
    assert here.beside(".other") == str(tmp_path / "store.other")
    odd = tmp_path / "od\x1b[31md"
    shutil.copytree(store, odd)
    assert wizards.source(odd).beside(".new") == ""
    assert wizards.source(odd).name.isprintable()
    assert NO == "no"


async def test_chooser(golden: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "dmg_payload_flip_noidx")
    monkeypatch.setattr("tui.plans.truncate.default_backup", lambda store: Path(f"{store}.truncated"))
    async with browse("datastore") as pilot:
        app = pilot.app
        await pilot.press("7")
        await until(pilot, lambda: "▸ salvage" in screen_text(app))
        await check_sizes(pilot, "plans", layout=True)
        for number, each in enumerate(WIZARDS):
            await pilot.press("g", *["j"] * number, "enter")
            await until(pilot, lambda: isinstance(app.screen, WizardScreen) and app.focused is not None)
            assert app.screen.flow.wizard.VERB == each.verb  # noqa: SIM300
            await check_sizes(pilot, f"plans-{each.verb}-form", layout=each.verb == "migrate")
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, WizardScreen))
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        app.open_view(View.PLANS)
        await until(pilot, lambda: "▸ salvage" in screen_text(app))


async def test_form_by_keys(golden: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden / "basic")
    async with browse("datastore") as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "migrate")
        await until(pilot, lambda: app.focused is not None)
        # The form opens on its first line, where the keys of the browser work; no field takes them.
        await pilot.press("W")
        assert app.unlocked
        await pilot.press("W")
        assert not app.unlocked
        assert app.screen.flow.wizard.form.text("server") == ""
        await pilot.press("down")
        await until(pilot, lambda: "▸ server" in screen_text(app))
        for _ in range(6):
            await pilot.press("down")
        assert app.focused.field.name == "via"
        await until(pilot, lambda: "▸ via" in screen_text(app) and "▸ server" not in screen_text(app))
        await pilot.press("space")
        assert app.focused.field.value == "publish"
        await until(pilot, lambda: "publish --yes" in screen_text(app))
        await pilot.press("left")
        assert app.focused.field.value == "restore"
        await pilot.press("up")
        assert app.focused.field.name == "channel"
        await wizards.type_text(pilot, "a7q")
        assert app.screen.flow.wizard.form.text("channel") == "a7q"
        # The lines below are reached as well, what is focused is scrolled to.
        names = list(app.screen.flow.wizard.form.fields)
        app.screen.query_one(FormView).focus_field(names[names.index("replace") - 1])
        await pilot.press("down")
        assert app.focused.field.name == "replace"
        assert "replace:" in screen_text(app)
        await pilot.press("space")
        await until(pilot, lambda: "[x]" in screen_text(app))
        await pilot.press("escape")


async def test_plans_without_a_word_from_the_server(tmp_path: Path, browse: Callable[..., Any]) -> None:
    """A store that vanishes is told, not thrown."""
    store = tmp_path / "store"
    write_sample(store, SampleOptions(channels=1, messages=3))

    async with browse(store) as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "compact")
        shutil.rmtree(store)
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        assert app.screen.flow.problem is not None
        assert "Escape goes back" in screen_text(app)
        await pilot.press("enter", "escape")
        await wizards.step(pilot, WizardStep.CHOOSE)


async def test_preview_is_cancelled(
    tmp_path: Path, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tui.plans import salvage

    store = tmp_path / "store"
    write_sample(store, SampleOptions(channels=1, messages=30))
    gate = wizards.Gate()
    monkeypatch.setattr(salvage, "plan_salvage", wizards.gated(salvage.plan_salvage, gate))

    async with browse(store) as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "salvage")
        await pilot.press("enter")
        await until(pilot, gate.reached.is_set)
        job = app.screen.flow.job
        await pilot.press("c")
        await until(pilot, lambda: "cancelling" in screen_text(app))
        gate.open()
        await wizards.step(pilot, WizardStep.CHOOSE)
        assert job.state is JobState.CANCELLED
