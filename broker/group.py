"""Servers that share streams: one leads, the others follow until they can take the lease.

Facts: high-availability.md section C.3.

For every *term* a server is made anew, with its own bus and store. A term begins on standby, where the copy of the
channels is kept up to date, and ends with the loss of the lease; then the process starts the next term. No state of
an earlier term has to be undone.

The leader answers a question that the others ask several times a second. If NATS reports no responders, the others
try to take the lease at once. That report is only a hint, as is the duration of the lease: the streams decide who
leads.
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
from broker.stores.interface import LeaseLostError, RemoteStore, StorageError
from broker.streaming.names import leader_subject
from broker.streaming.ports import RequestAnswer, RequestOutcome, Role, StreamingBus
from broker.streaming.requests import StreamingRequest, per_request
from stantools.errors import StantoolsError
from stantools.nats.errors import NatsError

if TYPE_CHECKING:
    from broker.stores.jetstream.jetstream_port import JetStreamPort
    from broker.streaming.server import StreamingServer
    from stantools.nats.channel_streams import StreamNames

LEADER: Final = "Leader"
FOLLOWER: Final = "Follower"
CANDIDATE: Final = "Candidate"
_SECOND: Final = 1_000_000_000
#: Seconds between two questions for the leader, seconds to wait for an answer, and the number of successive reports of
#: no responders after which there is no leader.
_QUESTION_INTERVAL: Final = 0.1
_ANSWER_TIMEOUT: Final = 0.5
_REPORTS_NEEDED: Final = 3
#: Reads of the state stream's end per lease duration.
_READS_PER_LEASE: Final = 4
#: Maximum random extension of the wait for an expired lease, as a fraction of its duration.
_MAX_JITTER: Final = 0.1
#: Without a leader the state stream does not grow for this fraction of a lease's duration.
_QUIET_FRACTION: Final = 0.7
#: Seconds between two updates of the copy: minimum, multiple of the last one's duration, maximum.
_COPY_INTERVAL: Final = 0.5, 10, 5.0
#: Seconds that a server which has not seen a leader waits for the last leader, if only that one may have messages that
#: the streams have lost; and seconds without JetStream after which earlier observations are discarded.
_RETURN_TIME: Final = 30.0
_OUTAGE: Final = 15.0
#: Seconds without JetStream before the first warning, and between warnings.
_WARNING_INTERVALS: Final = 5.0, 30.0
#: Age of the last record, in lease durations by the NATS servers' clocks, at which there is certainly no leader.
_OLD_LEASES: Final = 3
#: Fractions of a lease's duration to wait for the state stream's end, in turn, until the first answer: JetStream never
#: answers requests received while it had no leader, and a busy one needs longer.
_STATE_TIMEOUTS: Final = 0.125, 0.125, 0.25, 0.5
#: Seconds without an updated copy before a warning: nodes start one after the other.
_COPY_GRACE: Final = 15.0
#: Seconds between a failed term and the next one.
_RETRY: Final = 0.5
#: Fractional digits of a second that Python cannot parse.
_DIGITS: Final = re.compile(r"(\.\d{6})\d+")


def seconds_of(text: str | None) -> float | None:
    """Returns a time of JetStream's API in seconds since the epoch; None for None."""
    try:
        return datetime.fromisoformat(_DIGITS.sub(r"\1", text)).timestamp() if text else None
    except ValueError:
        return None


class Connections(StreamingBus, Protocol):
    """A bus that is opened for a term and closed at its end."""

    async def connect(self) -> None:
        """Connects. Raises a `StantoolsError` without a server."""

    async def close(self) -> None: ...


@dataclass(slots=True)
class LeaderTerm:
    bus: Connections
    store: RemoteStore
    server: StreamingServer
    stop: Callable[[], None]  #: ends server and store


