"""Servers on the same streams: one leads, the others follow until they can take the lease.

Facts: high-availability.md section C.3.

Each time that it leads, it makes a new server, with a bus and a store of its own: a *term*. It begins on standby, where
its copy of the channels is kept up to date, and ends when the lease is lost, with everything that it had; the process
goes on with the next term. Nothing has to be put back into the state of a server that has never led.

Whoever leads answers a question that the others ask several times a second. Where NATS says that nobody listens, they
try to take the lease at once. That is a hint only, and so is the time of the lease: the streams decide who leads.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.log import STREAMING
from broker.stores.interface import FasterError, Remote, StorageError
from broker.streaming.names import leader_subject
from broker.streaming.ports import Answer, Bus, Outcome, Role
from broker.streaming.requests import Request, one_by_one
from stantools.errors import StantoolsError
from stantools.nats.errors import NatsError

if TYPE_CHECKING:
    from broker.stores.jetstream.ports import Streams
    from broker.streaming.server import StreamingServer
    from stantools.nats.channel_streams import Names

LEADER: Final = "Leader"
FOLLOWER: Final = "Follower"
CANDIDATE: Final = "Candidate"
_SECOND: Final = 1_000_000_000
#: Seconds between two questions whether somebody leads, for an answer, and how often nobody has to be there.
_ASKED: Final = 0.1
_ANSWERED: Final = 0.5
_NOBODY: Final = 3
#: Looks at the state's stream in the time of a lease.
_LOOKS: Final = 4
#: By which part of a lease's time servers differ at most when they take one that is over.
_SPREAD: Final = 0.1
#: The part of a lease's time for which the state's stream does not grow where nobody leads.
_QUIET: Final = 0.7
#: Seconds between two rounds in which the copy follows the streams, as a part of the last one's time, and at most.
_ROUNDS: Final = 0.5, 10, 5.0
#: Seconds for which whoever has seen nobody lead waits for the one that led last, where only that one may have what the
#: streams have lost; and without JetStream, after which nothing counts that was seen before.
_COMING_BACK: Final = 30.0
_AWAY: Final = 15.0
#: Seconds without JetStream until a first word about it, and until another.
_SILENCE: Final = 5.0, 30.0
#: How many times as long as a lease the last record is old, by the clocks of the NATS servers, where surely none leads.
_OLD: Final = 3
#: Parts of a lease's time for which an answer about the state's stream is waited for, in turn, until there was one:
#: JetStream never answers what it was asked while it had no leader, and may need longer where much is to do.
_WAITS: Final = 0.125, 0.125, 0.25, 0.5
#: Seconds for which the copy may not follow the streams before that is worth a word: nodes start one after the other.
_UNFOLLOWED: Final = 15.0
#: Seconds until a term follows one that went wrong.
_AGAIN: Final = 0.5
#: Digits of a second beyond those that Python takes.
_DIGITS: Final = re.compile(r"(\.\d{6})\d+")


def seconds_of(text: str | None) -> float | None:
    """Returns a time of JetStream's API in seconds since the epoch; None if there is none."""
    try:
        return datetime.fromisoformat(_DIGITS.sub(r"\1", text)).timestamp() if text else None
    except ValueError:
        return None


class Connections(Bus, Protocol):
    """A bus that is opened for a term, and closed at its end."""

    async def connect(self) -> None:
        """Connects. Raises a `StantoolsError` if there is nobody."""

    async def close(self) -> None:
        """Disconnects; no handler is called any more."""


@dataclass(slots=True)
class Term:
    """What a server has from standing by to the end of its leading."""

    bus: Connections
    store: Remote
    server: StreamingServer
    stop: Callable[[], None]  #: ends server and store


