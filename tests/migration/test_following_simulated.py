"""A store that grows, rolls, loses slices and is killed, followed into streams that fail, by runs that are killed.

A seed decides everything. In the end the streams hold what the store does, whatever happened on the way.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stantools.errors import RefusedError
from stantools.format.crc import IEEE, Crc
from stantools.migration import followed_store
from stantools.migration.followed_store import FollowedStore
from stantools.migration.journal import UNWATCHED, JournalObserver, StreamOutcome, StreamResult
from stantools.migration.plan.plan_options import PlanOptions
from stantools.migration.prepared_stream import PreparedStream, prepare
from stantools.migration.proof.stream_proof import Proof
from stantools.migration.publish.resume import NotOursError
from stantools.migration.source import SourceOptions, open_source
from stantools.migration.store_follower import (
    PROVE_EVERY,
    STOPPED_SECONDS,
    UNSEEN_SECONDS,
    EndDetector,
    StoreFollower,
    StreamContent,
)
from stantools.nats.errors import ConnectionLostError
from stantools.store.directory import open_datastore
from stantools.store.limits import SliceLimits
from tests.conftest import others_slow
from tests.pipeline.tables.followed import Server, cut_to_index

CRC = Crc(IEEE)


class Killed(BaseException):
    """The run that follows is killed."""


@dataclass
class Stream:
    messages: dict[int, bytes] = field(default_factory=dict)
    last: int = 0


def content(stream: PreparedStream, after: int = 0) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for batch in stream.source.read(after=after):
        for sequence, _, _, data in batch.messages():
            assert sequence > max(found, default=0)
            found[sequence] = data
    return found


@dataclass
class Streams:
    """A server of streams that refuses what a real one does, and fails as one does."""

    rng: random.Random
    streams: dict[str, Stream] = field(default_factory=dict)
    trouble: float = 0.0
    has_ended: bool = False

    def _fail(self) -> None:
        chance = self.rng.random()
        if chance < self.trouble / 2:
            raise ConnectionLostError("the connection broke", "wait")
        if chance < self.trouble:
            raise Killed

    async def load(self, streams: Sequence[PreparedStream]) -> list[StreamResult]:
        results = []
        for stream in streams:
            result = StreamResult(stream.name, StreamOutcome.MIGRATED)
            results.append(result)
            try:
                self._fail()
                wanted = content(stream)
                there = self.streams.get(stream.name)
                if there is not None and there.messages:
                    self._align(stream, there)
                there = self.streams.setdefault(stream.name, Stream())
                for sequence, data in there.messages.items():
                    if wanted.get(sequence) != data:
                        raise NotOursError(f"{stream.name} holds something else at {sequence}", "")
                there.messages, there.last = wanted, stream.source.last
                self._fail()
            except (ConnectionLostError, NotOursError) as problem:
                result.failed(problem)
        return results

    def _align(self, stream: PreparedStream, there: Stream) -> None:
        first = stream.source.first or stream.source.last + 1
        if there.last < first - 1:
            del self.streams[stream.name]
        else:
            there.messages = {sequence: data for sequence, data in there.messages.items() if sequence >= first}

    async def holding(self, stream: PreparedStream) -> StreamContent | None:
        there = self.streams.get(stream.name)
        if there is None:
            return None
        return StreamContent(there.last, len(there.messages))

    async def append(self, stream: PreparedStream, held: StreamContent) -> StreamContent:
        there, wanted = self.streams[stream.name], content(stream)
        assert len([sequence for sequence in there.messages if sequence <= held.last]) == held.messages
        for number, (sequence, data) in enumerate(wanted.items()):
            if number in (0, len(wanted) // 2):
                self._fail()
            if sequence <= there.last:
                if there.messages.get(sequence) != data:
                    raise NotOursError(f"{stream.name} holds something else at {sequence}", "")
                continue
            there.messages[sequence], there.last = data, sequence
        there.last = max(there.last, stream.source.last)
        self._fail()
        return StreamContent(there.last, len(there.messages))

    async def prove(self, stream: PreparedStream, after: int) -> Proof:
        self._fail()
        wanted = content(stream, after)
        have = {s: d for s, d in self.streams[stream.name].messages.items() if s > after}
        assert have == wanted
        return Proof(messages=len(wanted))

    def seen(self, streams: Collection[str]) -> None:
        pass

    def ended(self, streams: Collection[str]) -> None:
        self.has_ended = True

    async def finish(self, streams: Sequence[tuple[PreparedStream, int]]) -> list[StreamResult]:
        results = []
        for stream, proven in streams:
            self._fail()
            there = self.streams[stream.name]
            self._align(stream, there)
            assert proven <= there.last
            assert there.messages == content(stream)
            results.append(StreamResult(stream.name, StreamOutcome.COMPLETE, len(there.messages)))
        return results


class Told(JournalObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class History:
    """Servers of two channels, the streams, and one run after the other."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.scratch = root.parent / "scratch"
        self.limits = self.rng.choice([SliceLimits(4, 0), SliceLimits(10, 0), SliceLimits(0, 4000)])
        self.servers = [Server(root, "orders", self.limits, seed)]
        self.target = Streams(self.rng)
        self.told = Told()
        self.now = 1000.0
        self.runs = 0
        self.following: StoreFollower | None = None

    async def run(self) -> None:
        """A new run, as the same command begins it."""
        source = FollowedStore(open_datastore(self.root, CRC), SourceOptions(workers=1), PlanOptions())
        first = source.first(ended=self.target.has_ended)
        self.following = StoreFollower(source, self.target, self.told, lambda: self.now)
        self.runs += 1
        await self.following.begin(prepare(source.plan(first), first))

    async def step(self) -> None:
        rng, server = self.rng, self.rng.choice(self.servers)
        what = rng.choices(
            ["publish", "look", "kill", "remove", "channel", "restart", "forget"], [8, 10, 2, 2, 1, 1, 1]
        )[0]
        if what == "publish":
            server.publish(rng.choice((1, 2, 3, 12)), flush=rng.random() < 0.9)
        elif what == "look":
            self.now += rng.choice((0.1, PROVE_EVERY))
            await self.look()
        elif what == "kill" and server.stored and server.slices():
            server.kill()
            server.leave(rng.choice((0, 1, 2)), rng.choice((0, 1, 8, 40)))
            server.clock += 1  # a start takes time
            after = rng.random()
            if after < 0.4:
                cut_to_index(server.data_file())
                server.start()
            elif after < 0.6:
                # As the original: it goes on behind what is there, and gives the sequences again.
                server.append_raw(rng.choice((1, 3)))
                server.start()
            else:
                server.begin_slice()
                server.publish(1)
        elif what == "remove":
            server.remove_oldest(archive=rng.random() < 0.2)
        elif what == "channel" and len(self.servers) < 3:
            self.servers.append(Server(self.root, f"orders.{len(self.servers)}", self.limits, rng.randrange(1000)))
        elif what == "restart" and server.writer is not None:
            server.writer.close()
            server.start()
        elif what == "forget":
            self.following = None

    async def look(self) -> None:
        try:
            if self.following is None:
                await self.run()
            assert self.following
            await self.following.step(self.now)
        except Killed:
            self.following = None
        except ConnectionLostError:
            self.following = None

    async def end(self) -> None:
        for server in self.servers:
            if server.writer is not None:
                server.writer.close()
        while True:
            try:
                if self.following is None:
                    await self.run()
                assert self.following
                results = await self.following.finish()
                break
            except (Killed, ConnectionLostError):
                self.following = None
                self.target.trouble /= 2
        assert [result.error for result in results if result.error] == []
        assert [note for note in self.told.notes if "not followed" in note] == []
        store = open_source(open_datastore(self.root, CRC), SourceOptions(workers=1))
        for channel in store.channels:
            name = channel.name.replace(".", "_")
            wanted = {s: d for batch in channel.read() for s, _, _, d in batch.messages()}
            assert self.target.streams[name].messages == wanted, name


