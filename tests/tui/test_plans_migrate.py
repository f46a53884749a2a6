"""The wizard of migrate: to a real server, to backups, to a store directory; stopped and gone on with; proven after."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import ExitCode, StantoolsError
from stantools.migration.workflow import default_plan_file
from stantools.nats.connect_options import ConnectOptions
from stantools.store.read_options import ReadOptions
from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import others_slow
from tests.servers import free_port
from tests.tui import wizards
from tests.tui.conftest import check_sizes, screen_text, until
from tui.jobs import Job, JobState
from tui.plans.flow import WizardStep
from tui.plans.form import FieldError
from tui.plans.migrate import MigrateWizard
from tui.plans.wizard import PlanOutcome


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steady_disk: None) -> None:
    """Plans lie in a directory of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    write_sample(tmp_path / "shop" / "store", SampleOptions(channels=3, messages=300, size=60, seed=5, gaps=True))
    return Path("shop/store")


@pytest.fixture
def big_store(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    write_sample(tmp_path / "shop" / "store", SampleOptions(channels=3, messages=8_000, size=100, seed=6, gaps=True))
    return Path("shop/store")


def proven(server: str | None = None) -> None:
    """The command line finds every message and consumer where the wizard put it."""
    words = ["migrate", "verify", "shop-store.migration.yaml", *(["--server", server] if server else [])]
    told = wizards.command_line(*words)
    assert told.exit_code == 0, (told.stdout, told.stderr)


@pytest.mark.parametrize("target", ["server", "out", "jetstream-store"])
def test_moved_and_proven(target: str, store: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    before = wizards.snapshot(store)
    server = start_server() if target == "server" else None
    place = server.url if server else str(tmp_path / "there")
    if target == "jetstream-store":
        Path(place).mkdir()
    wizard = MigrateWizard(wizards.source(store))
    wizards.fill(wizard, out="")
    wizards.fill(wizard, **{target: place})
    preview = wizards.look(wizard)
    assert not preview.obstacles
    assert not Path("shop-store.migration.yaml").exists()
    assert len(preview.report.tables[-1].rows) == 3
    outcome = wizards.run(wizard)
    assert outcome.report.code == ExitCode.CLEAN
    assert "compared one by one" in outcome.report.verdict
    assert outcome.next_command.split()[-2:] == ["verify", "shop-store.migration.yaml"]
    proven(server.url if server else None)
    assert wizards.snapshot(store) == before
    # Again: everything is recognised, nothing is done twice.
    wizards.look(wizard)
    again = wizards.run(wizard)
    assert again.report.code == ExitCode.CLEAN
    assert {row[1] for row in again.report.tables[-1].rows} == {"complete before"}


def test_the_server_that_the_browser_was_given(store: Path, start_server: Callable[..., Any]) -> None:
    server = start_server(config={"authorization": {"user": "me", "password": "secret"}})
    connecting = ConnectOptions(servers=(server.url,), user="me", password="secret").checked()
    wizard = MigrateWizard(wizards.source(store, connect_options=connecting))
    assert wizard.form.text("server") == server.url and not wizard.form.text("out")
    assert not wizards.look(wizard).obstacles
    assert wizards.run(wizard).report.code == ExitCode.CLEAN
    words = wizard.command()
    assert words[words.index("--server") + 1] == server.url
    assert words[words.index("--user") + 1] == "me"
    assert not any("secret" in word for word in words)
    # A login that is typed is used, and not told.
    wizards.fill(wizard, server=server.url.replace("nats://", "nats://me:secret@"))
    wizard.source = replace(wizard.source, connect_options=None)
    wizards.look(wizard)
    assert not any("secret" in word for word in wizard.command())


WAYS = ("restore-loading", "restore-comparing", "publish-loading", "publish-comparing")


@pytest.mark.parametrize("at", others_slow(WAYS, WAYS[:3]))
def test_cancelled_on_a_server(at: str, big_store: Path, start_server: Callable[..., Any]) -> None:
    way, phase = at.split("-")
    server = start_server()
    before = wizards.snapshot(big_store)
    wizard = wizards.fill(MigrateWizard(wizards.source(big_store)), out="", server=server.url, via=way)
    assert not wizards.look(wizard).obstacles
    steps = 0
    noticed = threading.Event()

    class Stopped(Job[PlanOutcome]):
        def advance(self, count: int) -> None:
            nonlocal steps
            if self.phase.startswith(phase):
                steps += 1
                self.cancel()
                noticed.wait(1)  # a fast migration would be done before the job looks again
            super().advance(count)

        def check(self) -> None:
            if self.cancelling:
                noticed.set()
            super().check()

    job: Job[PlanOutcome] = Stopped("run", wizard.run)
    assert job.start().wait(100)
    assert steps
    assert job.problem is None, job.problem
    assert job.state is JobState.CANCELLED
    assert wizards.snapshot(big_store) == before
    # The same again goes on, and ends with everything proven.
    assert not wizards.look(wizard).obstacles
    outcome = wizards.run(wizard)
    assert outcome.report.code == ExitCode.CLEAN, outcome
    proven(server.url)


@pytest.mark.parametrize("target", ["out", "jetstream-store"])
def test_cancelled_while_files_are_written(target: str, big_store: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    if target == "jetstream-store":
        there.mkdir()
    wizard = wizards.fill(wizards.fill(MigrateWizard(wizards.source(big_store)), out=""), **{target: str(there)})
    assert not wizards.look(wizard).obstacles
    job = wizards.cancelled_midway(wizard, after=1)
    assert job.state is JobState.CANCELLED
    assert not [path for path in there.rglob("*") if path.is_file() and "partial" in str(path)]
    assert not wizards.look(wizard).obstacles
    assert wizards.run(wizard).report.code == ExitCode.CLEAN
    proven()


def test_cancelled_while_a_server_is_silent(store: Path) -> None:
    """Nobody answers, and the wait is ended all the same."""
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"nats://127.0.0.1:{deaf.getsockname()[1]}"
        connecting = ConnectOptions(servers=(url,), timeout=80).checked()
        wizard = MigrateWizard(wizards.source(store, connect_options=connecting))
        job = Job("look", wizard.preview)
        job.start()
        accepted, _ = deaf.accept()
        threading.Timer(0.2, job.cancel).start()
        assert job.wait(40)
        accepted.close()
    assert job.state is JobState.CANCELLED


def test_obstacles(golden_copy: Callable[[str], Path], store: Path, start_server: Callable[..., Any]) -> None:
    damaged = golden_copy("dmg_payload_flip_noidx")
    wizard = wizards.fill(MigrateWizard(wizards.source(damaged)), out="there")
    preview = wizards.look(wizard)
    assert any("1 message is missing in the store" in each.message for each in preview.obstacles)
    assert any(each.word == "missing" for listed in preview.report.remarks for each in listed.remarks)
    wizards.fill(wizard, accept_loss="yes")
    assert not wizards.look(wizard).obstacles
    assert wizards.run(wizard).report.code == ExitCode.LOSS
    # Another plan is in the way of the file.
    other = wizards.fill(MigrateWizard(wizards.source(store)), out="there", plan=str(default_plan_file(damaged)))
    assert any("is a different plan" in each.message for each in wizards.look(other).obstacles)
    # A stream that is there and is not the same.
    server = start_server()
    first = wizards.fill(MigrateWizard(wizards.source(store)), out="", server=server.url, channel=">")
    wizards.look(first)
    wizards.run(first)
    write_sample(store.with_name("two"), SampleOptions(channels=3, messages=10, seed=9))
    second = wizards.fill(MigrateWizard(wizards.source(store.with_name("two"))), out="", server=server.url)
    assert wizards.look(second).obstacles
    assert not wizards.look(wizards.fill(second, replace="yes")).obstacles
    assert wizards.run(second).report.code == ExitCode.CLEAN


def test_a_server_that_is_not_there(store: Path) -> None:
    wizard = wizards.fill(MigrateWizard(wizards.source(store)), out="", server=f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(StantoolsError):
        wizards.look(wizard)


def test_encrypted_without_a_key(golden_copy: Callable[[str], Path], golden: Path) -> None:
    root = golden_copy("encrypted_aes")
    wizard = wizards.fill(MigrateWizard(wizards.source(root)), out="there")
    sealed = wizards.look(wizard).obstacles
    assert any("may be encrypted" in each.message for each in sealed)
    assert not wizards.look(wizards.fill(wizard, keep_encrypted="yes")).obstacles
    wrong = wizards.source(root, read_options=ReadOptions(encryption_key=b"not this one"))
    with pytest.raises(StantoolsError):
        wizards.look(wizards.fill(MigrateWizard(wrong), out="there"))


def test_fields_that_make_no_sense(store: Path) -> None:
    def wizard(**values: str) -> MigrateWizard:
        made = MigrateWizard(wizards.source(store))
        wizards.fill(made, **values)
        return made

    for name, values in (
        ("server", {"out": ""}),
        ("server", {"server": "nats://x"}),
        ("out", {"jetstream_store": "there"}),
        ("server", {"out": "", "server": "gopher://x"}),
        ("map", {"map": "nothing"}),
        ("replace", {"replace": "yes", "append_missing": "yes"}),
        ("max-age", {"max_age": "old"}),
        ("plan", {"plan": ""}),
    ):
        with pytest.raises(FieldError) as told:
            wizards.look(wizard(**values))
        assert told.value.name == name
    with pytest.raises(StantoolsError):
        wizards.look(wizard(stream_prefix="a.b c"))


async def test_on_the_screen(
    golden_copy: Callable[[str], Path],
    browse: Callable[..., Any],
    start_server: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    golden_copy("durables").rename("store")
    server = start_server()
    port = f"127.0.0.1:{server.port}"

    async with browse("store", connect_options=ConnectOptions(servers=(server.url,)).checked()) as pilot:
        app = pilot.app
        await wizards.open_wizard(pilot, "migrate")
        await until(pilot, lambda: app.focused is not None)
        await pilot.press("down")
        assert app.focused.value == server.url
        await pilot.press("enter")
        await wizards.step(pilot, WizardStep.PREVIEW)
        await check_sizes(
            pilot, "plans-migrate-preview", layout=True, masks={port: "127.0.0.1:4222", server.version: "2.x.y"}
        )
        await wizards.confirm(pilot)
        await wizards.step(pilot, WizardStep.RESULT)
        assert "2 streams are as planned" in screen_text(app)
        assert any(line.startswith("stantools migrate store --to jetstream") for line in app.commands)
        await pilot.press("y")
    await asyncio.to_thread(proven)
