"""The streams of a JetStream account, polled. Nothing is changed on the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection, connect
from stantools.nats.errors import CannotConnectError, ConnectionLostError, NatsError, NoResponderError
from stantools.nats.jetstream import JetStream
from tui.jobs import Cancelled, Job
from tui.live.facts import LiveAccount, LiveConsumer, LiveStream, read
from tui.live.source import LiveSource, PollInterval, RateMeter

_T = TypeVar("_T")
_LOOK = 0.1


def run_async(job: Job[_T], work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in this thread until it ends or the job is cancelled.

    After a cancellation it raises `Cancelled`, when the coroutine has ended.
    """
    # The terminal belongs to the browser, so log lines of libraries are dropped; every problem also raises an
    # exception.
    for name in ("asyncio", "nats"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    async def run() -> _T:
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not job.cancelling:
                await asyncio.wait({task}, timeout=_LOOK)
            # Cancel only once: its cleanup must not be interrupted.
            task.cancel()
            return await task
        except asyncio.CancelledError:
            raise Cancelled from None

    return asyncio.run(run())


class WatchedStream:
    __slots__ = ("consumers", "facts", "meter")

    def __init__(self, facts: LiveStream) -> None:
        self.facts = facts  #: the server's last answer
        self.meter = RateMeter()  #: growth of its last sequence
        self.consumers: list[LiveConsumer] | None = None  #: its consumers; None until they are requested


class StreamsSource(LiveSource):
    """The streams of a watched account; `connecting` names its server."""

    def __init__(self, connect_options: ConnectOptions, pace: PollInterval) -> None:
        super().__init__("streams", pace, time.monotonic, time.time)
        self.connect_options = connect_options
        self.focus: str | None = None  #: the stream whose consumers are polled
        self.server = ""  #: name and version of the connected server
        self.version = ""
        #: URL of the server, without user and password
        self.url = ", ".join(connect_options.servers) or "the server"
        self.account: LiveAccount | None = None  #: use and limits; None before the first answer
        self.streams: dict[str, WatchedStream] = {}  #: by name

    def run(self, job: Job[None]) -> None:
        run_async(job, self._run())

    async def _run(self) -> None:
        while True:
            try:
                async with connect(self.connect_options, name="stantools tui") as connection:
                    await self._watch(connection)
            except (CannotConnectError, ConnectionLostError) as problem:
                self._fail(problem)
                self.revision += 1
            await self._wait(self.focus)

    async def _watch(self, connection: NatsConnection) -> None:
        """Polls while the connection lives; the client reconnects for a while by itself."""
        js = JetStream(connection)
        while True:
            focus = self.focus
            try:
                if not connection.connected:
                    raise ConnectionLostError(
                        f"{self.url}: the connection broke", "the client keeps trying to reconnect"
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
        try:
            account = read(LiveAccount, await js.account())
        except NoResponderError as problem:
            message = f"{js.connection.url} has no JetStream for this user"
            raise NoResponderError(message, problem.remedy) from None
        found = [read(LiveStream, info) for info in await self._all(js, "STREAM.LIST", "streams")]
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
            focus.consumers = [read(LiveConsumer, info) for info in infos]
        if self.problem is not None:
            self._tell("the server answers again")
        self.account, self.streams, self.problem = account, streams, None
        self.answered, self.took = at, self._clock() - begun
        self.revision += 1

    async def _all(self, js: JetStream, operation: str, member: str) -> list[dict[str, Any]]:
        """Requests all pages of a list; entries that are not objects are skipped."""
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
        """Waits for the next round, or until the view selects another stream than `focus`."""
        begun = self._clock()
        while self.pace.left(self._clock() - begun) > 0 and self.focus == focus:
            await asyncio.sleep(_LOOK)
