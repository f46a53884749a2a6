"""A model of JetStream, and everything that it may do to those who use it (high-availability.md section D.5).

Streams are lists with compare-and-set, as servers have them. Between them and a client are answers that do not come,
come late, or come although nothing was stored; times without a leader; what a server says that is behind; connections
that break. A seed decides.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from stantools.nats import encoding
from stantools.nats.errors import ApiError, ConnectionLostError, NoAnswerError, NoResponderError
from stantools.nats.frames import Handler, frame_table
from stantools.nats.inbox import Inbox, Received
from stantools.nats.kernels import parse_messages
from tests.broker.stores.jetstream.loop import process, real_time

NOW = 1_700_000_000 * 10**9
_FRAME = re.compile(rb"HPUB (\S+) (\S+) (\d+) (\d+)\r\n")


@dataclass
class Faults:
    """How much goes wrong; chances for each request or message, and seconds between two times of trouble."""

    silent: float = 0.0  #: it is done, and nobody says so
    late: float = 0.0  #: the answer comes seconds later
    nobody: float = 0.0  #: `no responders`
    stale: float = 0.0  #: what is told of a stream was true a while ago
    broken: float = 0.0  #: a read ends somewhere
    apart: float = 0.0  #: seconds between two losses of a connection, on average; 0 for never
    leaderless: float = 0.0  #: seconds between two times without a leader; 0 for never


@dataclass(frozen=True)
class Stored:
    subject: bytes
    header: bytes
    data: bytes
    time: int


@dataclass
class Stream:
    config: dict[str, Any]
    messages: dict[int, Stored] = field(default_factory=dict)
    last: int = 0
    ids: dict[bytes, int] = field(default_factory=dict)
    subjects: dict[bytes, int] = field(default_factory=dict)
    refuses: str = ""  #: why nothing more is taken

    def copy(self) -> Stream:
        """Returns one that goes on by itself."""
        config = copy.deepcopy(self.config)
        return replace(
            self, config=config, messages=self.messages.copy(), ids=self.ids.copy(), subjects=self.subjects.copy()
        )

    @property
    def first(self) -> int:
        return min(self.messages, default=self.last + 1)

    def state(self, behind: int = 0) -> dict[str, Any]:
        last = max(self.last - behind, 0)
        count = sum(sequence <= last for sequence in self.messages)
        holes = last - self.first + 1 - count if count and self.config["max_msgs_per_subject"] < 0 else 0
        return {
            "messages": count,
            "first_seq": self.first,
            "last_seq": last,
            "bytes": 100 * count,
            "num_deleted": holes,
        }

    def info(self, behind: int = 0) -> dict[str, Any]:
        return {"config": dict(self.config), "state": self.state(behind)}

    def store(self, subject: bytes, header: bytes, data: bytes, time: int) -> dict[str, Any]:
        """Does what a leader does with a message. Returns its answer."""
        name = self.config["name"]
        expected = _value(header, b"Nats-Expected-Last-Sequence")
        identity = _value(header, b"Nats-Msg-Id")
        if identity and identity in self.ids:
            return {"stream": name, "seq": self.ids[identity], "duplicate": True}
        if expected is not None and int(expected) != self.last:
            return _error(400, 10071, f"wrong last sequence: {self.last}")
        if self.refuses:
            return _error(503, 10047, self.refuses)
        self.last += 1
        if identity:
            self.ids[identity] = self.last
        self.messages[self.last] = Stored(subject, header, data, time)
        if self.config["max_msgs_per_subject"] == 1:
            if subject in self.subjects:
                self.messages.pop(self.subjects[subject], None)
            self.subjects[subject] = self.last
        if 0 < self.config["max_msgs"] < len(self.messages):
            del self.messages[self.first]
        return {"stream": name, "seq": self.last}

    def lose(self, count: int) -> None:
        """Forgets the last messages, as a server whose machine lost power."""
        for _ in range(min(count, self.last)):
            self.messages.pop(self.last, None)
            self.last -= 1
        self.ids = {identity: sequence for identity, sequence in self.ids.items() if sequence <= self.last}
        self.subjects = {subject: sequence for subject, sequence in self.subjects.items() if sequence <= self.last}


def _error(code: int, number: int, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": number, "description": text}, "stream": "s", "seq": 0}


def _value(header: bytes, name: bytes) -> bytes | None:
    found = re.search(rb"\r\n%b: ([^\r]*)\r\n" % name, header)
    return found[1] if found else None


class JetStream:
    """The servers."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.faults = Faults()
        self.streams: dict[str, Stream] = {}
        self._leaderless: dict[str, float] = {}
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._durable: dict[str, Stream] = {}
        self.requests: list[str] = []

    @staticmethod
    def now() -> float:
        return real_time()

    def wall(self) -> int:
        return NOW + round(self.now() * 1e9)

    def led(self, name: str) -> bool:
        """Whether a stream has a leader now."""
        return self._leaderless.get(name, 0.0) <= self.now()

    def depose(self, name: str, seconds: float) -> None:
        """Lets a stream have no leader for a while."""
        self._leaderless[name] = self.now() + seconds
        asyncio.get_running_loop().call_later(seconds, self._led_again, name)

    def _led_again(self, name: str) -> None:
        if self.led(name):
            for action in self._waiting.pop(name, ()):
                action()

    def sync(self) -> None:
        """Makes some of the streams durable, each as it is now."""
        for name, stream in self.streams.items():
            if self.chance.random() < 0.5:
                self._durable[name] = stream.copy()

    def lose_power(self) -> None:
        """All machines lose power at once: streams are what they were when they were synced, or were never made."""
        self.streams = {name: stream.copy() for name, stream in self._durable.items()}
        self._waiting.clear()
        self._leaderless.clear()

    def publish(self, link: Link, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        """Takes a message from a client."""
        stream = next(
            (each for each in self.streams.values() if _matches(each.config["subjects"], subject.decode())), None
        )
        chance, faults = self.chance, self.faults
        if stream is None or chance.random() < faults.nobody:
            link.deliver(reply, b"", b"NATS/1.0 503\r\n\r\n")
            return
        name = stream.config["name"]
        if not self.led(name):
            # A leader that is none any more may have passed it on.
            if chance.random() < 0.5:
                self._waiting.setdefault(name, deque()).append(
                    lambda: stream.store(subject, header, data, self.wall()) and None
                )
            return
        answer = json.dumps(stream.store(subject, header, data, self.wall()), separators=(",", ":")).encode()
        fate = chance.random()
        if fate < faults.silent:
            return
        if fate < faults.silent + faults.late:
            asyncio.get_running_loop().call_later(chance.uniform(0.01, 6), link.deliver, reply, answer)
        else:
            link.deliver(reply, answer)

    async def trouble(self, links: Callable[[], list[Link]]) -> None:
        """Makes trouble from time to time."""
        chance = self.chance
        while True:
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            faults = self.faults
            if faults.leaderless and self.streams and chance.random() < 0.2 / faults.leaderless:
                self.depose(chance.choice(sorted(self.streams)), chance.uniform(0.1, 6))
            for link in links():
                if faults.apart and chance.random() < 0.2 / faults.apart:
                    link.lose(chance.uniform(0.05, 3))


def _matches(subjects: list[str], subject: str) -> bool:
    return any(subject == each or (each.endswith(".>") and subject.startswith(each[:-1])) for each in subjects)


class Link:
    """A client's connection: `broker.stores.jetstream.jetstream_port.JetStreamPort`."""

    max_payload = 1 << 20

    def __init__(self, servers: JetStream) -> None:
        self._servers = servers
        self._handlers: dict[bytes, Handler] = {}
        self._lost: dict[bytes, Callable[[], None]] = {}
        self._numbers = 0
        self.connected = True
        self.dead = False  #: the process was killed
        self._arrival = 0.0
        self._under_way: deque[tuple[int, bytes, bytes, bytes, bytes]] = deque()
        self._answers: list[bytes] = []
        self._epoch = 0
        self._process = process()

    # A connection

    def _call(self, action: Callable[..., None], *args: Any) -> None:
        """Has something done in the process that has the connection, if it is in one of its own."""
        if self._process is None:
            action(*args)
        else:
            self._process.call(action, *args)

    def listen(self, handler: Handler, lost: Callable[[], None]) -> bytes:
        self._numbers += 1
        prefix = b"_INBOX.%d." % self._numbers
        self._handlers[prefix] = handler
        self._lost[prefix] = lost
        return prefix

    def unlisten(self, prefix: bytes) -> None:
        self._handlers.pop(prefix, None)
        self._lost.pop(prefix, None)

    def lose(self, seconds: float) -> None:
        """The connection breaks, and comes back."""
        if not self.connected or self.dead:
            return
        self.connected = False
        self._epoch += 1
        self._answers.clear()
        asyncio.get_running_loop().call_later(seconds, self._back)
        for lost in tuple(self._lost.values()):
            self._call(lost)

    def _back(self) -> None:
        self.connected = True

    def send(self, frames: bytes) -> bool:
        if not self.connected or self.dead:
            return False
        at, epoch = 0, self._epoch
        while at < len(frames):
            found = _FRAME.match(frames, at)
            assert found, frames[at : at + 80]
            header, total = int(found[3]), int(found[4])
            begin = found.end()
            self._arrival = max(self._arrival, real_time() + self._servers.chance.uniform(0.0001, 0.002))
            parts = frames[begin : begin + header], frames[begin + header : begin + total]
            self._under_way.append((epoch, found[1], found[2], *parts))
            Context().run(asyncio.get_running_loop().call_at, self._arrival, self._arrive)
            at = begin + total + 2
        return True

    def _arrive(self) -> None:
        # What had left before a process was killed still arrives.
        epoch, subject, reply, header, data = self._under_way.popleft()
        if epoch == self._epoch:
            self._servers.publish(self, subject, reply, header, data)

    def deliver(self, subject: bytes, data: bytes, header: bytes = b"") -> None:
        """Something for an inbox is on its way."""
        if not self.connected or self.dead:
            return
        self._answers.append(encoding.message(subject, b"1", data, b"", header))
        if len(self._answers) == 1:
            asyncio.get_running_loop().call_later(self._servers.chance.uniform(0.0001, 0.002), self._hand_over)

    def _hand_over(self) -> None:
        answers, self._answers = self._answers, []
        if self.dead:
            return
        for prefix, handler in tuple(self._handlers.items()):
            buffer = b"".join(each for each in answers if each.startswith(b"MSG " + prefix, each[:1] == b"H"))
            if buffer:
                self._call(_parsed, buffer, handler)

    # Requests

    async def _ask(self, operation: str, name: str = "") -> None:
        """A request is under way; raises what comes instead of an answer."""
        servers = self._servers
        chance, faults = servers.chance, servers.faults
        servers.requests.append(operation)
        await asyncio.sleep(chance.uniform(0.0001, 0.01))
        if not self.connected:
            raise ConnectionLostError("the connection broke")
        if chance.random() < faults.nobody:
            raise NoResponderError("nobody listens")
        if not servers.led(name):
            if chance.random() < 0.5:
                raise ApiError(operation, 503, 10008, "JetStream system temporarily unavailable")
            await asyncio.sleep(5)
            raise NoAnswerError("no answer")

    async def _answer(self) -> None:
        chance, faults = self._servers.chance, self._servers.faults
        if chance.random() < faults.silent:
            await asyncio.sleep(5)
            raise NoAnswerError("no answer")
        if not self.connected:
            raise ConnectionLostError("the connection broke")

    async def stream_info(self, name: str) -> dict[str, Any] | None:
        await self._ask(f"STREAM.INFO.{name}", name)
        chance, stream = self._servers.chance, self._servers.streams.get(name)
        behind = chance.randint(0, 30) if chance.random() < self._servers.faults.stale else 0
        info = None if stream is None else stream.info(behind)
        await self._answer()
        return info

    async def stream_names(self, subject: str) -> list[str]:
        await self._ask("STREAM.NAMES")
        found = [
            name
            for name, each in self._servers.streams.items()
            if any(one.startswith(subject[:-1]) for one in each.config["subjects"])
        ]
        await self._answer()
        return found

    async def create_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        name = config["name"]
        await self._ask(f"STREAM.CREATE.{name}", name)
        stream = self._servers.streams.setdefault(name, Stream(dict(config)))
        if stream.config != dict(config):
            raise ApiError("STREAM.CREATE", 400, 10058, "stream name already in use with a different configuration")
        info = stream.info()
        await self._answer()
        return info

    async def update_stream(self, config: Mapping[str, Any]) -> dict[str, Any]:
        await self._ask("STREAM.UPDATE", config["name"])
        stream = self._servers.streams[config["name"]]
        stream.config = dict(config)
        await self._answer()
        return stream.info()

    async def delete_stream(self, name: str) -> bool:
        await self._ask("STREAM.DELETE", name)
        there = self._servers.streams.pop(name, None) is not None
        await self._answer()
        return there

    async def purge_stream(self, name: str, *, below: int) -> int:
        await self._ask("STREAM.PURGE", name)
        stream = self._servers.streams[name]
        gone = [sequence for sequence in stream.messages if sequence < below]
        for sequence in gone:
            del stream.messages[sequence]
        stream.last = max(stream.last, below - 1)
        await self._answer()
        return len(gone)

    async def delete_message(self, stream: str, sequence: int) -> None:
        await self._ask("STREAM.MSG.DELETE", stream)
        if self._servers.streams[stream].messages.pop(sequence, None) is None:
            raise ApiError("STREAM.MSG.DELETE", 404, 10043, "no message found")
        await self._answer()

    async def read(self, name: str, state: Mapping[str, Any], after: int) -> AsyncIterator[Received]:
        await self._ask("CONSUMER.CREATE", name)
        chance, stream = self._servers.chance, self._servers.streams[name]
        last = int(state["last_seq"])
        wanted = sorted(sequence for sequence in stream.messages if after < sequence <= last)
        at = 0
        while at < len(wanted):
            await asyncio.sleep(chance.uniform(0.0001, 0.005))
            if not self.connected or chance.random() < self._servers.faults.broken:
                raise ConnectionLostError("the connection broke")
            some = wanted[at : at + chance.randint(1, 200)]
            at += len(some)
            frames = []
            for number, sequence in enumerate(some):
                if (stored := stream.messages.get(sequence)) is not None:
                    reply = b"$JS.ACK.s.c.1.%d.%d.%d.0" % (sequence, number + 1, stored.time)
                    frames.append(encoding.message(stored.subject, b"1", stored.data, reply, stored.header))
            inbox = Inbox(b"x")
            _parsed(b"".join(frames), inbox.take)
            if frames:
                yield await inbox.receive(0)


def _parsed(buffer: bytes, handler: Handler) -> None:
    """Hands frames over as a connection does."""
    data = bytearray(buffer)
    at = 0
    while at < len(data):
        frames = frame_table(1024)
        rows, at, _, spans, _ = parse_messages(data, at, len(data), frames, 4096, 64 << 20)
        assert rows, bytes(data[at : at + 80])
        for _, begin, end in spans:
            handler(data, frames, begin, end)