async def simulate(root: Path, seed: int) -> None:
    history = History(root / "store", seed)
    history.target.trouble = history.rng.choice((0.0, 0.0, 0.1, 0.3))
    history.servers[0].publish(history.rng.choice((1, 20)))
    for _ in range(60):
        await history.step()
    await history.end()


@pytest.mark.parametrize("seed", others_slow(range(12), range(0, 12, 2)))
async def test_whatever_happens_the_streams_hold_what_the_store_does(tmp_path: Path, seed: int) -> None:
    await simulate(tmp_path, seed)


@pytest.mark.slow
async def test_whatever_happens_with_many_seeds(tmp_path: Path) -> None:
    for seed in range(12, 400):
        await simulate(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed))


async def test_sequences_that_begin_again(tmp_path: Path) -> None:
    history = History(tmp_path / "store", 0)
    (server,) = history.servers
    server.publish(10)
    await history.look()
    assert history.target.streams["orders"].last == 10
    server.sequence = 0  # as a server does that has lost server.dat
    server.begin_slice()
    server.publish(3)
    await history.look()
    (told,) = history.told.notes
    assert "only up to 3" in told
    assert history.following
    results = {result.stream: result for result in await history.following.finish()}
    assert isinstance(results["orders"].error, RefusedError)
    assert history.target.streams["orders"].last == 10
    assert len(history.target.streams["orders_generation-1"].messages) == 10


