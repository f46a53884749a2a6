"""What many connections have sent is handed over together, and nobody can tell by what arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.busy_poll import PollState
from broker.nats import fair_scheduler
from broker.nats.auth import Identity, Permit
from broker.nats.client import CloseReason
from broker.nats.connection import ClientConnection, InputState
from broker.nats.nats_options import NatsOptions, Permissions, SubjectPermission
from broker.nats.nats_server import NatsServer
from stantools.nats.frames import PAYLOAD, PAYLOAD_SIZE, SUBJECT, SUBJECT_SIZE, rows
from tests.broker.nats.simulator import Wire

HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'


class World:
    """A server with handlers for `pub.>` and `ack.*`, and connections that are fed by hand."""

    def __init__(self, connections: int, *, ranks: bool = True) -> None:
        self.server = NatsServer(NatsOptions())
        #: Every call of a handler: which one, and the subjects and payloads that it got.
        self.calls: list[tuple[str, list[tuple[bytes, bytes]]]] = []
        self.inner = self.server.internal_client("inner")
        for name, subject, rank in (("pub", b"pub.>", 2), ("ack", b"ack.*", 1), ("ask", b"ask", 0)):
            self.inner.subscribe(subject, self._handler(name), rank=rank if ranks else 0)
        self.connections: list[ClientConnection] = []
        self.wires: list[Wire] = []
        for _ in range(connections):
            connection, wire = self.server._connect().connection, Wire()
            connection.connection_made(cast("asyncio.Transport", wire))
            self.connections.append(connection)
            self.wires.append(wire)

    @classmethod
    async def of(cls, connections: int, *, ranks: bool = True) -> World:
        """Such a world, in which the subjects of all connections are known."""
        world = cls(connections, ranks=ranks)
        for number, wire in enumerate(world.wires):
            both = publish(b"pub.%d" % number) + publish(b"ack.%d" % number)
            # A subject is remembered when it comes for the second time.
            await world.feed(number, HELLO + 2 * both)
            await world.feed(number, both)
            await world.settle()
            wire.written = b""
        world.calls.clear()
        return world

    @property
    def waiting(self) -> bool:
        """Whether input waits for the end of the round."""
        return bool(self.server.read_coalescer)

    def _handler(self, name: str) -> Any:
        def handle(buffer: Any, frames: Any, begin: int, end: int) -> None:
            found = []
            for row in frames[begin:end].tolist():
                subject, body = (
                    bytes(buffer[row[at] : row[at] + row[size]])
                    for at, size in ((SUBJECT, SUBJECT_SIZE), (PAYLOAD, PAYLOAD_SIZE))
                )
                found.append((subject, body))
            self.calls.append((name, found))
            if any(body == b"full" for _, body in found):
                self.inner.full = True

        return handle

    async def settle(self) -> None:
        """Lets those go on whose turn is over, and has written what they answered."""
        while self.server.turns._waiting or self.server.has_undelivered:
            await asyncio.sleep(0)
        self.server.flush()

    async def feed(self, number: int, data: bytes) -> None:
        """Has a connection read."""
        while data:
            while self.wires[number].paused:
                await asyncio.sleep(0)
            view = self.connections[number].get_buffer(-1)
            count = min(len(view), len(data))
            view[:count] = data[:count]
            self.connections[number].buffer_updated(count)
            data = data[count:]

    def got(self, number: int) -> dict[str, list[tuple[bytes, bytes]]]:
        """What the handlers got from a connection, which is the one its subjects name."""
        found: dict[str, list[tuple[bytes, bytes]]] = {}
        for name, messages in self.calls:
            own = [each for each in messages if each[0].split(b".")[1:2] in ([], [b"%d" % number])]
            found.setdefault(name, []).extend(own)
        return found


def publish(subject: bytes, data: bytes = b"x") -> bytes:
    return b"PUB %b reply %d\r\n%b\r\n" % (subject, len(data), data)


async def test_one_call_for_all_and_acknowledgements_first() -> None:
    world = await World.of(5)
    for number in range(5):
        await world.feed(number, publish(b"pub.%d" % number, b"%d" % number) + publish(b"ack.%d" % number))
    assert (world.calls, world.waiting, world.server.rounds.scheduled) == ([], True, True)
    world.server.read_coalescer.run()
    assert world.calls == [
        ("ack", [(b"ack.%d" % number, b"x") for number in range(5)]),
        ("pub", [(b"pub.%d" % number, b"%d" % number) for number in range(5)]),
    ]
    before = world.connections[0].counters
    assert (before.in_msgs, before.in_bytes) == (8, 8)
    assert sum(each.counters.in_msgs for each in world.connections) == world.server.router.counters.in_msgs == 40
    assert world.inner.counters.out_bytes == world.server.router.counters.out_bytes == 40
    assert sum(each.delivered for each in world.inner.subscriptions.values()) == 40
    world.server.read_coalescer.run()
    assert len(world.calls) == 2


async def test_subscriptions_may_change_in_the_middle() -> None:
    """A subscription to everything clears the known routes, which get other numbers; nothing is lost."""
    world = await World.of(3)
    await world.feed(0, publish(b"pub.0", b"a"))
    await world.feed(1, b"SUB > 1\r\n" + publish(b"pub.1"))
    await world.feed(2, publish(b"pub.2", b"b"))
    world.server.read_coalescer.run()
    await world.settle()
    assert world.got(2) == {"pub": [(b"pub.2", b"b")]}
    assert world.got(0) == {"pub": [(b"pub.0", b"a")]}
    assert b"pub.2" in world.wires[1].written and b"pub.0" not in world.wires[1].written


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"PING\r\n", b"PONG\r\n"),
        (publish(b"pub.0", b"a") + b"PING\r\n", b"PONG\r\n"),
        (publish(b"pub.0", b"a") + b"PUB pub.0 3\r\nab", b""),
        (publish(b"pub.0", b"a") + b"NONSENSE\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (publish(b"pub.0", b"a") + publish(b"ask", b"b"), b""),
        (publish(b"pub.0", b"a") + b"SUB none 1\r\n" + publish(b"none"), b"MSG none 1 reply 1\r\nx\r\n"),
        (b"HPUB pub.0 12 13\r\nNATS/1.0\r\n\r\na\r\n", b""),
        (publish(b"pub.0", b"a" * 5000), b""),
        (publish(b"pub.0.never-seen"), b""),
    ],
)
async def test_what_is_not_to_wait_is_handled_alone(data: bytes, answer: bytes) -> None:
    world = await World.of(3)
    for number in (1, 0, 2):
        await world.feed(number, data if number == 0 else publish(b"pub.%d" % number))
    world.server.read_coalescer.run()
    await world.settle()
    assert world.wires[0].written == answer
    assert [name for name, _ in world.calls].count("ask") == data.count(b"ask")
    if b"pub.0" in data:
        assert len(world.got(0)["pub"]) == 1
    assert world.got(1)["pub"] == [(b"pub.1", b"x")] and world.got(2)["pub"] == [(b"pub.2", b"x")]
    if data.endswith(b"ab"):
        await world.feed(0, b"c\r\n" + publish(b"pub.0", b"d"))
        world.server.read_coalescer.run()
        assert [body for _, body in world.got(0)["pub"]] == [b"a", b"abc", b"d"]


async def test_who_lost_rights_by_a_reload_is_handled_alone() -> None:
    world = await World.of(1)
    denied = Permit(Permissions(publish=SubjectPermission(deny=(b"pub.>",))))
    world.connections[0].become(Identity("less", denied))
    await world.feed(0, publish(b"pub.0"))
    await world.settle()
    assert not world.calls and not world.waiting
    assert b"Permissions Violation" in world.wires[0].written


async def test_who_wants_answers_to_everything_from_now_on_gets_them() -> None:
    world = await World.of(1)
    await world.feed(0, publish(b"pub.0"))
    world.server.read_coalescer.run()
    await world.feed(0, HELLO.replace(b'"verbose":false', b'"verbose":true'))
    world.server.read_coalescer.run()
    await world.feed(0, publish(b"pub.0"))
    await world.settle()
    assert world.wires[0].written == b"+OK\r\n" * 2


async def test_what_was_read_before_a_reload_is_under_the_rights_of_then() -> None:
    world = await World.of(1)
    await world.feed(0, publish(b"pub.0"))
    assert not world.calls
    world.server.reload(replace(world.server.options, max_payload=7))
    assert world.got(0)["pub"] == [(b"pub.0", b"x")]
    await world.server.stop()


async def test_nothing_is_parsed_and_nothing_read_while_a_batch_is_applied(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that tries is stopped at once, and its message is the only one that suffers from it."""

    attempts: list[Callable[[World], object]] = [
        lambda world: world.connections[1].hear(publish(b"pub.1", b"wrong")),
        lambda world: world.connections[1].get_buffer(-1),
        lambda world: world.connections[0].get_buffer(-1),
    ]
    for attempt in attempts:
        for rank in (0, 1):
            world = await World.of(3)
            world.inner.subscribe(b"try.*", lambda *_, attempt=attempt, world=world: attempt(world), rank=rank)
            for _ in range(3):
                await world.feed(0, publish(b"try.0"))
                world.server.read_coalescer.run()
            world.calls.clear()
            caplog.clear()
            await world.feed(1, publish(b"pub.1", b"a"))
            await world.feed(0, publish(b"try.0") + publish(b"pub.0", b"b"))
            await world.feed(2, publish(b"pub.2", b"c"))
            world.server.read_coalescer.run()
            await world.settle()
            assert caplog.text.count("in the middle of APPLY") == 1
            found = sorted(body for name, messages in world.calls for _, body in messages if name == "pub")
            assert found == [b"a", b"b", b"c"] and not any(each.closed for each in world.connections)


