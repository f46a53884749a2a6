"""Random histories of a stream in files, with a model of what it has; ends: closed, killed, power lost."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from broker.log import NATS
from broker.stores.streams import file_stream
from broker.stores.streams.blocks import MessageBlock
from broker.stores.streams.directory import StreamsDirectory
from broker.stores.streams.file_stream import FileStream
from broker.stores.streams.subject_filter import SubjectFilter
from stantools.nats.frames import Frames, frame_table
from stantools.nats.subjects import matches
from stantools.streamfiles.meta import ConsumerState
from tests.broker.stores.streams.volume import Volume

NAME = "S"
SUBJECTS = (b"a", b"b.c", b"b.d", b"e.f.g")
PATTERNS = (b"a", b"b.*", b"e.>", b"b.d")
START = 1_700_000_000_000_000_000
Message = tuple[int, bytes, bytes, bytes]


class Model:
    """What the stream has."""

    def __init__(self, last: int = 0) -> None:
        self.messages: dict[int, Message] = {}
        self.last = last
        self.states: dict[str, ConsumerState | None] = {}

    def copy(self) -> Model:
        other = Model(self.last)
        other.messages, other.states = dict(self.messages), dict(self.states)
        return other

    def of(self, pattern: bytes) -> list[int]:
        return [number for number, message in self.messages.items() if matches(pattern, message[1])]


class Lines(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged() -> Iterator[list[str]]:
    lines = Lines()
    NATS.addHandler(lines)
    try:
        yield lines.lines
    finally:
        NATS.removeHandler(lines)


class History:
    """A stream, and what is done with it.

    Args:
        seed: Of everything that is random.
        folder: Where it is; the second one is that after a loss of power.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder, self.rounds = folder, 0
        self.block_size = self.chance.choice((150, 400, 1000, 3000))
        self.most = self.chance.choice((0, 0, 1, 2))
        self.time = START
        self.root = folder / "0"
        self.root.mkdir()
        self.volume = Volume(self.root)
        first = self.chance.choice((1, 1, 1, 50))
        self.model = Model(first - 1)
        self.synced: Model | None = None  # what has to survive
        self.seen: dict[int, Message] = {}  # all that was there since
        self.seen_states: dict[str, list[ConsumerState | None]] = {}
        with self.volume.watched():
            self.place = StreamsDirectory(self.root)
            self.store = self.created(first)

    def created(self, first: int) -> FileStream:
        store = self.place.create(NAME, "file", first)
        store.configure({"name": NAME, "subjects": ["a", "b.*", "e.>"]}, START)
        assert isinstance(store, FileStream)
        self.is_synced()
        return store

    # What is done

    def step(self) -> None:
        chance = self.chance
        self.time += chance.choice((1, 1_000, 1_000_000_000))
        doing = chance.choices(
            (self.append, self.append_rows, self.remove, self.purge, self.drop_head, self.consumers, self.sync),
            (5, 3, 5, 1, 2, 1, 0.5),
        )[0]
        doing()
        self.note()
        if chance.random() < 0.8:
            self.store.flush()
        self.note()

    def note(self) -> None:
        self.seen.update(self.model.messages)
        for name, state in self.model.states.items():
            self.seen_states.setdefault(name, []).append(state)

    def message(self) -> Message:
        chance = self.chance
        header = chance.choice((b"", b"", b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n"))
        return self.time, chance.choice(SUBJECTS), header, chance.randbytes(chance.choice((0, 5, 40, 200)))

    def append(self) -> None:
        if self.chance.random() < 0.05:
            # A copy of a stream leaves sequences out.
            self.store.skip(self.model.last + self.chance.choice((2, 30)))
            self.model.last = self.store.contents.last
        message = self.message()
        self.model.last += 1
        assert self.store.append(*message) == self.model.last
        self.model.messages[self.model.last] = message

    def append_rows(self) -> None:
        messages = [self.message() for _ in range(self.chance.randint(1, 12))]
        buffer, frames = _table(messages)
        over = self.store.append_rows(self.time, buffer, frames, 0, len(messages), self.most)
        gone = self.store.drop_firsts(over, self.most) if over else []
        for message in messages:
            self.model.last += 1
            self.model.messages[self.model.last] = self.seen[self.model.last] = message
            same = self.model.of(message[1]) if self.most else []
            while 0 < self.most < len(same):
                del self.model.messages[same.pop(0)]
        assert not {number for number, _ in gone} & self.model.messages.keys()

    def remove(self) -> None:
        known = list(self.model.messages)
        for _ in range(self.chance.choice((1, 1, 1, 6))):
            # The last ones go more often: what goes with them is harder to keep.
            newest = known[-1:] if self.chance.random() < 0.3 else known
            number = self.chance.choice(newest) if newest else self.model.last
            there = self.model.messages.pop(number, None) is not None
            assert self.store.remove(number, erase=self.chance.random() < 0.5) == there

    def drop_head(self) -> None:
        """Takes out the first messages, as limits do."""
        known = list(self.model.messages)
        if known:
            below = self.chance.choice(known) if self.chance.random() < 0.8 else self.model.last + 1
            self.store.purge_below(below)
            self.model.messages = {number: each for number, each in self.model.messages.items() if number >= below}

    def purge(self) -> None:
        chance, model = self.chance, self.model
        if chance.random() < 0.3:
            following = model.last + chance.choice((1, 1, 20))
            self.store.purge_all(following)
            model.messages, model.last = {}, following - 1
            return
        pattern = chance.choice(PATTERNS)
        below = chance.choice((0, model.last // 2, model.last))
        wanted = self.store.contents.filter((pattern,))
        assert isinstance(wanted, SubjectFilter)
        self.store.purge_matching(wanted, below)
        self.store.contents.release(wanted)
        for number in model.of(pattern):
            if not below or number < below:
                del model.messages[number]

    def consumers(self) -> None:
        chance, name = self.chance, self.chance.choice(("one", "two"))
        if name not in self.model.states:
            self.store.keep_consumer(name, {"durable_name": name, "ack_policy": "explicit"}, self.time)
            self.model.states[name] = None
            if self.synced is not None:
                self.synced.states[name] = None
        elif chance.random() < 0.1:
            self.store.forget_consumer(name)
            del self.model.states[name]
            # It may come back, with or without its state.
            self.seen_states.setdefault(name, []).append(None)
            if self.synced is not None:
                self.synced.states.pop(name, None)
        else:
            delivered = (chance.randint(1, 9), min(self.model.last, chance.randint(1, 90)))
            state = ConsumerState((0, 0), delivered)
            self.store.flush()
            self.store.keep_state(name, state)
            self.model.states[name] = state

    def sync(self) -> None:
        self.store.flush()
        for _ in range(2):
            self.place.sync()
            if self.place._syncing is not None:
                self.place._syncing.join()
        self.is_synced()

    def is_synced(self) -> None:
        self.synced, self.seen = self.model.copy(), dict(self.model.messages)
        self.seen_states = {name: [state] for name, state in self.model.states.items()}

    # How it ends

    def close(self) -> None:
        self.store.close()
        self.place.close()
        self.is_synced()
        with logged() as lines:
            self.open()
        assert not lines
        self.check_exact()

    def kill(self) -> None:
        self.store.flush()
        self.place.close()
        with logged() as lines:
            self.open()
        assert not lines
        self.check_exact()

    def lose_power(self) -> None:
        if self.chance.random() < 0.3:
            self.sync()
        self.place.close()
        self.rounds += 1
        root = self.folder / str(self.rounds)
        self.volume.lose_power(self.chance, root)
        self.root = root
        self.volume = Volume(root)

    def open(self) -> None:
        self.place = StreamsDirectory(self.root)
        [(config, created)] = self.place.streams()
        assert (config["name"], created) == (NAME, START)
        store = self.place.open(NAME)
        assert isinstance(store, FileStream)
        self.store = store

    # What is there

    def found(self) -> dict[int, Message]:
        """All messages, looked at in every way."""
        contents = self.store.contents
        numbers = [number for segment, rows in contents.rows(None) for number in (rows + segment.first).tolist()]
        messages = {}
        for number in numbers:
            stored = self.store.read(number)
            assert stored is not None
            assert stored.sequence == number
            messages[number] = tuple(stored[1:])
        assert contents.messages == len(messages)
        assert contents.first == min(messages, default=contents.last + 1)
        assert contents.first_time == (messages[contents.first][0] if messages else 0)
        assert contents.bytes == sum(self.store.size_of(*message[1:]) for message in messages.values())
        counts = Counter(message[1] for message in messages.values())
        assert {name: entry.count for name, entry in contents.subjects.items()} == counts
        for name, entry in contents.subjects.items():
            own = [number for number, message in messages.items() if message[1] == name]
            assert (contents.first_of(entry), entry.last) == (own[0], own[-1])
        for time in {message[0] for message in messages.values()} | {self.time + 1}:
            young = [number for number, message in messages.items() if message[0] >= time]
            assert contents.first_since(time) == (young[0] if young else contents.last + 1)
        return messages

    def states(self) -> dict[str, ConsumerState | None]:
        return {config["name"]: state for config, _, state in self.store.consumers()}

    def check_exact(self) -> None:
        assert self.found() == self.model.messages
        assert self.store.contents.last == self.model.last
        assert self.states() == self.model.states

    def check_after_loss(self) -> None:
        """Nothing that was synced is missing, nothing that was gone is back, nothing else is there."""
        synced, messages, last = self.synced, self.found(), self.store.contents.last
        assert synced is not None
        for number, message in synced.messages.items():
            if number in self.model.messages:
                assert messages.get(number) == message, number
        for number, message in messages.items():
            assert self.seen.get(number) == message, number
        assert synced.last <= last <= max(self.model.last, synced.last)
        for name, state in self.states().items():
            assert state in self.seen_states[name]
        assert synced.states.keys() <= self.states().keys()
        # It goes on with what is there.
        self.model.messages, self.model.last, self.model.states = messages, last, self.states()
        self.is_synced()
        self.volume.settle()


def _table(messages: list[Message]) -> tuple[bytes, Frames]:
    data, frames = bytearray(), frame_table(len(messages))
    for row, (_, subject, header, payload) in enumerate(messages):
        at, body = len(data), len(data) + len(subject)
        data += subject + header + payload
        frames[row] = (at, len(subject), 0, 0, len(header), body, len(data) - body, -1)
    return bytes(data), frames


def play(seed: int, folder: Path, end: str, rounds: int = 3, steps: int = 25) -> None:
    """Plays a history."""
    history = History(seed, folder)
    with small_blocks(history):
        for _ in range(rounds):
            if end == "power":
                with history.volume.watched():
                    for _ in range(history.chance.randint(0, steps)):
                        history.step()
                    history.lose_power()
                with history.volume.watched(), logged():
                    history.open()
                    history.check_after_loss()
            else:
                for _ in range(steps):
                    history.step()
                getattr(history, end)()
    history.place.close()
    history.volume.release()


@contextmanager
def small_blocks(history: History) -> Iterator[None]:
    """Makes blocks small; a full one is synced at once, or not before all others."""

    def sync_soon(block: MessageBlock, last: int) -> None:
        if history.chance.random() < 0.5:
            block._sync_full(last)

    limits = mock.patch.multiple(file_stream, BLOCK_SIZE=history.block_size, _MANY=history.chance.choice((2, 20)))
    with limits, mock.patch.object(MessageBlock, "sync_soon", sync_soon):
        yield