async def test_what_is_new_is_in_its_stream_after_one_look(tmp_path: Path) -> None:
    """So that it is there within a second: between two looks there is half of one at most."""

    history = History(tmp_path / "store", 0)
    (server,) = history.servers
    server.publish(10)
    await history.look()
    assert history.following
    assert not history.following.delays, "what is loaded was there before"
    for delay in (0.1, 0.4, 0.0):
        server.publish(1)
        history.now = server.clock / 1e9 + delay
        await history.look()
        assert history.target.streams["orders"].last == server.sequence
        assert history.following.delays[-1] == pytest.approx(delay, abs=1e-5)
    assert len(history.following.delays) == 3


@pytest.mark.parametrize("takes", [0.0, 0.05, 0.2, 0.4])
async def test_a_look_follows_the_other(monkeypatch: pytest.MonkeyPatch, takes: float) -> None:
    now = 1000.0
    looks: list[float] = []

    class Looks:
        async def step(self, at: float) -> None:
            nonlocal now
            looks.append(at)
            now += takes
            if len(looks) == 5:
                raise Killed

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(followed_store, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(followed_store, "time", SimpleNamespace(time=lambda: now))
    with pytest.raises(Killed):
        await followed_store.follow(cast(Any, Looks()), cast(Any, None), EndDetector(seen=True), UNWATCHED)
    # What was stored behind one look is in its stream when the next one is done.
    spans = [after - before for before, after in pairwise(looks)]
    assert all(max(0.2, takes) - 1e-6 <= each <= takes + 0.5 + 1e-6 for each in spans)


def test_when_it_is_over() -> None:
    ending = EndDetector(cutover=True)
    assert not ending.over(0.0, used=True, written=0.0)
    assert not ending.over(0.1, used=False, written=0.0), "between two files, perhaps"
    assert not ending.over(0.2, used=True, written=0.2)
    assert ending.over(0.2 + STOPPED_SECONDS, used=False, written=0.2)
    assert ending.since == 0.2
    before = EndDetector(cutover=True, seen=True)  # an earlier run has seen it
    assert not before.over(2.1, used=False, written=2.0)
    assert before.over(2.0 + 2 * STOPPED_SECONDS, used=False, written=2.0)
    assert before.since == 2.0
    unseen = EndDetector(cutover=True)
    assert not unseen.over(UNSEEN_SECONDS - 1, used=False, written=0.0)
    assert unseen.over(UNSEEN_SECONDS, used=False, written=0.0)
    idle = EndDetector(cutover=True, idle=5.0)
    assert not idle.over(4.0, used=True, written=0.0)
    assert idle.over(5.0, used=True, written=0.0)
    assert idle.since == 0.0
    assert not EndDetector().over(1e9, used=False, written=0.0)