async def test_nothing_waits_while_the_rest_of_a_batch_is_applied() -> None:
    """What was read between two turns of a batch comes before the next of them, also in the middle of a message."""

    world = await World.of(3)
    heard: list[bytes] = []
    waited: list[bool] = []

    def hear(buffer: Any, frames: Any, begin: int, end: int) -> None:
        heard.extend(payload for _, _, _, payload in rows(buffer, frames, begin, end))
        waited.append(world.server.has_undelivered)

    for subject in (b"all", b"all", b"all", b"pub.>"):
        world.inner.subscribe(subject, hear)
    for number in (1, 2, 1, 2):
        await world.feed(number, publish(b"own.%d" % number))
    world.inner.subscribe(b"own.*", hear, rank=1)
    for number in (1, 2, 1, 2):
        await world.feed(number, publish(b"own.%d" % number))
        world.server.read_coalescer.run()
    heard.clear()
    with mock.patch.object(fair_scheduler, "_TURN", 0.0), mock.patch.object(fair_scheduler, "_MIN_TURN", 0.0):
        await world.feed(0, publish(b"all", b"first") + publish(b"pub.0", b"last"))
        # The connection is one whose reads may wait.
        world.server.read_coalescer.run()
        assert world.connections[0].input_state is InputState.WAITING and heard == [b"first"]
        await world.feed(1, publish(b"own.1", b"one"))
        assert world.server.has_undelivered
        while heard.count(b"first") < 2:
            await asyncio.sleep(0)
        await world.feed(2, publish(b"own.2", b"two"))
        assert world.server.has_undelivered
        await world.settle()
    assert heard == [b"first", b"one", b"first", b"two", b"first", b"last"] and not any(waited)


