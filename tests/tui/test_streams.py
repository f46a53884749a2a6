"""JetStream directories in the browser: streams are its channels, consumers its subscriptions, blocks its slices."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import ExitCode
from stantools.sources.door import open_source
from stantools.streamfiles.survey import StreamSurvey
from tests.servers import NatsServer
from tests.tui.conftest import LARGE, check_sizes, notices, until
from tui.jobs import Job
from tui.opening import open_session
from tui.plans.wizard import WIZARDS, SourceStore
from tui.screens.record import RecordScreen
from tui.session import ScanStage
from tui.views import View, ViewTarget

Browse = Any


@pytest.fixture
def directory(golden_jetstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Copies a golden directory, so that its path on the screen is short."""

    def copied(case: str) -> Path:
        shutil.copytree(golden_jetstream / case / "store" / "jetstream", tmp_path / "jetstream")
        monkeypatch.chdir(tmp_path)
        return Path("jetstream")

    return copied


@pytest.mark.parametrize("case", ["dmg_flip_payload_idx", "ok_consumers15"])
async def test_overview(case: str, directory: Any, browse: Browse) -> None:
    async with browse(directory(case), of_any_kind=True) as pilot:
        await check_sizes(pilot, f"streams-{case}", layout=True)


async def test_messages(directory: Any, browse: Browse) -> None:
    """Every intact message has a row with its subject; what is damaged and deleted is told between them."""
    place = directory("dmg_flip_payload_idx")
    async with browse(place, of_any_kind=True, size=LARGE) as pilot:
        pilot.app.open_view(View.MESSAGES, ViewTarget(channel="ORDERS"))
        await pilot.pause()
        table = pilot.app.screen.table
        await until(pilot, lambda: table.window is not None and table.window.exact)
        rows = table.window.rows(0, len(table.window))
        stream = open_source(place).stream("ORDERS")
        shown = [row.sequence for row in rows if hasattr(row, "data")]
        assert shown == [number for pair in StreamSurvey(stream).intact for number in range(pair[0], pair[1] + 1)]
        await check_sizes(pilot, "streams-messages", layout=True)
        subject = next(row.subject for row in rows if hasattr(row, "data")).decode()
        await pilot.press("slash", *subject.rpartition(".")[2], "enter")
        await until(pilot, lambda: not pilot.app.screen._search.running)
        await pilot.press("bracketright", "x")
        assert pilot.app.screen.NAME in ("slices", "records")


async def test_blocks_and_records(directory: Any, browse: Browse) -> None:
    async with browse(directory("dmg_flip_payload_idx"), of_any_kind=True) as pilot:
        pilot.app.open_view(View.SLICES, ViewTarget(channel="ORDERS"))
        await pilot.pause()
        await check_sizes(pilot, "streams-blocks")
        await pilot.press("n", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, RecordScreen) and pilot.app.screen.row is not None)
        await pilot.press("n")
        await check_sizes(pilot, "streams-records", layout=True)


async def test_consumers(directory: Any, browse: Browse) -> None:
    async with browse(directory("ok_consumers15"), of_any_kind=True) as pilot:
        await pilot.press("5")
        await pilot.pause()
        await check_sizes(pilot, "streams-consumers", layout=True)
        await pilot.press("enter")
        assert "present state" in notices(pilot.app)
        await pilot.press("m")
        assert pilot.app.screen.NAME == "messages"


async def test_findings(directory: Any, browse: Browse) -> None:
    async with browse(directory("dmg_flip_payload_idx"), of_any_kind=True) as pilot:
        await pilot.press("6")
        await pilot.pause()
        await check_sizes(pilot, "streams-findings")
        await pilot.press("down", "enter")
        await pilot.pause()
        assert pilot.app.screen.NAME in ("slices", "records", "messages")


async def test_timeline(directory: Any, browse: Browse) -> None:
    async with browse(directory("ok_deletes15"), of_any_kind=True) as pilot:
        pilot.app.open_view(View.TIMELINE, ViewTarget(channel="ORDERS"))
        screen = pilot.app.screen
        await until(pilot, lambda: screen._timeline is not None)
        stream = open_source(Path("jetstream")).stream("ORDERS")
        assert screen._timeline.count == StreamSurvey(stream).intact.count()


async def test_salvage(directory: Any, browse: Browse, steady_disk: None) -> None:
    """The plan of a salvage is that of the command line, and its result can be opened."""
    async with browse(directory("dmg_flip_payload_idx"), of_any_kind=True) as pilot:
        await pilot.press("p")
        await until(pilot, lambda: type(pilot.app.screen).__name__ == "WizardScreen")
        flow = pilot.app.screen.flow
        assert flow.wizard.command() == ["stantools", "salvage", "jetstream", "--out", "jetstream.salvaged"]
        flow.wizard.preview(Job("look", lambda _: None))
        outcome = flow.wizard.run(Job("run", lambda _: None))
        assert outcome.report.code is ExitCode.LOSS and outcome.opens is not None
        pilot.app.open_store(outcome.opens)
        await until(pilot, lambda: pilot.app.session.stage is ScanStage.COMPLETE)
        assert {name: each.intact for name, each in pilot.app.session.channels.items()} == {"EVENTS": 12, "ORDERS": 122}
        assert not pilot.app.session.totals.severities.get("error")


def test_export_and_migrate(directory: Any, steady_disk: None) -> None:
    """The plans of the other verbs: all intact messages as a table, and the streams in a server, proven."""
    session = open_session(directory("ok_consumers15"))
    assert session.source is not None
    intact = StreamSurvey(session.source.stream("ORDERS")).intact.count()
    source = SourceStore(session.path, session.read_options, source=session.source)
    wizards = {each.verb: each.make(source) for each in WIZARDS if each.verb in session.VERBS}
    assert list(wizards) == ["salvage", "export", "migrate"]
    export = wizards["export"]
    export.form.fields["to"].value = "messages.ndjson"
    export.preview(Job("look", lambda _: None))
    assert export.run(Job("run", lambda _: None)).report.code is ExitCode.CLEAN
    assert len(Path("messages.ndjson").read_text().splitlines()) == intact
    with NatsServer(Path("server").absolute()) as server:
        migrate = wizards["migrate"]
        migrate.form.fields["server"].value = server.url
        migrate.preview(Job("look", lambda _: None))
        assert f"{intact} messages" in migrate.question()
        assert migrate.run(Job("run", lambda _: None)).report.code is ExitCode.CLEAN
    assert server.url in migrate.command()


def test_a_restore_with_loss_needs_consent_and_says_so(directory: Any, steady_disk: None) -> None:
    session = open_session(directory("dmg_two_flips"))
    source = SourceStore(session.path, session.read_options, source=session.source)
    migrate = next(each for each in WIZARDS if each.verb == "migrate").make(source)
    with NatsServer(Path("server").absolute()) as server:
        migrate.form.fields["server"].value = server.url
        refused = migrate.preview(Job("look", lambda _: None)).obstacles
        assert [each.message for each in refused] == ["not everything can be salvaged"]
        migrate.form.fields["accept-loss"].value = "yes"
        assert not migrate.preview(Job("look", lambda _: None)).obstacles
        assert migrate.run(Job("run", lambda _: None)).report.code is ExitCode.LOSS