class Group:
    """A server among others, of which one leads.

    Args:
        streams: JetStream.
        names: What the streams are called.
        node_id: What this server is called.
        seconds: How long a lease is good for.
        make: Makes what a term needs; what it is given is to be called with the reason when the lease is lost.
        serves: Called with a term when clients can connect.
        failed: Called with the reason when this server cannot go on.
        chance: Where servers differ; the system's by default.

    Attributes:
        node_id: What this server is called.
        role: What it is.
    """

    def __init__(
        self,
        streams: Streams,
        names: Names,
        node_id: str,
        seconds: float,
        make: Callable[[Callable[[str], None]], Term],
        serves: Callable[[Term], None],
        failed: Callable[[str], None],
        chance: random.Random | None = None,
    ) -> None:
        self.node_id = node_id
        self.role = FOLLOWER
        self._streams = streams
        self._names = names
        self._seconds = seconds
        self._make = make
        self._serves = serves
        self._failed = failed
        self._chance = chance or random.SystemRandom()
        self._came: float | None = None  # when it came, or came back, as long as it has seen nobody lead since
        self._subject = leader_subject(names.cluster_id.encode())
        self._over: asyncio.Future[str]
        self._term: Term
        self._running: asyncio.Task[None] | None = None

    async def start(self, *, check: bool = True) -> None:
        """Joins the others.

        Args:
            check: Make sure first that JetStream is there; otherwise it may come later, with the other nodes.

        Raises:
            StantoolsError: NATS cannot be reached, or the streams are not as they should be.
        """
        self._begin()
        self._came = asyncio.get_running_loop().time()
        await self._term.bus.connect()
        try:
            if check:
                await self._term.store.check()
        except StantoolsError:
            await self._end()
            raise
        self._running = asyncio.get_running_loop().create_task(self._run())
        self._running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled():
            self._failed(f"This server cannot go on in its group: {running.exception()!r}")

    async def stop(self) -> None:
        """Leaves the group and releases the lease."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None

    @property
    def server(self) -> StreamingServer:
        """The server of this term."""
        return self._term.server

    # Terms

    def _begin(self) -> None:
        over = self._over = asyncio.get_running_loop().create_future()
        self._term = self._make(lambda reason: None if over.done() else over.set_result(reason))

    async def _end(self) -> None:
        self.role = FOLLOWER
        self._term.stop()
        await self._term.bus.close()

    async def _run(self) -> None:
        said = ""
        while True:
            try:
                await self._stand_by()
                await self._lead()
                said = ""
            except FasterError as problem:
                STREAMING.info("This server goes on following: %s", problem)
            except StantoolsError as problem:
                if said != (said := str(problem)):
                    STREAMING.error("This server cannot lead yet: %s", problem)
            except asyncio.CancelledError:
                if self.role == LEADER:
                    await self._term.store.finish()
                await self._end()
                raise
            led = self.role == LEADER
            if led:
                STREAMING.info("server lost leadership, performing leader stepdown actions")
            await self._end()
            if led:
                STREAMING.info("finished leader stepdown actions")
            await self._connect()

    async def _connect(self) -> None:
        """Begins a term as soon as there is a connection."""
        while True:
            await asyncio.sleep(_AGAIN)
            self._begin()
            try:
                await self._term.bus.connect()
            except StantoolsError as problem:
                STREAMING.debug("There is no connection yet: %s", problem)
                self._term.stop()
            else:
                return

    def _is_new(self) -> bool:
        """Returns whether it has seen nobody lead, and whoever led before may still come."""
        return self._came is not None and asyncio.get_running_loop().time() < self._came + _COMING_BACK

    # On standby

    async def _stand_by(self) -> None:
        """Keeps the copy up to date until the lease can be taken, as far as that can be determined."""
        copying = asyncio.get_running_loop().create_task(self._copy())
        try:
            await self._watch()
        finally:
            copying.cancel()
            await asyncio.wait([copying])

    async def _copy(self) -> None:
        loop = asyncio.get_running_loop()
        since: float | None = None  # when it began not to follow
        said = False
        pause, times, most = _ROUNDS
        while True:
            begin = loop.time()
            try:
                await self._term.store.follow()
                if said:
                    STREAMING.info("The copy in files follows the streams again")
                since, said = None, False
            except (NatsError, StorageError) as problem:
                since = begin if since is None else since
                if not said and loop.time() - since >= _UNFOLLOWED:
                    said = True
                    STREAMING.warning("The copy in files does not follow the streams: %s", problem)
            await asyncio.sleep(min(max(pause, times * (loop.time() - begin)), most))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        patience = self._seconds * self._chance.uniform(1, 1 + _SPREAD)
        last, since, look, silent = -1, loop.time(), 0.0, 0
        heard = since
        first, often = _SILENCE
        say = since + first
        linked = old = False
        waits = itertools.cycle(_WAITS)
        while True:
            nobody = await self._nobody_leads()
            silent = silent + 1 if nobody else 0
            # A NATS server that has just started knows nobody on the others yet: its word counts when it has found a
            # leader once, or when none writes either, or has written for long.
            linked = linked or not nobody
            quiet = last >= 0 and (old or loop.time() - since >= _QUIET * self._seconds)
            if silent >= _NOBODY and (linked or quiet):
                return
            if (now := loop.time()) >= look:
                found, old = await self._last_record(next(waits) if last < 0 else max(_WAITS))
                look = now + self._seconds / _LOOKS if found >= 0 else 0.0
                if found >= 0:
                    heard = loop.time()
                    say = heard + first
                elif now >= say:
                    say = now + often
                    STREAMING.warning(
                        "JetStream does not answer yet: nobody serves clients before a majority of the NATS servers is "
                        "there, when the streams are made all %d",
                        self._names.replicas,
                    )
                if found < 0 and loop.time() - heard > _AWAY:
                    # It knows no more than one that has just started.
                    self._came = loop.time()
                if 0 <= last < found:
                    self._came = None
                if found != last or found < 0:
                    # Time without JetStream does not count: nobody could have written.
                    last, since = found, loop.time()
                elif loop.time() - since >= patience:
                    return
            # Those who have missed the leader at the same time are not to try at the same time.
            await asyncio.sleep(_ASKED * self._chance.uniform(0.5, 1.5))

    async def _nobody_leads(self) -> bool:
        """Asks who leads; returns whether NATS says that nobody would answer."""
        outcome: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not outcome.done():
                outcome.set_result(answer)

        self._term.bus.request(Role.GENERAL, self._subject, b"", round(_ANSWERED * _SECOND), answered, to_servers=True)
        heard = await outcome
        if heard.outcome is Outcome.REPLY:
            self._term.store.heard(heard.payload)
        return heard.outcome is Outcome.NO_RESPONDERS

    async def _last_record(self, patience: float) -> tuple[int, bool]:
        """Returns where the stream of the state ends, and whether its last record is old."""
        try:
            async with asyncio.timeout(self._seconds * patience):
                info = await self._streams.stream_info(self._names.state)
        except (NatsError, TimeoutError):
            return -1, False
        if not info:
            return 0, False
        state = info["state"]
        written, asked = (seconds_of(text) for text in (state.get("last_ts"), info.get("ts")))
        old = written is not None and asked is not None and asked - written > _OLD * self._seconds
        return int(state["last_seq"]), old

    # Leading

    async def _lead(self) -> None:
        """Takes the lease, serves until it is lost, and says so."""
        term, over = self._term, self._over
        self.role = CANDIDATE

        def answer(request: Request) -> None:
            term.bus.publish(Role.GENERAL, request.reply, term.store.lease or self.node_id.encode())

        # From now on nobody else is to try, however long it takes to read the streams.
        term.bus.listen(Role.GENERAL, self._subject, one_by_one(answer))
        if not await self._unless_over(term.store.prepare(newcomer=self._is_new())):
            return
        self.role = LEADER
        STREAMING.info("server became leader, performing leader promotion actions")
        problem: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        term.server.start(lambda: problem.set_result(""), problem.set_result)
        if await self._unless_over(problem):
            if problem.result():
                raise StorageError(problem.result())
            STREAMING.info("finished leader promotion actions")
            self._serves(term)
            await self._unless_over(self._look_again(term))
        STREAMING.warning("The lease is lost: %s", await over)

    async def _look_again(self, term: Term) -> None:
        """Looks, when the time of the lease before is over, what whoever had it has still got in."""
        await asyncio.sleep(self._seconds)
        term.server.look_again(await term.store.look_again())

    async def _unless_over(self, work: Awaitable[Any]) -> bool:
        """Waits for something, or until the lease is lost. Returns whether it was done."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, self._over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if self._over.done():
            return False
        task.result()
        return True
