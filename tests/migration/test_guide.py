"""What the migration guides shows is so: the plan, the overrides, and the programs that go on after a migration."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.plan.overrides import read_overrides
from stantools.store.sample import SampleOptions, write_sample
from tests.migration.leaving import Rehearsal
from tests.migration.test_migrate import run

GUIDE = Path(__file__).parents[2] / "docs" / "migration-guide.md"
WITHOUT_DOWNTIME = GUIDE.with_name("without-downtime.md")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_sample(tmp_path / "store", SampleOptions(channels=1))
    return tmp_path


def test_the_plan_is_a_real_one(place: Path) -> None:
    run(place, "migrate", "plan", "store", "--out", "backups")
    plan = iter((place / f"{place.name}-store.migration.yaml").read_text("utf-8").splitlines())
    shown = next(block for block in blocks("yaml") if block.startswith("- stream: "))
    for line in shown.splitlines():
        assert line in plan, line  # in this order


def test_the_overrides_are_understood(place: Path) -> None:
    (shown,) = (block for block in blocks("yaml") if block.startswith("channels:"))
    file = place / "overrides.yaml"
    file.write_text(shown)
    overrides = {override.pattern: override for override in read_overrides(file)}
    assert overrides["audit.>"].skip
    assert overrides["orders.*"].stream == "ORDERS"
    assert overrides[">"].settings == {"max_age": 8760 * 3600 * 10**9, "num_replicas": 3}


@pytest.mark.slow
def test_the_programs_go_on_after_a_migration(place: Path, start_server: Callable[..., Any]) -> None:
    pulling, pushing = start_server(), start_server()
    run(place, "migrate", "store", "--server", pulling.url, "--yes")
    run(place, "migrate", "store", "--server", pushing.url, "--consumers", "push", "--plan", "push.yaml", "--yes")
    publish, pull, push = (block.replace("sleep(5)", "sleep(1)") for block in blocks("python"))
    assert program(publish, pulling.url) == ["orders 101"]
    # Three were pending, the fourth has just been published.
    assert [line.split()[0] for line in program(pull, pulling.url)] == ["98", "99", "100", "101"]
    taken = [int(line.split()[0]) for line in program(push, pushing.url)]
    assert taken == list(range(48, 101))


def test_the_minute_of_the_guides(tmp_path: Path, golden_clusters: Path, start_server: Callable[..., Any]) -> None:
    """The commands that the guides begin with, in order: of one store, then of the nodes of a cluster."""
    place, url = tmp_path / "shop", start_server().url
    place.mkdir()
    write_sample(place / "STORE", SampleOptions(channels=1))
    nodes = " ".join(str(golden_clusters / "snapshots" / "nodes" / name) for name in "abc")
    for page in (GUIDE, GUIDE.with_name("clusters.md")):
        shown = page.read_text("utf-8").partition("In one minute")[2].partition("\n\n    ")[2].partition("\n\n")[0]
        for line in (line.partition(" #")[0].strip() for line in shown.splitlines()):
            _, verb, stage, *_ = line.split()
            if verb in ("verify", "migrate"):  # the others change nothing on a server
                command = line.replace("nats://HOST:4222", url).replace("NODE NODE NODE", nodes)
                words = command.replace("FOLDER-", "shop-").split()[1:]
                words += [] if verb == "verify" or stage in ("plan", "verify") else ["--yes"]
                words += ["--stream-prefix", "of-", "--subject-prefix", "of"] if "NODE" in line else []
                run(place, *words)
    assert len(list(place.glob("*.journal"))) == 2


async def test_the_rehearsal_without_downtime(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    server = start_server()
    section = WITHOUT_DOWNTIME.read_text("utf-8").split("## Steps\n")[1].split("\n## ")[0]
    commands = re.findall(r"^ +(stantools migrate STORE .*)$", section, re.MULTILINE)
    (follow, cutover) = (command.split()[3:] for command in commands)
    (tmp_path / "overrides.yaml").write_text("channels:\n  '>':\n    max_msgs: 1000000\n")
    rehearsal = Rehearsal(tmp_path, server, 0)

    def words(shown: list[str]) -> list[str]:
        return [server.url if word == "nats://HOST:4222" else word for word in shown]

    rehearsal.migration.words = [str(rehearsal.streaming.folder / "store"), "--yes", "--progress", "none"]
    result = await rehearsal.run((), words(follow), words(cutover))
    (line,) = (line for line in result.splitlines() if "nothing was served for" in line)
    shown = re.search(r"^ +cutover: \d+ messages carried.*$", section, re.MULTILINE)
    assert shown
    # On a busy machine nothing may come between the last load and the end.
    number, delay = re.compile(r"\d+(\.\d+)?"), ", each about N s after it was stored"
    said, expected = (number.sub("N", each.strip()).replace("N messages", "N message") for each in (line, shown[0]))
    assert delay in expected
    assert said.replace(delay, "").startswith(expected.replace(delay, "").removesuffix("…"))


def program(text: str, url: str) -> list[str]:
    assert "nats://localhost:4222" in text
    text = text.replace("nats://localhost:4222", url)
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()
