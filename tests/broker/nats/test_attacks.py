"""One client does its worst; the others must not notice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import bcrypt
import pytest

from broker.nats import auth, fair_scheduler
from broker.nats.client import ClientState, CloseReason
from broker.nats.nats_options import Authorization, NatsOptions, User
from broker.nats.nats_server import NatsServer
from broker.nats.status import resident_memory
from tests.broker.nats.serving import Raw, serving
from tests.broker.nats.test_limits import QUIET
from tests.brokers import Broker
from tests.programs import load
from tests.waiting import eventually

#: Processor time (seconds) in which nobody else is served. Waits on a machine that is busy say nothing.
HOLD = 0.1


def attacks() -> ModuleType:
    return load(Path(__file__).parents[3] / "benchmarks" / "broker" / "attack.py")


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long (processor time) each callback of the event loop held it."""
    found: list[float] = []
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def timed(handle: asyncio.Handle) -> None:
        start = time.thread_time()
        run(handle)
        found.append(time.thread_time() - start)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    # A look at all objects of all tests is none of the server's.
    gc.disable()
    yield found
    gc.enable()


@pytest.mark.parametrize(
    "name",
    [
        "wildcards",
        "subjects",
        "fan_out",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("subscriptions", "long_subjects", "deep")),
    ],
)
async def test_nobody_holds_the_loop(name: str, holds: list[float]) -> None:
    attack = attacks()

    def worst(port: int) -> None:
        client = attack.Client(port)
        attack.ATTACKS[name](client)
        client.socket.close()

    async with serving() as server:
        await asyncio.to_thread(worst, server.port)
        await eventually(lambda: not server.connections() and not server.subscriptions.interest.count)
    assert len(holds) > 20
    assert max(holds) < HOLD


async def test_a_flood_of_requests_is_handled_in_turns(holds: list[float]) -> None:
    """A handler in this process is given as many rows as it takes in a short time."""

    async with serving() as server:
        given: list[int] = []

        def slow(buffer: Any, frames: Any, begin: int, end: int) -> None:
            given.append(end - begin)
            until = time.thread_time() + 0.0005 * (end - begin)
            while time.thread_time() < until:
                pass

        server.internal_client("inner").subscribe(b"slow", slow)
        async with await Raw.connect(server.port, QUIET) as client:
            client.send(b"PUB slow 1\r\nx\r\n" * 1000)
            assert await client.until_pong() == b"PONG\r\n"
        assert sum(given) == 1000
        assert max(given) <= 64 and max(given[8:]) < 32
    assert max(holds) < HOLD


