"""The streams of a JetStream account as the server describes them, asked again and again. Nothing is changed there.

`Streams.run` is the work of a job. Like `Monitor`, it is only read by the user interface.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from stantools.errors import StantoolsError
from stantools.nats.connection import Connection, connect
from stantools.nats.errors import CannotConnectError, ConnectionLostError, NatsError, NobodyListensError
from stantools.nats.jetstream import JetStream
from stantools.nats.options import ConnectOptions
from tui.jobs import Job
from tui.live.background import run_async
from tui.live.history import Meter
from tui.live.monitor import Event
from tui.live.pace import Pace
from tui.live.streamfacts import Account, Consumer, Stream, read_account, read_consumer, read_stream

_LOOK = 0.1
_EVENTS = 100


class WatchedStream:
    """A stream.

    Attributes:
        facts: What the server said last.
        meter: How fast its last sequence grows.
        consumers: Its consumers; None while nobody has asked for them.
    """

    __slots__ = ("consumers", "facts", "meter")

    def __init__(self, facts: Stream) -> None:
        self.facts = facts
        self.meter = Meter()
        self.consumers: list[Consumer] | None = None


class Streams:
    """An account that is watched.

    Args:
        connecting: How to reach it.
        clock: Tells seconds that only go forward.
        wall: Tells seconds since 1970.

    Attributes:
        pace: How often it is asked.
        focus: The stream whose consumers are asked for, too.
        server: Name and version of the server that we are connected to.
        url: Where we are connected, or want to be; without user and password.
        account: Use and limits; None before the first answer.
        streams: By name.
        events: What happened: the server gone and back.
        problem: Why it could not be asked in the last round; None if it could. What is known is old then.
        answered: When it answered last, by the clock; None if never.
        took: Seconds that the last round took.
        revision: Grows with every round.
    """

    def __init__(
        self,
        connecting: ConnectOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.connecting = connecting
        self.pace = Pace()
        self.focus: str | None = None
        self.server = ""
        self.version = ""
        self.url = ", ".join(connecting.servers) or "the server"
        self.account: Account | None = None
        self.streams: dict[str, WatchedStream] = {}
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.problem: StantoolsError | None = None
        self.answered: float | None = None
        self.took = 0.0
        self.revision = 0
        self._clock, self._wall = clock, wall

    @property
    def age(self) -> float:
        """For how many seconds the server has not answered; 0 if it never did."""
        return self._clock() - self.answered if self.answered is not None else 0.0

    def run(self, job: Job[None]) -> None:
        """Connects, and asks again and again until the job is cancelled.

        Raises:
            StantoolsError: The options cannot be used at all.
        """
        run_async(job, self._run())

    async def _run(self) -> None:
        while True:
            try:
                async with connect(self.connecting, name="stantools tui") as connection:
                    await self._watch(connection)
            except (CannotConnectError, ConnectionLostError) as problem:
                self._fail(problem)
            await self._wait(self.focus)

    async def _watch(self, connection: Connection) -> None:
        """Asks for as long as the connection lives; it mends itself for a while."""
        js = JetStream(connection)
        while True:
            focus = self.focus
            try:
                if not connection.connected:
                    raise ConnectionLostError(
                        f"{self.url}: the connection broke", "the client goes on trying to connect"
                    )
                self.url, self.server = connection.url, connection.server_name
                self.version = str(connection.info.get("version", ""))
                await self._ask(js)
            except NatsError as problem:
                if connection.closed:
                    raise
                self._fail(problem)
            await self._wait(focus)

    async def _ask(self, js: JetStream) -> None:
        begun = self._clock()
        account = read_account(await self._account(js))
        found = [read_stream(info) for info in await self._all(js, "STREAM.LIST", "streams")]
        at = self._clock()
        streams: dict[str, WatchedStream] = {}
        for facts in sorted(found, key=lambda each: each.name):
            watched = self.streams.get(facts.name) or WatchedStream(facts)
            watched.facts = facts
            watched.meter.see(facts.last, at)
            streams[facts.name] = watched
        focus = streams.get(self.focus or "")
        if focus is not None:
            infos = await self._all(js, f"CONSUMER.LIST.{focus.facts.name}", "consumers")
            focus.consumers = [read_consumer(info) for info in infos]
        if self.problem is not None:
            self._tell("the server answers again")
        self.account, self.streams, self.problem = account, streams, None
        self.answered, self.took = at, self._clock() - begun
        self.revision += 1

    async def _account(self, js: JetStream) -> dict[str, Any]:
        try:
            return await js.account()
        except NobodyListensError as problem:
            message = f"{js.connection.url} has no JetStream for this user"
            raise NobodyListensError(message, problem.remedy) from None

    async def _all(self, js: JetStream, operation: str, member: str) -> list[dict[str, Any]]:
        """Turns the pages of a list. What is no object in it is left out."""
        found: list[dict[str, Any]] = []
        offset = 0
        while True:
            answer = await js.api(operation, {"offset": offset}, asks=True)
            page = answer.get(member)
            page = page if isinstance(page, list) else []
            found += [each for each in page if isinstance(each, dict)]
            offset += len(page)
            total = answer.get("total")
            if not page or not isinstance(total, int) or offset >= total:
                return found

    async def _wait(self, focus: str | None) -> None:
        """Waits until the next round is due, or another stream than the given one is looked at."""
        begun = self._clock()
        while self.pace.left(self._clock() - begun) > 0 and self.focus == focus:
            await asyncio.sleep(_LOOK)

    def _fail(self, problem: StantoolsError) -> None:
        if self.problem is None and self.answered is not None:
            self._tell(f"the server does not answer: {problem.message}", bad=True)
        self.problem = problem
        self.revision += 1

    def _tell(self, text: str, *, bad: bool = False) -> None:
        self.events.append(Event(self._wall(), text, bad))