async def test_a_barrier_that_nobody_prepared_waits_for_what_was_read() -> None:
    world = await World.of(1)
    await world.feed(0, publish(b"pub.0"))
    reached: list[int] = []
    world.inner.barrier(lambda: reached.append(len(world.calls)))
    assert not reached and not world.calls
    await world.settle()
    assert reached == [1]


@pytest.mark.parametrize("turn", [3600.0, 0.0])
@pytest.mark.parametrize("known", [True, False])
async def test_a_barrier_comes_before_the_next_message_of_its_batch(turn: float, known: bool) -> None:
    """Whatever parts of this process are sending each other at the moment, and however long that takes."""

    world = await World.of(1)
    heard: list[bytes] = []

    def begin(*_: Any) -> None:
        heard.append(b"begin")
        for _each in range(5):
            world.inner.publish(b"note", b"")

    world.inner.subscribe(b"begin", begin)
    world.inner.subscribe(b"note", lambda *_: heard.append(b"note"))
    world.inner.subscribe(b"later", lambda *_: world.inner.barrier(lambda: heard.append(b"later")))
    world.inner.subscribe(b"now", lambda *_: heard.append(b"now"))
    batch = publish(b"begin") + publish(b"later") + publish(b"now")
    for _ in range(4 if known else 0):
        await world.feed(0, batch)
        world.server.read_coalescer.run()
        await world.settle()
    heard.clear()
    with mock.patch.object(fair_scheduler, "_TURN", turn), mock.patch.object(fair_scheduler, "_MIN_TURN", turn):
        await world.feed(0, batch)
        world.server.read_coalescer.run()
        await world.settle()
        # From elsewhere, such as a timer, in the round in which the batch is read.
        for _ in range(5):
            world.inner.publish(b"note", b"")
        await world.feed(0, publish(b"later") + publish(b"now"))
        world.server.read_coalescer.run()
        await world.settle()
    once = [*[b"note"] * 5, b"later", b"now"]
    assert heard == [b"begin", *once, *once]


