"""A subscriber that outlives crashes of the broker: knows what it got, what it acknowledged, and what it is owed."""

from __future__ import annotations

import contextlib
import random
import threading
import time

from stantools.format.proto import store_pb2 as store
from tests.interop.rawclient import RawClient


class Follower:
    """A client with one durable subscription, by itself or in a queue group. It is never connected a second time.

    Args:
        port: Of the broker.
        name: Client id.
        channel: What it subscribes to.
        seed: For its mood.
        queue: Durable queue group; none if empty.

    Attributes:
        got: Payloads by sequence.
        acked: Sequences that it has acknowledged.
        owed: Sequences that it got and left unacknowledged, until it gets them again.
        again: How often it got something that it had acknowledged.
        ack_everything: Leave nothing unacknowledged from now on.
    """

    def __init__(self, port: int, name: str, channel: bytes, seed: int, queue: bytes = b"") -> None:
        self.port = port
        self.name = name
        self.channel = channel
        self.got: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.owed: set[int] = set()
        self.again = 0
        self.ack_everything = False
        self.problems: list[str] = []
        self._chance = random.Random(seed)
        self._client = RawClient(port, name)
        self._inbox = self._client.inbox + b".messages"
        self._ack_inbox = self._client.listen(
            channel, self._inbox, durable_name=b"lasting", q_group=queue, ack_wait_in_secs=1, max_in_flight=200
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go_on(self) -> None:
        """Connects to NATS again, after the broker has come back; the streaming server is told nothing."""
        self._thread.join(90)
        assert not self._thread.is_alive()
        self._client = RawClient(self.port, self.name, subjects=self._client.subjects)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError), self._client as client:
            while True:
                subject, _, payload = client.message()
                if subject == self._inbox:
                    self._take(client, store.MsgProto.FromString(payload))

    def _take(self, client: RawClient, message: store.MsgProto) -> None:
        sequence = message.sequence
        before = self.got.setdefault(sequence, message.data)
        if before != message.data:
            self.problems.append(f"{sequence} was {before[:40]!r} and is {message.data[:40]!r}")
        if sequence in self.acked:
            self.again += 1
        if self.ack_everything or self._chance.random() < 0.8:
            client.acknowledge(self._ack_inbox, self.channel, sequence)
            self.acked.add(sequence)
            self.owed.discard(sequence)
        else:
            self.owed.add(sequence)


def wait_until_served(followers: list[Follower], last: int, timeout: float = 60) -> None:
    """Waits until some followers of a channel got all there is up to a sequence, and all that they are owed."""
    deadline = time.monotonic() + timeout
    wanted = set(range(1, last + 1))
    while True:
        missing = wanted.difference(*(list(each.got) for each in followers))
        owed = {sequence for each in followers for sequence in list(each.owed)}
        # A member may get what another is owed.
        owed -= {sequence for each in followers for sequence in list(each.acked)}
        if not missing and not owed:
            return
        assert time.monotonic() < deadline, (
            f"{len(missing)} were never delivered ({sorted(missing)[:5]}), {len(owed)} not again ({sorted(owed)[:5]})"
        )
        time.sleep(0.02)
