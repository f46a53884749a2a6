"""Streams in a world of their own: simulated time, a bus of lists, and clients that are a few lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.stores.interface import StorageError
from broker.stores.streams.directory import StreamsDirectory
from broker.stores.streams.interface import StreamStore
from broker.stores.streams.memory import MemoryStream
from broker.streams.quota import QuotaLimits
from broker.streams.server import StreamsServer
from stantools.nats.frames import Frames, Handler, frame_table, rows
from stantools.nats.subjects import matches
from tests.broker.streaming.world import Time, Wishes

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer

API = "$JS.API."
INBOX = b"_INBOX.me"
_PLENTY = QuotaLimits(1 << 30, 1 << 30)


class Lists:
    """A bus: who listens, and what was published."""

    id, max_payload = "NBUS", 1 << 20

    def __init__(self) -> None:
        self.heard: dict[int, tuple[bytes, bytes, Handler]] = {}
        self._listeners = 0
        self.said: list[tuple[bytes, bytes, bytes, bytes, bytes]] = []
        #: Subjects of others: those with subscribers, and those whose subscribers do not keep up.
        self.present = {INBOX}
        self.slow: set[bytes] = set()
        self.together = True  #: subscribers take many messages at a time

    def listen(self, subject: bytes, handler: Handler, *, gathered: bool = False, but: bytes = b"") -> object:
        self._listeners += 1
        self.heard[self._listeners] = (subject, but, handler)
        return self._listeners

    def unlisten(self, subscription: object) -> None:
        assert isinstance(subscription, int)
        del self.heard[subscription]

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        self.deliver(subject, subject, payload, reply, header)

    def answer(self, to: bytes, message: bytes, header_size: int) -> None:
        self.publish(to, message[header_size:], header=message[:header_size])

    def send_now(self) -> None:
        pass

    def deliver(
        self, to: bytes, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"", group: bytes = b""
    ) -> None:
        self.said.append((to, subject, payload, reply, header))

    def publish_rows(self, buffer: Buffer, frames: Frames) -> None:
        for to, reply, header, payload in rows(buffer, frames, 0, len(frames)):
            self.publish(to, payload, reply, header)

    def deliver_rows(self, to: bytes, buffer: Buffer, frames: Frames) -> None:
        for subject, reply, header, payload in rows(buffer, frames, 0, len(frames)):
            self.deliver(to, subject, payload, reply, header)

    def takes_rows(self, to: bytes) -> bool:
        return self.together

    def interested(self, subject: bytes, group: bytes = b"") -> bool:
        return subject in self.present

    def reaches(self, subject: bytes) -> bool:
        return subject in self.present or subject.startswith(INBOX)

    def congested(self, subject: bytes) -> bool:
        return subject in self.slow

    def watch(self, changed: Callable[[bytes], None]) -> None:
        self.changed = changed

    def come(self, subject: bytes) -> None:
        """Somebody subscribes."""
        self.present.add(subject)
        self.changed(subject)

    def go(self, subject: bytes) -> None:
        """Nobody subscribes any more."""
        self.present.discard(subject)
        self.changed(subject)

    def send(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> int:
        """A client publishes. Returns how many heard it."""
        return self.send_together([(subject, reply, header, payload)])

    def send_together(self, messages: Sequence[tuple[bytes, bytes, bytes, bytes]]) -> int:
        """A client publishes at once, all for the same listeners. Returns how many they are."""
        data, frames = b"", frame_table(len(messages))
        for row, (subject, reply, header, payload) in enumerate(messages):
            at, body = len(data), len(data) + len(subject) + len(reply)
            data += b"%b%b%b%b" % (subject, reply, header, payload)
            answer = at + len(subject)
            frames[row] = (at, len(subject), answer, len(reply), len(header), body, len(data) - body, -1)
        to = messages[0][0]
        found = [
            each
            for pattern, but, each in list(self.heard.values())
            if matches(pattern, to) and not (but and matches(but, to))
        ]
        for handler in found:
            handler(data, frames, 0, len(messages))
        return len(found)


class Nowhere:
    """A place for streams in memory."""

    name = "nowhere"

    def streams(self) -> Iterator[tuple[Mapping[str, Any], int]]:
        return iter(())

    def create(self, name: str, storage: str, next_sequence: int) -> StreamStore:
        return MemoryStream(next_sequence)

    def open(self, name: str) -> StreamStore:
        raise AssertionError("there is nothing to open")

    def delete(self, name: str, store: StreamStore) -> None:
        store.delete()

    def take(self, name: str, *, consumers: bool, time: int) -> Any:
        raise AssertionError("there are no files")

    def expect(self, name: str) -> Any:
        raise StorageError("there is no place for files")

    def sync(self) -> None: ...

    def close(self) -> None: ...


class World:
    """A server with streams.

    Args:
        folder: Where they are kept; None for nowhere.
        preview: Clients of the preview are answered, too.
    """

    def __init__(self, folder: Path | None = None, limits: QuotaLimits = _PLENTY, *, preview: bool = False) -> None:
        self.time, self.folder, self.limits, self.preview = Time(), folder, limits, preview
        self.begin()

    def begin(self) -> None:
        """Starts it."""
        self.bus, self.wishes = Lists(), Wishes()
        self.place = StreamsDirectory(self.folder) if self.folder else Nowhere()
        self.server = StreamsServer(self.bus, self.place, self.time, self.wishes, self.limits, preview=self.preview)
        self.server.start()

    def crash(self) -> None:
        """Ends it silently, and starts it again."""
        self.place.close()
        self.begin()

    def restart(self) -> None:
        """Ends it, and starts it again."""
        self.server.stop()
        self.begin()

    def settle(self) -> None:
        """Commits as long as it is asked for."""
        while self.wishes.commit or self.wishes.jobs:
            while self.wishes.jobs:
                job, done = self.wishes.jobs.pop(0)
                done(job())
            self.wishes.commit = False
            self.server.commit()

    def pass_time(self, nanoseconds: int) -> None:
        """Lets time pass, with all timers."""
        end = self.time.now + nanoseconds
        while self.wishes.due is not None and self.wishes.due <= end:
            self.time.now = max(self.time.now, self.wishes.due)
            self.wishes.due = None
            self.server.run_timers()
            self.settle()
        self.time.now = end

    def ask(self, subject: str, body: Any = b"", header: bytes = b"") -> Any:
        """Sends a request. Returns what comes back: JSON, else header and payload; None for nothing."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.bus.said.clear()
        self.bus.send(subject.encode(), data, INBOX, header)
        self.settle()
        for to, _, payload, _, found in self.bus.said:
            if to == INBOX:
                return json.loads(payload) if payload and not found else (found, payload)
        return None

    def api(self, call: str, body: Any = b"") -> Any:
        """Sends a request to the API."""
        return self.ask(API + call, body)

    def create(self, name: str, **config: Any) -> Any:
        """Makes a stream."""
        return self.api(f"STREAM.CREATE.{name}", {"name": name, **config})

    def publish(self, subject: str, payload: bytes = b"", **headers: str) -> Any:
        """Publishes with headers, whose names have `_` for `-`."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return self.ask(subject, payload, f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b"")

    def consumer(self, stream: str, name: str, **config: Any) -> Any:
        """Makes a consumer."""
        return self.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})

    def pull(self, stream: str, name: str, body: Any = b"", to: bytes = INBOX) -> list[tuple[str, bytes, str]]:
        """Asks for messages. Returns what comes at once."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.bus.said.clear()
        self.bus.send(f"{API}CONSUMER.MSG.NEXT.{stream}.{name}".encode(), data, to)
        self.settle()
        return self.came(to)

    def came(self, to: bytes = INBOX) -> list[tuple[str, bytes, str]]:
        """What came to a subject since the last request: subject of the acknowledgement, payload, status."""
        found = [each for each in self.bus.said if each[0] == to]
        return [
            (reply.decode(), payload, header.decode().partition("\r\n")[0].partition(" ")[2])
            for _, _, payload, reply, header in found
        ]

    def state(self, name: str) -> dict[str, Any]:
        """The state of a stream."""
        found: dict[str, Any] = self.api(f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True})
        return found["state"]


Step = Callable[[World], None]