async def test_requests_that_nobody_answers_end_after_what_was_read_before() -> None:
    world = await World.of(1)
    over = asyncio.Event()
    seen: list[int] = []

    def ended(payload: bytes | None, nobody: bool) -> None:
        seen.append(len(world.calls))
        over.set()

    world.inner.subscribe(b"silent", lambda *_: None)
    world.inner.request(b"silent", b"", 0.01, ended)
    await world.settle()
    await world.feed(0, publish(b"pub.0"))
    await asyncio.wait_for(over.wait(), 60)
    assert seen == [1]


async def test_what_a_closed_connection_still_reads_goes_nowhere() -> None:
    """TLS reads in the call that closes, whatever is being applied."""

    world = await World.of(2)
    world.connections[0].close(CloseReason.CLIENT_CLOSED)
    room = world.connections[0].get_buffer(-1)
    assert room.obj is not world.server.read_buffer and len(room)
    room[:6] = b"PING\r\n"
    world.connections[0].buffer_updated(6)
    assert b"PONG" not in world.wires[0].written


@pytest.mark.parametrize("aborted", [True, False])
async def test_what_a_client_published_before_it_ended_reaches_everybody(aborted: bool) -> None:
    world = await World.of(5)
    for number in range(1, 5):
        await world.feed(number, b"SUB all 1\r\n")
    world.server.read_coalescer.run()
    with mock.patch.object(fair_scheduler, "_TURN", 0.0), mock.patch.object(fair_scheduler, "_MIN_TURN", 0.0):
        await world.feed(0, publish(b"all") + b"PING\r\n")
        world.server.read_coalescer.run()
        assert world.connections[0].input_state is InputState.WAITING
        if aborted:
            world.connections[0].close(CloseReason.SLOW_PENDING, abort=True)
        world.connections[0].connection_lost(ConnectionResetError() if aborted else None)
        await world.settle()
    await world.settle()
    assert [wire.written.count(b"MSG") for wire in world.wires] == [0, 1, 1, 1, 1]


async def test_what_a_client_sent_before_it_left_is_handled_to_the_end() -> None:
    """Reading pauses while it waits for its turns; TLS has read more by then."""
    world = await World.of(2)
    await world.feed(1, b"SUB all 1\r\n")
    world.server.read_coalescer.run()
    with mock.patch.object(fair_scheduler, "_TURN", 0.0), mock.patch.object(fair_scheduler, "_MIN_TURN", 0.0):
        await world.feed(0, (publish(b"all") + b"PING\r\n") * 3)
        world.server.read_coalescer.run()
        assert world.connections[0].input_state is InputState.WAITING
        world.connections[0].connection_lost(None)
    await world.settle()
    assert world.wires[1].written.count(b"MSG") == 3


