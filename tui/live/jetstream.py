"""The streams of a JetStream account as the server describes them, asked again and again. Nothing is changed there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from stantools.nats.connection import Connection, connect
from stantools.nats.errors import CannotConnectError, ConnectionLostError, NatsError, NobodyListensError
from stantools.nats.jetstream import JetStream
from stantools.nats.options import ConnectOptions
from tui.jobs import Cancelled, Job
from tui.live.facts import Account, Consumer, Stream, read
from tui.live.source import LiveSource, Meter, Pace

_T = TypeVar("_T")
_LOOK = 0.1


def run_async(job: Job[_T], work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in this thread until it ends, or the job is cancelled.

    Raises:
        Cancelled: The job was cancelled; the coroutine has ended by then.
    """
    # What libraries would log belongs to nobody: every problem comes to us as an exception, and the screen is taken.
    for name in ("asyncio", "nats"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    async def run() -> _T:
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not job.cancelling:
                await asyncio.wait({task}, timeout=_LOOK)
            # Once: what it takes back on its way out must not be interrupted.
            task.cancel()
            return await task
        except asyncio.CancelledError:
            raise Cancelled from None

    return asyncio.run(run())


class WatchedStream:
    """A stream of a running server, as it was last seen."""

    __slots__ = ("consumers", "facts", "meter")

    def __init__(self, facts: Stream) -> None:
        self.facts = facts  #: what the server said last
        self.meter = Meter()  #: how fast its last sequence grows
        self.consumers: list[Consumer] | None = None  #: its consumers; None while nobody has asked for them


class Streams(LiveSource):
    """An account that is watched; see `LiveSource` for what is known of every server.

    Args:
        connecting: How to reach it.
        pace: How often it is asked.
    """

    def __init__(self, connecting: ConnectOptions, pace: Pace) -> None:
        super().__init__("streams", pace, time.monotonic, time.time)
        self.connecting = connecting
        self.focus: str | None = None  #: the stream whose consumers are asked for, too
        self.server = ""  #: name and version of the server that we are connected to
        self.version = ""
        #: Where we are connected, or want to be; without user and password.
        self.url = ", ".join(connecting.servers) or "the server"
        self.account: Account | None = None  #: use and limits; None before the first answer
        self.streams: dict[str, WatchedStream] = {}  #: by name

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
                self.revision += 1
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
                self.revision += 1
            await self._wait(focus)

    async def _ask(self, js: JetStream) -> None:
        begun = self._clock()
        account = read(Account, await self._account(js))
        found = [read(Stream, info) for info in await self._all(js, "STREAM.LIST", "streams")]
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
            focus.consumers = [read(Consumer, info) for info in infos]
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
        """Turns the pages of a list. What is not an object in it is left out."""
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
