"""The handout for the teams: every durable and channel is in it, and its programs read what the consumers hold."""

from __future__ import annotations

import csv
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.migration.code_samples import LANGUAGES, publisher_samples, reader_samples
from stantools.migration.handout import handout, samples_of
from stantools.migration.plan.migration_plan import ConsumerKind, MigrationPlan
from stantools.migration.plan.planfile import read_plan
from stantools.store.sample import SampleOptions, write_sample
from tests import clients, servers
from tests.htmlpages import Tags
from tests.migration.test_migrate import run

WAIT = 60


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not servers.binary(servers.NEWEST).exists():
        pytest.skip(f"nats-server {servers.NEWEST} is not here")
    with servers.NatsServer(tmp_path_factory.mktemp("server"), servers.NEWEST) as server:
        yield server.url


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, url: str) -> Path:
    """A directory in which a store was migrated, with the plan `pull.yaml`, and again with push consumers."""
    place = tmp_path_factory.mktemp("handout")
    write_sample(place / "store", SampleOptions(channels=2, messages=40, size=20, seed=3))
    for kind in ("pull", "push"):
        words = ("--server", url, "--plan", f"{kind}.yaml", "--yes", "--consumers", kind)
        run(place, "migrate", "store", *words, "--stream-prefix", f"{kind}-", "--subject-prefix", kind)
    return place


@pytest.fixture
def plan(place: Path) -> MigrationPlan:
    return read_plan(place / "pull.yaml")


def test_table_and_page(place: Path, plan: MigrationPlan) -> None:
    run(place, "migrate", "handout", "pull.yaml")
    with (place / "pull.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    durables = {(row["client"], row["durable"], row["queue_group"], row["channel"]) for row in rows if row["consumer"]}
    planned = [(c.client, c.durable, c.group, c.channel) for stream in plan.streams for c in stream.consumers]
    assert durables == set(planned)
    assert len(durables) == len(planned) > 2
    assert {row["channel"]: row["subject"] for row in rows if row["kind"] == "publish"} == {
        part.channel: part.subject for stream in plan.streams for part in stream.parts
    }
    page = Tags.of((place / "pull.html").read_text())
    assert page.alone
    assert page.seen["pre"] == len(LANGUAGES) * (len(planned) + 1)
    again = run(place, "migrate", "handout", "pull.yaml", expect=3).stderr
    assert "--overwrite" in again


def lines_of(command: list[str], place: Path, count: int) -> list[str]:
    """The first lines that a program prints, which may run on; all of them, if it ends."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    said, deadline = b"", time.monotonic() + WAIT
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while said.count(b"\n") < count and ready.select(deadline - time.monotonic()):
                if not (part := os.read(process.stdout.fileno(), 1 << 16)):
                    raise AssertionError(process.stderr.read())
                said += part
    finally:
        process.kill()
        process.communicate()
    return said.decode().splitlines()[:count]


def played(language: str, code: str, place: Path, count: int) -> list[str]:
    """The first lines of a program in Python or for Node."""
    file = place / f"program.{language}"
    file.write_text(code)
    if language == "py":
        return lines_of([sys.executable, str(file)], place, count)
    modules = clients.node_modules()
    if modules is None:
        pytest.skip("nats.js is not here (python tests/clients.py fetches it)")
    if not (place / "node_modules").exists():
        (place / "node_modules").symlink_to(modules)
    return lines_of([str(shutil.which("node")), str(file)], place, count)


@pytest.mark.parametrize(("language", "durable"), [("py", "billing"), ("mjs", "reports")])
def test_programs_read_what_is_pending_first(language: str, durable: str, place: Path, plan: MigrationPlan) -> None:
    """The pending messages of a durable come first, then the next ones."""
    stream, consumer = next(
        (stream, c) for stream in plan.streams for c in stream.consumers if c.durable == durable and not c.group
    )
    row = next(each for each in handout(plan) if (each.consumer, each.channel) == (consumer.name, consumer.channel))
    wanted = [*consumer.position.pending, *range(consumer.position.delivered + 1, stream.last + 1)]
    assert wanted
    seen = played(language, samples_of(plan, row)[language], place, len(wanted))
    assert len(seen) == len(wanted)


@pytest.mark.parametrize("language", ["py", "mjs"])
def test_programs_publish(language: str, url: str, place: Path, plan: MigrationPlan) -> None:
    stream = plan.streams[-1]
    code = publisher_samples(url, stream.parts[0].subject)[language]
    ((name, sequence),) = [line.split() for line in played(language, code, place, 1)]
    assert name == stream.name
    assert int(sequence) > stream.last


def test_a_push_consumer_is_read_in_python(url: str, place: Path) -> None:
    plan = read_plan(place / "push.yaml")
    for stream in plan.streams:
        for consumer in stream.consumers:
            if consumer.kind is ConsumerKind.PUSH and not consumer.group and consumer.position.pending:
                code = reader_samples(url, stream.name, consumer.name, consumer.kind)["py"]
                assert played("py", code, place, len(consumer.position.pending))
                return
    raise AssertionError("no push consumer has messages")


def test_names_are_literals_of_every_language() -> None:
    hostile = 'a"b\\c${d}'
    for language, code in reader_samples("nats://h", hostile, "c", ConsumerKind.PULL).items():
        assert '"a\\"b\\\\c${d}"' in code, language


#: Names that a program must import, by language: the import, and what needs it.
_IMPORTS = {
    "go": {'"github.com/nats-io/nats.go"': "nats.", '"github.com/nats-io/nats.go/jetstream"': "jetstream.",
           '"context"': "context.", '"fmt"': "fmt.", '"log"': "log."},
    "java": {"io.nats.client.*": "Connection", "io.nats.client.api.PublishAck": "PublishAck"},
    "cs": {"NATS.Net": "NatsClient", "NATS.Client.JetStream": "EnsureSuccess", "System.Text": "Encoding"},
}  # fmt: skip


def test_programs_that_no_test_compiles_are_whole() -> None:
    either: list[bool] = [True, False]
    for language in _IMPORTS:
        for publishes in either:
            reader = reader_samples("nats://h", "s", "c", ConsumerKind.PULL)
            code = (publisher_samples("nats://h", "orders") if publishes else reader)[language]
            assert '"nats://h"' in code and code.count("{") == code.count("}") and code.count("(") == code.count(")"), (
                language,
                publishes,
            )
            head = [line.strip(" ;\t").removeprefix("import ").removeprefix("using ") for line in code.splitlines()]
            for name, use in _IMPORTS[language].items():
                body = "\n".join(line for line in head if line != name)
                assert (name in head) == (use in body.replace('nats.go"', "").replace("nats.go/jetstream", "")), (
                    name,
                    code,
                )