async def test_who_sends_much_at_a_time_reads_as_much_as_before_at_a_time() -> None:
    world = await World.of(1)
    server, connection = world.server, world.connections[0]
    assert connection.get_buffer(-1).obj is not server.read_buffer
    many = publish(b"pub.0", b"a" * 100) * 100
    await world.feed(0, many)
    assert connection.get_buffer(-1).obj is server.read_buffer
    await world.feed(0, many)
    assert connection.get_buffer(-1).obj is server.read_buffer
    assert (len(world.got(0)["pub"]), world.waiting) == (200, False)
    await world.feed(0, publish(b"pub.0"))
    assert connection.get_buffer(-1).obj is not server.read_buffer


async def test_a_connection_that_ends_is_heard_before() -> None:
    world = await World.of(2)
    await world.feed(0, publish(b"pub.0"))
    await world.feed(1, publish(b"pub.1"))
    world.connections[0].connection_lost(None)
    assert world.got(0)["pub"] == [(b"pub.0", b"x")]
    world.server.read_coalescer.run()
    assert world.got(1)["pub"] == [(b"pub.1", b"x")]
    await world.feed(1, publish(b"pub.1", b"y"))
    await world.server.stop()
    assert world.got(1)["pub"][-1] == (b"pub.1", b"y")


async def test_who_sends_more_than_can_be_taken_waits() -> None:
    world = await World.of(3)
    for number in range(2):
        await world.feed(number, publish(b"pub.%d" % number, b"full"))
    world.server.read_coalescer.run()
    assert [wire.paused for wire in world.wires] == [True, True, False]
    world.inner.release_stalled()
    assert not any(wire.paused for wire in world.wires)


async def test_no_more_waits_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.of(40)
    piece = publish(b"pub.%d", b"x" * 4000)
    for number in range(40):
        await world.feed(number, piece % number)
    assert world.calls
    world.server.read_coalescer.run()
    assert sum(len(messages) for _, messages in world.calls) == 40
    monkeypatch.setattr(world.server.read_coalescer, "_max_reads", 2)
    world.calls.clear()
    for number in range(3):
        await world.feed(number, publish(b"pub.%d" % number))
    assert [len(messages) for _, messages in world.calls] == [2]


async def test_a_handler_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    world = await World.of(2)

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    world.inner.subscribe(b"bad.*", fail, rank=3)
    for _ in range(2):
        await world.feed(0, publish(b"bad.0"))
    for subject in (b"bad.0", b"bad.0", b"bad.0"):
        await world.feed(0, publish(subject))
        await world.feed(1, publish(b"pub.1"))
        world.server.read_coalescer.run()
    assert len(world.got(1)["pub"]) == 3
    assert not world.connections[0].closed
    assert caplog.text.count("broken") >= 3