async def test_turns_lose_nothing_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is a turn of its own: what is left over each time is taken up where it was left."""
    monkeypatch.setattr(fair_scheduler, "_TURN", 0.0)
    monkeypatch.setattr(fair_scheduler, "_MIN_TURN", 0.0)

    async with serving() as server:
        hello = QUIET.replace(b"}", b',"headers":true}')
        async with await Raw.connect(server.port, hello) as reader, await Raw.connect(server.port, hello) as sender:
            for i in range(50):
                reader.send(b"SUB a.%d 1%d\r\nSUB a.* 2%d\r\nSUB > q 3%d\r\n" % (i % 7, i, i, i))
            reader.send(b"SUB a.3 last\r\nUNSUB last 3\r\n")
            await eventually(lambda: server.subscriptions.interest.count == 151)
            bodies = [b"%d" % i for i in range(200)]
            sent = b""
            for i, body in enumerate(bodies):
                sent += b"PUB a.%d %d\r\n%b\r\n" % (i % 7, len(body), body)
                sent += b"HPUB a.3 12 %d\r\nNATS/1.0\r\n\r\n%b\r\n" % (12 + len(body), body)
            sender.send(sent)
            expected = sum(sum(each % 7 == i % 7 for each in range(50)) + 51 for i in range(200))
            expected += 200 * (sum(each % 7 == 3 for each in range(50)) + 51) + 3
            got: dict[bytes, list[bytes]] = {}
            for _ in range(expected):
                words = (await reader.line()).split()
                data = await reader.reader.readexactly(int(words[-1]) + 2)
                header = int(words[-2]) if words[0] == b"HMSG" else 0
                got.setdefault(words[2], []).append(data[header:-2])
            await eventually(lambda: not server.turns._waiting)
            assert got[b"last"] == [b"0", b"1", b"2"]
            both = [body for body in bodies for _ in range(2)]
            assert all(got[b"2%d" % i] == both for i in range(50))
            assert sorted(body for i in range(50) for body in got.get(b"3%d" % i, [])) == sorted(both)
            origin = server.connections()[1]
            assert origin.counters.in_msgs == 400
            assert origin.counters.in_bytes == sum(2 * len(body) + 12 for body in bodies)
            sender.send(b"PING\r\n")
            await sender.expect(b"PONG\r\n")


async def test_tables_of_subjects_are_bounded_in_bytes() -> None:
    async with serving() as server, await Raw.connect(server.port, QUIET) as client:
        before = resident_memory()
        for i in range(0, 16_000, 500):
            pairs = (b"PUB %d.%b 1\r\nx\r\n" % (j, b"x" * 3900) * 2 for j in range(i, i + 500))
            client.send(b"".join(pairs))
            assert await client.until_pong() == b"PONG\r\n"
        assert server.subscriptions.statistics(1).num_cache > 1000, "they are remembered, as long as there is room"
        assert resident_memory() - before < 72 << 20


async def test_routes_are_bounded_in_bytes() -> None:
    async with serving() as server, await Raw.connect(server.port, QUIET) as client:
        client.send(b"".join(b"SUB > %d\r\n" % i for i in range(2000)))
        client.send(b"".join(b"SUB a.%d x%d\r\n" % (i, i) for i in range(3000)))
        await client.until_pong()
        before = resident_memory()
        inner = server.internal_client("inner")
        for i in range(3000):
            server.subscriptions.route(b"a.%d" % i, keep=True)
        assert 0 < server.subscriptions.statistics(1).num_cache < 3000
        assert resident_memory() - before < 96 << 20
        inner.close()


@pytest.mark.slow
def test_the_garbage_collector_does_not_stop_everybody(tmp_path: Path) -> None:
    """What 300,000 subscriptions are made of is looked at a few times, not again and again."""
    (tmp_path / "sitecustomize.py").write_text(
        "import gc, os, time\n"
        "def note(phase, info, start=[0]):\n"
        "    if phase == 'start':\n"
        "        start[0] = time.thread_time()\n"
        "    else:\n"
        "        with open(os.environ['NOTES'], 'a') as file:\n"
        "            print(time.thread_time() - start[0], file=file)\n"
        "gc.callbacks.append(note)\n"
    )
    notes = tmp_path / "notes"
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{tmp_path}:{root}", "NOTES": str(notes)}
    with Broker(tmp_path / "broker", environment=environment) as broker:
        before = len(notes.read_text().splitlines())
        client = attacks().Client(broker.port)
        client.send(b"".join(b"SUB s.%d.%d.* %d\r\n" % (i % 100, i, i) for i in range(300_000)))
        client.ping()
        looks = [float(line) for line in notes.read_text().splitlines()][before:]
        assert len(looks) > 20
        assert max(looks) < HOLD
        client.socket.close()
        assert broker.stop() == 0


# Wrong passwords

HASHED = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()


def login(user: str, password: str) -> bytes:
    return b'CONNECT {"verbose":false,"user":"%b","pass":"%b"}\r\nPING\r\n' % (user.encode(), password.encode())


USERS = Authorization(users=(User("eve", HASHED), User("bob", HASHED)), timeout=600.0)


@contextlib.asynccontextmanager
async def flooded(server: NatsServer, count: int) -> Any:
    """Clients that guess passwords, all at once; who is refused comes again."""
    going = True

    async def guess(number: int) -> None:
        while going:
            client = await Raw.connect(server.port, login("eve", f"wrong{number}"))
            await client.rest()
            await client.close()

    tasks = [asyncio.create_task(guess(i)) for i in range(count)]
    await eventually(lambda: len(server.connections()) >= count)
    try:
        yield
    finally:
        going = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_good_logins_are_served_amid_wrong_ones() -> None:
    auth._proofs.clear()
    async with serving(authorization=USERS) as server, flooded(server, 150):
        begin = time.perf_counter()
        async with await Raw.connect(server.port, login("bob", "secret")) as good:
            await good.expect(b"PONG\r\n")
        first = time.perf_counter() - begin
        checked: list[str] = []
        real = auth._bcrypt

        def noting(stored: str, given: str, proof: bytes) -> bool:
            checked.append(given)
            return real(stored, given, proof)

        # Who has come before does not even have to wait for his turn.
        auth._bcrypt = noting
        try:
            async with await Raw.connect(server.port, login("bob", "secret")) as good:
                await good.expect(b"PONG\r\n")
        finally:
            auth._bcrypt = real
        assert "secret" not in checked
        # A hundred and fifty guesses take ten seconds of an idle machine.
        assert first < 60


@pytest.fixture
def held_checks(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], threading.Event]:
    """Passwords are checked by one thread, once the event is set; and which were checked, in order."""
    heard: list[str] = []
    gate = threading.Event()

    def slow(stored: str, given: str, proof: bytes) -> bool:
        gate.wait(60)
        heard.append(given)
        return given == "secret"

    monkeypatch.setattr(auth, "_bcrypt", slow)
    monkeypatch.setattr(auth.os, "cpu_count", lambda: 1)
    auth._proofs.clear()
    return heard, gate


async def test_a_good_login_waits_for_its_turn_only(held_checks: tuple[list[str], threading.Event]) -> None:
    """Turns are counted: of those who guess, at most a few are heard before another user is."""
    heard, gate = held_checks

    async with serving(authorization=USERS) as server, flooded(server, 100):
        async with await Raw.connect(server.port, login("bob", "secret")) as good:
            await eventually(
                lambda: any(c.state is ClientState.CHECKING and c.user == "" for c in server.connections())
            )
            await eventually(lambda: any(line[1] == "bob" for line in server.slow_checks._lines))
            gate.set()
            await good.expect(b"PONG\r\n")
        assert heard.index("secret") <= 3


def test_a_full_queue_of_passwords_takes_others_only_for_those_who_have_gone() -> None:
    checks, check = auth.SlowChecks(), auth.Check(auth.Identity(), lambda: True, slow=True)
    checks._free_threads = 0
    gone: set[int] = set()
    for number in range(300):
        checks.put(("host", "eve"), check, lambda number=number: number not in gone, lambda passed: None)
        gone.add({200: 3, 250: 5}.get(number, -1))
    checks.put(("host", "bob"), check, lambda: True, lambda passed: None)
    eve, bob = checks._lines.values()
    assert len(eve) == 64 and all(each.wanted() for each in eve) and len(bob) == 1


async def test_who_has_gone_is_not_checked(held_checks: tuple[list[str], threading.Event]) -> None:
    heard, gate = held_checks

    options = {"authorization": Authorization(users=USERS.users, timeout=0.2)}
    async with serving(**options) as server:
        for i in range(100):
            client = await Raw.connect(server.port, login("eve", f"wrong{i}"))
            await client.close()
        await eventually(lambda: len(server.closed) == 100)
        assert sum(map(len, server.slow_checks._lines.values())) <= 64
        server.options = NatsOptions(authorization=USERS)
        async with await Raw.connect(server.port, login("bob", "secret")) as good:
            gate.set()
            await good.expect(b"PONG\r\n")
        await eventually(lambda: not server.slow_checks._lines)
        # The one that was under way when it went.
        assert len(heard) <= 2


def test_ending_does_not_wait_for_passwords(tmp_path: Path) -> None:
    """SIGTERM amid wrong logins: the process ends when the check under way does, not when all have been made."""
    slow = bcrypt.hashpw(b"secret", bcrypt.gensalt(11)).decode()
    config = tmp_path / "broker.conf"
    config.write_text(
        f'authorization {{ timeout: 600, users: [ {{user: "eve", password: "{slow}"}}, {{user: s, password: s}} ] }}\n'
    )
    with Broker(tmp_path / "broker", "-c", config, "--user", "s", "--pass", "s") as broker:
        clients = []
        for i in range(200):
            client = attacks().socket.create_connection(("127.0.0.1", broker.port))
            client.recv(4096)
            client.sendall(login("eve", f"wrong{i}"))
            clients.append(client)
        # The first is refused: they are being checked.
        assert attacks().select.select(clients, [], [], 60)[0]
        begin = time.thread_time(), time.perf_counter()
        assert broker.stop(15) == 143
        # All of them would take 200 times 0.1 s of a processor, or more.
        assert time.perf_counter() - begin[1] < 15
        for client in clients:
            client.close()


# Pings


async def test_no_ping_before_the_first_pong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client takes what comes for the answer to its own PING."""

    server = NatsServer(NatsOptions(host="127.0.0.1", port=-1))
    await server.start()
    try:
        async with await Raw.connect(server.port, b"CONNECT {}\r\n") as client:
            await client.expect(b"+OK\r\n")
            [connection] = server.connections()
            # However long it takes the client until it goes on, up to the interval of pings.
            assert connection.ping_at - time.monotonic_ns() > 100e9
            client.send(b"PING\r\n")
            await client.expect(b"PONG\r\n")
            assert connection.ping_at - time.monotonic_ns() < 3e9
            await client.expect(b"PING\r\n")
            client.send(b"PONG\r\n")
            await eventually(lambda: connection.rtt)
    finally:
        await server.stop()
    assert server.closed[0].reason in (CloseReason.CLIENT_CLOSED, CloseReason.SERVER_SHUTDOWN)