class ServerGroup:
    """A server of a group with one leader.

    Args:
        streams: JetStream.
        names: Names of the streams.
        node_id: Name of this server.
        seconds: Duration of a lease.
        make: Makes the objects of a term; its argument must be called with the reason when the lease is lost.
        serves: Called with a term when clients can connect.
        failed: Called with the reason when this server cannot continue.
        chance: Source of random delays; the system's by default.

    Attributes:
        node_id: Name of this server.
        role: Present role.
    """

    def __init__(
        self,
        streams: JetStreamPort,
        names: StreamNames,
        node_id: str,
        seconds: float,
        make: Callable[[Callable[[str], None]], LeaderTerm],
        serves: Callable[[LeaderTerm], None],
        failed: Callable[[str], None],
        chance: random.Random | None = None,
    ) -> None:
        self.node_id = node_id
        self.role = FOLLOWER
        self._streams = streams
        self._names = names
        self._lease_seconds = seconds
        self._make = make
        self._on_leader = serves
        self._on_failure = failed
        self._random = chance or random.SystemRandom()
        self._start_time: float | None = None  # time of its start or return; None once it has seen a leader
        self._answered_at = 0.0  # time of the last answer of JetStream
        self._subject = leader_subject(names.cluster_id.encode())
        self._lease_loss: asyncio.Future[str]
        self._term: LeaderTerm
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, check: bool = True) -> None:
        """Joins the group.

        With `check`, JetStream must be available; otherwise it may come later, with the other nodes. Raises
        `StantoolsError` if NATS is out of reach, or the streams are wrong.
        """
        self._begin()
        self._start_time = self._answered_at = asyncio.get_running_loop().time()
        await self._term.bus.connect()
        try:
            if check:
                await self._term.store.check()
        except StantoolsError:
            await self._end()
            raise
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled():
            self._on_failure(f"This server cannot continue in its group: {running.exception()!r}")

    async def stop(self) -> None:
        """Leaves the group and releases the lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    @property
    def server(self) -> StreamingServer:
        return self._term.server

    # Terms

    def _begin(self) -> None:
        over = self._lease_loss = asyncio.get_running_loop().create_future()
        self._term = self._make(lambda reason: None if over.done() else over.set_result(reason))

    async def _end(self) -> None:
        self.role = FOLLOWER
        self._term.stop()
        await self._term.bus.close()

    async def _run(self) -> None:
        reported = ""
        while True:
            try:
                await self._stand_by()
                await self._lead()
                reported = ""
            except LeaseLostError as problem:
                STREAMING.info("This server remains a follower: %s", problem)
            except StantoolsError as problem:
                if reported != (reported := str(problem)):
                    STREAMING.error("This server cannot lead yet: %s", problem)
            except asyncio.CancelledError:
                if self.role == LEADER:
                    await self._term.store.finish()
                await self._end()
                raise
            led = self.role == LEADER
            if led:
                self._answered_at = asyncio.get_running_loop().time()
                STREAMING.info("server lost leadership, performing leader stepdown actions")
            await self._end()
            if led:
                STREAMING.info("finished leader stepdown actions")
            await self._connect()

    async def _connect(self) -> None:
        while True:
            await asyncio.sleep(_RETRY)
            self._begin()
            try:
                await self._term.bus.connect()
            except StantoolsError as problem:
                STREAMING.debug("No connection yet: %s", problem)
                self._term.stop()
            else:
                return

    # Standby

    async def _stand_by(self) -> None:
        """Keeps the copy up to date until there seems to be no leader."""
        copying = asyncio.get_running_loop().create_task(self._copy())
        try:
            await self._watch()
        finally:
            copying.cancel()
            await asyncio.wait([copying])

    async def _copy(self) -> None:
        loop = asyncio.get_running_loop()
        since: float | None = None  # start of the time without an updated copy
        warned = False
        pause, times, most = _COPY_INTERVAL
        while True:
            begin = loop.time()
            try:
                await self._term.store.follow()
                if warned:
                    STREAMING.info("The copy in files follows the streams again")
                since, warned = None, False
            except (NatsError, StorageError) as problem:
                since = begin if since is None else since
                if not warned and loop.time() - since >= _COPY_GRACE:
                    warned = True
                    STREAMING.warning("The copy in files does not follow the streams: %s", problem)
            await asyncio.sleep(min(max(pause, times * (loop.time() - begin)), most))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        patience = self._lease_seconds * self._random.uniform(1, 1 + _MAX_JITTER)
        last, since, look, silent = -1, loop.time(), 0.0, 0
        first, often = _WARNING_INTERVALS
        say = since + first
        linked = old = False
        waits = itertools.cycle(_STATE_TIMEOUTS)
        while True:
            nobody = await self._has_no_leader()
            silent = silent + 1 if nobody else 0
            # A NATS server that has just started does not know the other servers' clients. Its report counts after it
            # has once found a leader, or when the state stream has stopped growing, or its last record is old.
            linked = linked or not nobody
            quiet = last >= 0 and (old or loop.time() - since >= _QUIET_FRACTION * self._lease_seconds)
            if silent >= _REPORTS_NEEDED and (linked or quiet):
                return
            if (now := loop.time()) >= look:
                found, old = await self._last_record(next(waits) if last < 0 else max(_STATE_TIMEOUTS))
                look = now + self._lease_seconds / _READS_PER_LEASE if found >= 0 else 0.0
                if found >= 0:
                    self._answered_at = loop.time()
                    say = self._answered_at + first
                else:
                    self._note_silence(loop.time())
                    if now >= say:
                        say = now + often
                        STREAMING.warning(
                            "JetStream does not answer yet: it serves clients once a majority of the NATS servers "
                            "runs, and creates the streams once all %d do",
                            self._names.replicas,
                        )
                if 0 <= last < found:
                    self._start_time = None
                if found != last or found < 0:
                    # Time without JetStream does not count: no leader could have written.
                    last, since = found, loop.time()
                elif loop.time() - since >= patience:
                    return
            # Servers that have noticed the loss at the same time must not try at the same time.
            await asyncio.sleep(_QUESTION_INTERVAL * self._random.uniform(0.5, 1.5))

    def _note_silence(self, time: float) -> None:
        """Records that JetStream did not answer at a time."""
        if time - self._answered_at > _OUTAGE:
            # It knows no more than a server that has just started.
            self._start_time = time

    def _is_newcomer(self, unanswered_at: float) -> bool:
        """Returns whether it has seen no leader yet, and the last leader may still return.

        JetStream, which answers now, did not at `unanswered_at`; 0 if it always did.
        """
        self._note_silence(unanswered_at)
        return self._start_time is not None and asyncio.get_running_loop().time() < self._start_time + _RETURN_TIME

    async def _has_no_leader(self) -> bool:
        """Asks for the leader; returns whether NATS reports no responders."""
        outcome: asyncio.Future[RequestAnswer] = asyncio.get_running_loop().create_future()

        def answered(answer: RequestAnswer) -> None:
            if not outcome.done():
                outcome.set_result(answer)

        self._term.bus.request(
            Role.GENERAL, self._subject, b"", round(_ANSWER_TIMEOUT * _SECOND), answered, to_servers=True
        )
        reply = await outcome
        if reply.outcome is RequestOutcome.REPLY:
            self._term.store.note_lease(reply.payload)
        return reply.outcome is RequestOutcome.NO_RESPONDERS

    async def _last_record(self, patience: float) -> tuple[int, bool]:
        """Returns the last sequence of the state stream, and whether its last record is old.

        The sequence is -1 without an answer within `patience`, a fraction of a lease's duration.
        """
        try:
            async with asyncio.timeout(self._lease_seconds * patience):
                info = await self._streams.stream_info(self._names.state)
        except (NatsError, TimeoutError):
            return -1, False
        if not info:
            return 0, False
        state = info["state"]
        written, asked = (seconds_of(text) for text in (state.get("last_ts"), info.get("ts")))
        old = written is not None and asked is not None and asked - written > _OLD_LEASES * self._lease_seconds
        return int(state["last_seq"]), old

    # Leadership

    async def _lead(self) -> None:
        """Takes the lease and serves until it is lost, then logs the reason."""
        term, over = self._term, self._lease_loss
        self.role = CANDIDATE

        def answer(request: StreamingRequest) -> None:
            term.bus.publish(Role.GENERAL, request.reply, term.store.lease or self.node_id.encode())

        # The answer to the question keeps other servers from trying while this one reads the streams.
        term.bus.listen(Role.GENERAL, self._subject, per_request(answer))
        if not await self._until_lease_loss(term.store.prepare(newcomer=self._is_newcomer)):
            return
        self.role = LEADER
        STREAMING.info("server became leader, performing leader promotion actions")
        problem: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        term.server.start(lambda: problem.set_result(""), problem.set_result)
        if await self._until_lease_loss(problem):
            if problem.result():
                raise StorageError(problem.result())
            STREAMING.info("finished leader promotion actions")
            self._on_leader(term)
            await self._until_lease_loss(self._read_late_records(term))
        STREAMING.warning("The lease is lost: %s", await over)

    async def _read_late_records(self, term: LeaderTerm) -> None:
        """When the last lease has surely expired, reads the records that its holder could still append."""
        await asyncio.sleep(self._lease_seconds)
        term.server.deliver_new(await term.store.update_changed_channels())

    async def _until_lease_loss(self, work: Awaitable[Any]) -> bool:
        """Waits for `work` or the loss of the lease. Returns whether the work is done."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, self._lease_loss], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if self._lease_loss.done():
            return False
        task.result()
        return True