async def test_single_messages_go_to_who_takes_them_for_all() -> None:
    world = await World.of(4)

    class Taker:
        def __init__(self) -> None:
            self.got: list[list[tuple[str, bytes]]] = []

        def take_each(self, buffer: Any, frames: Any, handlers: Any, rows: Any) -> None:
            if broken:
                raise RuntimeError("broken")
            found = []
            for handler, row in zip(handlers, rows, strict=True):
                at, size = frames[row, PAYLOAD : PAYLOAD_SIZE + 1].tolist()
                found.append((handler.__name__, bytes(buffer[at : at + size])))
            self.got.append(found)

    def first(*_: Any) -> None:
        """Gets what is not alone."""
        alone.append("first")

    def second(*_: Any) -> None:
        alone.append("second")

    alone: list[str] = []
    broken = False
    taker = Taker()
    subscriptions = [
        world.inner.subscribe(subject, handler, rank=1, taker=taker)
        for subject, handler in ((b"own.1", first), (b"own.2", second))
    ]
    for number, subject in ((0, b"own.1"), (1, b"own.2")):
        for _ in range(3):
            await world.feed(number, publish(subject))
    world.server.read_coalescer.run()
    alone.clear()
    taker.got.clear()
    before = [each.delivered for each in subscriptions]
    await world.feed(0, publish(b"own.1", b"a"))
    await world.feed(2, publish(b"pub.2", b"c"))
    await world.feed(1, publish(b"own.2", b"b"))
    await world.feed(3, publish(b"ack.3", b"d"))
    world.server.read_coalescer.run()
    assert [message for call in taker.got for message in call] == [("first", b"a"), ("second", b"b")]
    assert [each.delivered for each in subscriptions] == [count + 1 for count in before]
    assert world.calls[-2:] == [("ack", [(b"ack.3", b"d")]), ("pub", [(b"pub.2", b"c")])]
    await world.feed(0, publish(b"own.1", b"a") + publish(b"own.1", b"b"))
    await world.feed(1, publish(b"own.2", b"b"))
    world.server.read_coalescer.run()
    assert (alone, taker.got[-1]) == (["first"], [("second", b"b")])
    broken = True
    await world.feed(1, publish(b"own.2", b"b"))
    await world.feed(2, publish(b"pub.2", b"e"))
    world.server.read_coalescer.run()
    assert world.got(2)["pub"][-1] == (b"pub.2", b"e")


async def test_messages_to_each() -> None:
    """As if each had been published by itself; who does not keep up is left out."""

    world = await World.of(5)
    for number, line in enumerate((b"SUB a 1\r\n", b"SUB b q 2\r\n", b"SUB c 3\r\nUNSUB 3 1\r\n", b"SUB d 4\r\n", b"")):
        await world.feed(number, line)
    world.server.read_coalescer.run()
    messages = [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
        (b"c", b"4"),
        (b"", b"x"),
        (b"d", b"5"),
        (b"e", b""),
        (b"a", b"6"),
    ]
    before = world.server.router.counters.in_msgs, world.inner.counters.in_bytes
    assert list(world.server.router.publish_each(world.inner, messages)) == []
    await world.settle()
    assert [wire.written for wire in world.wires] == [
        b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n6\r\n",
        b"MSG b 2 1\r\n2\r\n",
        b"MSG c 3 1\r\n3\r\n",
        b"MSG d 4 1\r\n5\r\n",
        b"",
    ]
    assert world.server.router.counters.in_msgs == before[0] + 7
    assert world.inner.counters.in_bytes == before[1] + 6
    assert [connection.counters.out_bytes for connection in world.connections] == [2, 1, 1, 1, 0]
    assert [connection.counters.out_msgs for connection in world.connections] == [2, 1, 1, 1, 0]
    # The first is remembered now, the second has a queue group.
    for number in (0, 1):
        with mock.patch.object(
            Wire, "get_write_buffer_size", lambda wire, slow=world.wires[number]: (wire is slow) << 25
        ):
            world.connections[number].pause_writing()  # as a transport does
            left = world.server.router.publish_each(world.inner, messages[:2] + messages[5:6])
            world.connections[number].resume_writing()
        assert list(left) == ([0] if number == 0 else [])
    # Not so much waits that anybody asked for a pause.
    world.connections[0].out_size = 9 << 20
    world.connections[0].out.append(b"")
    assert list(world.server.router.publish_each(world.inner, messages[:1])) == [0]
    world.connections[3].close(CloseReason.CLIENT_CLOSED)
    assert list(world.server.router.publish_each(world.inner, messages[5:6])) == []
    assert world.connections[3].counters.out_msgs == 3


async def test_a_receiver_that_is_gone_gets_nothing() -> None:
    world = await World.of(2)
    gone = next(each for each in world.inner.subscriptions.values() if each.subject == b"pub.>")
    await world.feed(0, publish(b"pub.0"))
    world.inner.unsubscribe(gone)
    await world.feed(1, publish(b"ack.1"))
    world.server.read_coalescer.run()
    assert [name for name, _ in world.calls] == ["ack"]


steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["pub", "pub", "pub", "ack", "ask", "ping", "sub", "large", "odd"]),
        st.booleans(),
        st.integers(1, 40),
    ),
    max_size=30,
)


@pytest.mark.parametrize("turn", [3600.0, 0.0])
@settings(max_examples=60, deadline=None)
@given(plan=steps)
@example([(0, "pub", False, 40), (0, "pub", True, 1), (0, "sub", False, 5), (1, "pub", True, 40)])
async def test_each_connection_sees_what_it_saw_without(turn: float, plan: list[tuple[int, str, bool, int]]) -> None:
    """Per connection: the same messages in the same order at each handler, the same answers, the same counters."""

    async def play(ranks: bool) -> list[Any]:
        world = await World.of(4, ranks=ranks)
        for count, (number, what, run, size) in enumerate(plan):
            data = {
                "pub": publish(b"pub.%d" % number, b"%d" % count),
                "ack": publish(b"ack.%d" % number, b"%d" % count),
                "ask": publish(b"ask", b"%d.%d" % (number, count)),
                "ping": b"PING\r\n",
                "sub": b"SUB own.%d 7\r\n%bUNSUB 7\r\n" % (number, publish(b"own.%d" % number, b"%d" % count)),
                "large": publish(b"pub.%d" % number, b"%d" % count * 3000),
                "odd": publish(b"pub.%d" % number, b"%d" % count) + b"pInG\r\n" + publish(b"ack.%d" % number, b"z"),
            }[what]
            # In pieces, so that frames are cut.
            for at in range(0, len(data), max(size, len(data) // 3)):
                await world.feed(number, data[at : at + max(size, len(data) // 3)])
                if run:
                    world.server.read_coalescer.run()
        world.server.read_coalescer.run()
        await world.settle()
        return [
            (world.got(number), wire.written, connection.counters)
            for number, (connection, wire) in enumerate(zip(world.connections, world.wires, strict=True))
        ]

    def asks_alone(found: dict[str, list[tuple[bytes, bytes]]], number: int) -> dict[str, list[tuple[bytes, bytes]]]:
        own = [each for each in found.get("ask", []) if each[1].startswith(b"%d." % number)]
        return {"pub": found.get("pub", []), "ack": found.get("ack", []), "ask": own}

    # However long a turn is: without time, each step is one of its own.
    with mock.patch.object(fair_scheduler, "_TURN", turn), mock.patch.object(fair_scheduler, "_MIN_TURN", turn):
        together, alone = await play(True), await play(False)
    for number, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert asks_alone(one[0], number) == asks_alone(other[0], number)
        assert one[1:] == other[1:]


async def test_who_is_gone_when_publishes_are_handed_over_does_not_answer() -> None:
    world = await World.of(2)
    for connection in world.connections:
        connection.no_responders = True
    await world.feed(1, b"SUB _INBOX.1.* 7\r\n")
    world.server.read_coalescer.run()
    await world.feed(0, b"PUB pub.0 2\r\nhi\r\n")
    await world.feed(1, b"PUB pub.1 _INBOX.1.a 2\r\nhi\r\n")
    for subscription in list(world.inner.subscriptions.values()):
        world.inner.unsubscribe(subscription)
    world.server.read_coalescer.run()
    await world.settle()
    assert not world.calls
    assert [wire.written for wire in world.wires] == [b"", b"HMSG _INBOX.1.a 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"]


async def test_the_loop_polls_for_the_next_request_of_a_single_client() -> None:
    world = await World.of(2)
    coalescer = world.server.read_coalescer
    polled = list[bool]()
    for numbers in ((0,), (0,), (1,), (1,), (0, 1), (1,), (1,), (1,)):
        for number in numbers:
            await world.feed(number, publish(b"pub.%d" % number))
        coalescer.run()
        polled.append(coalescer._request_poll.state is PollState.ANSWERING)
    assert polled == [False, True, False, True, False, False, True, True]
