"""Starting a replay: what was asked for, put together."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass

from stantools.migration.replay.core import CorePublisher
from stantools.migration.replay.jetstream import JetStreamPublisher
from stantools.migration.replay.ledger import Ledger
from stantools.migration.replay.pacing import Pacer
from stantools.migration.replay.publisher import Publisher
from stantools.migration.replay.run import Outcome, Replay
from stantools.migration.replay.selection import ReplayPlan
from stantools.migration.replay.session import DISCOVER_PREFIX
from stantools.migration.replay.state import StateFile
from stantools.migration.replay.streaming import StreamingPublisher
from stantools.migration.target.connection import Connection, connect
from stantools.migration.target.options import ConnectOptions
from stantools.progress import Progress

#: What servers and clients use unless configured otherwise.
CLUSTER_ID = "test-cluster"
_SECOND = 1_000_000_000


class Kind(enum.StrEnum):
    """What messages are published as."""

    CORE = "core"
    JETSTREAM = "jetstream"
    STREAMING = "streaming"


@dataclass(frozen=True)
class Pace:
    """How fast.

    Attributes:
        speed: How many times faster than the original; None for as fast as possible.
        rate: Messages a second at most, None for no limit.
        longest_pause: Pauses are no longer than so many nanoseconds, None for no limit.
    """

    speed: float | None = 1.0
    rate: float | None = None
    longest_pause: int | None = None

    def pacer(self) -> Pacer:
        """Returns a pacer that begins now."""
        return Pacer(self.speed, self.rate, self.longest_pause)

    def seconds(self, plan: ReplayPlan) -> float:
        """Returns about how long a replay takes at least; at most, if pauses are shortened."""
        by_time = plan.span / _SECOND / self.speed if self.speed else 0.0
        return max(by_time, plan.messages / self.rate if self.rate else 0.0)


@dataclass(frozen=True)
class Destination:
    """Where to.

    Attributes:
        kind: What messages are published as.
        origin: Write headers with channel, sequence and timestamp; not for streaming.
        cluster_id: Of the streaming server.
        client_id: The name under which to register with it; one of the run's own if not given.
        discover_prefix: The streaming server's `discover_prefix`.
    """

    kind: Kind = Kind.CORE
    origin: bool = False
    cluster_id: str = CLUSTER_ID
    client_id: str | None = None
    discover_prefix: str = DISCOVER_PREFIX

    def publisher(self, connection: Connection, ledger: Ledger, plan: ReplayPlan, file: StateFile) -> Publisher:
        """Returns what publishes there.

        Args:
            connection: To the server.
            ledger: Keeps account.
            plan: What is replayed.
            file: How far it is.
        """
        state = file.state
        if self.kind is Kind.CORE:
            return CorePublisher(connection, ledger, plan.routes, origin=self.origin)
        if self.kind is Kind.JETSTREAM:
            return JetStreamPublisher(
                connection,
                ledger,
                plan.routes,
                position=plan.position,
                run=state.run,
                streams=state.streams,
                origin=self.origin,
            )
        return StreamingPublisher(
            connection,
            ledger,
            plan.routes,
            cluster_id=self.cluster_id,
            client_id=self.client_id or f"stantools-replay-{state.run}",
            run=state.run,
            discover_prefix=self.discover_prefix,
        )


async def replay(
    plan: ReplayPlan,
    connecting: ConnectOptions,
    destination: Destination,
    file: StateFile,
    pace: Pace,
    *,
    stop: asyncio.Event | None = None,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Replays what is left of a plan.

    Args:
        plan: All that is to be replayed.
        connecting: How to connect.
        destination: Where to.
        file: How far it is, and where to remember that.
        pace: How fast.
        stop: Set when the user wants to stop.
        say: Tells the user something at once.
        progress: Told the bytes of payload that were sent.

    Raises:
        StantoolsError: It cannot go on. What is confirmed is in the file.
    """
    async with connect(connecting, name="stantools replay") as connection:
        publisher = destination.publisher(connection, Ledger(file.state.channels), plan, file)
        run = Replay(plan, publisher, file, pace.pacer, limited=bool(pace.rate), stop=stop, say=say, progress=progress)
        return await run.run()
