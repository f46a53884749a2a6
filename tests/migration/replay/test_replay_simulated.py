"""Replays into streams that have other writers and fail, killed and resumed again and again, in simulated time.

The streams are the model that the broker's publishers are tested with. A seed decides which answers are lost or late,
when connections break, when there is no leader, and when the process is killed, with its state file as old as it was
then. In the end each stream holds every message once, in order.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.replay import jetstream_publisher
from stantools.migration.replay.jetstream_publisher import JetStreamPublisher
from stantools.migration.replay.run import Replay, ReplayOutcome, ReplaySpeed
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.state import ReplayStateFile
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection
from stantools.nats.errors import ConnectionLostError, NatsError
from stantools.nats.frames import Handler
from stantools.nats.jetstream import MESSAGE_NOT_FOUND
from stantools.nats.publishing.publish_run import PublishWindow
from tests.broker.stores.jetstream.loop import run
from tests.broker.stores.jetstream.model import Faults, JetStream, Link, Stream, _matches
from tests.conftest import others_slow
from tests.migration.replay.stores import MS, START, jetstream, messages, planned
from tests.migration.stores import write_store

COUNTS = {"a": 200, "b.c": 120, "b.d": 40}
STREAMS = {"A": ["a"], "B": ["b.>"]}
OTHER = b"of another writer"


class ModelConnection(NatsConnection):
    """A connection to the modelled servers."""

    def __init__(self, servers: JetStream) -> None:
        super().__init__(ConnectOptions(servers=("nats://model:4222",)), "replay")
        self.link = Link(servers)
        self.link.listen(lambda *_: None, lambda: self.on_lost("it broke"))
        self._servers = servers

    @property
    def connected(self) -> bool:
        return self.link.connected

    async def wait_connected(self, timeout: float | None = None) -> None:
        while not self.connected:
            await asyncio.sleep(0.01)

    def subscribe(self, subject: bytes, handler: Handler, queue: bytes = b"") -> int:
        self.link._handlers[subject.removesuffix(b">")] = handler
        return 1

    async def write(self, frames: bytes) -> None:
        if not self.link.send(frames):
            raise ConnectionLostError("the connection broke")

    async def request(self, subject: str, payload: bytes = b"", timeout: float | None = None) -> bytes:
        operation, query = subject.removeprefix("$JS.API.STREAM."), json.loads(payload or b"{}")
        name = operation.rpartition(".")[2]
        await self.link._ask(subject, name)
        stream = self._servers.streams.get(name)
        if operation == "NAMES":
            names = [name for name, subjects in STREAMS.items() if _matches(subjects, query["subject"])]
            return json.dumps({"streams": names, "total": len(names)}).encode()
        assert stream is not None
        return json.dumps(stream.info() if operation == f"INFO.{name}" else _message(stream, query)).encode()


def _message(stream: Stream, query: dict[str, Any]) -> dict[str, Any]:
    subject = query.get("last_by_subj") or query["next_by_subj"]
    there = [number for number, each in stream.messages.items() if each.subject == subject.encode()]
    found = there[-1:] if "last_by_subj" in query else [number for number in there if number >= query["seq"]]
    if not found:
        return {"error": {"code": 404, "err_code": MESSAGE_NOT_FOUND, "description": "no message found"}}
    return {"message": {"seq": found[0], "hdrs": base64.b64encode(stream.messages[found[0]].header).decode()}}


class Forgetful(dict[bytes, int]):
    """The ids in a stream whose duplicate window is short."""

    def __contains__(self, key: object) -> bool:
        return False


class Play:
    def __init__(self, seed: int, plan: ReplayPlan, path: Path, faults: Faults) -> None:
        self.chance = random.Random(seed)
        self.servers = JetStream(self.chance)
        self.plan = plan
        self.path = path
        self.faults = faults
        self.said: list[str] = []
        self.outcomes: list[ReplayOutcome] = []
        self.again = 0
        self.connection: ModelConnection | None = None
        for name, subjects in STREAMS.items():
            config = {"name": name, "subjects": subjects, "max_msgs": -1, "max_msgs_per_subject": -1}
            self.servers.streams[name] = Stream(config)

    async def go(self, others: bool, disturbed: Callable[[], None] = lambda: None) -> None:
        """Replays until all is done; `disturbed` is called whenever the process is killed."""
        self.servers.faults = self.faults
        helpers = [asyncio.ensure_future(self.servers.trouble(self._links))]
        if others:
            helpers.append(asyncio.ensure_future(self._publish_others()))
        for attempt in range(60):
            if attempt == 20:
                self.servers.faults = Faults()
            if await self._run(attempt > 0, disturbed):
                break
            await asyncio.sleep(self.chance.uniform(1, 10))
        else:
            pytest.fail("it never ends")
        for helper in helpers:
            helper.cancel()

    def _links(self) -> list[Link]:
        return [self.connection.link] if self.connection else []

    async def _publish_others(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(4))
            stream, subject = self.chance.choice([("A", b"a"), ("B", b"b.c"), ("B", b"b.x")])
            self.servers.streams[stream].store(subject, b"", OTHER, 0)

    async def _run(self, resumes: bool, disturbed: Callable[[], None]) -> bool:
        self.connection = connection = ModelConnection(self.servers)
        with ReplayStateFile(self.path, {}, resume=resumes) as file:
            publisher = JetStreamPublisher(connection, self.plan, file.state, jetstream())
            pace = ReplaySpeed(None, self.chance.choice([None, 50]))
            replay = Replay(self.plan, publisher, file, pace, say=self.said.append)
            running = asyncio.ensure_future(replay.run())
            await asyncio.wait({running}, timeout=self.chance.expovariate(0.2))
            if not running.done():
                content = self.path.read_bytes()
                connection.link.dead = True
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                # A killed process would not have saved it.
                self.path.write_bytes(content)
                disturbed()
                return False
        self.again += publisher.again
        self.outcomes.append(replay.outcome)
        if (problem := running.exception()) is not None:
            assert isinstance(problem, NatsError) and problem.retriable, problem
        return problem is None and running.result().finished

    def contents(self) -> dict[bytes, list[bytes]]:
        """The payloads on each subject, without those of others."""
        found: dict[bytes, list[bytes]] = {}
        for stream in self.servers.streams.values():
            for _, each in sorted(stream.messages.items()):
                if each.data != OTHER:
                    found.setdefault(each.subject, []).append(each.data)
        return found


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_publisher, "_WINDOW", PublishWindow(messages=40))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ReplayPlan:
    channels = {
        name: messages(count, step=(number + 1) * MS, start=START + number, text=name)
        for number, (name, count) in enumerate(COUNTS.items())
    }
    return planned(write_store(tmp_path_factory.mktemp("replay") / "store", channels))


WANTED = {name.encode(): [f"{name}{n}".encode() for n in range(1, count + 1)] for name, count in COUNTS.items()}


@pytest.mark.parametrize("seed", others_slow(range(8), range(4)))
def test_once_and_in_order(seed: int, plan: ReplayPlan, tmp_path: Path) -> None:
    """No stream recognises an id: what the replay does not find is stored twice."""
    play = Play(seed, plan, tmp_path / "state.json", Faults(silent=0.01, late=0.01, apart=3))
    for stream in play.servers.streams.values():
        stream.ids = Forgetful()
    run(lambda: play.go(others=True))
    assert play.contents() == WANTED
    assert play.again and len(play.outcomes) >= 1


@pytest.mark.parametrize("seed", others_slow(range(4), range(2)))
def test_once_while_leaders_change(seed: int, plan: ReplayPlan, tmp_path: Path) -> None:
    """A message may be stored after a later one, or after the replay has looked for it: ids prevent a second one."""
    faults = Faults(silent=0.01, late=0.01, nobody=0.01, apart=5, leaderless=5)
    play = Play(seed, plan, tmp_path / "state.json", faults)
    run(lambda: play.go(others=True))
    assert {subject: sorted(found) for subject, found in play.contents().items()} == {
        subject: sorted(wanted) for subject, wanted in WANTED.items()
    }


@pytest.mark.parametrize("seed", others_slow(range(4), range(2)))
def test_streams_lose_messages_that_they_acknowledged(seed: int, plan: ReplayPlan, tmp_path: Path) -> None:
    play = Play(seed, plan, tmp_path / "state.json", Faults(silent=0.01, apart=5))
    lost: list[str] = []

    def lose() -> None:
        name = play.chance.choice(sorted(STREAMS))
        if play.servers.streams[name].messages:
            play.servers.streams[name].lose(play.chance.randint(1, 60))
            lost.append(name)

    for stream in play.servers.streams.values():
        stream.ids = Forgetful()
    run(lambda: play.go(others=False, disturbed=lose))
    assert play.contents() == WANTED
    assert not lost or any("had lost messages" in each for each in play.said) or play.again
