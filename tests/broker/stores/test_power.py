"""A synced file store loses power at any moment: it starts, by the rules of all servers, and has what it promised.

One store lives by chance on a machine that takes note of every sync. At many of the calls that change a file or a name,
what the disk may hold then is laid out beside and started: by the forecast of the original, and by us.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.stores.file import FileStore
from broker.stores.file.locks import GroupLock
from broker.stores.interface import ChannelStore, Flush, FlushOutcome, Recovered
from broker.stores.store_options import FileOptions
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.store.compactionrules import CompactionRules
from stantools.store.directory import open_datastore
from stantools.store.limits import ChannelLimits, SliceLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from tests.broker.stores.making import block, everything
from tests.broker.stores.power import Machine
from tests.conftest import others_slow

Job = Callable[[], None]
Conclusion = Callable[[Exception | None], None]

LIMITS = StoreLimits(0, ChannelLimits(max_msgs=40, max_subs=100))
NAMES = (b"foo", b"bar", b"baz")
WAYS = ("contents", "names", "synced", "some", "some", "some")


def payload(channel: bytes, sequence: int) -> bytes:
    return b"%s %d;" % (channel, sequence) * (sequence % 30)


class ChanceDisk:
    """Stands in for `broker.stores.file.disk.Disk`: jobs and syncs are done one by one, in any order."""

    pause = 0.0

    def __init__(self, chance: random.Random) -> None:
        self.wake: Callable[[], None] | None = None
        self.quick = chance.random() < 0.7
        self._chance = chance
        self._jobs: list[tuple[Job, Conclusion]] = []

    def run(self, job: Job, conclusion: Conclusion, *, awaited: bool = False) -> None:
        self._jobs.append((job, conclusion))

    def queue_job(self, begin: Callable[[], tuple[Job, Conclusion]]) -> None:
        self._jobs.append(begin())

    def sync(self, descriptors: list[int], conclusion: Conclusion) -> bool:
        if not descriptors or not self.quick:
            return False
        own = [os.dup(each) for each in descriptors]
        self._chance.shuffle(own)

        def job() -> None:
            for each in own:
                os.fsync(each)
                os.close(each)

        self.run(job, conclusion)
        return True

    def sync_aside(self, descriptor: int, conclusion: Conclusion) -> bool:
        return self.sync([descriptor], conclusion)

    def sync_files(self, paths: list[Path], conclusion: Conclusion) -> None:
        def job() -> None:
            for path in paths:
                if path.exists():
                    descriptor = os.open(path, os.O_RDONLY)
                    os.fsync(descriptor)
                    os.close(descriptor)

        self.run(job, conclusion)

    def conclude(self, patience: float | None = None) -> bool:
        steps = 1000 if patience is not None else self._chance.choice((0, 1, 1, 2, 5))
        while self._jobs and steps:
            steps -= 1
            job, conclusion = self._jobs.pop(self._chance.randrange(len(self._jobs)))
            problem = None
            try:
                job()
            except Exception as raised:
                problem = raised
            conclusion(problem)
        return not self._jobs

    def may_sync_all(self, directory: Path) -> None:
        """It does not."""

    def stop(self) -> None:
        """There are no threads."""


#: A subscription: what was sent last, and what is pending.
_State = tuple[int, frozenset[int]]


@dataclass
class Channel:
    """A channel, and what may not be lost of it."""

    store: ChannelStore
    last: int = 0  #: of what is promised
    subscriptions: dict[int, _State] = field(default_factory=dict)
    #: Every state since the promised one.
    history: list[dict[int, _State]] = field(default_factory=lambda: [{}])


class Life:
    """A store on a machine; it is looked at by chance whenever something changes."""

    def __init__(self, folder: Path, seed: int, cuts: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.root = folder / "store"
        self.machine = Machine(self.chance, tears=False, look=self.look)
        self.options = FileOptions(
            self.root,
            buffer_size=self.chance.choice((300, 3000, 1 << 21)),
            slices=SliceLimits(self.chance.choice((3, 9)), 0),
            compaction=CompactionRules(min_size=0, interval=0.001, fragmentation=50),
            auto_sync=1,
        )
        self.wanted = cuts
        self.cuts = 0
        self.channels: dict[bytes, Channel] = {}
        self.leaving: set[bytes] = set()  # channels that are gone or half there
        self.clients: set[bytes] = set()
        self.initialised = False
        self.waiting: dict[Flush, tuple[Channel, int | None, int]] = {}
        self.wrong: BaseException | None = None
        self.store = FileStore(self.options, LIMITS)

    # What may be left.

    def look(self, call: str) -> None:
        if self.root.exists() and self.cuts < self.wanted and self.chance.random() < 0.15:
            self.cuts += 1
            how = self.chance.choice(WAYS)
            try:
                self.check(self.folder / f"cut{self.cuts}", f"cut {self.cuts} before {call}, {how}", how)
            except BaseException as wrong:
                # A store would take it for a problem of the disk.
                self.wrong = self.wrong or wrong

    def check(self, left: Path, where: str, how: str) -> None:
        self.machine.image(self.root, left, how)
        rules = ServerOptions(version="0.25.6", limits=LIMITS)
        predicted = forecast(open_datastore(left), rules, lookups=False) if any(left.glob("*.dat")) else None
        assert predicted is None or predicted.starts, f"{where}: {predicted and predicted.error}"
        again = FileStore(FileOptions(left, slices=self.options.slices), LIMITS)
        found = again.recover()
        try:
            assert found is not None or not self.initialised, where
            if found is not None:
                self.compare(found, where)
        finally:
            again.close()
        shutil.rmtree(left)

    def compare(self, found: Recovered, where: str) -> None:
        assert {each.id for each in found.clients} <= self.clients, where
        assert found.channels.keys() <= {*self.channels, *self.leaving}, where
        for name, channel in self.channels.items():
            if name not in found.channels:
                assert not channel.last and {} in channel.history, f"{where}: {name!r} is gone"
                continue
            store, subscriptions = found.channels[name]
            seen = everything(store.messages)
            wrong = (
                f"{where}: {name!r} has {store.messages.first} to {store.messages.last}, {channel.last} were promised"
            )
            if name in self.leaving and store.messages.last and not channel.last:
                continue  # of the one before
            assert store.messages.last >= channel.last, wrong
            assert not channel.last or store.messages.first <= max(channel.store.messages.first, 1), wrong
            assert [each.sequence for each in seen] == [*range(store.messages.first or 1, store.messages.last + 1)], (
                wrong
            )
            assert all(each.data == payload(name, each.sequence) for each in seen), wrong
            states = {each.state.id: (each.state.last_sent, frozenset(each.pending)) for each in subscriptions}
            if name not in self.leaving:
                assert states in channel.history, f"{where}: subscriptions of {name!r}: {states}, {channel.history}"

    # What happens.

    def open(self) -> None:
        self.store = FileStore(self.options, LIMITS)
        self.store._services.disk = ChanceDisk(self.chance)  # type: ignore[assignment]
        found = self.store.recover()
        if found is None:
            self.store.init(new_server_info("test-cluster"))
            self.initialised = True
            return
        for name, (store, _) in found.channels.items():
            if name in self.channels:
                self.channels[name].store = store
            else:
                # It was deleted, and its files are there again, or still.
                self.leaving.add(name)
                self.channels[name] = Channel(store)
                self.delete(name)

    def live(self) -> None:
        with self.machine.watched():
            self.root.mkdir()
            lock = GroupLock(self.root, b"group")
            assert lock.take().taken
            self.open()
            acts = (self.publish,) * 6 + (self.flow,) * 4 + (self.subscribe, self.unsubscribe, self.client)
            while self.cuts < self.wanted:
                if self.chance.random() < 0.03:
                    self.close()
                    self.open()
                if self.chance.random() < 0.02 and self.channels:
                    self.delete(self.chance.choice(sorted(self.channels)))
                name = self.chance.choice(NAMES)
                channel = self.channels.get(name)
                if channel is None:
                    channel = self.channels[name] = Channel(self.store.create_channel(name))
                    self.note(channel.store.messages.flush(), channel, messages=True)
                self.chance.choice(acts)(name, channel)
                self.conclude()
                self.store.maintain()
                if self.wrong is not None:
                    raise self.wrong
            self.close()
            lock.release()

    def close(self) -> None:
        for name, channel in self.channels.items():
            self.flush(name, channel)
        self.store.settle()
        self.conclude()
        self.store.close()
        self.waiting.clear()

    def note(self, flush: Flush | None, channel: Channel, *, messages: bool) -> None:
        """Notes what a flush promises."""
        if flush is None:
            if messages:
                channel.last = channel.store.messages.last
        elif messages:
            self.waiting[flush] = channel, channel.store.messages.last, 0
        else:
            self.waiting[flush] = channel, None, id(channel.history[-1])

    def conclude(self) -> None:
        for flush in self.store.completed():
            assert flush.outcome is FlushOutcome.STORED, flush.error
            if flush not in self.waiting:
                continue
            channel, last, state = self.waiting.pop(flush)
            if last is not None:
                channel.last = max(channel.last, last)
            else:
                known = [id(each) for each in channel.history]
                if state in known:
                    del channel.history[: known.index(state)]

    def publish(self, name: bytes, channel: Channel) -> None:
        messages = channel.store.messages
        first = messages.last + 1
        messages.append(
            block(name, first, [payload(name, each) for each in range(first, first + self.chance.randint(1, 6))])
        )
        self.flush(name, channel)

    def flush(self, name: bytes, channel: Channel) -> None:
        self.note(channel.store.messages.flush(), channel, messages=True)
        self.note(channel.store.subscriptions.flush(), channel, messages=False)

    def changed(self, channel: Channel) -> None:
        channel.history.append(dict(channel.subscriptions))

    def subscribe(self, name: bytes, channel: Channel) -> None:
        state = pb.SubState(client_id=b"me", inbox=b"_I", ack_inbox=b"_A", durable_name=b"d", is_durable=True)
        # Before it is called, which may make the channel.
        channel.history.append({**channel.subscriptions, max(channel.subscriptions, default=0) + 1: (0, frozenset())})
        channel.store.subscriptions.create(state)
        channel.subscriptions[state.id] = 0, frozenset()
        self.changed(channel)
        self.flush(name, channel)

    def unsubscribe(self, name: bytes, channel: Channel) -> None:
        if len(channel.subscriptions) > 1:
            number = self.chance.choice(sorted(channel.subscriptions))
            del channel.subscriptions[number]
            self.changed(channel)
            channel.store.subscriptions.delete(number)
            self.flush(name, channel)

    def flow(self, name: bytes, channel: Channel) -> None:
        """Messages are sent to a subscription, and some acknowledged."""
        if not channel.subscriptions:
            self.subscribe(name, channel)
        number = self.chance.choice(sorted(channel.subscriptions))
        sent, pending = channel.subscriptions[number]
        count = self.chance.randint(0, 8)
        for each in range(sent + 1, min(sent + count, channel.last) + 1):
            pending |= {each}
            channel.subscriptions[number] = each, pending
            self.changed(channel)
            channel.store.subscriptions.sent(number, [each])
        for each in self.chance.sample(sorted(pending), self.chance.randint(0, len(pending))):
            sent, pending = channel.subscriptions[number]
            channel.subscriptions[number] = sent, pending - {each}
            self.changed(channel)
            channel.store.subscriptions.acked(number, [each])
        if self.chance.random() < 0.7:
            self.flush(name, channel)

    def client(self, _name: bytes, _channel: Channel) -> None:
        here = b"client%d" % self.chance.randrange(5)
        if here in self.store._clients:
            self.store.delete_client(here)
        else:
            self.clients.add(here)
            self.store.add_client(pb.ClientInfo(id=here, hb_inbox=b"_HB"))

    def delete(self, name: bytes) -> None:
        self.leaving.add(name)
        channel = self.channels.pop(name)
        self.waiting = {flush: found for flush, found in self.waiting.items() if found[0] is not channel}
        self.store.delete_channel(name)


@pytest.mark.parametrize("seed", others_slow(range(16), range(8)))
def test_a_store_that_loses_power(tmp_path: Path, seed: int) -> None:
    Life(tmp_path, seed, 20).live()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_many_losses_of_power(tmp_path: Path, part: int) -> None:
    for seed in range(1000 + 10 * part, 1010 + 10 * part):
        (folder := tmp_path / str(seed)).mkdir()
        Life(folder, seed, 25).live()


@pytest.mark.parametrize("seed", range(2))
def test_on_a_file_system_without_unnamed_files(tmp_path: Path, seed: int) -> None:
    with patch.object(os, "O_TMPFILE", 0, create=True):
        Life(tmp_path, seed, 20).live()
