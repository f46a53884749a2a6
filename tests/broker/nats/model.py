"""What clients of a NATS server get, as a model says that applies one client's operations at a time."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from stantools.nats import subjects
from tests.broker.nats.simulator import Frame, Operations, Peer

matches = functools.lru_cache(1 << 16)(subjects.matches)

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
UNKNOWN = b"-ERR 'Unknown Protocol Operation'"


@dataclass(eq=False)
class Subscription:
    """An interest of a client."""

    peer: Peer
    sid: bytes
    subject: bytes
    queue: bytes = b""
    limit: int = 0
    delivered: int = 0


@dataclass(eq=False)
class State:
    """What the server knows of a client, and what the client should have got."""

    operations: Operations = field(default_factory=Operations)
    verbose: bool = True
    echo: bool = True
    no_responders: bool = False
    subscriptions: dict[bytes, Subscription] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)


@dataclass(eq=False)
class Shared:
    """A message to a queue group: one of these gets it."""

    frame: Frame  #: without the sid
    members: list[Subscription]


class Model:
    """Applies what is read at once, in the order of the reads.

    Args:
        inside: Whom in the server's process a message is for: returns whether somebody took it.
        compared: How the subjects begin that are compared.
    """

    def __init__(self, inside: Callable[[Peer, bytes, bytes, bytes], bool], compared: bytes) -> None:
        self._inside = inside
        self._compared = compared
        self._states: dict[Peer, State] = {}
        self._shared: list[Shared] = []
        self._all: list[Subscription] = []

    def read(self, peer: Peer, data: bytes) -> None:
        """Applies what a client has sent, as far as it is complete."""
        state = self._states.setdefault(peer, State())
        for name, *words in state.operations.read(data):
            getattr(self, "_" + name.decode().lower())(peer, state, *words)

    def end(self, peer: Peer) -> None:
        """The client's connection is no more."""
        self._all = [each for each in self._all if each.peer is not peer]
        self._states.setdefault(peer, State()).operations.broken = True

    def _broken(self, peer: Peer, state: State) -> None:
        state.frames.append((UNKNOWN,))
        self.end(peer)

    def _ok(self, state: State) -> None:
        if state.verbose:
            state.frames.append((b"+OK",))

    def _connect(self, peer: Peer, state: State, text: bytes) -> None:
        options = json.loads(text)
        state.verbose, state.echo = options.get("verbose", True), options.get("echo", True)
        state.no_responders = options.get("no_responders", False)
        self._ok(state)

    def _ping(self, peer: Peer, state: State) -> None:
        state.frames.append((b"PONG",))

    def _sub(self, peer: Peer, state: State, subject: bytes, *words: bytes) -> None:
        sid = words[-1]
        if sid not in state.subscriptions:
            found = Subscription(peer, sid, subject, words[0] if len(words) > 1 else b"")
            state.subscriptions[sid] = found
            self._all.append(found)
        self._ok(state)

    def _unsub(self, peer: Peer, state: State, sid: bytes, most: bytes = b"0") -> None:
        found = state.subscriptions.get(sid)
        if found is not None:
            if int(most) > found.delivered:
                found.limit = int(most)
            else:
                self._remove(found)
        self._ok(state)

    def _remove(self, subscription: Subscription) -> None:
        del self._states[subscription.peer].subscriptions[subscription.sid]
        self._all.remove(subscription)

    def _pub(self, peer: Peer, state: State, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        self._ok(state)
        heard = [each for each in self._all if matches(each.subject, subject)]
        heard = [each for each in heard if each.peer is not peer or state.echo]
        self._publish(heard, subject, reply, header, payload)
        if not self._inside(peer, subject, reply, payload) and not heard and reply and state.no_responders:
            for each in self._all:
                if each.peer is peer and not each.queue and matches(each.subject, reply):
                    state.frames.append((b"MSG", each.sid, reply, b"", NO_RESPONDERS, b""))
                    return

    def answer(self, subject: bytes, payload: bytes) -> None:
        """Delivers what the server's process has published."""
        self._publish([each for each in self._all if matches(each.subject, subject)], subject, b"", b"", payload)

    def _publish(self, heard: list[Subscription], *message: bytes) -> None:
        groups: dict[bytes, list[Subscription]] = {}
        for each in heard:
            if each.queue:
                groups.setdefault(each.queue, []).append(each)
            else:
                self._deliver(each, *message)
        if message[0].startswith(self._compared):
            self._shared += [Shared(message, members) for members in groups.values()]

    def _deliver(self, to: Subscription, *message: bytes) -> None:
        to.delivered += 1
        self._states[to.peer].frames.append((b"MSG", to.sid, *message))
        if to.limit and to.delivered >= to.limit:
            self._remove(to)

    # What came

    def check(self, peers: list[Peer], *, exact: bool = True) -> None:
        """Compares what clients have got with what they should have: between two answers, by subscription.

        Args:
            peers: The clients.
            exact: The server has applied each read at once. Else this holds for each client alone, and of what others
                sent it is only known in which order it was sent.
        """
        shared: dict[tuple[int, bytes], list[Frame]] = {}
        for peer in peers:
            state = self._states[peer]
            queues = {each.sid for group in self._shared for each in group.members if each.peer is peer}
            got, wanted = self._compare(peer.frames), self._compare(state.frames)
            for frame in got:
                if len(frame) > 1 and frame[1] in queues:
                    shared.setdefault((peer.number, frame[1]), []).append(frame[2:])
            got = [each for each in got if len(each) == 1 or each[1] not in queues]
            if not exact:
                _check_order(got)
                got, wanted = ([each for each in frames if _is_of(each, peer)] for frames in (got, wanted))
            assert _by_answer(got) == _by_answer(wanted), f"client {peer.number}"
        if exact:
            self._check_shared(peers, shared)

    def _compare(self, frames: list[Frame]) -> list[Frame]:
        return [each for each in frames if len(each) == 1 or each[2].startswith(self._compared)]

    def _check_shared(self, peers: list[Peer], got: dict[tuple[int, bytes], list[Frame]]) -> None:
        """Each message to a group has come to one of its members, in the order in which they were published."""
        open_peers = {each.number for each in peers}
        for group in self._shared:
            owners = [
                key for member in group.members if group.frame in got.get(key := (member.peer.number, member.sid), ())
            ]
            least = all(member.peer.number in open_peers for member in group.members)
            assert least <= len(owners) <= 1, (group.frame, owners)
        for key, frames in got.items():
            places = {group.frame: place for place, group in enumerate(self._shared)}
            order = [places[frame] for frame in frames]
            assert order == sorted(set(order)), key


def _by_answer(frames: list[Frame]) -> list[object]:
    """Divides what a client got at its answers; in each part, the messages of each subscription in order."""
    parts: list[object] = []
    messages: dict[bytes, list[Frame]] = {}
    for frame in frames:
        if len(frame) == 1:
            parts += [messages, frame[0]]
            messages = {}
        else:
            # That nobody is there may be said to any of the subscriptions.
            sid = b"nobody" if frame[4] == NO_RESPONDERS else frame[1]
            messages.setdefault(sid, []).append(frame[2:])
    return [*parts, messages]


def origin(payload: bytes) -> tuple[bytes, int]:
    """Returns who has sent a message first, and the number that it gave it: such messages begin with both."""
    name, number, *_ = payload.split(b" ")
    return name, int(number)


def _is_of(frame: Frame, peer: Peer) -> bool:
    """Returns whether a frame only depends on what the client itself has sent."""
    return len(frame) == 1 or (frame[5] != b"" and origin(frame[5])[0] == b"%d" % peer.number)


def _check_order(frames: list[Frame]) -> None:
    """What one client has sent has come to each subscription in this order, and once."""
    seen: dict[tuple[bytes, bytes], int] = {}
    for _, sid, _, _, _, payload in (each for each in frames if len(each) > 1 and each[5] != b""):
        name, number = origin(payload)
        if name != b"counts":
            assert seen.get((sid, name), -1) < number, (sid, payload[:20])
            seen[sid, name] = number
